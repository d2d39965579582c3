"""The script that runs a study in windows of minutes, on tiny models and without a GPU."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from compress.benchmarking import hardware
from compress.benchmarking.results.aggregate import aggregate
from compress.benchmarking.results.files import Results
from compress.errors import CompressError
from compress.inference import threads
from compress.models.manifest import Manifest
from compress.models.model_dir import Model
from compress.models.output_dir import finish
from compress.recipes import DataSet, StudyData, StudyRecipe
from compress.recipes.study import StudyPrune, StudyTeacher
from compress.studies.data import open_set
from tests.support import REPOSITORY, module_from
from tests.support.training_data import STUDY_HEAD, TINY_STUDENT, write_study_data

STUDENTS = """
title = "tiny"
description = "of nothing"
[[students]]
recipe = "FOLDER/small.toml"
name = "a"
quantize = false
[[students]]
recipe = "FOLDER/small.toml"
name = "b"
quantize = false
[[students]]
recipe = "FOLDER/small.toml"
name = "broken"
control = false
quantize = false
[benchmark]
batch_sizes = [1]
rounds = 3
runtimes = ["torch"]
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_from(REPOSITORY / "benchmarks" / "gpu_window.py")


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rows on one core, as tests beside others do, and multiply small matrices."""
    monkeypatch.setattr(threads, "available_cores", lambda: [0])
    monkeypatch.setattr(hardware, "PEAK_SIZES", {"cpu": (64, 128)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a study, its data and its teacher, which has a manifest."""
    write_study_data(tmp_path / "data", tmp_path / "models")
    finish(tmp_path / "models" / "tiny-bert", Manifest("finetune", name="tiny-bert", labels=("negative", "positive")))
    (tmp_path / "small.toml").write_text(TINY_STUDENT)
    (tmp_path / "tiny.toml").write_text(STUDENTS.replace("FOLDER", str(tmp_path)) + STUDY_HEAD)
    return tmp_path


def pack(script: ModuleType, folder: Path, *more: str) -> int:
    words = ["--data-root", str(folder / "data"), "--teacher", str(folder / "models" / "tiny-bert")]
    code: int = script.main(["pack", str(folder / "tiny.toml"), *words, "-o", str(folder / "packed"), *more])
    return code


def window(script: ModuleType, folder: Path, *more: str) -> int:
    places = ["--packed", str(folder / "packed"), "--out", str(folder / "out"), "--work", str(folder / "work")]
    code: int = script.main(["run", str(folder / "tiny.toml"), *places, "--device", "cpu", *more])
    return code


def rows(folder: Path) -> dict[str, Any]:
    lines = (folder / "out" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["row"]: row for row in map(json.loads, lines)}


