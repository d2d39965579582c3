"""Always the most frequent class: what accuracy is worth on unbalanced data.

It gives the logarithm of each class's share of the training rows, one row added to every class (Laplace's rule of
succession) so that none is impossible; for regression the mean score.

Source: scikit-learn's ``DummyClassifier(strategy="prior")``.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compress.benchmarking.baselines import need_processor
from compress.data.examples import Example
from compress.models.model_dir import ModelDir

RUNTIME = "numpy"
TASKS = ("classification", "regression")
_FILE_NAME = "majority.safetensors"


class MajorityRunner:
    """Gives the same answer ``[C]`` to every row."""

    tokenizer_inside = True

    def __init__(self, answer: np.ndarray) -> None:
        self._answer = answer
        self.parameters = answer.size

    def prepare(self, examples: Sequence[Example]) -> int:
        """Return the number of rows."""
        return len(examples)

    def run(self, inputs: int) -> np.ndarray:
        return np.tile(self._answer, (inputs, 1))


def fit(
    directory: Path, train: Sequence[Example], gold: np.ndarray, task: str, classes: int, teacher: ModelDir
) -> None:
    """Count the classes of ``gold`` ``[N]``, or average its scores."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    if task == "regression":
        answer = np.array([gold.mean()], dtype=np.float32)
    else:
        counts = np.bincount(gold.astype(int), minlength=classes) + 1
        answer = np.log(counts / counts.sum()).astype(np.float32)
    save_file({"answer": answer}, directory / _FILE_NAME)


def start(directory: Path, *, threads: int, device: str) -> MajorityRunner:
    """Read the answer; one thread is enough for it."""
    from safetensors.numpy import load_file

    need_processor(device)
    return MajorityRunner(load_file(directory / _FILE_NAME)["answer"])
