"""A benchmark that is run again from its lock: models found by hash, data held to it, figures compared."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress import replay
from compress.benchmarking import replay as replay_module
from compress.benchmarking.benchmark import benchmark
from compress.benchmarking.lockfile import LockedModel, lock_path, locked_figure, read_lock, write_lock
from compress.benchmarking.replay import (
    DIFFERS,
    OTHER_HOST,
    OTHER_METHOD,
    SAME,
    WITHIN,
    Agreement,
    ReplayOutcome,
    compare,
    find_models,
    ratio_agrees,
)
from compress.benchmarking.results.files import Results
from compress.benchmarking.results.schema import Measurement
from compress.cli import execute
from compress.data import Example, content_sha256
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.models.model_dir import Model
from compress.recipes import BenchmarkSettings
from tests.support.results import line
from tests.support.tiny import bilstm, classifier, examples, write
from tests.support.training_data import labelled_file

SETTINGS = BenchmarkSettings(runtimes=("torch",), threads=(1,), rounds=3)
QUICK = BenchmarkSettings(rounds=3, batch_sizes=(1,), padded_teacher=False)
ROWS = examples(24)


def speed(value: float, percent: float) -> dict[str, float]:
    """Return a speed-up whose interval reaches so many percent to either side."""
    factor = 1 + percent / 100
    return {"speedup": value, "speedup_low": value / factor, "speedup_high": value * factor}


def run_lines(**changed: Any) -> list[Measurement]:
    """Return the lines of a teacher and a student at two batch sizes; changes are of the student at batch 1."""
    teacher = {"kind": "teacher", "model_sha256": "a" * 64}
    return [
        line("bert", batch_size=1, **teacher),
        line("bert", batch_size=32, **teacher),
        line("small", **{"batch_size": 1, **changed}),
        line("small", batch_size=32),
    ]


def compared(folder: Path, new: list[Measurement], **old: Any) -> Agreement:
    return compare(read_lock(write_lock(folder / "old.jsonl", run_lines(**old), SETTINGS, Compute("cpu"), {})), new)


def outcome(agreement: Agreement, what: str, model: str = "small", setting: str = "") -> str:
    (found,) = [c.outcome for c in agreement.comparisons if (c.what, c.model) == (what, model) and setting in c.setting]
    return found


def test_the_same_lines_agree(tmp_path: Path) -> None:
    agreement = compared(tmp_path, run_lines())
    assert (agreement.verdict, agreement.exit_code) == ("agrees", 0)
    # A metric and a size of each model; speed-ups of the student, as the teacher's are 1 by definition.
    assert [(c.model, c.what, c.outcome) for c in agreement.comparisons] == [
        ("bert", "accuracy", SAME),
        ("small", "accuracy", SAME),
        ("bert", "size", SAME),
        ("small", "size", SAME),
        ("small", "speed-up", WITHIN),
        ("small", "speed-up", WITHIN),
    ]
    assert [c.setting for c in agreement.comparisons[4:]] == ["cpu, 1 thread, batch 1", "cpu, 1 thread, batch 32"]
    assert not agreement.versions and not agreement.missing


@pytest.mark.parametrize(
    ("metric", "expected", "verdict"),
    [(0.895 + 1e-9, SAME, "agrees"), (0.9, WITHIN, "agrees"), (0.92, DIFFERS, "differs"), (0.87, DIFFERS, "differs")],
)
def test_a_metric_is_held_to_its_interval(metric: float, expected: str, verdict: str, tmp_path: Path) -> None:
    agreement = compared(tmp_path, run_lines(metric=metric))
    assert outcome(agreement, "accuracy") == expected and agreement.verdict == verdict


@pytest.mark.parametrize(
    ("size", "expected"), [(88_000_000, SAME), (88_500_000, WITHIN), (80_000_000, DIFFERS), (96_000_000, DIFFERS)]
)
def test_a_size_is_held_to_a_hundredth(size: int, expected: str, tmp_path: Path) -> None:
    assert outcome(compared(tmp_path, run_lines(size_bytes=size)), "size") == expected


def figure(value: float, percent: float) -> Any:
    return locked_figure(line("small", **speed(value, percent)))


def test_errors_of_two_speedups_add_in_squares() -> None:
    # 3% and 4% make 5% on the scale of logarithms.
    three, four = math.expm1(0.03) * 100, math.expm1(0.04) * 100
    assert ratio_agrees(figure(2.0, three), figure(2.0 * math.exp(0.0499), four))
    assert not ratio_agrees(figure(2.0, three), figure(2.0 * math.exp(0.0501), four))
    assert not ratio_agrees(figure(2.0 * math.exp(0.0501), four), figure(2.0, three))


def test_of_many_comparisons_each_may_be_a_little_further_off() -> None:
    before, after = figure(2.0, 5.0), figure(2.0 * 1.05**1.6, 5.0)  # 1.6 / sqrt(2) = 1.13 of a 95% interval
    assert not ratio_agrees(before, after) and ratio_agrees(before, after, comparisons=20)
    assert not ratio_agrees(before, figure(2.0 * 1.05**2.6, 5.0), comparisons=20)


def test_the_bound_holds_as_often_as_it_says() -> None:
    generator, spread, draws = np.random.default_rng(0), 0.03, 2000
    half = 100 * math.expm1(1.96 * spread)
    values = np.exp(generator.normal(math.log(3.0), spread, (draws, 2)))
    wrong = sum(not ratio_agrees(figure(a, half), figure(b, half)) for a, b in values)
    assert 0.035 < wrong / draws < 0.065


def test_interval_sides_are_those_that_face_each_other() -> None:
    wide_above = locked_figure(line("small", speedup=2.0, speedup_low=1.99, speedup_high=3.0))
    assert ratio_agrees(wide_above, figure(2.8, 1.0))
    assert not ratio_agrees(wide_above, figure(1.8, 1.0))


@pytest.mark.parametrize(
    ("new", "expected", "verdict", "code"),
    [
        (speed(5.7, 5), WITHIN, "agrees", 0),
        (speed(3.0, 5), DIFFERS, "differs", 1),
        (speed(3.0, 100), WITHIN, "agrees", 0),
        (speed(0.5, 100), DIFFERS, "differs", 1),
        ({**speed(3.0, 5), "schema": 3}, OTHER_METHOD, "undecided", 3),
    ],
)
def test_a_speedup_is_judged_by_both_intervals_however_wide(
    new: dict[str, Any], expected: str, verdict: str, code: int, tmp_path: Path
) -> None:
    agreement = compared(tmp_path, run_lines(**new))
    assert outcome(agreement, "speed-up", setting="batch 1") in {expected}
    assert (agreement.verdict, agreement.exit_code) == (verdict, code)


def test_another_host_is_not_judged_by_speed_but_by_quality(tmp_path: Path) -> None:
    elsewhere = [replace(x, host_id="other") for x in run_lines(**speed(1.1, 1))]
    agreement = compared(tmp_path, elsewhere)
    assert outcome(agreement, "speed-up", setting="batch 1") == OTHER_HOST and agreement.exit_code == 3
    worse = [replace(x, host_id="other") for x in run_lines(metric=0.5)]
    assert compared(tmp_path, worse).exit_code == 1


def test_versions_that_changed_are_named(tmp_path: Path) -> None:
    new = [replace(x, versions={"torch": "2.14.0", "onnx": "1.0"}) for x in run_lines()]
    assert compared(tmp_path, new).versions == {
        "onnx": ("not installed", "1.0"),
        "python": ("3.11.7", "not installed"),
        "torch": ("2.13.0", "2.14.0"),
    }


def test_what_was_not_measured_again_leaves_it_undecided(tmp_path: Path) -> None:
    agreement = compared(tmp_path, run_lines()[:3])
    assert agreement.missing == ("small in torch, cpu, 1 thread, batch 32",) and agreement.exit_code == 3


def test_a_model_may_be_called_otherwise(tmp_path: Path) -> None:
    teacher, small = run_lines()[:2], run_lines()[2:]
    new = [*teacher, *(replace(one, model="another-name") for one in small)]
    assert not compared(tmp_path, new).missing
    # A baseline has no hash: its name is all there is.
    baseline = {"kind": "baseline", "model_sha256": "", "runtime": "sklearn"}
    lock = read_lock(
        write_lock(tmp_path / "x.jsonl", [*run_lines(), line("majority", **baseline)], SETTINGS, Compute("cpu"), {})
    )
    missing = compare(lock, [*run_lines(), line("tfidf", **baseline)]).missing
    assert missing == ("majority in sklearn, cpu, 1 thread, batch 1",)


def test_copies_of_one_model_are_told_apart_by_their_names(tmp_path: Path) -> None:
    lines = [*run_lines(), line("copy", **speed(9.0, 1))]
    places = {"small": Path("a/one"), "copy": Path("b/two")}
    lock = read_lock(write_lock(tmp_path / "old.jsonl", lines, SETTINGS, Compute("cpu"), places))
    assert {model.name: model.directory for model in lock.models}.items() >= {("small", "one"), ("copy", "two")}
    agreement = compare(lock, lines)
    assert agreement.verdict == "agrees" and len([c for c in agreement.comparisons if c.what == "speed-up"]) == 3


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher and a student in folders of different depth, something that is no model, and a lock of a real run."""
    folder = tmp_path_factory.mktemp("house")
    teacher = write(folder / "models" / "teachers" / "big", classifier("bert"))
    student = write(folder / "models" / "small", bilstm())
    (folder / "models" / "broken").mkdir()
    (folder / "models" / "broken" / "config.json").write_text("{")
    labelled_file(folder / "test.csv", ROWS)
    labelled_file(folder / "other.csv", ROWS[1:])
    benchmark(teacher, [student], ROWS, QUICK, output=folder / "results.jsonl")
    return folder


