"""Model directories with mutated files open, or are refused with one sentence: no other exception, no long wait."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compress.errors import CompressError
from compress.exporting.export import export
from compress.inference.predict import load
from compress.models.manifest import Manifest
from compress.models.model_dir import ModelDir
from compress.models.output_dir import finish
from tests.support.tiny import classifier, write

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 10**9, 10**30, 0.5, -1e308),
    *("", "x", "../outside", "a\x00b", "\u202e"),
    *([], {}, [[]], {"0": "a"}, ["x"] * 9, {"0": {"0": {}}}),
)
FUZZ = settings(
    max_examples=int(os.environ.get("COMPRESS_FUZZ_EXAMPLES", 30)),
    deadline=None,
    derandomize="COMPRESS_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a torch directory with a manifest, and the ONNX directory that is made of it."""
    folder = tmp_path_factory.mktemp("seeds")
    torch_directory = write(folder / "torch", classifier("bert"))
    finish(torch_directory, Manifest(stage="finetune", labels=("negative", "positive")))
    return {"torch": torch_directory, "onnx": export(torch_directory, folder / "onnx").path}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a JSON value with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


def mutate_json(text: bytes, draw: Callable[[Any], Any]) -> bytes:
    """Replace or delete one value of a JSON text."""
    content = json.loads(text)
    found = list(places(content))
    container, key = found[draw(st.integers(0, len(found) - 1))]
    if draw(st.booleans()) and isinstance(container, dict):
        del container[key]
    else:
        container[key] = draw(st.sampled_from(HOSTILE))
    return json.dumps(content).encode()


def mutate_bytes(content: bytes, draw: Callable[[Any], Any]) -> bytes:
    """Cut a file, or replace some of its bytes, in the first kilobyte more often than elsewhere."""
    end = draw(st.sampled_from((min(1024, len(content)), len(content))))
    at = draw(st.integers(0, max(0, end - 1)))
    if draw(st.booleans()):
        return content[:at]
    return content[:at] + draw(st.binary(min_size=1, max_size=8)) + content[at + draw(st.integers(0, 8)) :]


def mutate_header(content: bytes, draw: Callable[[Any], Any]) -> bytes:
    """Change one value in the header of a safetensors file, which stays of the right length."""
    (size,) = struct.unpack("<Q", content[:8])
    header = mutate_json(content[8 : 8 + size], draw)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


def mutate(path: Path, draw: Callable[[Any], Any]) -> None:
    content = path.read_bytes()
    if path.suffix == ".json" and draw(st.booleans()):
        path.write_bytes(mutate_json(content, draw))
    elif path.suffix == ".safetensors" and draw(st.booleans()):
        path.write_bytes(mutate_header(content, draw))
    else:
        path.write_bytes(mutate_bytes(content, draw))


def use(directory: Path) -> None:
    """Do with a directory what commands do."""
    (directory / "compress.json").unlink()  # it would tell that a file has changed
    load(directory).predict(["a good film", "bad"])


@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "weights"])
@FUZZ
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused(
    kind: str, name: str, data: st.DataObject, seeds: dict[str, Path], tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(seeds[kind], directory)
    weights = {"torch": "model.safetensors", "onnx": "model.onnx"}[kind]
    mutate(directory / (weights if name == "weights" else name), data.draw)
    try:
        use(directory)
    except CompressError as error:
        assert str(directory.parent) in str(error) or "logits" in str(error)


@FUZZ
@given(data=st.data())
def test_a_mutated_manifest_is_read_or_refused(data: st.DataObject, seeds: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(seeds["torch"], directory)
    mutate(directory / "compress.json", data.draw)
    try:
        ModelDir.open(directory)
    except CompressError as error:
        assert str(directory) in str(error)
