"""The parent's handle of a worker process; each candidate has its own, so that they share no threads, memory or cache.

The process runs :mod:`compress.benchmarking.worker_main`: one JSON line is the request, one the answer. Arrays and
texts are passed as files in a directory of the parent.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from compress.errors import CompressError, Unavailable

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PACKAGE = Path(__file__).parent.parent


class Worker:
    """A model in a child process; calls block until it has answered."""

    def __init__(self, title: str, *, threads: int, scratch: Path, python: Path | None = None) -> None:
        """Start the child.

        Args:
            title: names it in errors.
            threads: what its libraries are told before they are imported.
            scratch: keeps what it prints.
            python: an interpreter of another environment, which holds no ``compress`` of its own.
        """
        self.title = title
        self._log = scratch / f"{id(self)}.log"
        # A checkout that is not installed is found from any folder; it comes last, so that it hides nothing.
        package_last = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(_PACKAGE.parent))))
        environment = {
            **os.environ,
            **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": _package_alone(scratch) if python else package_last,
        }
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches the parent only, which then ends its children in order.
            self._process = subprocess.Popen(
                [str(python or sys.executable), "-P", "-m", "compress.benchmarking.worker_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                encoding="utf-8",
                start_new_session=True,
            )

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            Unavailable: the child lacks something optional, and says so.
            CompressError: the child says so, or it ended: then with the last line it printed.
        """
        assert self._process.stdin and self._process.stdout
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise CompressError(self._last_words())
        found = json.loads(answer)
        if "unavailable" in found:
            raise Unavailable(found["unavailable"])
        if "error" in found:
            raise CompressError(f"{self.title}: {found['error']}")
        return dict(found)

    def _last_words(self) -> str:
        code = self._process.wait()
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if code == -9:
            reason += ", most often for want of memory"
        lines = [line for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return f"{self.title}: its process {reason}; it said last: {lines[-1].strip() if lines else 'nothing'}"

    def close(self) -> None:
        """End the child at once: it has nothing to save."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _package_alone(scratch: Path) -> str:
    """Return a folder with this package alone: beside it may lie libraries that another environment must not see."""
    folder = scratch / "package"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / _PACKAGE.name).symlink_to(_PACKAGE.resolve(), target_is_directory=True)
    return str(folder)
