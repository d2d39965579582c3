"""Arguments and streams at the edge of what there is: one sentence and exit code 2, or the work that was asked for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import compress
from compress.cli import COMMANDS, Command, cli, execute
from compress.cli.values import Real, Whole
from compress.errors import CompressError
from compress.escaping import terminal_text
from compress.models.model_dir import Model
from tests.support.results import line, write_lines


def _commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {within}", one) for within, one in command.commands.items())
        else:
            yield name, command


def _given() -> Iterator[tuple[str, click.Parameter]]:
    yield from ((name, parameter) for name, command in _commands() for parameter in command.params)


NUMBERS = [(name, one) for name, one in _given() if isinstance(one.type, Whole | Real)]
WHOLE = [one for one in NUMBERS if isinstance(one[1].type, Whole) and one[1].type.max is None]


def refused(name: str, option: click.Parameter, value: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert execute([*name.split(), f"{option.opts[-1]}={value}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Error: Invalid value for '{option.opts[0]}'")
    assert said.count("\n") == 1 and "fault of compress" not in said
    return said


def test_every_number_of_a_command_has_bounds() -> None:
    assert [(name, one.name) for name, one in _given() if one.type in (click.INT, click.FLOAT)] == []


def test_every_command_looks_at_all_that_was_typed() -> None:
    assert {type(command) for _, command in _commands()} == {Command}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "prune --model m --train t -o o --heads 60% --heads 40%",
            "--heads is given twice; it takes one value, so keep",
        ),
        ("predict --model m --data a --data a", "--data is given twice; it takes one value, so keep a ("),
        ("report r -o a --output b", "-o is given twice; it takes one value, so keep a or b (see 'compress report"),
        ("check r --min-speedup 9 --min-speedup=5", "--min-speedup is given twice; it takes one value, so keep 9 or 5"),
        (
            "labels import a --label-column b --label-column c -o o",
            "--label-column is given twice; it takes one value, so keep b or c (see",
        ),
        ("prune --model m --train t -o o --measure --no-measure", "--measure and --no-measure contradict each other"),
    ],
)
def test_what_takes_one_value_is_given_once(command: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(command.split()) == 2
    assert capsys.readouterr().err.startswith(f"Error: {sentence}")


def test_what_takes_several_values_and_flags_are_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path / "r.jsonl", [line("teacher", kind="teacher"), line("student"), line("other")])
    page = ["report", str(tmp_path / "r.jsonl"), "-o", str(tmp_path / "page"), "-q", "-q", "--force", "--force"]
    assert execute(page) == 0
    judged = ["check", str(tmp_path / "r.jsonl"), "--max-size", "9GB", "--model", "student", "--model", "other"]
    assert execute(judged) == 0 and capsys.readouterr().out.count("holds") >= 2
    assert execute(["distill", "--train", "a", "--train", "b", "--help"]) == 0


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("distill --seed=abc", "'--seed': 'abc' is not a whole number, 0 or more"),
        ("distill --rows=1.5", "'--rows': '1.5' is not a whole number, 0 or more"),
        ("benchmark --rounds=2", "'--rounds': '2' is not a whole number from 3 to 10000, such as 100"),
        ("benchmark --time-limit=2d", "'--time-limit': '2d' is no time of at most 720h; give one such as 30s"),
        ("benchmark --half-width=5%", "'--half-width': '5%' is not a number from 0.025 to 1, such as 0.05"),
        ("search --max-size-mb=5MB", "'--max-size-mb': '5MB' is not a number above 0"),
        ("labels import --smoothing=1", "'--smoothing': '1' is not a number from 0 to below 1"),
        ("prune --step=0", "'--step': '0' is not a number above 0 and at most 1, such as 0.1"),
        ("heads --step=2", "'--step': '2' is not a number above 0 and at most 1, such as 0.1"),
        ("prune --speedup=0.5", "'--speedup': '0.5' is not a number above 1"),
        ("prune --max-accuracy-drop=0", "'--max-accuracy-drop': '0' is not a number above 0"),
        ("prune --keep-heads=0", "'--keep-heads': '0' is not a whole number, 1 or more, such as 1"),
        ("pretrain --epochs=0", "'--epochs': '0' is not a number above 0"),
        ("check --min-metric=88", "'--min-metric': '88' is not a metric as a fraction, such as 0.88 for 88%"),
        ("check --min-speedup=5x", "'--min-speedup': '5x' is not a ratio above 0, such as 5 for five times as fast"),
        (
            "check --max-size=7XB",
            "'--max-size': '7XB' is not a size above 0, such as \"30MB\", \"512 KiB\" or a number",
        ),
        ("check --max-memory=0", "'--max-memory': '0' is not a size above 0"),
        ("check --max-baseline-slowdown=1", "'--max-baseline-slowdown': '1' is not a number from 0 to below 1"),
    ],
)
def test_a_wrong_number_is_told_what_is_allowed(option: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(option.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Error: Invalid value for {sentence}") and "budget" not in said


@pytest.mark.parametrize("value", ["9" * 5000, "nan", "inf", "1e400", "1e308", "x\x1b[31m", ""])
@pytest.mark.parametrize(("name", "option"), NUMBERS, ids=lambda one: one if isinstance(one, str) else one.name)
def test_a_number_that_nothing_can_work_with_is_refused(
    name: str, option: click.Parameter, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\x1b" not in refused(name, option, value, capsys)


@pytest.mark.parametrize(("name", "option"), WHOLE, ids=lambda one: one if isinstance(one, str) else one.name)
def test_a_whole_number_of_thirty_digits_is_refused(
    name: str, option: click.Parameter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "it is larger than 2,147,483,647" in refused(name, option, "9" * 30, capsys)


@pytest.mark.parametrize("name", ["prune", "quantize", "benchmark"])
def test_a_list_of_numbers_and_an_amount_have_bounds(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"prune": ["--model=m", "--train=t", "-o", "o", f"--heads={'9' * 5000}"]}.get(
        name, [f"--batch-size={'9' * 5000}"]
    )
    assert execute([name, *words]) == 2
    said = capsys.readouterr().err
    assert "Error: " in said and "fault of compress" not in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", ""], "Invalid value for 'NAME': it is empty"),
        (["check", "x", "--baseline", ""], "Invalid value for '--baseline': it is empty"),
        (["show", "a\0b"], "the argument 'a\\x00b' has a zero byte"),
        (["\udcff\x1b]0;x\x07"], "unknown command '\\udcff\\x1b]0;x\\x07'"),
        (["show", "\udcff"], "\\udcff"),
        (["predict", "--model", "x", "caf\udce9"], "the text 'caf\\udce9' is not UTF-8"),
        (["predict", "--model", "x", "--threads", "2000", "a"], "'2000' is not a whole number from 0 to 1024"),
        (["check", "x" * 250 + "/" * 5000, "--min-speedup", "1"], "x"),
        (["check", "/dev/null/x", "--min-speedup", "nan"], "'nan' is not a ratio above 0"),
    ],
)
def test_odd_arguments_are_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: ") and sentence in said and said.count("\n") == 1 and "fault of" not in said
    assert terminal_text(said) == said


def test_flags_of_one_field_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["distill", "--drop-overlap", "--refuse-overlap", "--teacher", "x", "--student", "y", "-o", "z"]
    assert execute(words) == 2
    assert "--drop-overlap and --refuse-overlap contradict each other; leave one out" in capsys.readouterr().err


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    script = f"{sys.executable} -P -m compress {command}"
    return subprocess.run(["bash", "-c", script], cwd=folder, env=os.environ | environment, capture_output=True)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("list nothing 2>&-", 2, b""),
        ("list losses >&-", 0, b""),
        ("list losses >&- 2>&- <&-", 0, b""),
        ("list losses >/dev/full", 2, b"Error: the disk is full while writing; what was finished before stays."),
        ("--help >/dev/full", 2, b"Error: the disk is full while writing"),
        ("list nothing 2>/dev/full", 2, b""),
        ("show $'\\xff\\x1b[31m'", 2, b"Error: "),
    ],
)
def test_streams_that_are_closed_or_full(command: str, code: int, said: bytes, tmp_path: Path) -> None:
    done = run(command, tmp_path)
    assert done.returncode == code and done.stderr.startswith(said)
    assert done.stderr.count(b"\n") == bool(said) and b"\x1b" not in done.stderr


@pytest.mark.parametrize(
    "command",
    ["['show', 'minilm-3']", "['check', 'r.jsonl', '--min-speedup', '1']", "['report', 'r.jsonl', '-o', 'out']"],
)
def test_no_more_files_can_be_opened(command: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "r.jsonl", [line("teacher", kind="teacher"), line("student")])
    script = (
        "import resource; from compress.cli import execute\n"
        f"assert execute({command} + ['--help']) == 0\n"  # what is imported is
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 9))\n"
        f"raise SystemExit(execute({command}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert done.stderr.startswith("Error: too many files are open: allow more with 'ulimit -n 4096'")
    assert done.stderr.count("\n") == 1


def test_the_cause_of_a_damaged_file_is_shown_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.jsonl").write_text("{")
    (tmp_path / "student.toml").write_text("a = ")
    (tmp_path / "b.jsonl").write_bytes(b"\xff")
    (tmp_path / "c.csv").write_text("share_removed,value\n0.5,high\n")
    write_lines(tmp_path / "good.jsonl", [line("teacher", kind="teacher")])
    with_curve = ["report", str(tmp_path / "good.jsonl"), "--curve", str(tmp_path / "c.csv"), "-o", str(tmp_path / "o")]
    for words, cause in (
        (["check", str(tmp_path / "r.jsonl"), "--min-speedup", "1"], "json.decoder.JSONDecodeError: "),
        (["check", str(tmp_path / "b.jsonl"), "--min-speedup", "1"], "UnicodeDecodeError: "),
        (["run", str(tmp_path / "student.toml"), "-o", str(tmp_path / "s")], "tomllib.TOMLDecodeError: "),
        (with_curve, "ValueError: "),
    ):
        assert execute(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("Error: ") and "Traceback" not in said and said.count("\n") == 1
        assert execute(["-v", *words]) == 2
        told = capsys.readouterr().err
        assert "Traceback" in told and f"\n{cause}" in told and told.endswith(said)
    assert execute(["-v", "check", str(tmp_path / "none.jsonl"), "--min-speedup", "1"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_stops_ends_the_command_silently(tmp_path: Path) -> None:
    done = run("show minilm-3 | true; exit ${PIPESTATUS[0]}", tmp_path)
    assert done.returncode in (0, 141) and done.stderr == b""


def test_a_stream_that_cannot_encode_gets_escapes() -> None:
    script = (
        "import json; from compress.cli.printing import open_streams, say\n"
        "open_streams(); say(json.dumps(%r, ensure_ascii=False))"
    )
    text = "×4 謎 😀 \x1b\u202e"
    done = subprocess.run(
        [sys.executable, "-c", script % text], env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True
    )
    assert done.stdout.isascii() and json.loads(done.stdout) == text


def test_nothing_of_the_current_folder_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('imported')\n")
    command = [sys.executable, "-m", "compress", "list", "losses"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_a_checkout_is_run_without_being_installed(tmp_path: Path) -> None:
    (tmp_path / "compress").symlink_to(Path(compress.__file__).parent)
    command = [sys.executable, "-S", "-m", "compress", "list", "losses"]
    installed = os.environ | {"PYTHONPATH": str(Path(click.__file__).parents[1])}  # without what points to a checkout
    done = subprocess.run(command, cwd=tmp_path, env=installed, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_an_interruption_while_the_command_line_is_imported_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    done = run("list losses", tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    assert done.returncode == 130 and done.stderr == b"\nInterrupted. Nothing was written.\n"


@pytest.mark.parametrize("command", ["predict --model nothing 'schöner Film'", "show größe"])
def test_a_locale_without_utf8_is_named(command: str, tmp_path: Path) -> None:
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(command, tmp_path, **settings)
    said = done.stderr.decode()
    assert done.returncode == 2 and "Python reads and writes ascii with these settings of locale" in said
    assert said.rstrip().endswith("type PYTHONUTF8=1 before the command")
    assert b"settings of locale" not in run(command, tmp_path, LC_ALL="C").stderr


def test_a_model_in_a_folder_that_is_not_utf8_is_refused_by_its_name(tmp_path: Path, teacher: Path) -> None:
    odd = tmp_path / "odd\udcff"
    shutil.copytree(teacher, odd / "teacher")
    for folder, name in ((tmp_path, "odd\udcff/teacher"), (odd, "teacher")):
        with contextlib.chdir(folder), pytest.raises(CompressError, match=r"odd\\udcff/teacher has a name that is not"):
            Model.open(name)
