"""A request is declared once: fields decide the key, faults come all at once, and the command makes it again."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

import compress
from compress.cli import REQUESTS, cli, execute
from compress.errors import CompressError
from compress.fields import declared_of, fields_of, option_of, snake_case
from compress.requests import Request
from compress.requests.compression import Quantize
from compress.requests.labelling import Label
from compress.requests.measuring import Benchmark, Replay
from compress.requests.training import Distill, Finetune, Search
from tests.support.tiny import examples, torch_directory

DECLARED: dict[str, type[Request[Any]]] = {
    name: getattr(importlib.import_module(place.partition(":")[0]), place.partition(":")[2])
    for name, place in REQUESTS.items()
}
FIELDS = [(name, field) for name, declared in DECLARED.items() for field in fields_of(declared)]


def unchecked(declared: type[Request[Any]], **changed: Any) -> Request[Any]:
    """Return a request without asking whether its values fit each other."""
    made = object.__new__(declared)
    for name, field in fields_of(declared).items():
        object.__setattr__(made, name, changed.get(name, f"a {name}" if field.is_required() else field.default))
    return made


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_each_field_changes_the_key_or_is_declared_not_to(name: str, field: str) -> None:
    declared = DECLARED[name]
    first, second = (unchecked(declared, **{field: value}) for value in ("one", "another"))
    decides = declared_of(fields_of(declared)[field]).decides
    assert (first.key() != second.key()) == decides


def command_of(name: str) -> click.Command:
    found: click.Command = cli
    for word in name.split():
        assert isinstance(found, click.Group)
        command = found.get_command(click.Context(cli), word)
        assert command is not None
        found = command
    return found


@pytest.mark.parametrize("name", DECLARED)
def test_each_field_has_its_option_with_its_help(name: str) -> None:
    options = {option: parameter for parameter in command_of(name).params for option in parameter.opts}
    for field, known in fields_of(DECLARED[name]).items():
        declared = declared_of(known)
        if declared.has_option:
            flags = [*declared.flags] if declared.flags else [option_of(field, known).split(" ")[0]]
            helps = {flag: said for flag, (_, said) in (declared.flags or {}).items()}
            assert all(options[flag].help == helps.get(flag, known.description) for flag in flags)


@pytest.mark.parametrize("name", DECLARED)
def test_the_python_function_says_what_it_takes(name: str) -> None:
    function = getattr(compress, snake_case(DECLARED[name]))
    assert [*function.__signature__.parameters][:1] == [*fields_of(DECLARED[name])][:1]
    assert all(f"{field}: " in function.__doc__ for field in fields_of(DECLARED[name]))


def test_all_faults_come_at_once() -> None:
    with pytest.raises(CompressError) as found:
        Distill("teacher", rows=-1, temperature=2.0, control="yes", overlap="ask")  # type: ignore[call-arg]
    assert sorted(str(found.value).split("; ")) == [
        "control = 'yes' must be true or false",
        "distill() has no argument 'temperature'.",
        "overlap = 'ask' must be one of 'few', 'drop' or 'refuse'",
        "rows = -1 must be at least 0",
        "student is missing",
    ]


def test_options_without_effect_are_refused_together() -> None:
    with pytest.raises(CompressError) as found:
        Distill("teacher", "cnn", "out", metric="accuracy", weights=(1.0,), control=True)
    assert str(found.value).split("; ") == [
        "--weight changes nothing without --combine",
        "add it, or leave --weight out",
        "--control trains on gold labels alone, and there are none",
        "give them with --train FILE",
    ]


def test_data_is_no_number_and_a_model_no_list() -> None:
    with pytest.raises(CompressError, match="teacher = 3 is not a model; give a directory, a hub name"):
        Distill(3, "cnn", "out")  # type: ignore[arg-type]
    with pytest.raises(CompressError, match="takes teacher, student, output by position"):
        Distill("a", "b", "c", "d")  # type: ignore[call-arg]


def test_the_command_makes_the_request_again() -> None:
    made = Distill(
        "teacher",
        "cnn",
        "new folder",
        unlabeled="pool.txt",
        train="s3://user:secret@bucket/a.csv",
        overlap="drop",
        rows=5,
    )
    words = shlex.split(made.command)
    assert "secret" not in made.command and words[:2] == ["compress", "distill"]
    context = cli.get_command(None, "distill").make_context("distill", words[2:])  # type: ignore[arg-type,union-attr]
    given = {name: value for name, value in context.params.items() if value}
    assert given["overlap"] == "drop" and given["rows"] == 5 and given["output"] == "new folder"
    assert given["unlabeled"] == ("pool.txt",)


def test_rows_0_asks_for_all_rows_of_the_pool() -> None:
    made = Distill("teacher", "cnn", "out", unlabeled="pool.txt", rows=0)
    assert made.rows == 0 and made.command.endswith("--rows 0")
    assert "--rows" not in dataclasses.replace(made, rows=None).command


@pytest.mark.parametrize(
    ("name", "typed"), [("label", "90s"), ("search", "90s"), ("benchmark", "90s"), ("benchmark", "90")]
)
def test_a_time_limit_is_seconds_in_python_and_a_time_on_the_command_line(name: str, typed: str) -> None:
    made = unchecked(DECLARED[name], time_limit=90.0)
    assert isinstance(made.time_limit, float) and "--time-limit 90s" in made.command  # type: ignore[attr-defined]
    words = [*shlex.split(made.command)[2:], "--time-limit", typed]
    context = command_of(name).make_context(name, words, resilient_parsing=True)
    assert context.params["time_limit"] == 90


def test_settings_of_a_benchmark_are_those_of_recipes_and_checked_before_the_work() -> None:
    made = Benchmark("teacher", ["a"], "test.csv", runtimes=["torch"], batch_sizes=[1, 8], threads=[0], time_limit=9)
    settings = made.settings((2,))
    assert (settings.runtimes, settings.batch_sizes, settings.threads) == (("torch",), (1, 8), (2,))
    with pytest.raises(CompressError) as found:
        Benchmark("teacher", ["a"], "test.csv", runtimes=["torhc"], batch_sizes=[])
    assert str(found.value).startswith("needs one or more threads and batch_sizes; unknown runtime 'torhc'; there is ")


def test_content_decides_and_not_its_place() -> None:
    rows, others = examples(4), examples(6)
    made = Distill("teacher", "cnn", "out", train="a.csv")
    moved = dataclasses.replace(made, train="b.csv")
    assert made.key() != moved.key() and made.key(train=rows) == moved.key(train=rows) != made.key(train=others)


def test_what_is_taken_by_position_comes_first_in_the_command() -> None:
    made = Replay("https://me:secret@host/a.lock.json", "test.csv", "new.jsonl", roots=("models",))
    assert made.command == "compress replay https://host/a.lock.json --data test.csv --output new.jsonl --root models"


def test_a_callback_gets_a_title_the_steps_done_and_all_steps() -> None:
    seen: list[tuple[str, int, int | None]] = []
    request = Finetune("encoder", train=[], validation=[], progress=lambda *phase, **_: None)  # shows by itself
    assert request.progress.__name__ == "<lambda>"
    request = Finetune(
        "encoder", train=[], validation=[], progress=lambda title, done, total: seen.append((title, done, total))
    )
    with request.progress("Training", 3) as advance:
        advance(2)
    assert seen == [("Training", 0, 3), ("Training", 2, 3)]
    with pytest.raises(CompressError, match="progress = 3 must be a function of a title"):
        Finetune("encoder", train=[], validation=[], progress=3)


@pytest.mark.parametrize("name", [*DECLARED, "list", "show"])
def test_each_command_prints_its_result_as_json(name: str) -> None:
    flags = {option for parameter in command_of(name).params for option in getattr(parameter, "opts", ())}
    takes_a_file = {"predict": False, "check": True}  # JSON lines anyway, and the verdict of "check --json FILE"
    assert ("--json" in flags) == takes_a_file.get(name, True)
    if "--json" in flags:
        (option,) = (one for one in command_of(name).params if "--json" in one.opts)
        assert isinstance(option, click.Option) and option.is_flag == (name not in takes_a_file)


def test_json_is_all_that_standard_output_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", str(torch_directory("bert").path), "-o", str(tmp_path / "made"), "--json"]
    for command in ("export", "quantize"):
        assert execute([command, *words, "--force"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["path"] == str(tmp_path / "made") and found["size_bytes"] > 0
        assert found["task"] == "classification" and found["stage"] == command


def test_commands_of_shards_and_of_mappings_in_memory_can_be_typed() -> None:
    label = Label("t", "x", "o", shard="1/2")
    assert label.command.endswith("--shard 1/2")
    search = Search("t", "o", unlabeled="x", train="a", validation="b", label_map={"0": "bad"})
    assert search.command.endswith("--label-map FILE")


def test_wrong_arguments_are_one_sentence() -> None:
    for wrong, sentence in (
        (lambda: Label("t", "x", "o", engine="rya"), "engine = 'rya' is not 'local' or 'ray'"),
        (lambda: Quantize("m", options=[("a", 1)]), "must be a dict"),  # type: ignore[arg-type]
        (lambda: Distill("t", "s", teacher="x"), "is given teacher twice, by position and by name"),  # type: ignore[misc]
    ):
        with pytest.raises(CompressError, match=sentence):
            wrong()


def test_a_result_in_the_cache_is_of_the_content_and_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    table = tmp_path / "v.csv"
    table.write_text("title,body,label\na,b,good\nc,d,bad\n")
    first = compress.import_labels(table, label_column="label", text_column="title")
    assert compress.import_labels(table, label_column="label", text_column="title").path == first.path
    other = compress.import_labels(table, label_column="label", text_column="body")
    assert [example.text for example, _ in other] == ["b", "d"]
    table.write_text("title,body,label\na,b,bad\nc,d,good\n")
    changed = compress.import_labels(table, label_column="label", text_column="title")
    assert len({first.path, other.path, changed.path}) == 3
