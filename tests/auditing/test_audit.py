"""compress audit on rows of which the wrong labels and the copies are known; each task; and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import compress
from compress.auditing.copies import find_copies
from compress.cli import execute
from compress.data import Example
from compress.data.near_copies import near_pairs, similarity
from compress.errors import CompressError
from compress.models.manifest import MANIFEST_NAME, Manifest
from tests.support.samples import SAMPLES, classes, words, write_sample
from tests.support.tiny import classifier, torch_directory, write
from tests.support.training_data import finetuned, labelled_file, train_rows, validation_rows

OTHER = {"positive": "negative", "negative": "positive"}
LONG = "the very long story of an actor who was in the last scene of a film with a warm end and a <b>plot</b>"


def rows_with_faults() -> tuple[list[Example], list[Example], list[int]]:
    """Return rows of train and test, and the numbers of those of train whose label is wrong, from 1."""
    train = [row for row in classes(400, 1) if row.text != LONG]
    wrong = [10, 50, 51, 300]
    for number in wrong:
        row = train[number - 1]
        train[number - 1] = Example(f"good great fine warm funny fresh {number}", None, "negative")
        assert row.label
    test = [*classes(40, 2), Example(f"{LONG} .", None, "positive"), Example(f"{LONG} twist", None, "positive")]
    return [*train, Example(LONG, None, "negative")], test, wrong


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    train, test, _ = rows_with_faults()
    files = [str(labelled_file(folder / f"{name}.csv", rows)) for name, rows in (("train", train), ("test", test))]
    assert execute(["audit", "--train", files[0], "--test", files[1], "-o", str(folder / "page")]) == 0
    return folder / "page"


def content(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "audit.json").read_text())
    return found


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_wrong_labels_come_first_with_their_place_in_the_file(finished: Path) -> None:
    suspects = content(finished)["labels"]["suspects"]
    *_, wrong = rows_with_faults()
    first = suspects[: len(wrong)]
    assert {(one["role"], one["row"]) for one in first} == {("train", number) for number in wrong}
    assert all((one["given"], one["suggested"]) == ("negative", "positive") for one in first)
    assert {one["where"] for one in first} == {f"train.csv, line {number + 1}" for number in wrong}
    margins = [one["suggested_probability"] - one["given_probability"] for one in suspects]
    assert margins == sorted(margins, reverse=True)
    assert [{**one, "row": str(one["row"])} for one in suspects] == [
        {**one, **{key: float(one[key]) for key in ("given_probability", "suggested_probability")}}
        for one in table(finished / "labels.csv")
    ]


def test_copies_across_roles_are_counted_and_listed(finished: Path) -> None:
    found = content(finished)
    counts = {(one["role"], one["within"]): one for one in found["copies"]}
    train, test, _ = rows_with_faults()
    across = counts["test", "train"]
    listed = [one for one in found["copied_rows"] if (one["role"], one["copy_role"]) == ("test", "train")]
    assert across["exact"] + across["near"] == len(listed)
    same, near = listed[-2:]
    assert (same["row"], same["copy_row"], same["similarity"]) == (len(test) - 1, len(train), 1.0)
    assert (near["row"], near["copy_row"]) == (len(test), len(train))
    assert 0.8 <= near["similarity"] < 1 and (near["label"], near["copy_label"]) == ("positive", "negative")
    assert across["other_label"] >= 2
    assert table(finished / "copies.csv")[-1]["copy_where"] == listed[-1]["copy_where"] or len(found["copied_rows"]) > 0


def test_pages_show_texts_and_files_of_figures_do_not(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (finished / "report.html").read_text()
    assert "good great fine warm funny fresh 10" in page and "&lt;b&gt;plot&lt;/b&gt;" in page and "<b>plot" not in page
    others = [path for path in finished.iterdir() if path.suffix in {".json", ".csv", ".md"}]
    assert len(others) > 5 and not any("funny fresh 10" in path.read_text() for path in others)
    manifest = Manifest.read(finished / MANIFEST_NAME)
    assert (manifest.kind, manifest.stage) == ("audit", "audit")
    assert [one["role"] for one in manifest.data] == ["train", "test"]


@pytest.mark.parametrize("task", SAMPLES)
def test_every_task_is_judged_or_says_why_not(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = (write_sample(task, 60, seed, tmp_path) for seed in (1, 2))
    words = ["audit", "--train", str(train), "--test", str(test), "-o", str(tmp_path / "page"), "--json"]
    assert execute(words) == 0
    said = json.loads(capsys.readouterr().out)
    found = content(tmp_path / "page")
    judged = task in {"classification", "multi-label"}
    assert (found["labels"] is not None) == judged
    assert ("Labels are not judged" in said["verdict"][0]) != judged
    compared = [(one["role"], one["within"]) for one in found["copies"]]
    assert compared == [("train", "train"), ("test", "train"), ("test", "test")]
    assert (Path(said["page"]).is_file(), Path(said["suspects"]).is_file()) == (True, True)


def test_a_missing_label_of_several_is_suggested(tmp_path: Path) -> None:
    rows = [row for seed in range(4) for row in SAMPLES["multi-label"](100, seed)]
    rows.append(Example("good great fine warm funny fresh bright", labels=("blame",)))
    found = content(compress.audit(rows, tmp_path / "page"))
    first = found["labels"]["suspects"][0]
    assert (first["row"], first["given"], first["suggested"]) == (len(rows), "not praise", "praise")
    assert found["labels"]["decisions"] == 2 * len(rows)


def test_an_encoder_gives_the_features_of_texts_and_pairs(tmp_path: Path) -> None:
    encoder = torch_directory("bert")
    rows = classes(60, 1)
    alone = content(compress.audit(rows, tmp_path / "alone", encoder=encoder, device="cpu"))
    assert alone["features"] == encoder.name and 0.5 < alone["labels"]["value"] <= 1
    pairs = [Example(row.text, " ".join(other), row.label) for row, other in zip(rows, words(60, 5), strict=True)]
    assert content(compress.audit(pairs, tmp_path / "pairs", encoder=encoder, device="cpu"))["labels"]["value"] > 0


def test_a_pool_is_kept_without_what_repeats_it_or_held_out_rows(tmp_path: Path) -> None:
    train, test = classes(40, 1), [*classes(10, 2), Example(LONG, None, "positive")]
    other = "an actor of the very cold and silly plot of another film is the end of it"
    texts = [
        f"{LONG} .",
        f"{LONG} too",
        other,
        f"{other} .",
        f"{other} too",
        train[0].text,
        "stale and bleak plot",
        "x",
    ]
    made = compress.audit(train, tmp_path / "page", test=test, unlabeled=texts)
    kept = [json.loads(line)["text"] for line in (made / "unlabeled.jsonl").read_text().splitlines()]
    assert kept == [other, train[0].text, "stale and bleak plot", "x"]
    found = content(made)
    assert found["rows"] == {"train": 40, "test": 11, "unlabeled": 8} and found["labels"]["decisions"] == 51
    counts = {one["within"]: one for one in found["copies"] if one["role"] == "unlabeled"}
    assert (counts["test"]["exact"], counts["test"]["near"], counts["test"]["other_label"]) == (1, 1, 0)
    assert counts["train"]["exact"] == 1 and not (tmp_path / "page" / "unlabeled.csv").exists()


def test_the_result_without_an_output_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path))
    made = compress.audit(classes(40, 1))
    assert (made / "report.html").is_file() and compress.audit(classes(40, 1)) == made


def test_each_row_repeats_what_is_most_like_it() -> None:
    """Of every two roles against a comparison of all rows."""
    roles = {
        "train": [Example(text) for text in ("A good film .", "a good film", "the plot was very thin and slow", "x")],
        "test": [Example(text) for text in ("the plot was very thin and slower", "a good films", "a good film", "y")],
    }
    repeats, groups = find_copies(roles)
    found = {(one.role, one.within): [*zip(one.rows.tolist(), one.copies.tolist(), strict=True)] for one in repeats}
    assert found == {
        ("train", "train"): [(1, 0)],
        ("test", "train"): [(4, 2), (5, 0), (6, 0)],
        ("test", "test"): [(6, 5)],
    }
    of_test = repeats[1].similarities.tolist()
    assert of_test[1] == similarity("a good films", "a good film") and of_test[2] == 1
    assert (groups == groups[0]).tolist() == [True, True, False, False, False, True, True, False]
    assert near_pairs(["x", "y"])[0].tolist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": ()}, "there are no rows to check; give labelled rows with --train FILE"),
        ({"device": "cpu"}, "--device changes nothing without --encoder DIR|RECIPE; add it, or leave --device out"),
        ({"train": [Example(f"text {n}", None, "a") for n in range(9)]}, "train has only one class, 'a'; give rows"),
        (
            {"train": [Example(f"{name} film", None, name) for name in ("good", "bad")] * 9},
            "there are 2 rows that are no copies of each other; give 5 or more",
        ),
        ({"encoder": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_audited(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {"train": classes(40, 1)} | options
    with pytest.raises(CompressError, match=message.replace("|", r"\|")):
        compress.audit(output=tmp_path / "page", **given)
    assert not (tmp_path / "page").exists() and not [*tmp_path.glob(".page*")]


def test_a_teacher_of_the_same_rows_is_no_judge_of_their_labels(tmp_path: Path) -> None:
    encoder = write(tmp_path / "encoder", classifier("bert"))
    teacher = finetuned(encoder, tmp_path / "teacher", train=train_rows(), validation=validation_rows())
    with pytest.raises(CompressError, match="teacher has learned from the rows of train, and repeats their labels"):
        compress.audit(train_rows(), tmp_path / "page", encoder=teacher)
    assert not (tmp_path / "page").exists()
