"""Fixtures that several tests share, and settings that make the tests offline and repeatable."""

from __future__ import annotations

import os
from pathlib import Path

from compress.labelling import label as label_module

# Tiny models lose more by threads that wait for each other than they win. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis  # noqa: E402
import pytest  # noqa: E402

hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shared: reads the real data sets of ../shared/data (or COMPRESS_DATA)")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets; the test is skipped where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("COMPRESS_DATA") or default)
    if not root.is_dir():
        pytest.skip("no real data sets here: set COMPRESS_DATA to their folder")
    return root


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real fine-tuned teachers; the test is skipped where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "models"
    root = Path(os.environ.get("COMPRESS_MODELS") or default)
    if not root.is_dir():
        pytest.skip("no real teachers here: set COMPRESS_MODELS to their folder")
    return root


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT classifier on disk. Not to be changed."""
    from tests.support.tiny import classifier, write

    return write(tmp_path_factory.mktemp("teachers") / "tiny-bert", classifier("bert"))


@pytest.fixture
def on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Label with torch: exporting a tiny model takes longer than everything else that is tested of it."""
    monkeypatch.setattr(label_module, "choose_runtime", lambda model, device: ("torch", "cpu"))
