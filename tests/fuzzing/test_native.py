"""The native library reads changed containers and any texts under the sanitizers of the compiler; the driver is C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from compress.models.manifest import NATIVE_NAME
from tests.support import REPOSITORY
from tests.support.tiny import onnx_directory

SOURCES = REPOSITORY / "compress" / "inference" / "native"
SECONDS = 5  # a longer run: the driver with more seconds, or libFuzzer (see there)


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


@pytest.mark.parametrize("kind", ["cnn", "ngram"])
def test_no_bytes_lead_outside_a_container(driver: Path, kind: str) -> None:
    container = onnx_directory(kind).path / NATIVE_NAME
    done = subprocess.run([driver, container, str(SECONDS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 100
