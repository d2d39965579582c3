"""The script that judges baselines of pairs on similarity, with a tiny encoder."""

from __future__ import annotations

import csv
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY
from tests.support.tiny import classifier, write


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import pair_baselines

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return pair_baselines


def test_pairs_that_share_more_words_are_rated_higher(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, words = random.Random(0), ["good", "bad", "film", "plot", "fine", "poor"]
    (tmp_path / "data" / "pairs").mkdir(parents=True)
    for split, count in (("train", 60), ("dev", 40)):
        rows = []
        for _ in range(count):
            one, kept = generator.sample(words, 4), generator.randrange(5)
            rows.append((" ".join(one), " ".join([*one[:kept], *["other"] * (4 - kept)]), kept + 0.5))
        with (tmp_path / "data" / "pairs" / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("sentence1", "sentence2", "score"), *rows])
    encoder, output = write(tmp_path / "encoder", classifier("bert")), tmp_path / "results.jsonl"
    words = ["--data-root", str(tmp_path / "data"), "--set", "pairs", "--encoder", str(encoder), "-o", str(output)]
    for _ in range(2):  # lines take the place of those before
        monkeypatch.setattr("sys.argv", ["pair_baselines.py", *words])
        script.main()
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [(line["baseline"], line["rows"], line.get("encoder")) for line in lines] == [
        ("bm25", 40, None),
        ("cosine", 40, str(encoder)),
    ]
    for metric in ("pearson", "spearman"):
        found = lines[0][metric]
        assert 0.5 < found["low"] <= found["value"] <= found["high"] <= 1
        assert -1 <= lines[1][metric]["low"] <= lines[1][metric]["high"] <= 1
