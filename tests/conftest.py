"""Fixtures that several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
