"""Unfinished work of which a file was damaged: the same command goes on, begins again, or says what to type."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from random import Random

from compress.cli import execute
from tests.fuzzing.mutations import ODD, change_bytes

RESUMED = frozenset({"finetune", "distill", "prune", "label", "search", "run", "pretrain"})
MOMENTS = (2, 3, 4, 5, 6, 8, 11, 15, 20, 30, 45)  # how many files a command makes whole before it is stopped


def damaged_work(words: list[str], folder: Path, draw: Random) -> str:
    """Begin a command in a folder, stop it at a random moment, and damage a file that it left; return the change.

    What a command has finished before is deleted.
    """
    moment = draw.choice(MOMENTS)
    _begin(words, folder, moment)
    output = folder / words[words.index("-o") + 1]
    places = [output.with_name(f".{output.name}.partial"), output]  # a study lies at its place from the start
    left = [path for place in places for path in sorted(place.rglob("*")) if path.is_file() and path.name != ".lock"]
    if not left or (output / "compress.json").is_file():
        shutil.rmtree(output, ignore_errors=True)
        return "work of nothing"
    path = draw.choice(left)
    content = path.read_bytes()
    way = draw.choice(("empty", "cut", "bytes", "value", "gone", "folder"))
    if way == "cut":
        path.write_bytes(content[: draw.randrange(len(content) + 1)])
    elif way == "bytes":
        path.write_bytes(change_bytes(content, draw))
    elif way == "value":
        path.write_text(str(draw.choice(ODD)), encoding="utf-8", errors="replace")
    else:
        path.unlink()
        if way == "empty":
            path.touch()
        elif way == "folder" and ".work" in path.parts:
            path.mkdir()
    return f"work after {moment} files, {path.relative_to(folder)}: {way}"


def _begin(words: list[str], folder: Path, moment: int) -> None:
    """Run a command in a process of its own until it renames a finished file for the last time that it may."""
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        return
    with contextlib.suppress(BaseException):
        os.chdir(folder)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        renames, replace = iter(range(moment)), Path.replace

        def counted(path: Path, target: Path) -> Path:
            if next(renames, None) is None:
                os._exit(0)  # as SIGKILL ends it
            return replace(path, target)

        Path.replace = counted  # type: ignore[method-assign, assignment]
        execute(words)
    os._exit(0)
