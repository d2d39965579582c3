"""Starting processes side by side, with workers that answer when the test lets them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.benchmarking import worker as worker_module
from compress.benchmarking.candidates import Candidate, Entry
from compress.benchmarking.worker import started
from compress.errors import CompressError
from compress.models.model_dir import Model
from compress.progress import silent
from compress.recipes import BenchmarkSettings
from compress.tasks import default

WAIT_S = 30


class FakeWorker:
    """Answers what ``answer`` gives for its title and a request; all that were started are in ``every``."""

    every: list["FakeWorker"]
    answer: Callable[["FakeWorker", str, dict[str, Any]], None]

    def __init__(self, title: str, **options: Any) -> None:
        self.title, self.ended = title, threading.Event()
        self.every.append(self)

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        FakeWorker.answer(self, request, arguments)
        return {"answered": [], "batch_dependent_share": 0.0}

    def close(self) -> None:
        self.ended.set()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    FakeWorker.every = []
    monkeypatch.setattr(worker_module, "Worker", FakeWorker)
    monkeypatch.setattr(worker_module, "available_cores", lambda: [0, 1])
    monkeypatch.setattr(worker_module, "quietest_first", lambda cores: list(cores))
    monkeypatch.setattr(Model, "task", default())
    monkeypatch.setattr(Model, "labels", ("no", "yes"))
    return tmp_path


def entries() -> list[Entry]:
    models = [Model(Path("teacher")), Model(Path("student"))]
    kinds = ("teacher", "model")
    return [
        Entry(Candidate(model, model.path.name, kind), "torch", model, "torch", "cpu")
        for model, kind in zip(models, kinds, strict=True)
    ]


def start(scratch: Path) -> dict[str, Any]:
    with started(entries(), BenchmarkSettings(), scratch, [], silent) as (runs, logits):
        assert len(runs) == 2 and not any(worker.ended.is_set() for worker in FakeWorker.every)
    return logits


def test_predictions_run_at_the_same_time_and_models_are_loaded_one_by_one(scratch: Path) -> None:
    together, alone = threading.Barrier(2), threading.Lock()

    def answer(worker: FakeWorker, request: str, arguments: dict[str, Any]) -> None:
        if request == "load":
            assert alone.acquire(blocking=False), "two loaded at the same time"
            time.sleep(0.05)
            alone.release()
        if request == "predict":
            together.wait(WAIT_S)  # broken, and so an error, where the other does not come before it ends
            np.save(arguments["logits"], np.full((3, 2), len(worker.title)))

    FakeWorker.answer = answer
    logits = start(scratch)
    assert {title: one[0, 0] for title, one in logits.items()} == {title: len(title) for title in logits}
    assert len(logits) == 2 and all(worker.ended.is_set() for worker in FakeWorker.every)


def test_a_failure_ends_the_processes_that_still_load(scratch: Path) -> None:
    def answer(worker: FakeWorker, request: str, arguments: dict[str, Any]) -> None:
        if worker.title.startswith("teacher"):
            raise CompressError("the teacher cannot be opened")
        assert worker.ended.wait(WAIT_S), "was not ended"
        raise CompressError("ended")

    FakeWorker.answer = answer
    with pytest.raises(CompressError, match="the teacher cannot be opened"):
        start(scratch)
    assert all(worker.ended.is_set() for worker in FakeWorker.every)
