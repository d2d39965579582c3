"""The mean of several teachers: closed forms, and directories that do not hold the same rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.data import Example
from compress.errors import CompressError
from compress.labelling import label_dir as combine_module
from compress.labelling.label_dir import LabelDir, combine_labels, write_shard
from compress.models.manifest import MANIFEST_NAME, Manifest, describe_files
from compress.tasks import find_task

TEXTS = ("a", "b", "c", "d", "e")


def directory(
    path: Path, logits: Any, texts: Sequence[str] = TEXTS, shards: Sequence[int] = (5,), **fields: Any
) -> LabelDir:
    """Write label directories whose shards have these numbers of rows; of a tagger a list of arrays."""
    path.mkdir()
    start = 0
    for number, rows in enumerate(shards):
        chosen = logits[start : start + rows]
        flat = np.concatenate([np.atleast_2d(row) for row in chosen])
        examples = [Example(text) for text in texts[start : start + rows]]
        write_shard(path, number, examples, flat, {}, find_task(fields.get("task", "classification")))
        start += rows
    described: dict[str, Any] = {
        "labels": tuple(map(str, range(flat.shape[1]))),
        "parents": ({"role": "teacher", "sha256": path.name, "name": path.name},),
        "data": ({"role": "unlabeled", "name": "pool", "rows": start},),
        "files": describe_files(path),
    }
    (path / MANIFEST_NAME).write_text(Manifest(stage="label", kind="labels", **{**described, **fields}).to_json())
    return LabelDir.open(path)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(logits.astype(np.float64))
    return powers / powers.sum(axis=-1, keepdims=True)


def random(seed: int, classes: int = 3) -> np.ndarray:
    return (4 * np.random.default_rng(seed).standard_normal((5, classes))).astype(np.float32)


@pytest.mark.parametrize("weights", [(), (2.0, 1.0)])
def test_the_mean_of_two_is_that_of_their_probabilities(
    weights: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combine_module, "SHARD_ROWS", 2)
    one, other = random(0), random(1)
    shards = {"one": (one, (2, 1, 2)), "other": (other, (1, 2, 2))}
    parts = [directory(tmp_path / name, logits, shards=sizes) for name, (logits, sizes) in shards.items()]
    combined = combine_labels(parts, weights)
    found = list(combined)
    first, second = weights or (1, 1)
    expected = (first * softmax(one) + second * softmax(other)) / (first + second)
    assert [example.text for example, _ in found] == list(TEXTS)
    logits = np.stack([logits for _, logits in found])
    np.testing.assert_allclose(softmax(logits), expected, rtol=1e-5)
    np.testing.assert_allclose(logits.mean(axis=1), 0, atol=1e-6)
    assert logits.dtype == np.float32 and combined.rows == 5
    assert combined.origin == {
        "name": "the mean of 2 x one, 1 x other" if weights else "the mean of one, other",
        "mean_of": [
            {"name": "one", "sha256": "one", "weight": first},
            {"name": "other", "sha256": "other", "weight": second},
        ],
    }
    assert json.dumps(combined.origin)


def test_the_mean_of_scores_is_of_the_scores(tmp_path: Path) -> None:
    parts = [directory(tmp_path / str(seed), random(seed, 1), task="regression") for seed in (0, 1)]
    found = np.stack([logits for _, logits in combine_labels(parts, (3.0, 1.0))])
    np.testing.assert_allclose(found, (3 * random(0, 1) + random(1, 1)) / 4, rtol=1e-6)


def test_words_of_a_tagger_that_one_teacher_did_not_answer_have_no_mean(tmp_path: Path) -> None:
    texts = ("a b", "c")
    one, other = [random(0)[:2], random(0)[2:3]], [random(1)[:2], random(1)[2:3]]
    other[0][1] = np.nan
    parts = [
        directory(tmp_path / name, logits, texts, (2,), task="tagging")
        for name, logits in (("one", one), ("other", other))
    ]
    (_, first), (_, second) = combine_labels(parts)
    assert first.shape == (2, 3) and second.shape == (1, 3) and np.isnan(first[1]).all()
    np.testing.assert_allclose(softmax(first[0]), (softmax(one[0][0]) + softmax(other[0][0])) / 2, rtol=1e-5)


def test_certain_teachers_give_finite_logits() -> None:
    certain = np.array([[500.0, -500.0]], np.float32)
    mean = partial(find_task("classification").mean_logits, shares=np.full(2, 0.5))
    assert np.isfinite(mean(np.stack([certain, certain]))).all()
    np.testing.assert_allclose(mean(np.stack([certain, -certain])), [[0, 0]], atol=1e-6)


@pytest.mark.parametrize(
    ("texts", "weights", "message"),
    [
        (("a", "b", "c", "d"), (), "one has 5 rows, and .*other has 4; .* label one file with every teacher"),
        (("a", "b", "d", "c", "e"), (), "row 3 of .*other is 'd', and of .*one 'c'; labels are combined row by row"),
        (TEXTS, (1.0,), "there are 2 label directories and 1 weights"),
        (TEXTS, (1.0, 0.0), "the weights 1.0, 0.0 must be numbers above 0"),
        (TEXTS, (1e308, 1e308), r"the weights 1e.308, 1e.308 must be numbers above 0, from 1e-100 to 1e100"),
    ],
)
def test_what_cannot_be_combined(texts: Sequence[str], weights: Sequence[float], message: str, tmp_path: Path) -> None:
    one = directory(tmp_path / "one", random(0))
    other = directory(tmp_path / "other", random(1), texts, (len(texts),))
    with pytest.raises(CompressError, match=message):
        list(combine_labels([one, other], weights))
    with pytest.raises(CompressError, match="two label directories or more"):
        combine_labels([one])
