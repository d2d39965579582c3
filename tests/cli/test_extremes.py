"""Texts and labels at the edge of what is legal go through every command, or are refused before the work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from compress.cli import execute
from compress.data import Example
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import Model
from tests.cli.test_cli import Desk
from tests.support import tiny
from tests.support.training_data import labelled_file

LONG = 1_000_000
# Nothing is left of these in a BERT tokenizer, which drops control and format characters.
WITHOUT_TOKENS = ("\u200b\u200d", "\x01\x02", "\ufeff\u2060", "\u200b\u200b", "\x04", "\u200e\u200f", "\x05", "\x06")
LABELS = (
    "a\nb",
    "c d",
    "e\tf",
    "\U0001f600 joy",
    "\u202e\u0645\u0631\u062d\u0628\u0627",
    "<b>&x",
    "\x1b[31mred",
    "e\u0301",
)


def texts(kind: str) -> list[str]:
    if kind == "without tokens":
        return list(WITHOUT_TOKENS)
    return [
        "good film " * (LONG // 10),
        "x" * LONG,
        "y " * (LONG // 2),
        *(f"a {word} film" for word in ("bad", "fine", "dull", "great", "warm")),
    ]


def halves(desk: Desk, rows: list[str]) -> dict[str, Path]:
    """Write half of the rows as train and half as validation, with both classes in each."""
    labelled = [Example(text, None, tiny.LABELS[index // 2 % 2]) for index, text in enumerate(rows)]
    return {
        "train": labelled_file(desk.folder / "t.csv", labelled[::2]),
        "validation": labelled_file(desk.folder / "v.csv", labelled[1::2]),
    }


def works(desk: Desk, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command and return what it printed."""
    code, said = execute([*words, "--no-measure"] if words[0] == "prune" else words), capsys.readouterr()
    assert code == 0, said.err
    return said.out


