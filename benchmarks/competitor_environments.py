"""Make the virtual environments of the competitors that do not install beside this package.

    python benchmarks/competitor_environments.py [--fresh] [-- PIP OPTIONS]

They lie under $COMPRESS_COMPETITORS (else ~/.cache/compress/competitors), one a name, with what the
competitors of that name require. An environment that has all of it already is left as it is. What follows ``--`` is
given to pip, for example the index of PyTorch's builds for processors.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from compress import plugins
from compress.benchmarking.competitors import INSTALLED_NAME, environments_folder

# What scripts here compare with, and what is no competitor of `compress benchmark`: TextBrewer's training, of models of
# transformers, and the last transformers that removes heads itself.
TORCH = f"torch=={version('torch').partition('+')[0]}"
SCRIPTS_ONLY = {
    "textbrewer": ["textbrewer==0.2.1.post1", TORCH, f"transformers=={version('transformers')}"],
    "transformers-4": [TORCH, "transformers==4.57.6"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="make every environment again")
    parser.add_argument("pip_options", nargs="*", metavar="PIP OPTIONS")
    arguments = parser.parse_args()
    failed = 0
    for environment, requirements in environments().items():
        folder = environments_folder() / environment
        if not arguments.fresh and is_complete(folder, requirements):
            print(f"{environment}: {folder} has {', '.join(requirements)} already")
            continue
        print(f"{environment}: installing {', '.join(requirements)} into {folder}", flush=True)
        if not install(folder, requirements, arguments.pip_options):
            failed += 1
            print(f"{environment}: failed, and left out until it succeeds")
    return 1 if failed else 0


def environments() -> dict[str, list[str]]:
    """Return the pip requirements of every environment, joined over the competitors that name it."""
    found: dict[str, set[str]] = {}
    for name in plugins.names("competitors"):
        competitor = plugins.find("competitors", name).load()
        if environment := getattr(competitor, "ENVIRONMENT", ""):
            found.setdefault(environment, set()).update(competitor.REQUIRES.values())
    return {environment: sorted(requirements) for environment, requirements in sorted(found.items())}


def python_of(environment: str, pip_options: list[str]) -> Path:
    """Return the Python of one of the environments of scripts, which is made if it is not there; exit if that fails."""
    folder, requirements = environments_folder() / environment, SCRIPTS_ONLY[environment]
    if not is_complete(folder, requirements) and not install(folder, requirements, pip_options):
        sys.exit(1)
    return folder / "bin" / "python"


def is_complete(folder: Path, requirements: list[str]) -> bool:
    installed = folder / INSTALLED_NAME
    return installed.is_file() and installed.read_text(encoding="utf-8").splitlines() == requirements


def install(folder: Path, requirements: list[str], pip_options: list[str]) -> bool:
    """Make an environment from nothing; what was installed is written down last, so that half of one never counts."""
    if folder.exists():
        shutil.rmtree(folder)
    python = folder / "bin" / "python"
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *pip_options, *requirements],
        [str(python), "-m", "pip", "check"],
    )
    if any(subprocess.run(command).returncode for command in commands):
        return False
    (folder / INSTALLED_NAME).write_text("\n".join(requirements) + "\n", encoding="utf-8")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
