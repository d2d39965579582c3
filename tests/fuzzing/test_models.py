"""Model directories with mutated files open, or are refused with one sentence: no other exception, no long wait."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compress.errors import CompressError
from compress.inference.predict import load
from compress.models.manifest import Manifest
from compress.models.model_dir import Model
from compress.models.output_dir import finish
from compress.requests.compression import export
from tests.fuzzing.mutations import change_file
from tests.support.tiny import classifier, write

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


def use(directory: Path) -> None:
    """Do with a directory what commands do."""
    (directory / "compress.json").unlink()  # it would tell that a file has changed
    load(directory).predict(["a good film", "bad"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "weights"])
@FUZZ
@given(draw=st.randoms(use_true_random=False))
def test_a_mutated_file_is_read_or_refused(
    kind: str, name: str, draw: Random, seeds: dict[str, Path], tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(seeds[kind], directory)
    weights = {"torch": "model.safetensors", "onnx": "model.onnx"}[kind]
    change_file(directory / (weights if name == "weights" else name), draw)
    try:
        use(directory)
    except CompressError as error:
        assert str(directory.parent) in str(error) or "logits" in str(error)


@FUZZ
@given(draw=st.randoms(use_true_random=False))
def test_a_mutated_manifest_is_read_or_refused(draw: Random, seeds: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(seeds["torch"], directory)
    change_file(directory / "compress.json", draw)
    try:
        Model.open(directory)
    except CompressError as error:
        assert str(directory) in str(error)