def refuses(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command that says one sentence and does nothing."""
    assert execute(words) == 2
    said = capsys.readouterr().err
    assert sentence in said.splitlines()[-1] and "Labelling" not in said and "Traceback" not in said, said


def benchmark(desk: Desk, **changed: object) -> list[str]:
    results = desk.folder / "results.jsonl"
    quick = {"output": results, "rounds": 3, "time_limit": 1, "batch_size": 1, "runtime": "torch"}
    return [*desk.command("benchmark", **quick | changed), "--no-padded-teacher"]


@pytest.fixture
def desk(tmp_path: Path, teacher: Path) -> Desk:
    return Desk(tmp_path, teacher)


def test_one_row_of_text(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    one = desk.file("one.txt", "a good film\n")
    works(desk, desk.command("label", unlabeled=one), capsys)
    assert LabelDir.open(desk.out).rows == 1
    shutil.rmtree(desk.out)
    works(desk, desk.command("distill", unlabeled=one), capsys)
    works(desk, desk.command("distill", unlabeled=one, train=None, output=desk.folder / "alone"), capsys)
    assert Model.open(desk.folder / "alone").manifest.notes["pool_rows"] == 1
    assert json.loads(works(desk, desk.command("predict", data=one), capsys))["text"] == "a good film"


@pytest.mark.parametrize("text", ["a good film", "u"])  # the hash of the second one holds it out
def test_text_of_which_nothing_can_be_held_out_is_refused_before_it_is_labelled(
    text: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    one = desk.file("one.txt", text + "\n")
    words = desk.command("distill", unlabeled=one, validation=None, train=None)
    refuses(words, "give --validation FILE", capsys)
    assert not list(desk.out.parent.iterdir())
    if text == "u":  # gold rows are left to train on
        works(desk, [*words, "--train", str(desk.train)], capsys)


def test_two_classes_of_one_row_each(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    rows = halves(desk, ["a good film", "a great film", "a bad film", "a dull film"])
    for name in ("finetune", "distill", "prune"):
        works(desk, desk.command(name, **rows), capsys)
        assert Model.open(desk.out).manifest.metrics[0]["rows"] == 2
        shutil.rmtree(desk.out)
    works(desk, desk.command("quantize", validation=rows["validation"]), capsys)
    works(desk, benchmark(desk, data=rows["validation"], train=rows["train"]), capsys)


@pytest.mark.parametrize(("label", "of"), [("positive", "class"), ("0.5", "score"), ("0.50", "score")])
@pytest.mark.parametrize("name", ["finetune", "distill", "prune", "quantize", "benchmark"])
def test_rows_by_which_no_model_can_be_judged_are_refused(
    name: str, label: str, of: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Example("zebra one", None, label), Example("zebra two", None, "0.5" if of == "score" else label)]
    given = {"data" if name == "benchmark" else "validation": labelled_file(desk.folder / "v.csv", rows[:1])}
    refuses(desk.command(name, **given), f"v.csv has only one {of}, ", capsys)
    labelled_file(desk.folder / "v.csv", rows)
    refuses(desk.command(name, **given), f"v.csv has only one {of}, ", capsys)


@pytest.mark.parametrize("kind", ["a million characters", "without tokens"])
def test_texts_that_are_very_long_or_leave_no_token(kind: str, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    given = texts(kind)
    pool = desk.file("p.txt", "\n".join(given) + "\n")
    rows, own = halves(desk, given[:6]), desk.file("own.txt", "\n".join(given[6:]) + "\n")
    works(desk, desk.command("label", unlabeled=pool), capsys)
    labelled = {example.text: logits for example, logits in LabelDir.open(desk.out)}
    assert list(labelled) == [text.strip() for text in given]
    shutil.rmtree(desk.out)
    predicted = [json.loads(line) for line in works(desk, desk.command("predict", data=pool), capsys).splitlines()]
    assert [row["label"] for row in predicted] == [tiny.LABELS[logits.argmax()] for logits in labelled.values()]
    for name in ("finetune", "distill", "prune", "quantize"):
        changed = {"unlabeled": own} if name == "distill" else {}
        train = {} if name == "quantize" else {"train": rows["train"]}
        works(desk, desk.command(name, validation=rows["validation"], **train, **changed), capsys)
        assert Model.open(desk.out).manifest.metrics[0]["rows"] == 3
        shutil.rmtree(desk.out)
    works(desk, benchmark(desk, data=rows["validation"]), capsys)


def test_labels_of_any_text_go_from_training_to_the_verdict(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(role: str) -> Path:
        made = [Example(f"{role} {tiny.PLAIN[i % 15]} {i}", None, LABELS[i % len(LABELS)]) for i in range(24)]
        return labelled_file(desk.folder / f"{role}.csv", made)

    train, validation, test = map(rows, ("fitted", "chosen", "tested"))
    model = desk.folder / "model"
    works(desk, desk.command("finetune", train=train, validation=validation, output=model), capsys)
    assert sorted(Model.open(model).labels) == sorted(LABELS)
    works(desk, desk.command("label", teacher=model), capsys)
    assert LabelDir.open(desk.out).manifest.labels == Model.open(model).labels
    shutil.rmtree(desk.out)
    made = [model]
    for name in ("distill", "prune", "quantize"):
        made.append(desk.folder / name)
        given = {"teacher" if name == "distill" else "model": model, "validation": validation, "output": made[-1]}
        works(desk, desk.command(name, **given, **({} if name == "quantize" else {"train": train})), capsys)
    for path in made:
        assert Model.open(path).labels == Model.open(model).labels
        for line in works(desk, desk.command("predict", model=path), capsys).splitlines():
            assert json.loads(line)["label"] in LABELS and "\x1b" not in line and "\u202e" not in line
    works(desk, benchmark(desk, teacher=model, model=made[1], data=test, train=train), capsys)
    results = str(desk.folder / "results.jsonl")
    page = desk.folder / "report"
    works(desk, ["report", results, "-o", str(page)], capsys)
    written = (page / "report.html").read_text()
    assert not any(raw in written for raw in ("\x1b", "<b>&x", "\u202e"))
    works(desk, ["check", results, "--max-accuracy-drop", "100", "--junit", str(desk.folder / "junit.xml")], capsys)


@pytest.mark.parametrize("name", ["finetune", "distill", "prune", "quantize", "benchmark"])
def test_a_class_written_in_two_ways_is_refused(name: str, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """In the files that name the classes; beside a model that knows them, another spelling is the model's class."""
    model = tiny.write(desk.folder / "numbered", tiny.classifier("bert", labels=("0", "1")))
    rows = [Example(f"zebra {number}", None, label) for number, label in enumerate(("1", "0", "1.0", "0"))]
    given = {option: model for option in ("teacher", "model") if f"--{option}" in desk.command(name)}
    data = "data" if name == "benchmark" else "validation"
    train = {"train": labelled_file(desk.folder / "t.csv", [Example("an", None, "1"), Example("on", None, "0")])}
    train = {} if name in {"quantize", "benchmark"} else train
    one, other = desk.folder / "one.csv", desk.folder / "other.csv"
    labelled_file(one, rows)
    labelled_file(other, rows[1:3])
    refuses(desk.command(name, **given, **train, **{data: one}), "'1' and '1.0' are one class", capsys)
    command = desk.command(name, **given, **train, **{data: other})
    if name == "finetune":
        refuses(command, "'1' and '1.0' are one class", capsys)
    else:
        works(desk, command, capsys)


def test_labels_of_a_model_differ(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.write(desk.folder / "twice", tiny.classifier("bert", labels=("good", "good")))
    refuses(desk.command("predict", model=model), "each with a name of its own", capsys)
