"""The command line: what users see when they are right, wrong, impatient, or out of disk."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compress import cli, errors, plugins
from compress.cli import COMMANDS, execute
from compress.data import Example, open_text
from compress.errors import CompressError
from compress.models.manifest import Manifest
from compress.models.output_dir import finish
from compress.recipes import RECIPE_KINDS, Kind, catalogue, folder, recipe_names
from tests.support import forked
from tests.support.tiny import classifier, onnx_directory, write
from tests.support.training_data import TINY_STUDENT, labelled_file, pool_file, pool_rows, train_rows, validation_rows


class Desk:
    """A folder with everything a command needs, and the words to say it."""

    def __init__(self, folder: Path, teacher: Path) -> None:
        self.folder = folder
        self.teacher = teacher
        self.train = labelled_file(folder / "train.csv", train_rows())
        self.validation = labelled_file(folder / "validation.csv", validation_rows())
        pool_file(folder / "pool.txt")
        self.pool = folder / "pool.txt"
        self.student = folder / "tiny.toml"
        self.student.write_text(TINY_STUDENT)
        self.out = folder / "made" / "out"
        self.out.parent.mkdir()

    def command(self, name: str, **changed: Any) -> list[str]:
        options: dict[str, dict[str, Any]] = {
            "label": {"teacher": self.teacher, "unlabeled": self.pool},
            "finetune": {"teacher": self.teacher, "train": self.train, "validation": self.validation},
            "distill": {
                "teacher": self.teacher,
                "student": self.student,
                "unlabeled": self.pool,
                "train": self.train,
                "validation": self.validation,
            },
            "prune": {"model": self.teacher, "heads": "2", "train": self.train, "validation": self.validation},
            "quantize": {"model": self.teacher, "validation": self.validation},
            "export": {"model": self.teacher},
            "predict": {"model": self.teacher, "data": self.pool},
            "benchmark": {"teacher": self.teacher, "model": self.teacher, "data": self.validation},
        }
        given = options[name] | ({} if name == "predict" else {"output": self.out}) | changed
        words = [name]
        for option, value in given.items():
            if value is not None:
                words += [f"--{option.replace('_', '-')}", str(value)]
        return words

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def damaged(self, damage: Callable[[Path], Any], *, manifest: bool = False) -> Path:
        path = self.folder / "damaged"
        shutil.copytree(self.teacher, path)
        if manifest:
            finish(path, Manifest(stage="finetune", labels=("negative", "positive")))
        damage(path)
        return path


@pytest.fixture
def desk(tmp_path: Path, teacher: Path) -> Desk:
    return Desk(tmp_path, teacher)


def cut(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 255
    (path / "model.safetensors").write_bytes(data)


def no_head(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))


def rows(desk: Desk, name: str, label: str | None = None, repeat: list[Example] | None = None) -> Path:
    made = repeat or [Example(f"x {index}", None, label or "positive") for index in range(6)]
    return labelled_file(desk.folder / name, made)


BAD_INPUT: dict[str, tuple[Callable[[Desk], list[str]], str]] = {
    "missing file": (lambda d: d.command("distill", train="gone.csv"), "gone.csv"),
    "missing pool": (lambda d: d.command("label", unlabeled="gone.txt"), "gone.txt"),
    "missing model": (lambda d: d.command("prune", model="./gone"), "./gone does not exist"),
    "empty file": (lambda d: d.command("label", unlabeled=d.file("e.txt", "")), "e.txt is empty"),
    "empty train": (lambda d: d.command("finetune", train=d.file("e.csv", "")), "e.csv is empty"),
    "blank lines only": (lambda d: d.command("label", unlabeled=d.file("e.txt", "\n\n \n")), "e.txt is empty"),
    "a header alone": (lambda d: d.command("finetune", train=d.file("e.csv", "text,label\n")), "a header but no rows"),
    "no text at all": (lambda d: d.command("label", unlabeled=d.file("e.csv", 'text,n\n"",1\n')), "no text"),
    "binary as text": (lambda d: d.command("label", unlabeled=d.file("b.txt", bytes(range(256)) * 9)), "b.txt"),
    "weights as text": (lambda d: d.command("label", unlabeled=d.teacher / "model.safetensors"), "model.safetensors"),
    "a directory as text": (lambda d: d.command("label", unlabeled=d.teacher), "director"),
    "wrong column": (lambda d: d.command("finetune", text_column="txt"), "Did you mean 'text'"),
    "wrong label column": (lambda d: d.command("prune", label_column="labl"), "Did you mean 'label'"),
    "unknown format": (lambda d: d.command("label", format="docx"), "'docx' is not one of 'csv', 'tsv'"),
    "label not in the set": (
        lambda d: d.command("prune", train=d.file("t.csv", "text,label\na,good\nb,bad\n")),
        "which the model does not know: allowed are negative, positive",
    ),
    "unknown validation label": (
        lambda d: d.command("quantize", validation=d.file("v.csv", "text,label\na,x\nb,y\n")),
        "which the model does not know",
    ),
    "one class only": (lambda d: d.command("finetune", train=rows(d, "one.csv")), "has only one class, 'positive'"),
    "validation = train": (
        lambda d: d.command("distill", validation=d.train),
        "All 40 rows of train also occur in validation, so that none is left to use: give other data for train.",
    ),
    "overlapping rows": (
        lambda d: d.command("finetune", validation=rows(d, "v.csv", repeat=train_rows()[:8])),
        "--drop-overlap",
    ),
    "pool overlaps validation": (
        lambda d: d.command("distill", unlabeled=d.file("p.txt", "\n".join(["new", validation_rows()[0].text]))),
        "--drop-overlap",
    ),
    "not a classifier": (lambda d: d.command("label", teacher=d.damaged(no_head)), "is not a sequence classifier"),
    "truncated weights": (lambda d: d.command("label", teacher=d.damaged(cut)), "is corrupt or cut short"),
    "corrupt weights": (lambda d: d.command("prune", model=d.damaged(flip, manifest=True)), "its hash differs"),
    "another hash": (lambda d: d.command("predict", model=d.damaged(flip, manifest=True)), "its hash differs"),
    "heads 0%": (lambda d: d.command("prune", heads="0%"), "--heads 0% is not between 0% and 100%"),
    "heads 100%": (lambda d: d.command("prune", heads="100%"), "--heads 100% is not between 0% and 100%"),
    "heads 160%": (lambda d: d.command("prune", heads="160%"), "--heads 160% is not between 0% and 100%"),
    "heads abc": (lambda d: d.command("prune", heads="abc"), "--heads abc is neither a share nor a count"),
    "unknown student": (lambda d: d.command("distill", student="bilsm"), "Did you mean 'bilstm'?"),
    "unknown teacher": (lambda d: d.command("finetune", teacher="minilm-l7"), "Did you mean 'minilm-l6'?"),
    "unknown recipe keys": (
        lambda d: d.command("distill", student=d.file("s.toml", TINY_STUDENT + 'epoch = 1\n[trainin]\nx = "y"\n')),
        "2 faults: unknown key trainin. Did you mean 'training'?; unknown key training.epoch. Did you mean 'epochs'?",
    ),
    "unknown study": (lambda d: ["run", "sst3", "-o", str(d.out)], "Did you mean 'sst2'?"),
    "unknown criterion": (lambda d: d.command("prune", criterion="fisher"), "unknown criterion 'fisher'"),
    "unknown method": (lambda d: d.command("quantize", method="onnx-dinamic"), "Did you mean 'onnx-dynamic'?"),
    "auto without rows": (lambda d: d.command("quantize", method="auto", validation=None), "--validation FILE"),
    "int8 that is not checked": (
        lambda d: d.command("quantize", validation=None, batch_size=8),
        "--batch-size changes nothing without --validation FILE; add it, or leave --batch-size out",
    ),
    "columns of nothing": (
        lambda d: d.command("quantize", validation=None, label_column="x"),
        "--label-column changes nothing without --train FILE or --validation FILE",
    ),
    "a metric of nothing": (
        lambda d: d.command("distill", validation=None, metric="f1"),
        "--metric changes nothing without --validation FILE",
    ),
    "overlap with nothing": (
        lambda d: [*d.command("benchmark", train=None), "--drop-overlap"],
        "--drop-overlap changes nothing without --train FILE",
    ),
    "rounds beyond bounds": (
        lambda d: d.command("benchmark", rounds=20_000),
        "'20000' is not a whole number from 3 to 1",
    ),
    "columns of texts": (
        lambda d: ["predict", "--model", str(d.teacher), "--format", "csv", "a good film"],
        "--format changes nothing without --data FILE",
    ),
    "a competitor's model": (
        lambda d: d.command("benchmark", competitor_model=d.teacher),
        "--competitor-model changes nothing without --competitor NAME",
    ),
    "an encoder that nothing reads": (
        lambda d: d.command("distill", encoder=d.teacher),
        "no phase of the student 'tiny' reads the encoder; leave --encoder out",
    ),
    "text that nothing reads": (
        lambda d: d.command("distill", student="q8bert"),
        "no phase of the student 'q8bert' reads unlabelled text; leave --unlabeled out",
    ),
    "a column of plain text": (lambda d: d.command("label", text_column="body"), "has no column 'body'; it has text"),
    "a label of a pool": (lambda d: d.command("label", unlabeled=d.train, label_column="labl"), "Did you mean 'label'"),
    "an option that is none": (lambda d: d.command("quantize", option="embeddings"), "'embeddings' is not NAME=VALUE"),
    "an option twice": (lambda d: [*d.command("quantize", option="a=1"), "--option", "a=2"], "a is given twice"),
    "an option of no method": (lambda d: d.command("quantize", option="embedings=1"), "Did you mean 'embeddings'?"),
    "a batch size of nothing": (lambda d: d.command("quantize", batch_size="1,0"), "'0' is not a whole number above 0"),
    "unknown metric": (lambda d: d.command("distill", metric="acc"), "acc"),
    "an unreachable hub model": (lambda d: d.command("label", teacher="some/one"), "neither a directory here nor"),
    "data nowhere": (lambda d: ["run", "sst2", "-o", str(d.out)], "give --data-root or set COMPRESS_DATA"),
    "a parent that is a file": (lambda d: d.command("label", output=d.file("f", "x") / "out"), "out"),
    "the model as output": (
        lambda d: [*d.command("quantize", output=d.teacher), "--force"],
        "which this command reads and would change",
    ),
    "an output in the model": (lambda d: d.command("export", output=d.teacher / "onnx"), "onnx lies in "),
    "an output that holds the text": (lambda d: d.command("label", output=d.folder), "holds "),
    "an output that holds one of several": (
        lambda d: d.command("distill", unlabeled=d.folder / "p*l.txt", output=d.pool),
        "pool.txt is ",
    ),
    "results in the model": (lambda d: d.command("benchmark", output=d.teacher / "r.jsonl"), "r.jsonl lies in "),
    "results over weights": (
        lambda d: [*d.command("benchmark", model="m", output=d.teacher / "model.safetensors"), "--force"],
        "model.safetensors lies in ",
    ),
    "results over notes": (
        lambda d: d.command("benchmark", output=d.file("notes.txt", "mine")),
        "notes.txt already exists; choose another -o or replace it with --force",
    ),
    "a lock over notes": (
        lambda d: d.command("benchmark", output=d.file("n.lock.json", "{}").with_name("n.jsonl")),
        "n.lock.json already exists",
    ),
    "a directory for results": (
        lambda d: d.command("benchmark", output=f"{d.out}/"),
        "/out/ names a directory; give a",
    ),
    "no output": (lambda d: d.command("label", output=""), "it is empty"),
    "the root as output": (lambda d: d.command("label", output="/"), "-o '/' is no name"),
    "a directory above as output": (lambda d: d.command("export", output=".."), "-o '..' is no name"),
    "a zero byte in the output": (lambda d: d.command("export", output="a\0b"), "has a zero byte"),
    "an output that is no text": (lambda d: d.command("export", output="a\udc80"), "-o 'a\\udc80' is no name"),
    "a long output": (lambda d: d.command("export", output=d.out.with_name("o" * 250)), "give a name of at most 245"),
    "no results": (lambda d: d.command("benchmark", output=""), "it is empty"),
    "no study": (lambda d: ["run", "quickstart", "-o", ""], "it is empty"),
    "a long study": (lambda d: ["run", "quickstart", "-o", "o" * 256], "give a name of at most 245"),
    "no option": (lambda d: ["label", "--teacher", str(d.teacher), "-o", str(d.out)], "Missing option '--unlabeled'"),
    "an unknown option": (lambda d: [*d.command("label"), "--batchsize", "3"], "No such option"),
    "a number that is none": (
        lambda d: [*d.command("label"), "--threads", "two"],
        "'two' is not a whole number from 0 to 1024",
    ),
    "an unknown command": (lambda d: ["distil"], "unknown command 'distil'; see 'compress --help'. Did you mean 'dist"),
    "an unknown list": (lambda d: ["list", "student"], "Did you mean 'students'?"),
    "nothing of that name": (lambda d: ["show", "bilstn"], "Did you mean 'bilstm'?"),
    "predict what": (lambda d: ["predict", "--model", str(d.teacher)], "predict needs either TEXT"),
    "standard input and a text": (
        lambda d: ["predict", "--model", str(d.teacher), "-", "good"],
        "- stands for all lines of standard input; give it alone",
    ),
}


def test_a_txt_is_read_as_typed_where_no_other_file_is(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside labelled files the format is theirs, and a .txt is plain text."""
    lines = desk.file("lines.txt", '{"review": "a good film", "stars": 1}\n{"review": "a bad one", "stars": 0}\n')
    named = {"format": "jsonl", "text_column": "review"}
    assert execute(desk.command("predict", data=lines, **named)) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["a good film", "a bad one"]
    for beside, read in ((None, "JSON Lines, text = review"), ("labelled.jsonl", "plain text")):
        open_text(str(lines), beside=beside, **named, label_column="stars")
        assert f"unlabeled: lines.txt: {read}" in capsys.readouterr().err
    with_table = [str(lines), str(desk.file("table.csv", "review,stars\nfine,1\n"))]
    assert len([*open_text(*with_table, text_column="review")]) == 3


