"""The script that compares cheap baselines and students, on tiny models."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from compress.requests.labelling import label
from tests.support import REPOSITORY
from tests.support.tiny import classifier, examples, write

NGRAM = "ngram max_steps=20 batch_size=16 evaluations=2 embedding_size=8 buckets=50 minimum_count=1"


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import room

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return room


def test_phrases_of_a_validation_sentence_are_its_long_spans(script: Any) -> None:
    words = "a very good film indeed".split()
    found = script.phrases_of(words)
    assert found == {"a very good film indeed", "a very good film", "very good film indeed"}
    assert script.phrases_of(["good"]) == {"good"}


def test_a_baseline_and_a_student_are_made_judged_and_timed(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    root = tmp_path / "data"
    rows = [(f"{row.text} {number}", int(row.label == "positive")) for number, row in enumerate(examples(260))]
    parts = {
        "glue/SST-2/train.tsv": rows[:100],
        "glue/SST-2/dev.tsv": rows[100:130],
        "sst_sentence_level/stsa.binary.train": rows[130:160],
        "cr/custrev.all": rows[160:190],
    }
    for name, some in parts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        is_glue = name.endswith("tsv")
        lines = [f"{text}\t{y}\n" if is_glue else f"{y} {text}\n" for text, y in some]
        (root / name).write_text("sentence\tlabel\n" * is_glue + "".join(lines), encoding="utf-8")
    (root / "yelp_sentences").mkdir()
    for side in (0, 1):
        text = "".join(f"{text}\n" for text, y in rows[190:220] if y == side)
        (root / f"yelp_sentences/sentiment.dev.{side}").write_text(text, encoding="utf-8")
    (tmp_path / "stsa.binary.test").write_text("".join(f"{y} {text}\n" for text, y in rows[220:]), encoding="utf-8")
    (tmp_path / "pool.txt").write_text("".join(f"{text} again\n" for text, _ in rows), encoding="utf-8")
    network = classifier("bert")
    network.config.id2label, network.config.label2id = {0: "0", 1: "1"}, {"0": 0, "1": 1}
    teacher = write(tmp_path / "teacher", network)
    label(teacher, str(tmp_path / "pool.txt"), tmp_path / "pool", threads=1)
    monkeypatch.setattr(script, "VALIDATION_SENTENCES", 10)
    monkeypatch.setattr(script, "VALIDATION_POOL", 20)
    folders = ["--data-root", root, "--test", tmp_path / "stsa.binary.test", "--pool", tmp_path / "pool"]
    out = ["--work", tmp_path / "work", "-o", tmp_path / "room.jsonl", "--speed", "2", "--way", "svm words=1", NGRAM]
    monkeypatch.setattr(sys, "argv", ["room.py", "--teacher", str(teacher), *map(str, [*folders, *out])])
    script.main()
    made = [json.loads(line) for line in (tmp_path / "room.jsonl").read_text(encoding="utf-8").splitlines()]
    judged = {(line["way"], line["learns_from"]): line for line in made if line["study"] == "room"}
    assert set(judged) == {("svm words=1", "gold"), ("svm words=1", "teacher"), (NGRAM, "teacher")}
    for line in judged.values():
        assert {name: one["rows"] for name, one in line["sets"].items()} == {
            **{"sst-dev": 30, "sst-test": 40, "cr": 30, "yelp": 30},
            "sst": 70,
        }
        assert line["rival"] == "svm words=1" and 0 <= line["validation"] <= 1
    assert judged["svm words=1", "gold"]["pool_rows"] == 0 and judged[NGRAM, "teacher"]["pool_rows"] == 260
    assert judged["svm words=1", "teacher"]["to_rival"]["yelp"]["points"] == 0
    timed = {(line["way"], line["learns_from"]) for line in made if line["study"] == "room-speed"}
    assert timed == {*judged, ("teacher", "")}
