"""What the scripts of benchmarks share: options, turns, and lines of results."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compress.benchmarking.results.files import host_id
from tests.support import REPOSITORY, module_from


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_from(REPOSITORY / "benchmarks" / "script.py")


def test_options_follow_from_types_and_defaults(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"teacher": Path, "rows": 5, "name": None, "fresh": False, "sizes": [1, 32], "only": []}
    options |= {"device": ("cuda", "cpu"), "methods": (["search", "random"],), "turn": (None, "a", "b")}

    def read(*words: str) -> Any:
        return script.read_options(
            "What it does.", positional=("paths", "*"), hidden="turn", arguments=words, **options
        )

    least = read("--teacher", "t", "-o", "r.jsonl")
    assert (least.teacher, least.output, least.rows, least.name) == (Path("t"), Path("r.jsonl"), 5, None)
    assert (least.fresh, least.sizes, least.only, least.device, least.paths) == (False, [1, 32], [], "cuda", [])
    assert (least.methods, least.turn) == (["search", "random"], None)
    more = ("--sizes", "4", "--sizes", "8", "9", "--fresh", "--only", "a", "--device", "cpu", "--methods", "random")
    more += ("--turn", "b", "--", "--index", "url")
    found = read("--teacher", "t", "-o", "r.jsonl", *more)
    assert (found.sizes, found.fresh, found.only, found.device) == ([4, 8, 9], True, ["a"], "cpu")
    assert (found.methods, found.turn, found.paths) == (["random"], "b", ["--index", "url"])
    wrong = (["--device", "tpu"], ["--methods", "serch"], ["--methods", "search", "serch"], ["--turn", "c"])
    for words in (["-o", "r.jsonl"], ["--teacher", "t"], *(["--teacher", "t", "-o", "r", *typed] for typed in wrong)):
        with pytest.raises(SystemExit) as error:
            read(*words)
        assert error.value.code == 2
    assert "What it does." not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        read("--help")
    said = capsys.readouterr().out
    assert "--methods" in said and "--turn" not in said


def test_what_follows_without_an_option_may_be_needed(script: Any) -> None:
    def read(*words: str) -> Any:
        return script.read_options("", None, positional=("models", "+"), arguments=words)

    assert read("a", "b").models == ["a", "b"]
    with pytest.raises(SystemExit) as error:
        read()
    assert error.value.code == 2


@pytest.mark.parametrize(
    ("name", "wrong", "needed"),
    [
        ("few_rows", "only", "data-root work output"),
        ("searching", "only", "set teacher unlabeled train validation test work output"),
        ("selection", "choice", "set teacher pool validation test work output"),
        ("select_texts", "only", "data-root work output"),
        ("speed/gpu", "runtime", "teacher data output"),
        ("pruning/pruning_schedules", "arms", "teacher train validation work output"),
        ("speed/beside_other_work", "loads", "teacher train"),
        ("speed/beside_other_work", "client", "teacher train"),
    ],
)
def test_scripts_refuse_unknown_names(
    name: str, wrong: str, needed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for option in needed.split() for word in (f"--{option}", "given")]
    path = REPOSITORY / "benchmarks" / f"{name}.py"
    monkeypatch.setattr("sys.argv", [path.name, *words, f"--{wrong}", "serch"])
    with pytest.raises(SystemExit) as error:
        module_from(path).main()
    assert error.value.code == 2 and "invalid choice: 'serch'" in capsys.readouterr().err


def test_every_round_has_each_name_once_in_an_order_of_its_own(script: Any) -> None:
    turns = list(script.in_turns("abcdef", 3, seed=1))
    orders = [[name for number, name in turns if number == wanted] for wanted in range(3)]
    assert all(sorted(order) == list("abcdef") for order in orders) and len(set(map(tuple, orders))) == 3
    assert turns == list(script.in_turns("fedcba", 3, seed=1))


def test_a_table_has_columns_as_wide_as_their_cells(script: Any) -> None:
    assert script.columns(("loss", "x"), [("kl", "1.0000")]) == "loss | x\nkl   | 1.0000"
    assert script.said({"value": 1.234, "low": 1.2, "high": 1.3}) == "x1.23 (1.20 to 1.30)"


def test_a_line_replaces_the_one_of_the_same_fields(script: Any, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for line in ({"set": "a", "calls": 1, "n": 1}, {"set": "a", "calls": 2, "n": 2}, {"set": "a", "calls": 1, "n": 3}):
        script.replace_line(file, line, "set", "calls")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["n"] for line in lines] == [2, 3] and [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_a_line_says_where_it_comes_from(script: Any) -> None:
    found = script.provenance()
    assert list(found) == ["command", "created", "host", "host_id", "versions"]
    assert found["host_id"] == host_id(found["host"]) and found["command"].startswith("python")