def locked(path: Path, **changed: Any) -> LockedModel:
    fields: dict[str, Any] = {
        "name": path.name,
        "kind": "model",
        "sha256": Model.open(path).sha256,
        "tokenizer_sha256": "f" * 64,
        "directory": path.name,
        "training_seed": None,
    }
    return LockedModel(**{**fields, **changed})


def test_models_are_found_by_hash_wherever_they_lie(house: Path) -> None:
    big, small = house / "models" / "teachers" / "big", house / "models" / "small"
    models = [locked(big, directory="was-called-otherwise"), locked(small)]
    assert find_models(models, [house]) == {models[0]: big.resolve(), models[1]: small.resolve()}
    assert find_models(models, [small, house / "models" / "teachers"]) == find_models(models, [house])


def test_of_copies_each_gets_its_own_directory(house: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(house / "models" / "small", tmp_path / name)
    models = [locked(tmp_path / "second"), locked(tmp_path / "first")]
    assert find_models(models, [tmp_path]) == {models[0]: tmp_path / "second", models[1]: tmp_path / "first"}
    with pytest.raises(CompressError, match="no directory below"):
        find_models([*models, locked(tmp_path / "first", name="third")], [tmp_path])


def test_a_name_is_no_proof(house: Path, tmp_path: Path) -> None:
    model = locked(house / "models" / "small")
    impostor = write(tmp_path / "small", bilstm(seed=1))
    with pytest.raises(CompressError, match=f"the model 'small' of the lock .hash {model.sha256[:12]}.*--root DIR"):
        find_models([model], [impostor.parent])


def test_links_in_a_circle_end(house: Path, tmp_path: Path) -> None:
    (tmp_path / "around").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(house / "models" / "small")
    model = locked(house / "models" / "small")
    assert find_models([model], [tmp_path]) == {model: (house / "models" / "small").resolve()}


def test_what_lies_too_deep_is_not_found(house: Path, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"abcd")
    shutil.copytree(house / "models" / "small", deep / "small")
    model = locked(deep / "small")
    with pytest.raises(CompressError, match="--root DIR"):
        find_models([model], [tmp_path])
    # A root that lies within another one is looked through as deep as if it were alone.
    assert find_models([model], [tmp_path, tmp_path / "a"]) == {model: deep / "small"}


def test_a_root_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="nowhere is not a directory.*--root"):
        find_models([], [tmp_path / "nowhere"])


