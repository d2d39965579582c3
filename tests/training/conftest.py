"""What several tests of training read."""

from pathlib import Path

import pytest

from compress.inference.compute import Compute
from compress.labelling.label_dir import LabelDir
from tests.support.labelling import label
from tests.support.training_data import pool_file


@pytest.fixture(scope="session")
def labels(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> LabelDir:
    """The tiny teacher's labels of the pool. Not to be changed."""
    folder = tmp_path_factory.mktemp("labels")
    return label(teacher, pool_file(folder / "pool.txt"), folder / "labels", compute=Compute(threads=1))