def test_what_is_packed_is_read_as_before(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack(script, folder) == 0
    for role, count in (("train", 0), ("validation", 0), ("test", 0), ("unlabeled", 60)):
        part = DataSet("tiny", role, rows=count)
        here, there = (list(open_set(part, folder / root / "data", role)) for root in (".", "packed"))
        assert here == there and len(there) > 10
    assert len(list(open_set(DataSet("tiny", "unlabeled"), folder / "packed" / "data", "unlabeled"))) == 60
    teacher = folder / "packed" / "teacher" / "tiny-bert"
    assert {tensor.dtype for tensor in load_file(teacher / "model.safetensors").values()} == {torch.float16}
    opened = Model.open(teacher)
    assert {parameter.dtype for parameter in opened.load().parameters()} == {torch.float32}
    assert opened.manifest.stage == "finetune"
    packed = json.loads((folder / "packed" / "packed.json").read_text())
    assert packed["teacher"] == {"name": "tiny-bert", "sha256": opened.sha256}
    change = re.search(r"logits change by (\S+) at most, 100.0% of 24 answers are the same", capsys.readouterr().out)
    assert change and 0 < float(change[1]) < 0.1
    assert pack(script, folder) == 2 and "exists; delete it" in capsys.readouterr().out


def test_too_much_is_refused_and_leaves_nothing(
    script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(os.listdir(folder))
    assert pack(script, folder, "--limit-mib", "0.01") == 2
    assert "more than --limit-mib 0.01" in capsys.readouterr().out and set(os.listdir(folder)) == before


PRUNE = (StudyPrune(name="small", vocabulary=True),)


def test_columns_keep_their_names_and_shared_sets_all_their_rows(script: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "pairs"
    folder.mkdir(parents=True)
    lines = [f"{number}\tfirst {number}\tsecond {number}\t{number % 3}" for number in range(40)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("id\tone\ttwo\tscore\n" + "\n".join(lines) + "\n")
    train = DataSet("pairs", "train", 12, text_column="one", text_pair_column="two", label_column="score")
    dev, pool = replace(train, split="dev", rows=0, beyond=30), replace(train, rows=7, label_column="")
    recipe = StudyRecipe("", "", StudyData(train, dev, (pool,), dev), StudyTeacher("minilm-l6"), prune=PRUNE)
    made = script.pack_sets(recipe, tmp_path / "data", tmp_path / "packed")
    assert list(made) == ["pairs/train.parquet", "pairs/dev.parquet"]
    assert len(list(open_set(replace(train, rows=0), tmp_path / "packed", "train"))) == 40
    whole = open_set(replace(dev, beyond=0), tmp_path / "packed", "test")
    assert [row.label for row in whole] == [str(n % 3) for n in range(40)]
    assert len(list(open_set(dev, tmp_path / "packed", "test"))) == 10


def test_words_with_tags_are_refused(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tags").mkdir()
    sentence = json.dumps({"words": ["a", "b"], "tags": ["X", "Y"]}) + "\n"
    for split in ("train", "dev"):
        (tmp_path / "tags" / f"{split}.jsonl").write_text(sentence * 9)
    train, dev = DataSet("tags", "train"), DataSet("tags", "dev")
    recipe = StudyRecipe("", "", StudyData(train, dev, (), dev), StudyTeacher("minilm-l6"), prune=PRUNE)
    with pytest.raises(CompressError, match="tags cannot be packed: its rows are words with tags"):
        script.pack_sets(recipe, tmp_path, tmp_path / "packed")


def test_rows_add_to_the_results(script: ModuleType, folder: Path) -> None:
    assert pack(script, folder) == 0
    assert window(script, folder, "--minutes", "0") == 0  # checks the machine and unpacks
    assert window(script, folder, "--row", "a") == 0
    first = (folder / "out" / "results.jsonl").read_text()
    (folder / "small.toml").write_text(TINY_STUDENT.replace("bilstm", "no-such-thing"))
    assert window(script, folder, "--row", "broken") == 0
    assert (folder / "out" / "results.jsonl").read_text() == first
    (folder / "small.toml").write_text(TINY_STUDENT)
    assert window(script, folder, "--row", "b") == 0
    assert (folder / "out" / "results.jsonl").read_text().startswith(first)
    lines = Results.open(folder / "out" / "results.jsonl")
    assert lines[0].size_bytes == Model.open(folder / "models" / "tiny-bert").size_bytes
    # Each row is a run of its own, with the teacher and its control.
    assert [line.model for line in lines] == ["tiny-bert", "a", "a-control", "tiny-bert", "b", "a-control"]
    assert all(line.kind != "teacher" or line.gold for line in lines)
    made = rows(folder)
    assert {name: row["status"] for name, row in made.items()} == {"a": "done", "broken": "failed", "b": "done"}
    assert "no-such-thing" in made["broken"]["error"]
    assert {"labels", "a", "a-control"} <= set(made["a"]["stages"])
    assert {"tiny-bert", "a", "a-control"} > set(made["a"]["metrics"]) >= {"a", "a-control"}


def test_each_seed_is_a_row(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = (folder / "tiny.toml").read_text().replace("quantize = false\n", "")  # int8 is made by 'compress run' alone
    (folder / "tiny.toml").write_text(study.replace('name = "a"\n', 'name = "a"\nseeds = [3, 5]\n'))
    assert pack(script, folder) == 0
    assert window(script, folder, "--minutes", "0", "--only", "a") == 0
    assert "not begun: a, a-seed-5\n" in capsys.readouterr().out
    assert window(script, folder, "--row", "a-seed-5") == 0 and window(script, folder, "--row", "a") == 0
    lines = Results.open(folder / "out" / "results.jsonl")
    made = {line.model: (line.recipe, line.training_seed, line.control or line.control_of) for line in lines}
    made.pop("tiny-bert")
    assert made == {
        "a": ("a", 3, "a-control"),
        "a-control": ("a", 3, "a"),
        "a-seed-5": ("a", 5, "a-seed-5-control"),
        "a-seed-5-control": ("a", 5, "a-seed-5"),
    }
    both = next(one for one in aggregate(lines) if one.name == "a")
    assert (both.seeds, both.notes) == (2, ()) and both.low is not None
    assert {"a-seed-5", "a-seed-5-control"} <= set(rows(folder)["a-seed-5"]["metrics"])
    assert window(script, folder, "--minutes", "0", "--only", "a-seed-5") == 0
    assert "done: a-seed-5\n" in capsys.readouterr().out
    assert window(script, folder, "--only", "a-seed-6") == 2 and "--only a-seed-6 is not in" in capsys.readouterr().out
    assert window(script, folder, "--at-once", "0") == 2 and "--at-once 0 must be" in capsys.readouterr().out


class Clock:
    """A clock for the script, and rows that take as long as they are told, or fail."""

    def __init__(self, script: ModuleType, takes: dict[str, float]) -> None:
        self.script, self.takes, self.now, self.made = script, takes, 0.0, list[str]()

    def monotonic(self) -> float:
        return self.now

    def run_until(self, end: float, command: list[str], environment: dict[str, str]) -> str:
        name, seconds = command[-1], self.takes[command[-1]]
        self.made.append(name)
        if self.now + seconds > end:
            self.now = end
            return "the window ended"
        self.now += seconds
        if name == "broken":
            return "its process ended with code -11"
        out = Path(command[command.index("--out") + 1])
        packed = self.script.read_packed(Path(command[command.index("--packed") + 1]))
        self.script.record(SimpleNamespace(out=out), name, packed, "done", seconds)
        return ""


@pytest.fixture
def clock(script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    """Return what makes windows of rows that only pass the time."""
    (folder / "packed").mkdir()
    (folder / "packed" / "packed.json").write_text(json.dumps({"study": "tiny", "budget": "", "teacher": {}}))

    def make(**takes: float) -> Clock:
        made = Clock(script, takes)
        monkeypatch.setattr(script, "time", made)
        monkeypatch.setattr(script, "run_until", made.run_until)
        monkeypatch.setattr(script, "install", lambda wheels, site: site)
        monkeypatch.setattr(script, "check_machine", lambda *_: None)
        return made

    return make


def test_the_next_window_goes_on(
    script: ModuleType, folder: Path, clock: Callable[..., Clock], capsys: pytest.CaptureFixture[str]
) -> None:
    rows_ = clock(a=300, broken=10, b=250)
    assert window(script, folder, "--minutes", "9") == 0
    assert rows_.made == ["a"]  # the median says that another one does not fit
    assert "not begun: b, broken" in capsys.readouterr().out
    assert window(script, folder, "--minutes", "9") == 0
    assert rows_.made == ["a", "b", "broken"] and rows(folder)["broken"]["error"] == "its process ended with code -11"
    shown = capsys.readouterr().out
    assert "done: a, b" in shown and "--only broken tries it again" in shown and "go on:" not in shown
    assert window(script, folder) == 0 and window(script, folder, "--only", "broken", "--only", "a") == 0
    assert rows_.made == ["a", "b", "broken", "broken"]


def test_several_rows_are_made_at_once(
    script: ModuleType, folder: Path, clock: Callable[..., Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_, both = clock(a=1, b=1, broken=1), threading.Barrier(2, timeout=30)

    def run_until(*given: Any) -> str:
        if given[1][-1] != "broken":
            both.wait()  # for the other row
        return rows_.run_until(*given)

    monkeypatch.setattr(script, "run_until", run_until)
    assert window(script, folder, "--at-once", "2") == 0
    assert sorted(rows_.made) == ["a", "b", "broken"]
    assert {name: row["status"] for name, row in rows(folder).items()} == {"a": "done", "b": "done", "broken": "failed"}


def test_a_row_that_was_stopped_waits_unless_its_work_is_here(
    script: ModuleType, folder: Path, clock: Callable[..., Clock], capsys: pytest.CaptureFixture[str]
) -> None:
    rows_ = clock(a=600, b=100, broken=100)
    assert window(script, folder, "--minutes", "9") == 0
    assert rows(folder)["a"]["status"] == "stopped" and rows(folder)["a"]["seconds"] == 540
    assert "go on: python benchmarks/gpu_window.py run" in capsys.readouterr().out
    assert window(script, folder, "--minutes", "9") == 0
    assert rows_.made == ["a", "b", "broken"]  # it had 540 s, and less is left
    (folder / "out" / "rows.jsonl").write_text(json.dumps(rows(folder)["a"]) + "\n")
    (folder / "work" / rows(folder)["a"]["packed"] / "a").mkdir(parents=True)
    rows_.takes["a"] = 90
    assert window(script, folder, "--minutes", "9") == 0
    assert rows_.made[3:] == ["a", "b", "broken"]


def test_results_of_another_pack_are_refused(
    script: ModuleType, folder: Path, clock: Callable[..., Clock], capsys: pytest.CaptureFixture[str]
) -> None:
    clock(a=1, b=1, broken=1)
    assert window(script, folder) == 0
    (folder / "packed" / "packed.json").write_text(json.dumps({"study": "tiny", "budget": "", "teacher": {"x": 1}}))
    assert window(script, folder) == 2
    assert "holds results of other data or another teacher" in capsys.readouterr().out
    (folder / "packed" / "packed.json").unlink()
    assert window(script, folder) == 2 and "make it with 'gpu_window.py pack'" in capsys.readouterr().out


def test_the_end_of_a_window_ends_what_a_row_started(script: ModuleType, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 60 & echo $! >{noted}; wait"]
    assert script.run_until(time.monotonic() + 1, command, dict(os.environ)) == "the window ended"
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(int(noted.read_text()), 0)
            time.sleep(0.05)
    assert script.run_until(time.monotonic() + 9, ["false"], {}) == "its process ended with code 1"
    assert script.run_until(time.monotonic() + 9, ["true"], {}) == ""


def test_only_missing_packages_are_installed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch_pruning-1.6-py3-none-any.whl", "no_such_package-1.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    asked: list[str] = []
    monkeypatch.setattr(script, "pip", lambda *words: asked.extend(words))
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert script.install(tmp_path, tmp_path / "site") == tmp_path / "site"
    assert asked[-1].endswith("no_such_package-1.0-py3-none-any.whl") and "--no-index" in asked
    assert not any("torch_pruning" in word for word in asked) and str(tmp_path / "site") in sys.path


def test_a_machine_without_gpu_is_told(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert pack(script, folder) == 0
    assert window(script, folder, "--device", "cuda") == 2
    assert "finds no CUDA device here" in capsys.readouterr().out and not list((folder / "out").iterdir())
