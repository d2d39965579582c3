"""A lock says all that a replay needs and nothing of where things lie; one of somebody else is held to its form."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.benchmark import benchmark
from compress.benchmarking.lockfile import NOT_KEPT, SETTINGS, Lock, lock_path, read_lock, write_lock
from compress.data import content_sha256
from compress.errors import CompressError
from compress.models.model_dir import ModelDir
from tests.support.results import line
from tests.support.tiny import examples, torch_directory

SETTING: dict[str, Any] = {
    "runtimes": ["torch"],
    "baselines": None,
    "competitors": [],
    "competitor_models": [],
    "reference_models": [],
    "pruning_steps": True,
    "device": "cpu",
    "threads": [1, 2],
    "batch_sizes": [1, 32],
    "lengths": [],
    "padded_teacher": True,
    "rounds": 3,
    "seed": 7,
    "metric": None,
    "max_length": 0,
    "together": 0,
}


def made(folder: Path, **arguments: Any) -> Path:
    """Write the lock of a teacher, a student and a baseline."""
    teacher = torch_directory("bert")
    lines = [
        line("bert", kind="teacher", model_sha256=teacher.sha256),
        line("bert", kind="teacher", model_sha256=teacher.sha256, batch_size=32),
        line("small", kind="model", training_seed=3),
        line("majority", kind="baseline", model_sha256="", tokenizer_sha256=""),
        line("bert-base", kind="reference-model", metric_name=None, metric=None, metric_low=None, metric_high=None),
    ]
    return write_lock(folder / "results.jsonl", lines, {**SETTING, "teacher": teacher, **arguments})


def test_it_lies_beside_the_results(tmp_path: Path) -> None:
    assert made(tmp_path) == lock_path(tmp_path / "results.jsonl") == tmp_path / "results.lock.json"
    assert [file.name for file in tmp_path.iterdir()] == ["results.lock.json"]


def test_what_was_measured_comes_back(tmp_path: Path) -> None:
    lock = read_lock(made(tmp_path))
    assert (lock.data.name, lock.data.sha256, lock.data.rows) == ("dev.tsv", "d" * 64, 2000)
    assert lock.settings == SETTING and lock.train is None
    assert lock.versions == {"torch": "2.13.0", "python": "3.11.7"} and lock.host["cpu_flags"] == ["avx2"]
    assert (lock.host_id, lock.command, lock.study) == ("abc123", "compress benchmark", "made-up")
    # Baselines and reference models are made anew: only model directories are looked for by their hashes.
    models = [(model.name, model.kind, model.training_seed) for model in lock.models]
    assert models == [("bert", "teacher", None), ("small", "model", 3)]
    assert lock.models[0].sha256 == torch_directory("bert").sha256
    assert len(lock.figures) == 5 and lock.figures[2].speedup == 5.5 and lock.figures[4].metric is None


def test_training_rows_are_known_by_their_hash(tmp_path: Path) -> None:
    rows = examples(12)
    lock = read_lock(made(tmp_path, train=rows))
    assert lock.train is not None and (lock.train.sha256, lock.train.rows) == (content_sha256(rows), 12)


def test_no_place_of_this_machine_is_in_it(tmp_path: Path) -> None:
    directory = torch_directory("bert").path
    for teacher in (str(directory), directory, ModelDir.open(directory)):
        text = made(tmp_path, teacher=teacher).read_text()
        assert str(directory.parent) not in text and '"directory": "bert"' in text


def test_every_argument_of_a_benchmark_is_kept_or_known_to_be_needless() -> None:
    arguments = set(inspect.signature(benchmark).parameters)
    assert arguments == set(SETTINGS) | set(NOT_KEPT)
    assert set(SETTING) == set(SETTINGS)


def test_an_argument_it_does_not_know_is_a_defect(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="new_option"):
        made(tmp_path, new_option=1)
    assert not list(tmp_path.iterdir())


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


HOSTILE = {
    "no object": (lambda content: [content], "it is not an object"),
    "another version": (changed(("format_version",), 2), "format 2; this compress reads 1"),
    "a version that is no number": (changed(("format_version",), {"a": "b" * 99}), "lock of format"),
    "a missing key": (changed(("host_id",), ...), "it has no host_id"),
    "an unknown key": (changed(("run",), "rm"), "it has the unknown key 'run'"),
    "an unknown key of a model": (changed(("models", 0, "path"), "/etc"), r"models\[0\] has the unknown key 'path'"),
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
    "models that are no list": (changed(("models",), {}), "models is not a list"),
    "an unknown setting": (changed(("settings", "output"), "/etc/passwd"), "setting 'output' is unknown"),
    "a pruning step that is no switch": (changed(("settings", "pruning_steps"), 1), "setting pruning_steps is 1"),
    "endless rounds": (changed(("settings", "rounds"), 10**9), "rounds is 1000000000"),
    "an enormous batch": (changed(("settings", "batch_sizes"), [10**9]), "batch_sizes is"),
    "a batch of truth": (changed(("settings", "batch_sizes"), [True]), "batch_sizes is"),
    "too many lengths": (changed(("settings", "lengths"), list(range(1, 200))), "lengths is"),
    "a number for a list": (changed(("settings", "threads"), 1), "threads is 1"),
    "a device of its own": (changed(("settings", "device"), "cuda:7"), "device is 'cuda:7'"),
    "names that are no texts": (changed(("settings", "competitors"), [{}]), "competitors is"),
    "versions that are no texts": (changed(("versions", "torch"), ["2"]), "versions are not texts"),
    "no figures": (changed(("figures",), []), "figures are missing"),
    "a text for a number": (changed(("figures", 2, "speedup"), "5"), r"figures\[2\].speedup is '5', not float"),
    "a speed-up below zero": (changed(("figures", 2, "speedup"), -1.0), r"figures\[2\].speedup is not above 0"),
    "a number outside its interval": (changed(("figures", 2, "speedup_low"), 9.0), "outside its interval"),
    "a metric without interval": (changed(("figures", 2, "metric_low"), None), "metric has no interval"),
    "a number that is too large": (changed(("figures", 2, "size_bytes"), 10**30), "size_bytes is too large"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("null", "not an object"),
        ("\x00\xff", "cannot be read"),
    ],
)
def test_what_is_no_json_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.lock.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CompressError, match=message):
        read_lock(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(number: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    path.write_text(re.sub(r'"latency_p50_ms": [0-9.]+', f'"latency_p50_ms": {number}', path.read_text(), count=1))
    with pytest.raises(CompressError, match="not a number|too large|cannot be read"):
        read_lock(path)


def test_a_file_that_is_missing_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompressError, match="does not exist.*compress benchmark"):
        read_lock(tmp_path / "none.lock.json")
    with pytest.raises(CompressError, match="cannot be read"):
        read_lock(tmp_path)
    path = made(tmp_path)
    monkeypatch.setattr("compress.benchmarking.lockfile.LARGEST_BYTES", 100)
    with pytest.raises(CompressError, match="too large"):
        read_lock(path)


def test_an_odd_name_of_a_directory_is_left_out(tmp_path: Path) -> None:
    lines = [line("a/b\\c", kind="teacher")]
    lock: Lock = read_lock(write_lock(tmp_path / "x.jsonl", lines, SETTING))
    assert lock.models[0].name == "a/b\\c" and lock.models[0].directory == "model"