def test_a_replay_runs_the_same_benchmark(house: Path, tmp_path: Path) -> None:
    content = json.loads((house / "results.lock.json").read_text())
    path = tmp_path / "of-a-study.lock.json"
    path.write_text(json.dumps(content | {"study": "reviews", "budget": "small"}))
    made = replay(path, house / "test.csv", roots=[house], output=tmp_path / "again.jsonl")
    assert not made.agreement.missing and not made.agreement.versions
    assert {c.outcome for c in made.agreement.comparisons if c.what != "speed-up"} == {SAME}
    assert len(made.agreement.comparisons) == 5 and OTHER_HOST not in {c.outcome for c in made.agreement.comparisons}
    again = read_lock(lock_path(tmp_path / "again.jsonl"))
    assert [model.directory for model in again.models] == ["big", "small"]
    assert (again.study, again.budget) == ("reviews", "small")
    settings = replace(made.lock.settings, runtimes=("torch",))  # where they ran
    assert (again.settings, again.models, again.data) == (settings, made.lock.models, made.lock.data)


def without_measuring(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> list[dict[str, Any]]:
    """Let the stage get the lines of the lock back instead of measuring; return what it asked for."""
    asked: list[dict[str, Any]] = []

    def same_lines(teacher: Path, models: list[Path], rows: Any, *given: Any, **named: Any) -> list[Any]:
        asked.append({"settings": given[0], **named})
        first, *rest = Results.open(Path(teacher).parents[2] / "results.jsonl")
        return [first, *(replace(x, **changed) for x in rest)]

    monkeypatch.setattr(replay_module, "benchmark", same_lines)
    return asked


def test_threads_that_this_host_lacks_are_left_out(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = len(os.sched_getaffinity(0))
    asked = without_measuring(monkeypatch)
    content = json.loads((house / "results.lock.json").read_text())
    content["settings"]["threads"] = [1, cores + 1]
    content["figures"] += [{**x, "threads": cores + 1} for x in content["figures"]]
    path = tmp_path / "wide.lock.json"
    path.write_text(json.dumps(content))
    made: ReplayOutcome = replay(path, house / "test.csv", roots=[house])
    assert asked[0]["settings"].threads == (1,) and len(made.agreement.missing) == 2
    assert made.agreement.verdict == "undecided"


@pytest.mark.parametrize(
    ("ran", "given", "asked_for"),
    [
        ("onnxruntime", [], ("torch", "onnxruntime")),  # where a model with a container answers otherwise now
        ("native", [], ()),
        ("onnxruntime", ["onnxruntime"], ("onnxruntime",)),
    ],
)
def test_models_run_where_they_ran(
    ran: str, given: list[str], asked_for: tuple[str, ...], house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = without_measuring(monkeypatch)
    content = json.loads((house / "results.lock.json").read_text())
    content["settings"]["runtimes"] = given
    for figure in content["figures"]:
        figure["runtime"] = "torch" if figure["kind"] == "teacher" else ran
    content["figures"].append({**content["figures"][-1], "model": "tf-idf", "kind": "baseline", "runtime": "numpy"})
    path = tmp_path / "earlier.lock.json"
    path.write_text(json.dumps(content))
    replay(path, house / "test.csv", roots=[house])
    assert asked[0]["settings"].runtimes == asked_for


def test_other_rows_are_refused(house: Path) -> None:
    with pytest.raises(CompressError, match="--data has 23 rows.*'test' of 24 rows"):
        replay(house / "results.lock.json", house / "other.csv")


def test_training_rows_must_be_given_and_the_same(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = without_measuring(monkeypatch)
    with pytest.raises(CompressError, match="no training rows.*leave out --train"):
        replay(house / "results.lock.json", house / "test.csv", train=house / "test.csv")
    content = json.loads((house / "results.lock.json").read_text())
    content["train"] = content["data"] | {"name": "train.csv"}
    path = tmp_path / "fitted.lock.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CompressError, match="'train.csv' of 24 rows; give them with --train"):
        replay(path, house / "test.csv", roots=[house])
    with pytest.raises(CompressError, match="--train has 23 rows"):
        replay(path, house / "test.csv", train=house / "other.csv", roots=[house])
    replay(path, house / "test.csv", train=house / "test.csv", roots=[house])
    assert [row.text for row in asked[0]["train"]] == [row.text for row in ROWS]


def test_training_rows_that_cannot_be_read_are_refused(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock, data = str(house / "results.lock.json"), str(house / "test.csv")
    assert execute(["replay", lock, "--data", data, "--train", str(house / "missing.csv"), "-o", str(house / "n")]) == 2
    assert "There is no file" in capsys.readouterr().err


def test_training_rows_that_overlap_are_dropped_again(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = without_measuring(monkeypatch)
    others = [Example(f"{row.text} again", label=row.label) for row in ROWS[:5]]
    content = json.loads((house / "results.lock.json").read_text())
    content["train"] = content["data"] | {"name": "train.csv", "rows": 5, "sha256": content_sha256(others)}
    path = tmp_path / "fitted.lock.json"
    path.write_text(json.dumps(content))
    replay(path, house / "test.csv", train=[ROWS[3], *others, ROWS[0]], roots=[house])
    assert asked[0]["train"] == others


def test_the_lock_itself_is_not_overwritten(house: Path) -> None:
    with pytest.raises(CompressError, match="results.lock.json, which this command reads"):
        replay(house / "results.lock.json", house / "test.csv", output=house / "results.jsonl", force=True)


Say = Callable[..., int]


@pytest.fixture
def say(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run the command on the house, with the student's lines changed."""

    def run(**changed: Any) -> int:
        without_measuring(monkeypatch, **changed)
        return execute(
            [
                "replay",
                str(house / "results.lock.json"),
                "--data",
                str(house / "test.csv"),
                "-o",
                str(tmp_path / "again.jsonl"),
            ]
        )

    return run


def test_the_command_says_what_it_compared(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    assert say() == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == "agrees: 5 figures hold"
    for word in ("big", "small", "cpu, 1 thread, batch 1", "accuracy", "speed-up", "the same", "within its interval"):
        assert word in shown


@pytest.mark.parametrize(
    ("changed", "code", "last"),
    [
        ({"metric": 2.0}, 1, "differs: 1 of 5 figures are outside their intervals"),
        ({"batch_size": 7}, 3, "undecided: 1 configurations were not measured again; 2 figures hold"),
    ],
)
def test_the_exit_code_is_the_verdict(
    changed: dict[str, Any], code: int, last: str, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(**changed) == code
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.lock.json"
    assert execute(["replay", str(path), "--data", "x.csv", "-o", "y.jsonl"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_terminal_is_not_obeyed(
    house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_measuring(monkeypatch)
    content = json.loads((house / "results.lock.json").read_text())
    for figure in content["figures"]:
        figure["model"] = "\x1b[2J[red]evil"
    content["versions"]["torch"] = "\x1b]0;title\x07"
    path = tmp_path / "evil.lock.json"
    path.write_text(json.dumps(content))
    words = {"--data": house / "test.csv", "--root": house, "-o": tmp_path / "again.jsonl"}
    execute(["replay", str(path), *(str(word) for pair in words.items() for word in pair)])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown and "[red]evil" in shown
