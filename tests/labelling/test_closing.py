"""Labels that end before their text does are labels: after a time limit, and of a command that was stopped."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from compress.cli import execute
from compress.data import content_sha256
from compress.data.examples import without_label
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.labelling import label as label_module
from compress.labelling.label import Engine
from compress.labelling.label_dir import LabelDir, open_labels
from compress.models.output_dir import places_of
from compress.requests.labelling import close_labels, merge_labels
from tests.labelling.conftest import SHARD
from tests.labelling.test_label import ROWS, pool, text_file, tree
from tests.support.labelling import LabelOptions, label
from tests.support.tiny import examples

ONE = Compute("cpu", threads=1)
TEXTS = list(map(without_label, examples(ROWS)))
SHORT = 1e-9  # over when the first shard is done


class Workers(Engine):
    """Hands out two shards before the first is done, and returns the second first."""

    def run(self, job: Any, shards: Any, advance: Any) -> Any:
        while two := list(itertools.islice(shards, 2)):
            yield from reversed(list(super().run(job, iter(two), advance)))


@pytest.fixture
def text(tmp_path: Path, small_shards: None) -> Path:
    return text_file(tmp_path / "pool.txt")


def limited(teacher: Path, text: Path, output: Path, **options: Any) -> LabelDir:
    return label(teacher, pool(text), output, compute=ONE, options=LabelOptions(time_limit=SHORT, **options))


def stopped(teacher: Path, text: Path, output: Path, monkeypatch: pytest.MonkeyPatch, at: int, **options: Any) -> None:
    """Label until a shard is to be written."""
    written = label_module.write_shard

    def write(directory: Path, number: int, *given: Any) -> None:
        if number == at:
            raise KeyboardInterrupt
        written(directory, number, *given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(label_module, "write_shard", write)
        label(teacher, pool(text), output, compute=ONE, options=LabelOptions(**options))


def test_a_time_limit_ends_with_labels_and_the_same_command_goes_on(teacher: Path, text: Path, tmp_path: Path) -> None:
    made = limited(teacher, text, tmp_path / "labels")
    assert made.rows == SHARD and made.described_rows == f"{SHARD} of {ROWS} rows"
    assert made.manifest.data[0]["sha256"] == content_sha256(TEXTS[:SHARD])
    assert len(list(made)) == SHARD and not places_of(made.path)[1].exists()
    assert limited(teacher, text, tmp_path / "labels").rows == 2 * SHARD
    assert [path.name for path in tmp_path.iterdir() if path.name != "pool.txt"] == ["labels"]
    assert limited(teacher, text, tmp_path / "labels").rows == 3 * SHARD
    label(teacher, pool(text), tmp_path / "whole" / "labels", compute=ONE)
    label(teacher, pool(text), tmp_path / "labels", compute=ONE)
    assert tree(tmp_path / "labels") == tree(tmp_path / "whole" / "labels")
    with pytest.raises(CompressError, match="already exists"):
        limited(teacher, text, tmp_path / "labels")


def test_another_command_does_not_go_on_with_labels(teacher: Path, text: Path, tmp_path: Path) -> None:
    limited(teacher, text, tmp_path / "labels")
    before = tree(tmp_path / "labels")
    for other in (LabelOptions(max_length=16), LabelOptions(part=(1, 2))):
        with pytest.raises(CompressError, match="labels already exists; choose another -o or replace it with --force"):
            label(teacher, pool(text), tmp_path / "labels", compute=ONE, options=other)
    assert tree(tmp_path / "labels") == before
    made = label(teacher, pool(text), tmp_path / "labels", compute=ONE, options=LabelOptions(max_length=16), force=True)
    assert made.rows == ROWS


def test_what_was_labelled_before_a_time_limit_stays(
    teacher: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also shards beyond the one at which time is over, as several workers leave them."""
    stopped(teacher, text, tmp_path / "labels", monkeypatch, at=2, engine=Workers())
    made = limited(teacher, text, tmp_path / "labels", engine=Workers())
    assert made.rows == 4 * SHARD == made.manifest.data[0]["rows"]
    numbers = [json.loads((made.path / f"shard-{n:05d}.json").read_text())["shard"] for n in range(4)]
    assert numbers == [0, 1, 2, 3]