@pytest.mark.parametrize("mistake", BAD_INPUT)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    mistake: str, desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMPRESS_DATA", raising=False)
    make, sentence = BAD_INPUT[mistake]
    arguments = make(desk)
    before = {path for path in desk.folder.rglob("*")}
    code = execute(arguments)
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if line.startswith("Error: ")]
    assert code == 2, said
    assert len(errors) == 1 and said.splitlines()[-1] == errors[0] and "Traceback" not in said
    assert sentence in errors[0]
    assert {path for path in desk.folder.rglob("*")} == before


@pytest.mark.parametrize("command", ["label", "finetune", "distill", "prune", "quantize", "export", "benchmark"])
def test_an_output_that_exists_is_refused(command: str, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.out.mkdir()
    (desk.out / "mine.txt").write_text("mine")
    assert execute(desk.command(command)) == 2
    said = capsys.readouterr().err
    assert str(desk.out) in said and said.count("\n") == 1  # nothing was read before
    assert [path.name for path in desk.out.parent.iterdir()] == ["out"]
    assert [path.name for path in desk.out.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(
    number: int, desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    def full(*given: Any, **named: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", full)
        assert execute(desk.command("label")) == 2
    said = capsys.readouterr().err
    assert "full" in said or "quota" in said
    assert "The same command goes on from what is finished" in said and "Traceback" not in said
    assert not desk.out.exists()
    assert execute(desk.command("label")) == 0
    assert [path.name for path in desk.out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("error", ["safetensors", "torch"])
def test_a_full_disk_as_the_libraries_tell_it(
    error: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither raises an OSError. The messages are those that a full tmpfs gave."""
    from safetensors import SafetensorError

    import compress.models.saving
    import compress.pruning.prune  # noqa: F401  # what is first imported now would keep the patched function

    def full(*given: Any, **named: Any) -> None:
        if error == "torch":
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(compress.models.saving, "save_model", full)
    assert execute([*desk.command("prune"), "--no-measure"]) == 2
    said = capsys.readouterr().err
    assert "disk is full" in said and "Traceback" not in said


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_no_permission_to_write(
    number: int, desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulated, because the administrator, as whom tests often run, may write everywhere."""
    original = Path.mkdir

    def forbidden(self: Path, *given: Any, **named: Any) -> None:
        if desk.out.parent in self.parents:
            raise OSError(number, os.strerror(number), str(self))
        original(self, *given, **named)

    monkeypatch.setattr(Path, "mkdir", forbidden)
    assert execute(desk.command("label")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("Error: ") and str(desk.out.parent) in said and "Nothing was written." in said


INTERRUPTED = """
import os, sys, time
from dataclasses import replace
from compress.labelling import label as stage
plan, write = stage.plan_for, stage.write_shard
stage.choose_runtime = lambda *given, **named: ("torch", "cpu")
stage.plan_for = lambda *given, **named: replace(plan(*given, **named), shard_rows=30)

def slow(directory, number, *rest):
    write(directory, number, *rest)
    if os.environ.get("SLOW"):
        print("shard", number, flush=True)
        time.sleep(60)

stage.write_shard = slow
from compress.cli import main
main()
"""


def test_an_interruption_that_becomes_another_error_stays_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def library(*given: Any, **named: Any) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            errors.interrupt(signal.SIGTERM, None)
        raise TypeError("unsupported operand")

    monkeypatch.setattr("compress.labelling.label.label", library)
    try:
        assert execute(desk.command("label")) == 130
    finally:
        errors.interruptions.clear()
    assert "Interrupted. Nothing was written." in capsys.readouterr().err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_exits_130_and_says_what_can_be_resumed(sent: signal.Signals, desk: Desk) -> None:
    command = ["-c", INTERRUPTED, *desk.command("label")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = forked.Forked(command, env=os.environ | {"SLOW": "1"}, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "shard 0\n"
    time.sleep(0.2)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == f"Interrupted. The same command goes on from what is finished of {desk.out}."
    assert "Traceback" not in said and not desk.out.exists()
    assert forked.run(command, check=True).stdout.startswith(f"{desk.out}: 90 rows")
    assert sorted(path.name for path in desk.out.glob("*.parquet")) == [f"shard-0000{n}.parquet" for n in range(3)]


def test_ctrl_c_before_anything_was_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("compress.requests.open_text", interrupted)
    assert execute(desk.command("label")) == 130
    assert capsys.readouterr().err.strip() == "Interrupted. Nothing was written."


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division (a fault of compress, not yours: type"),
        (RecursionError(), "RecursionError (a fault of compress, not yours: type"),
        (EOFError("cut short"), "EOFError: cut short (a fault"),
        (MemoryError(), "there is not enough memory: give fewer rows"),
        (RuntimeError("CUDA out of memory. Tried to"), "there is not enough memory: give fewer rows"),
        (OSError(errno.ELOOP, "x", "a\x1b"), "the system says 'Too many levels of symbolic links': a\\u001b; what"),
        (OSError(errno.EISDIR, "x", b"a"), "a file is needed, and this is a directory: a; what was"),
        (FileNotFoundError(errno.ENOENT, "x", "a"), "a file is gone that was there a moment ago: a; what was finished"),
        (OSError(errno.EIO, "x", "a"), "the disk failed (I/O error): a; what was finished before stays."),
        (OSError(errno.EMFILE, "x", "a"), "too many files are open: allow more with 'ulimit -n 4096': a; what"),
        (OSError(errno.ENFILE, "x"), "the whole machine has too many files open: end other programs; what"),
        (OSError(errno.ENOMEM, "x"), "there is not enough memory: give fewer rows"),
        (ValueError("I/O error: Too many open files (os error 24)"), "too many files are open: allow more with"),
        (RuntimeError("you tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)"), "there is not enough"),
        (OSError("no number"), "OSError: no number (a fault"),
        (
            CompressError("the \x1b[31m file\n::error::x\n##[set-output name=a;]b"),
            "the \\u001b[31m file ::error::x #\\u0023[",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_goes_wrong_is_one_sentence(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> None:
        raise error from KeyError("the cause")

    monkeypatch.setattr(catalogue, "known_as", fail)
    assert execute(["show", "x"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"Error: {sentence}") and captured.err.count("\n") == 1
    assert execute(["-v", "show", "x"]) == 2
    said = capsys.readouterr().err
    assert "KeyError: 'the cause'" in said and said.endswith(captured.err)


# When all is well


def test_from_text_to_a_pruned_student_in_four_commands(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    folder = desk.out.parent
    assert execute([*desk.command("label", output=folder / "labels"), "--rows", "60"]) == 0
    assert "60 rows labelled on torch (cpu," in capsys.readouterr().out
    assert execute(desk.command("distill", unlabeled=None, labels=folder / "labels", output=folder / "student")) == 0
    assert "parameters" in capsys.readouterr().out
    recover = {"recover": 1, "labels": folder / "labels"}
    assert execute([*desk.command("prune", heads="60%", output=folder / "small", **recover), "--no-measure"]) == 0
    assert "Removed: 5 of 8 heads. Page: " in capsys.readouterr().out
    for model in ("student", "small"):
        assert execute(["predict", "--model", str(folder / model), "the film is good", "dull"]) == 0
        answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [answer["text"] for answer in answers] == ["the film is good", "dull"]
        assert all(answer["label"] in {"negative", "positive"} for answer in answers)
        assert all(0.5 <= answer["probability"] <= 1 for answer in answers)
    assert sorted(path.name for path in folder.iterdir()) == ["labels", "small", "student"]


def test_predict_reads_files_and_pairs(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(desk.command("predict")) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(pool_rows())
    pairs = desk.file("pairs.tsv", "sentence1\tsentence2\nthe film\tthe plot\n")
    assert execute(desk.command("predict", data=pairs)) == 0
    assert json.loads(capsys.readouterr().out)["text_pair"] == "the plot"


@pytest.mark.parametrize(
    ("content", "texts"), [(b"hello\n\nbye", ["hello", "", "bye"]), (b"\xef\xbb\xbfa\r\n-\n", ["a", "-"])]
)
def test_predict_reads_lines_of_standard_input(
    content: bytes, texts: list[str], desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert execute(["predict", "--model", str(desk.teacher), "-"]) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == texts


def test_standard_input_that_is_no_text_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"good\nbad \xff\n")))
    assert execute(["predict", "--model", str(desk.teacher), "-"]) == 2
    assert "line 2 of standard input is not UTF-8" in capsys.readouterr().err


def test_a_line_of_standard_input_is_answered_before_the_next_one_comes() -> None:
    command = [sys.executable, "-m", "compress", "predict", "-q", "--model", str(onnx_directory("cnn").path), "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as running:
        assert running.stdin is not None and running.stdout is not None
        for text in ("a good film", "", "dull \u00e9l\u00e8ve"):
            running.stdin.write(f"{text}\n".encode())
            assert json.loads(running.stdout.readline())["text"] == text
        running.stdin.write(b"the last one has no end")
        running.stdin.close()
        assert json.loads(running.stdout.readline())["text"] == "the last one has no end"
    assert running.returncode == 0


def test_a_text_that_looks_like_two_predictions_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ['"}, {"', "}, {", "}\x1f{", '{"text": "a"}, {"text": "b"}', "a\u2028b\x1b[2J ##[error] ::error::", "\\"]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text, "text_pair": text}) + "\n" for text in texts))
    model = str(onnx_directory("cnn").path)
    for given in (["--data", str(file), "--text-column", "text"], ["--data", str(file), "--probabilities"]):
        assert execute(["predict", "-q", "--model", model, *given]) == 0
        printed = capsys.readouterr().out
        assert [json.loads(line)["text"] for line in printed.splitlines()] == texts
        assert "\x1b" not in printed and "##[" not in printed


def test_predict_gives_scores_of_a_regression(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(desk.folder / "regression", classifier("bert", labels=("score",)))
    assert execute(["predict", "--model", str(model), "the film"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"score", "text"}


def test_quiet_says_nothing(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*desk.command("label"), "-q"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


@pytest.mark.parametrize("rest", [[], ["--no-baselines"]])
def test_training_rows_of_a_benchmark_are_not_called_unlabelled(
    rest: list[str], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([*desk.command("benchmark", train=desk.train, metric="bleu"), *rest]) == 2
    said = capsys.readouterr().err
    assert said.startswith("train: train.csv: CSV, text = text") and "unlabeled" not in said
    replayed = ["replay", "gone.json", "--data", str(desk.validation), "--train", str(desk.train), "-o", str(desk.out)]
    assert execute(replayed) == 2
    assert "unlabeled" not in capsys.readouterr().err


def test_columns_are_shown_to_the_user(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*desk.command("prune"), "--no-measure"]) == 0
    said = capsys.readouterr().err
    assert "train: train.csv: CSV, text = text, label = label" in said and "removing 2 of 8 heads, 6 stay" in said


@pytest.mark.parametrize("kind", catalogue.LISTED_KINDS)
def test_every_list_names_everything_of_its_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", kind]) == 0
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    if kind == "students":
        assert lines.pop(0).split() == " ".join(catalogue.STUDENT_HEADINGS).split()
    assert [line.split()[0] for line in lines] == [name for name, _ in catalogue.entries(kind)]
    assert lines and all(len(line.split(maxsplit=1)[1]) > 10 for line in lines)


def test_a_list_is_wrapped_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert execute(["list", "losses"]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    assert execute(["list", "losses"]) == 0
    wrapped = capsys.readouterr().out
    assert max(map(len, whole.splitlines())) > 60 >= max(map(len, wrapped.splitlines()))
    assert wrapped.split() == whole.split()


def test_the_list_of_students_has_figures_steps_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", "students"]) == 0
    said = capsys.readouterr().out
    table, *_, below = (part.splitlines()[1:] for part in said.split("\n\n"))
    known = catalogue.students()
    assert [tuple(re.split("  +", line)) for line in table] == [catalogue.in_short(one) for one in known]
    reasons = [(one.name, catalogue.behind(one)) for one in known if catalogue.behind(one)]
    assert [tuple(re.split("  +", line)) for line in below] == reasons
    assert max(map(len, table)) < 150  # columns
    assert "minilm-v2, tinybert-4 take '--encoder DIR' too" in said


@pytest.mark.parametrize(
    "name", sorted({name for kind in catalogue.LISTED_KINDS for name, _ in catalogue.entries(kind)})
)
def test_everything_that_is_listed_can_be_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", name]) == 0
    assert capsys.readouterr().out.startswith(f"{name} (")


def test_show_says_what_a_recipe_does_not_do_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", "tinybert-4"]) == 0
    said = capsys.readouterr().out
    assert "Of the paper's method it does not do yet:\n  - " in said
    assert "What it learns, in this order\n" in said and "learns by attention-mse: " in said
    assert "arXiv:1909.10351" in said and "a label, not a threshold" in said


def test_what_there_is_one_of_is_shown_as_one(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    described = Manifest(
        stage="finetune",
        task="regression",
        labels=("score",),
        data=({"role": "train", "name": "a.csv", "rows": 1, "sha256": "a" * 64},) * 2,
        notes={"labels_of": "what nobody writes", "temperature": 1.9189859186282296},
    )
    path = desk.damaged(lambda path: finish(path, described))
    assert execute(["show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "\ntask: regression, 1 label\ndata, train: a.csv, 1 row\nlabels_of: what nobody writes\n" in said
    assert "\ntemperature: 1.91899\n" in said


@pytest.mark.parametrize("kind", ["students", "studies", "losses"])
def test_a_list_as_json(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["summary"]) for one in found[kind]] == catalogue.entries(kind)
    if kind == "students":
        heading = catalogue.STUDENT_HEADINGS[-1]
        assert [one["figures"][heading] for one in found[kind]] == [
            catalogue.in_short(one)[-1] for one in catalogue.students()
        ]
    assert execute(["list", "nothing", "--json"]) == 2 and capsys.readouterr().out == ""


def test_what_is_shown_as_json(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(name: str | Path) -> Any:
        assert execute(["show", str(name), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    cnn = shown("cnn")
    assert sorted(cnn) == ["architectures", "name", "students"] and cnn["students"]["name"] == cnn["name"] == "cnn"
    assert shown("kl")["losses"]["needs"] == sorted(plugins.find("losses", "kl").needs)
    path = desk.damaged(lambda path: finish(path, Manifest(stage="finetune", labels=("bad", "good"))))
    model = shown(path)
    assert (model["path"], model["stage"], model["labels"]) == (str(path), "finetune", ["bad", "good"])
    (desk.folder / "study.json").write_text("{}")
    assert shown(desk.folder) == {"path": str(desk.folder), "stages": {}}


@pytest.mark.parametrize("kind", ["students", "teachers", "benchmarks"])
def test_a_recipe_file_of_ones_own_is_shown(kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in recipe_names(kind):
        own = shutil.copy(folder(kind) / f"{name}.toml", tmp_path)
        assert execute(["show", own]) == 0
        said = capsys.readouterr().out
        assert (
            said.startswith(f"{own} ({RECIPE_KINDS[kind].called})") and "Measured here" not in said
        )  # that is of ours
        assert kind == "teachers" or f" {own} " in said.splitlines()[-1] + "".join(said.splitlines()[-2:])


def test_a_study_like_another_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text('like = "quickstart"\ntitle = "Ours"\n')
    assert execute(["show", str(own)]) == 0
    assert capsys.readouterr().out.startswith(f"{own} (study): Ours\n")


def test_a_recipe_file_with_faults_or_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text((folder("students") / "bilstm.toml").read_text().replace("[training]", "[trainign]"))
    assert execute(["show", str(own)]) == 2
    assert "Did you mean 'training'?" in capsys.readouterr().err
    assert execute(["show", "bilstn.toml"]) == 2
    said = capsys.readouterr().err
    assert "bilstn.toml does not exist" in said and "Did you mean 'bilstm'?" in said
    results = tmp_path / "results.jsonl"
    results.touch()
    assert execute(["show", str(results)]) == 2
    assert "is not a recipe (.toml)" in (said := capsys.readouterr().err) and "'compress report' shows results" in said


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("some.csv", "text,label\nhello,a\n,b\nbye,b\n", ["hello", "", "bye"]),
        ("some.txt", "hello\n\nbye\n", ["hello", "", "bye"]),
        ("empty.jsonl", '{"text": ""}\n{"text": null}\n', ["", ""]),
    ],
)
def test_predict_answers_every_row_in_order(
    name: str, content: str, texts: list[str], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(desk.command("predict", data=desk.file(name, content))) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["text"] for line in said.out.splitlines()] == texts
    assert f"rows without text: {texts.count('')}" in said.err


def test_a_study_in_the_current_folder_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli._resumable(["run", "table1", "-o", "."]) == "Nothing was written."
    (tmp_path / "study.json").write_text("{}")
    assert cli._resumable(["run", "table1", "-o", "."]).startswith("The same command goes on")
    assert cli._resumable(["list", "losses"]) == "Nothing was written."


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: compress {command}")
    assert COMMANDS[command].removesuffix(".") in " ".join(said.split())


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_of_the_whole(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    execute(arguments)
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert said.startswith("Usage: compress") and "Error" not in said
    assert len(said.splitlines()) > 15  # not squeezed into one line
    assert all(f"  {command} " in said for command in COMMANDS)


def test_an_output_never_replaces_what_the_command_reads(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text("keep me", encoding="utf-8")
    other = str(tmp_path / "." / "mine.jsonl")
    for arguments in (
        ["benchmark", "--teacher", "t", "--model", "m", "--data", str(mine), "--force", "-o", other],
        ["check", str(mine), "--max-accuracy-drop", "1", "--json", other],
        ["check", "results.jsonl", "--budgets", str(mine), "--junit", other],
        ["replay", str(mine), "--data", "test.csv", "-o", other, "--force"],
    ):
        result = forked.run(["-m", "compress", *arguments])
        assert result.returncode == 2 and "which this command reads" in result.stderr, result.stderr
        assert mine.read_text(encoding="utf-8") == "keep me"
