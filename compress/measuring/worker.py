"""A process of its own for each measured model, so that models share no thread pool, no memory and no warm cache.

``python -m compress.measuring.worker`` is the child: it answers one JSON line on standard output for each on standard
input. :class:`Worker` is its handle. Arrays and texts travel as files of a directory that the parent owns.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import numpy as np

from compress.errors import CompressError
from compress.measuring.timing import is_stable

WARM_UP_SECONDS = 10.0
PROBE_RUNS = 3
PROBE_MS = 500.0
PREDICT_ROWS = 32
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Worker:
    """A model in a child process; calls block until it has answered."""

    def __init__(self, title: str, *, threads: int, scratch: Path) -> None:
        """Start the child; ``scratch`` keeps what it prints. ``title`` names it in errors."""
        self.title = title
        self._log = scratch / f"{id(self)}.log"
        package = str(Path(__file__).parent.parent.parent)
        environment = {
            **os.environ,
            **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
            "TOKENIZERS_PARALLELISM": "false",
            # A checkout that is not installed must be found from any folder; last, so that it hides nothing.
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), package))),
        }
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches the parent only, which then ends its children in order.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "compress.measuring.worker"],
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
            CompressError: the child says so, or it ended: then with the last line it printed.
        """
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise CompressError(self._last_words())
        found = json.loads(answer)
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


class Subject:
    """The child's side: the model under measurement and the rows it is measured on."""

    def load(self, *, directory: str, runtime: str, device: str, threads: int, cores: list[int], **rows: Any) -> Any:
        """Load the tokenizer, the rows and the model. Pins this process first, so that thread pools obey."""
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        from compress import plugins
        from compress.artifact import ModelDir
        from compress.examples import Example
        from compress.tokens import encode, maximum_length

        model = ModelDir.open(directory, verify=False)
        tokenizer = model.load_tokenizer()
        longest = maximum_length(tokenizer, model.config)
        self.max_length = min(rows["max_length"] or longest, longest)
        self.padding_id = int(tokenizer.pad_token_id or 0)
        texts = json.loads(Path(rows["texts"]).read_text(encoding="utf-8"))
        self.examples = [Example(*pair) for pair in texts]
        self.encode = lambda examples: encode(tokenizer, examples, self.max_length)
        self.lengths = [len(ids) for ids in self.encode(self.examples)["input_ids"]]
        start = plugins.find("runtimes", runtime).function
        self.memory_before = _reset_peak_memory()
        started = time.perf_counter_ns()
        self.run = start(Path(directory), threads=threads, device=device)
        self.run(self.batch([min(range(len(texts)), key=lambda row: self.lengths[row])]))
        return {"load_ms": _since(started), "max_length": self.max_length, "lengths": self.lengths}

    def batch(self, rows: list[int]) -> dict[str, np.ndarray]:
        """Tokenise rows and pad them to the longest among them."""
        from compress.tokens import pad

        tokens = self.encode([self.examples[row] for row in rows])
        return pad([{key: ids[i] for key, ids in tokens.items()} for i in range(len(rows))], self.padding_id)

    def predict(self, *, logits: str) -> Any:
        """Write the logits ``[N, C]`` of all rows; rows of like length share a batch."""
        order = sorted(range(len(self.examples)), key=lambda row: self.lengths[row])
        parts = [self.run(self.batch(order[i : i + PREDICT_ROWS])) for i in range(0, len(order), PREDICT_ROWS)]
        ordered = np.concatenate(parts).astype(np.float32)
        if not np.isfinite(ordered).all():
            raise CompressError("it gives logits that are not finite numbers; its weights are damaged")
        found = np.empty_like(ordered)
        found[order] = ordered
        np.save(logits, found)
        return {}

    def warm_up(self, *, probe: list[int]) -> Any:
        """Run one batch until it no longer gets faster."""
        arrays, samples = self.batch(probe), list[float]()
        end = time.perf_counter() + WARM_UP_SECONDS
        while not is_stable(samples) and time.perf_counter() < end:
            samples.append(self._time(arrays))
        return {"stable": is_stable(samples), "runs": len(samples)}

    def measure(self, *, probe: list[int], batches: list[list[int]]) -> Any:
        """Time the batches of one turn, in milliseconds: tokenisation, then the model alone.

        The probe, the same batch in every turn, comes first: it brings this model back into the caches that another
        one had in between, and its own spread over turns says how noisy the machine is.
        """
        arrays = self.batch(probe)
        probes = [self._time(arrays)]
        while len(probes) < PROBE_RUNS and sum(probes) < PROBE_MS:
            probes.append(self._time(arrays))
        inputs, tokenize_ms = [], []
        for rows in batches:
            started = time.perf_counter_ns()
            inputs.append(self.batch(rows))
            tokenize_ms.append(_since(started))
        return {
            "latency_ms": [self._time(arrays) for arrays in inputs],
            "tokenize_ms": tokenize_ms,
            "probe_ms": float(np.median(probes)),
        }

    def memory(self) -> Any:
        """Return the peak resident memory since loading began, and what this process held before the model."""
        answer = {"peak_memory_bytes": _peak_memory(), "memory_before_bytes": self.memory_before}
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            answer["peak_gpu_memory_bytes"] = int(torch.cuda.max_memory_allocated())
        return answer

    def _time(self, arrays: dict[str, np.ndarray]) -> float:
        started = time.perf_counter_ns()
        self.run(arrays)
        return _since(started)


def _since(started_ns: int) -> float:
    return round((time.perf_counter_ns() - started_ns) / 1e6, 5)


def _reset_peak_memory() -> int:
    """Forget the peak of importing libraries, where Linux allows it; return the memory resident now, in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except (OSError, KeyError):
        return _peak_memory()


def _peak_memory() -> int:
    try:
        return _status("VmHWM")
    except (OSError, KeyError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _status(key: str) -> int:
    pairs = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(dict(pairs)[key].split()[0]) * 1024  # the kernel writes kB


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until the parent closes them, or is gone."""
    subject = Subject()
    for line in requests:
        arguments = json.loads(line)
        try:
            answer = getattr(subject, arguments.pop("request"))(**arguments)
        except CompressError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # What a library prints or asks must not mix with requests and answers: those get channels of their own, prints
    # go to the log, and a question on standard input finds it at its end.
    incoming, outgoing = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    serve(incoming, outgoing)
