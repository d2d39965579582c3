"""The manifest ``compress.json``: what a model is, how it was made, the hash of every file; and hashes of kept work."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from compress.errors import CompressError, refuse
from compress.files import read_json_table, write_atomically
from compress.progress import logger

MANIFEST_NAME = "compress.json"
WEIGHTS_NAME = "model.safetensors"
ONNX_NAME = "model.onnx"
NATIVE_NAME = "model.native"  # beside it, for the native library
METRICS_NAME = "metrics.jsonl"  # how a training went
# Not model.safetensors: what does not know the format should find no weights instead of wrong ones.
PACKED_NAME = "packed.safetensors"
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """The frozen, versioned record of what a directory is and how it came to be.

    ``architecture`` holds ``model_type``, ``parameters``, ``heads_per_layer`` and ``ffn_per_layer``; ``parents`` are
    ``{"role", "name", "sha256"}``; ``data`` are ``{"role", "name", "rows", "sha256"}``; ``metrics`` are ``{"name",
    "value", "split", "rows"}``; ``files`` maps a file name to its ``sha256`` and ``size_bytes``.
    """

    stage: str
    kind: str = "model"
    name: str = ""
    task: str = "classification"
    labels: tuple[str, ...] = ()
    architecture: dict[str, Any] = field(default_factory=dict)
    parents: tuple[dict[str, Any], ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    data: tuple[dict[str, Any], ...] = ()
    metrics: tuple[dict[str, Any], ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a manifest, an empty one without a stage where there is no file.

        Raises:
            CompressError: it is damaged, or of another version.
        """
        if not path.is_file():
            return cls(stage="")
        raw = read_json_table(path)
        version = raw.get("format_version")
        unknown = sorted(set(raw) - {field.name for field in fields(cls)})
        refuse(
            (
                version != FORMAT_VERSION,
                f"{path} has format version {str(version)[:40]}; this compress reads version {FORMAT_VERSION}",
            ),
            (unknown, f"{path} has unknown keys {unknown[:5]}; make the directory again"),
            *(
                (
                    not fits(raw[key]) if key in raw else key == "stage",
                    f"{path} is not a valid manifest: {key} is not {allowed}; make the directory again",
                )
                for key, (allowed, fits) in _FORMS.items()
            ),
        )
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
        return cls(**values)


def _is_table(value: Any, /, **keys: type) -> bool:
    return isinstance(value, dict) and all(type(value.get(key)) is kind for key, kind in keys.items())


def _are_tables(value: Any, /, **keys: type) -> bool:
    return isinstance(value, list) and all(_is_table(one, **keys) for one in value)


# Field -> what it must be, and whether a value is that.
_FORMS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("stage", "kind", "name", "task"), ("a text", lambda value: isinstance(value, str))),
    **dict.fromkeys(("recipe", "notes", "seeds", "versions", "host"), ("a table", _is_table)),
    "architecture": (
        "a table whose parameters are a number",
        lambda value: _is_table(value) and type(value.get("parameters", 0)) is int,
    ),
    "labels": ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value)),
    "parents": (
        "a list of role, name and sha256",
        lambda value: _are_tables(value, role=str, name=str, sha256=str),
    ),
    "data": (
        "a list of role, name and rows",
        lambda value: _are_tables(value, role=str, name=str, rows=int),
    ),
    "metrics": (
        "a list of name, value, split and rows",
        lambda value: _are_tables(value, name=str, value=float, split=str, rows=int),
    ),
    "files": (
        "a table from files to sha256 and size_bytes",
        lambda value: _is_table(value) and _are_tables([*value.values()], sha256=str, size_bytes=int),
    ),
}


def file_sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def named_files(directory: Path) -> dict[str, Path]:
    """Return every file below a directory by its name there, without the manifest and the model card."""
    files = {file.relative_to(directory).as_posix(): file for file in sorted(directory.rglob("*")) if file.is_file()}
    without = {MANIFEST_NAME, "README.md"}
    return {name: file for name, file in files.items() if name not in without and not name.startswith(".")}


def describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Return sha256 and size of the :func:`named_files`."""
    return {
        name: {"sha256": file_sha256(file), "size_bytes": file.stat().st_size}
        for name, file in named_files(directory).items()
    }


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Check that every file is the one the manifest names, and that no name leaves the directory."""
    for name, expected in manifest.files.items():
        file = directory / name
        refuse(
            (
                Path(name).is_absolute() or ".." in Path(name).parts,
                f"{directory / MANIFEST_NAME} names {name!r}, which lies outside the directory",
            ),
            (
                not file.is_file(),
                f"{directory} lacks {name}, which its {MANIFEST_NAME} names; copy or make it again",
            ),
        )
        if file.stat().st_size != expected["size_bytes"] or file_sha256(file) != expected["sha256"]:
            raise CompressError(f"{file} is not the file that {MANIFEST_NAME} names (its hash differs); make it again")


# What a command keeps in its work folder for its next start: taken only as it was written, else made again. A killed
# process, a full disk or somebody's editor may leave a file that is cut short or holds something else. Each file has a
# hash; one that has another is deleted, which is said, and counts as never made.

UNREADABLE = (ValueError, LookupError, TypeError, RecursionError, IsADirectoryError, CompressError)


def keep(path: Path, value: Any) -> None:
    """Write a JSON value with its hash, whole or not at all."""
    write_atomically(path, json.dumps({"sha256": _sha256(value), "value": value}) + "\n")


def kept(path: Path, absent: Any = None) -> Any:
    """Return the JSON value that :func:`keep` wrote; ``absent`` where there is none, or no longer that one."""
    if not os.path.lexists(path):
        return absent
    with suppress(*UNREADABLE):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["sha256"] == _sha256(found["value"]):
            return found["value"]
    _delete(path)
    return absent


def cached_json(path: Path, compute: Callable[[], Any]) -> Any:
    """Return a JSON value that is computed once: a resumed run reads that of the first run from the file."""
    if kept(path) is None:
        keep(path, compute())
    return kept(path)


def seal(path: Path) -> None:
    """Note the hash of a finished file beside it, or those of the files of a folder in its manifest."""
    if path.is_dir():
        manifest = Manifest(stage="checkpoint", kind="checkpoint", files=describe_files(path))
        write_atomically(path / MANIFEST_NAME, manifest.to_json())
    else:
        keep(_noted(path), file_sha256(path))


def is_whole(path: Path) -> bool:
    """Tell whether a file or folder was sealed, or is a finished stage, and is as it was then; else delete it."""
    if not os.path.lexists(path):
        return False
    whole, finished = False, True
    with suppress(*UNREADABLE):
        if path.is_dir():
            manifest = Manifest.read(path / MANIFEST_NAME)
            finished = bool(manifest.stage)
            verify_files(path, manifest)
            whole = finished
        else:
            finished = _noted(path).exists()
            whole = kept(_noted(path)) == file_sha256(path)
    if not whole:
        _delete(path, said=finished)
    return whole


def _delete(path: Path, said: bool = True) -> None:
    if said:
        logger.warning("%s is damaged: it is deleted and made again", path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _noted(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