@pytest.mark.parametrize("hidden", [False, True])
def test_labels_of_a_stopped_command_are_closed(
    hidden: bool, teacher: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards 0, 1 and 3 are whole, and 2 is not there."""
    output = tmp_path / "labels"
    stopped(teacher, text, output, monkeypatch, at=2, engine=Workers())
    made = close_labels(places_of(output)[1] if hidden else output)
    labelled = [*TEXTS[: 2 * SHARD], *TEXTS[3 * SHARD : 4 * SHARD]]
    assert made.path == output and made.described_rows == f"{3 * SHARD} of {ROWS} rows"
    assert [example for example, _ in made] == labelled and made.manifest.data[0]["name"] == "pool.txt"
    assert made.manifest.data[0]["sha256"] == content_sha256(labelled)
    with pytest.raises(CompressError, match="there are no unfinished labels of .*labels; name the output"):
        close_labels(output)
    label(teacher, pool(text), output, compute=ONE)
    assert tree(output) == tree(label(teacher, pool(text), tmp_path / "whole" / "labels", compute=ONE).path)


def test_a_part_that_ends_early_is_labels_of_its_own(teacher: Path, text: Path, tmp_path: Path) -> None:
    parts = [
        label(teacher, pool(text), tmp_path / f"part-{n}", compute=ONE, options=LabelOptions(part=(n, 2)))
        if n == 1
        else limited(teacher, text, tmp_path / "part-2", part=(2, 2))
        for n in (1, 2)
    ]
    assert parts[1].described_rows == f"{SHARD} of {2 * SHARD} rows"
    assert [example for example, _ in parts[1]] == TEXTS[SHARD : 2 * SHARD]
    with pytest.raises(CompressError, match="part-2 holds whole labels, not a part of them"):
        merge_labels([part.path for part in parts], tmp_path / "labels")
    label(teacher, pool(text), tmp_path / "part-2", compute=ONE, options=LabelOptions(part=(2, 2)))
    assert merge_labels([part.path for part in parts], tmp_path / "labels").rows == ROWS


def test_labels_that_end_early_are_named_where_they_are_read(
    teacher: Path, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = limited(teacher, text, tmp_path / "labels")
    with caplog.at_level("INFO", "compress"):
        open_labels([made.path])
    assert f"{made.path} holds {SHARD} of {ROWS} rows, where labelling ended early" in caplog.text


def test_nothing_whole_is_no_labels(teacher: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(teacher, text, tmp_path / "labels", monkeypatch, at=0)
    with pytest.raises(CompressError, match="holds no labels yet: rows are written 8 at a time"):
        close_labels(tmp_path / "labels")
    stopped(teacher, text, tmp_path / "labels", monkeypatch, at=1)
    assert close_labels(tmp_path / "labels").rows == SHARD


def test_the_commands_say_how_much_is_labelled(
    teacher: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = str(tmp_path / "labels")
    words = ["label", "--teacher", str(teacher), "--unlabeled", str(text), "--device", "cpu", "--threads", "1"]
    assert execute([*words, "-o", output, "--time-limit", "0.001s"]) == 0
    assert f"{output}: 8 of 40 rows labelled on" in capsys.readouterr().out
    assert execute([*words, "-o", output]) == 0
    assert f"{output}: 40 rows labelled on" in capsys.readouterr().out
    stopped(teacher, text, tmp_path / "other", monkeypatch, at=1)
    assert execute(["labels", "close", str(tmp_path / "other")]) == 0
    assert "other: 8 of 40 rows" in capsys.readouterr().out
    assert execute(["labels", "close", str(tmp_path / "other")]) == 2
    assert execute([*words, "-o", output, "--time-limit", "soon"]) == 2
