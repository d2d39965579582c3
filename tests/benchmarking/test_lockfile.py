"""A lock says all that a replay needs and nothing of where things lie; one of somebody else is held to its form."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.benchmark import benchmark
from compress.benchmarking.lockfile import Lock, LockedSettings, lock_path, read_lock, write_lock
from compress.data import Example, content_sha256
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.recipes import BenchmarkSettings
from tests.support import REPOSITORY
from tests.support.results import line
from tests.support.tiny import examples, torch_directory

SETTINGS = BenchmarkSettings(
    runtimes=("torch",), pruning_steps=True, threads=(1, 2), batch_sizes=(1, 32), rounds=3, lengths=()
)
COMPUTE = Compute("cpu", seed=7)


def made(folder: Path, train: list[Example] | None = None) -> Path:
    """Write the lock of a teacher, a student and a baseline."""
    bert = torch_directory("bert")
    lines = [
        line("bert", kind="teacher", model_sha256=bert.sha256),
        line("bert", kind="teacher", model_sha256=bert.sha256, batch_size=32),
        line("small", kind="model", training_seed=3),
        line("majority", kind="baseline", model_sha256="", tokenizer_sha256=""),
        line("bert-base", kind="reference-model", metric_name=None, metric=None, metric_low=None, metric_high=None),
    ]
    return write_lock(folder / "results.jsonl", lines, SETTINGS, COMPUTE, {"bert": bert.path}, train)


def test_it_lies_beside_the_results(tmp_path: Path) -> None:
    assert made(tmp_path) == lock_path(tmp_path / "results.jsonl") == tmp_path / "results.lock.json"
    assert [file.name for file in tmp_path.iterdir()] == ["results.lock.json"]


def test_what_was_measured_comes_back(tmp_path: Path) -> None:
    lock = read_lock(made(tmp_path))
    assert (lock.data.name, lock.data.sha256, lock.data.rows) == ("dev.tsv", "d" * 64, 2000)
    assert lock.settings == LockedSettings(**vars(SETTINGS), device="cpu", seed=7) and lock.train is None
    assert lock.versions == {"torch": "2.13.0", "python": "3.11.7"} and lock.host["cpu_flags"] == ["avx2"]
    assert (lock.host_id, lock.command, lock.study) == ("abc123", "compress benchmark", "made-up")
    # Baselines and reference models are made anew: only model directories are looked for by their hashes.
    models = [(model.name, model.kind, model.training_seed) for model in lock.models]
    assert models == [("bert", "teacher", None), ("small", "model", 3)]
    assert lock.models[0].sha256 == torch_directory("bert").sha256
    assert len(lock.figures) == 5 and lock.figures[2].speedup == 6.0 and lock.figures[4].metric is None


def test_training_rows_are_known_by_their_hash(tmp_path: Path) -> None:
    rows = examples(12)
    lock = read_lock(made(tmp_path, train=rows))
    assert lock.train is not None and (lock.train.sha256, lock.train.rows) == (content_sha256(rows), 12)


def test_no_place_of_this_machine_is_in_it(tmp_path: Path) -> None:
    text = made(tmp_path).read_text()
    assert str(torch_directory("bert").path.parent) not in text and '"directory": "bert"' in text


def test_every_argument_of_a_benchmark_is_in_the_lock(tmp_path: Path) -> None:
    found_by_hash = {"teacher", "models", "controls", "data", "train"}
    assert set(inspect.signature(benchmark).parameters) == found_by_hash | {"settings", "compute", "output"}
    kept = json.loads(made(tmp_path).read_text())["settings"]
    assert set(kept) == {field.name for field in fields(BenchmarkSettings)} | {"device", "seed"}


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "benchmarks" / "results").glob("*.lock.json")), ids=lambda p: p.name
)
def test_the_committed_locks_open(path: Path) -> None:
    lock = read_lock(path)
    assert lock.settings.rounds >= 3 and lock.figures


def changed(path: tuple[str | int, ...], value: Any) -> Callable[[Any], Any]:
    """Return what puts a value into a lock; ``...`` takes the key out."""

    def change(content: Any) -> Any:
        place = content
        for key in path[:-1]:
            place = place[key]
        if value is ...:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return content

    return change


def test_a_lock_that_was_cut_is_answered_with_one_advice(tmp_path: Path) -> None:
    path = made(tmp_path)
    path.write_text(path.read_text()[:200])
    with pytest.raises(
        CompressError, match=r"is not valid JSON \([^;]*\); give the whole \.lock\.json of a benchmark$"
    ):
        read_lock(path)


HOSTILE = {
    "no object": (lambda content: [content], "it is not an object"),
    "another version": (changed(("format_version",), 2), "format 2; this compress reads 1"),
    "a version that is no number": (changed(("format_version",), {"a": "b" * 99}), "lock of format"),
    "a missing key": (changed(("host_id",), ...), "host_id is missing"),
    "an unknown key": (changed(("run",), "rm"), "unknown key run"),
    "an unknown key of a model": (changed(("models", 0, "path"), "/etc"), r"unknown key models\[0\].path"),
    "a path for a name": (changed(("models", 0, "directory"), "../../etc"), "not the name of a directory"),
    "an absolute path": (changed(("models", 1, "directory"), "/etc"), "not the name of a directory"),
    "another system's path": (changed(("models", 1, "directory"), "c:\\windows"), "not the name of a directory"),
    "a parent": (changed(("models", 1, "directory"), ".."), "not the name of a directory"),
    "an empty name": (changed(("models", 1, "directory"), ""), "not the name of a directory"),
    "a name that a terminal obeys": (changed(("models", 1, "directory"), "a\x1b[2J"), "not the name of a directory"),
    "a hash of another length": (changed(("models", 1, "sha256"), "abc"), "model 'small' has no hash"),
    "a hash that is a path": (changed(("data", "sha256"), "../" * 21 + "x"), "data 'dev.tsv' has no hash"),
    "a kind that is made anew": (changed(("models", 1, "kind"), "competitor"), "of kind 'competitor'"),
    "no teacher": (changed(("models", 0, "kind"), "model"), "one teacher"),
    "models that are no list": (changed(("models",), {}), "models = .* is not a list"),
    "an unknown setting": (changed(("settings", "output"), "/etc/passwd"), "unknown key settings.output"),
    "a pruning step that is no switch": (
        changed(("settings", "pruning_steps"), 1),
        "pruning_steps = 1 is not of type bool",
    ),
    "endless rounds": (changed(("settings", "rounds"), 10**9), "rounds = 1000000000 must be"),
    "an enormous batch": (changed(("settings", "batch_sizes"), [10**9]), "batch_sizes = .* must be"),
    "a hundred large batches": (
        changed(("settings", "batch_sizes"), [65_536 - number for number in range(100)]),
        r"a round of 13,097,300 rows for each model; give fewer or smaller ones, of 200,000 rows at most",
    ),
    "a batch of truth": (changed(("settings", "batch_sizes"), [True]), r"batch_sizes\[0\] = True is not of type int"),
    "too many lengths": (changed(("settings", "lengths"), list(range(1, 200))), "lengths has 199 values"),
    "a number for a list": (changed(("settings", "batch_sizes"), 1), "batch_sizes = 1 is not a list"),
    "a device of its own": (changed(("settings", "device"), "cuda:7"), "device = 'cuda:7' is not one of"),
    "a name that is too long": (changed(("settings", "metric"), "m" * 999), "text of at most 200 characters"),
    "a competitor that is unknown": (changed(("settings", "competitors"), ["\x1b[2J"]), "unknown competitor"),
    "a key that a terminal obeys": (changed(("settings", "\x1b[2J"), 1), "unknown key"),
    "names that are no texts": (
        changed(("settings", "competitors"), [{}]),
        r"competitors\[0\] = {} is not of type str",
    ),
    "versions that are no texts": (
        changed(("versions", "torch"), ["2"]),
        r"versions\.torch = \['2'\] is not of type str",
    ),
    "no figures": (changed(("figures",), []), "figures are missing"),
    "a text for a number": (
        changed(("figures", 2, "speedup"), "5"),
        r"figures\[2\].speedup = '5' is not of type float",
    ),
    "a speed-up below zero": (changed(("figures", 2, "speedup"), -1.0), r"figures\[2\]: speedup is not above 0"),
    "a number outside its interval": (changed(("figures", 2, "speedup_low"), 9.0), "outside its interval"),
    "a metric without interval": (changed(("figures", 2, "metric_low"), None), "metric has no interval"),
    "a number that is too large": (
        changed(("figures", 2, "size_bytes"), 10**30),
        "size_bytes = 1000.* is not a number below",
    ),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_what_no_benchmark_writes_is_refused(fault: str, tmp_path: Path) -> None:
    change, message = HOSTILE[fault]
    path = made(tmp_path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(CompressError, match=message) as error:
        read_lock(path)
    assert str(error.value).startswith(str(path)) and len(str(error.value)) < 400 + len(str(path))
    assert "\x1b" not in str(error.value)


def test_a_file_that_is_missing_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompressError, match="does not exist.*compress benchmark"):
        read_lock(tmp_path / "none.lock.json")
    with pytest.raises(CompressError, match="is a directory"):
        read_lock(tmp_path)
    path = made(tmp_path)
    monkeypatch.setattr("compress.benchmarking.lockfile.LARGEST_BYTES", 100)
    with pytest.raises(CompressError, match="at most 100 are read"):
        read_lock(path)


def test_an_odd_name_of_a_directory_is_left_out(tmp_path: Path) -> None:
    lines = [line("a/b\\c", kind="teacher")]
    lock: Lock = read_lock(write_lock(tmp_path / "x.jsonl", lines, SETTINGS, COMPUTE, {}))
    assert lock.models[0].name == "a/b\\c" and lock.models[0].directory == "model"
