"""Directories that need no Python: a student's container alone, or with the library as C sources or as WebAssembly."""

from __future__ import annotations

import base64
import gzip
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from compress.errors import CompressError, refuse
from compress.escaping import markup_text
from compress.host import is_installed
from compress.inference.native.write import write_native
from compress.models.manifest import NATIVE_NAME
from compress.models.model_dir import Model
from compress.models.networks import NATIVE, TYPE

_LIBRARY, _OWN = files("compress.inference.native"), files("compress.exporting")
_PYTHON = ("python.c", "words.h")  # the library as a module of Python
_SIMD = ("-msimd128",)
_FLAGS = ("-O3", "-g0", "-std=c11", "-nostdlib", "-Ilibc", "-Wl,--no-entry", "-Wl,--strip-all")
_STACK = "-Wl,-z,stack-size=1048576"  # which the library takes more of than the 64 KiB of other modules


def check_native(source: Model, form: str) -> None:
    """Refuse a model that the native library does not run, or another language not yet, before it is exported."""
    known = source.is_onnx or str(source.config.get("model_type", "")).removeprefix(TYPE) in NATIVE
    refuse(
        (source.is_native, f"{source.path} is a native model; export the directory it was exported from"),
        (
            source.windows,
            f"{source.path} reads documents by windows of {source.windows}, and the native library does not; use "
            "--format onnx",
        ),
        (not known, _refusal(source, f"its network is {source.config.get('model_type')!r}")),
        (
            form not in source.task.native_forms,
            f"{source.path} is made for {source.task}, whose answers --format {form} does not give; use --format "
            f"{' or '.join(source.task.native_forms)}",
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
        _copy(_LIBRARY, working, ".c", ".h")
        _copy(_OWN / "c", working, ".c")
    elif form == "wasm":
        compile_wasm(working / "compress.wasm")
        _copy(_OWN / "wasm", working, ".js", ".ts", ".json")
        (working / "index.html").write_text(_page(source.name, working), encoding="utf-8")
    return notes


def compile_wasm(target: Path, instructions: Sequence[str] = _SIMD) -> None:
    """Compile the library to WebAssembly.

    Raises:
        CompressError: there is no compiler for it, or it fails.
    """
    command = _compiler()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (_LIBRARY, _OWN / "wasm"):
            _copy(part, folder, ".c", ".h")
        (folder / "libc").mkdir()
        _copy(_OWN / "wasm" / "libc", folder / "libc", ".h")
        files = sorted(path.name for path in folder.glob("*.c"))
        flags = [*_FLAGS, _STACK, *instructions, *files, "-o", str(target.absolute())]
        done = subprocess.run([*command, *flags], cwd=folder, capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())[:300]
    refuse((done.returncode, f"{' '.join(command)} cannot compile the library: {said}"))


def _compiler() -> list[str]:
    """Return what compiles C to WebAssembly: PyPI's ziglang, zig, or clang with its linker."""
    if is_installed("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding"]
    if shutil.which("zig"):
        return ["zig", "cc", "-target", "wasm32-freestanding"]
    missing = [name for name in ("clang", "wasm-ld") if not shutil.which(name)]
    if missing:
        raise CompressError(
            f"--format wasm needs a compiler: neither zig nor {' and '.join(missing)} is installed; "
            "pip install -c constraints.txt '.[wasm]' brings zig"
        )
    return ["clang", "--target=wasm32"]


def _page(name: str, working: Path) -> str:
    """Return the page with module, container and loader inside it: a page that is a file may read no other."""
    packed = {path: gzip.compress((working / path).read_bytes(), 9, mtime=0) for path in ("compress.wasm", NATIVE_NAME)}
    sizes = [
        f"{path}: {(working / path).stat().st_size:,} bytes, gzipped {len(some):,}" for path, some in packed.items()
    ]
    values = {
        "NAME": str(markup_text(name)),
        "SIZES": "; ".join(sizes),
        "LOADER": (working / "compress.js").read_text(encoding="utf-8"),
        **{
            key: base64.b64encode(some).decode()
            for key, some in zip(("WASM", "CONTAINER"), packed.values(), strict=True)
        },
    }
    page = (_OWN / "wasm" / "index.html").read_text(encoding="utf-8")
    return re.sub("@([A-Z]+)@", lambda found: values[found[1]], page)  # at once: a name may look like another key


def _copy(folder: Any, target: Path, *endings: str) -> None:
    for file in folder.iterdir():
        if file.is_file() and file.name.endswith(endings) and file.name not in _PYTHON:
            (target / file.name).write_bytes(file.read_bytes())


def _refusal(source: Model, reason: str) -> str:
    return (
        f"{source.path} cannot run in the native library: {reason}; give a student of the recipes "
        f"{' or '.join(NATIVE)} ('compress distill --student cnn ...'), or use ONNX, as --format onnx writes it"
    )
