"""Directories that need no Python: a student's container alone, or with the library as C sources."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

from compress.errors import refuse
from compress.inference.native.write import write_native
from compress.models.manifest import NATIVE_NAME
from compress.models.model_dir import Model
from compress.models.networks import NATIVE, TYPE

_LIBRARY, _OWN = files("compress.inference.native"), files("compress.exporting")
_PYTHON = "python.c"  # the library as a module of Python


def check_native(source: Model, form: str) -> None:
    """Refuse a model that the native library does not run, or another language not yet, before it is exported."""
    known = source.is_onnx or str(source.config.get("model_type", "")).removeprefix(TYPE) in NATIVE
    refuse(
        (not known, _refusal(source, f"its network is {source.config.get('model_type')!r}")),
        (
            form != "native" and source.task.by_word,
            f"{source.path} tags words, and --format {form} is for texts; use --format native, which Python reads",
        ),
    )


def write_format(form: str, source: Model, graph: Path, working: Path) -> dict[str, str]:
    """Write a directory without graph, and return what a manifest notes of it.

    Args:
        form: ``native``, ``c`` or ``wasm``.
        source: the model, which errors name.
        graph: its ONNX directory.

    Raises:
        CompressError: the native library does not run it.
    """
    notes = write_native(graph, working)
    refuse((not (working / NATIVE_NAME).is_file(), _refusal(source, notes["native"].removeprefix("not written: "))))
    shutil.copyfile(graph / "config.json", working / "config.json")
    if form == "c":
        write_sources(working)
        _copy(_OWN / "c", working)
    return notes


def write_sources(target: Path) -> None:
    """Write the C sources of the library."""
    _copy(_LIBRARY, target)


def _copy(folder: Any, target: Path) -> None:
    for file in folder.iterdir():
        if file.is_file() and file.name.endswith((".c", ".h")) and file.name != _PYTHON:
            (target / file.name).write_bytes(file.read_bytes())


def _refusal(source: Model, reason: str) -> str:
    return (
        f"{source.path} cannot run in the native library: {reason}; give a student of the recipes "
        f"{' or '.join(NATIVE)} ('compress distill --student {NATIVE[0]} ...'), or use ONNX, as --format onnx writes it"
    )
