"""The native library reads changed containers and any texts under the sanitizers of the compiler; the driver is C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compress.models.manifest import NATIVE_NAME
from compress.models.networks.cnn.model import CNNForTokenClassification
from compress.models.saving import save_model
from compress.requests.compression import quantize
from tests.support import REPOSITORY, tiny
from tests.support.tagging import bilstm_tagger

SOURCES = REPOSITORY / "compress" / "inference" / "native"
SECONDS = 2  # of the processor; a longer run: the driver with more seconds, or libFuzzer (see there)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("native") / "driver"
    files = [
        REPOSITORY / "tests/fuzzing/native.c",
        *(SOURCES / f"{name}.c" for name in ("tokenizer", "networks", "kernels")),
    ]
    flags = ["-g", "-O1", "-std=gnu11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    done = subprocess.run([compiler, *flags, "-o", path, *files], capture_output=True, text=True, check=False)
    if "sanitize" in done.stderr or "asan" in done.stderr:
        pytest.skip("the C compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    return path


FORMS: dict[str, Any] = {
    "cnn": lambda: tiny.cnn(filters=70),  # more than a vector of any width, and a remainder
    "ngram": lambda: tiny.ngram(),
    "ngram-siamese": lambda: tiny.ngram(pairs="siamese"),
    "ngram-codes": lambda: tiny.ngram(buckets=300),
    "ngram-long": lambda: tiny.ngram(max_position_embeddings=20_000),
    "cnn-deep-long": lambda: tiny.cnn(second_filters=20, pooling="max-mean", max_position_embeddings=20_000),
    "tagger": lambda: tiny.cnn(CNNForTokenClassification),
    "bilstm-siamese": lambda: tiny.bilstm(pairs="siamese"),
    "bilstm-tagger": lambda: bilstm_tagger(),
    "cnn-deep-siamese": lambda: tiny.cnn(pairs="siamese", second_filters=20, pooling="max-mean"),
}


@pytest.mark.parametrize("form", FORMS)
def test_no_bytes_lead_outside_a_container(driver: Path, form: str, tmp_path: Path) -> None:
    given = {"method": "onnx-product", "train": tiny.examples()} if form.endswith("codes") else {}
    tokens = tiny.tokenizer("bert")
    tokens.model_max_length = 20_000 if form.endswith("long") else tokens.model_max_length
    save_model(FORMS[form](), tokens, tmp_path / "torch")
    made = quantize(tmp_path / "torch", tmp_path / "int8", **given)
    container = made.path / NATIVE_NAME
    done = subprocess.run([driver, container, str(SECONDS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > (10 if form.endswith("long") else 100)  # texts of many tokens take long
