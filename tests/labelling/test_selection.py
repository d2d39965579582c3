"""Texts that are chosen to be labelled: those that a fast model is least sure of, without near copies."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compress
from compress.data import Example, ExampleSource
from compress.errors import CompressError
from compress.labelling import label as label_module
from compress.labelling.label_dir import LabelDir
from compress.labelling.selection import choose_texts, round_sizes, without_near_copies
from compress.requests.labelling import Label, merge_labels
from compress.training.training_data import LabelledPool, agreement_rows
from tests.labelling.test_label import shards_written, tree  # noqa: F401
from tests.labelling.test_language_model import chances, key_and_cache, labelled, prices  # noqa: F401
from tests.support.chat_server import serving
from tests.support.tiny import classifier, write

CLEAR = [f"{shades} {number:03}" for number in range(60) for shades in ("red crimson scarlet", "blue azure navy")]
UNCLEAR = [f"red navy {number:03}" for number in range(6)]
WORDS = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore".split()
POOL = [f"{word} {other} film" for word in WORDS for other in WORDS if word < other]


def colour(texts: Sequence[str]) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    return lambda rows: (
        rows,
        np.array([not (texts[row].startswith("red") or "好" in texts[row]) for row in rows], int),
    )


def chosen(texts: Sequence[str], sizes: Sequence[int], seed: int = 0, answers: Any = None) -> list[list[str]]:
    rounds = choose_texts(texts, sizes, seed, answers or colour(texts))
    return [[texts[row] for row in rows] for rows in rounds]


@pytest.mark.parametrize("seed", [2, 5, 8])
def test_texts_between_two_classes_come_first(seed: int) -> None:
    texts = [*CLEAR, *UNCLEAR]
    first, second, third = chosen(texts, [24, 6, 6], seed)
    assert not {*UNCLEAR} & {*first}
    assert {*UNCLEAR} == {*second} and len({*first, *second, *third}) == 36
    assert chosen(texts, [24, 6, 6], seed) == [first, second, third]


def test_scripts_without_spaces_are_read_by_characters() -> None:
    other = "天地玄黄宇宙洪荒日月盈昃辰宿列"
    clear = [f"{one}{mark}{two}" for one in other[:10] for two in other[10:] for mark in ("好棒", "坏差")]
    unclear = [f"好{one}差" for one in other[:4]]
    first, second = chosen([*clear, *unclear], [24, 8], 2)
    assert not {*unclear} & {*first} and {*unclear} <= {*second}


def test_ties_are_broken_by_the_seed() -> None:
    """With one class there is no model, and every text is as good."""
    one: Any = lambda rows: (rows, np.zeros(len(rows), int))  # noqa: E731
    seconds = [chosen(CLEAR, [10, 10], seed, one)[1] for seed in (0, 0, 1)]
    assert seconds[0] == seconds[1] != seconds[2]
    assert not {*seconds[0]} <= {*CLEAR[:25]} and not {*seconds[0]} <= {*CLEAR[-25:]}


def test_texts_that_say_next_to_nothing_are_chosen_last() -> None:
    junk = [*"?!.", "ok", "a b c", "…", "red"]
    texts = [*junk, *UNCLEAR, *CLEAR]
    generator = np.random.default_rng(0).permutation(len(texts))[:10]
    first, second, third = chosen(texts, [10, len(texts) - 17, 7])
    assert first == [texts[row] for row in generator]
    assert not {*second} & {*junk} and {*junk} - {*first} <= {*third}


def test_texts_without_an_answer_are_not_asked_again() -> None:
    none: Any = lambda rows: (rows[:0], np.zeros(0, int))  # noqa: E731
    rounds = chosen(CLEAR, [10, 10, 10], answers=none)
    assert len({*rounds[0], *rounds[1], *rounds[2]}) == 30


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ((100, 4, 1), [25, 25, 25, 25]),
        ((10, 4, 1), [3, 3, 3, 1]),
        ((250, 4, 64), [64, 64, 64, 58]),
        ((5, 8, 1), [1] * 5),
        ((7, 1, 64), [7]),
    ],
)
def test_rounds_are_equal_and_end_with_shards(given: tuple[int, int, int], sizes: list[int]) -> None:
    assert round_sizes(*given) == sizes


def test_of_near_copies_the_first_stays() -> None:
    long = "the film is as long as it is dull and nobody in it knows why"
    texts = [long, "another text", f"{long}!", f"{long} so", "Another  text.", "a third text of its own"]
    kept = without_near_copies(ExampleSource([*map(Example, texts)], "pool"))
    assert [row.text for row in kept] == [long, "another text", "a third text of its own"]
    assert kept.describe() == "pool: 6 rows, near copies left out: 3"


def pool(folder: Path, texts: Sequence[str] = POOL) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "pool.txt").write_text("".join(f"{text}\n" for text in texts))
    return folder / "pool.txt"


@pytest.mark.usefixtures("small_shards")
def test_a_teacher_labels_the_chosen_texts_in_rounds(teacher: Path, tmp_path: Path, caplog: Any) -> None:
    file = pool(tmp_path, [*POOL, *POOL[:9]])
    with caplog.at_level(logging.INFO, "compress"):
        made = compress.label(teacher, file, tmp_path / "labels", select=40, rounds=4, seed=3)
    rows = [row.text for row, _ in made]
    assert made.rows == 40 == len({*rows}) and {*rows} < {*POOL}
    notes = made.manifest.notes
    about = {"chosen_by": "uncertainty", "rounds": 4, "seed": 3, "pool_rows": len(POOL), "near_copies_left_out": 9}
    assert {name: notes[name] for name in about} == about and "near copies left out: 9" in caplog.text
    texts = sorted(POOL, key=POOL.index)
    assert rows[:10] == [texts[row] for row in np.random.default_rng(3).permutation(len(POOL))[:10]]
    everything = compress.label(teacher, file, tmp_path / "all", rows=len(POOL) + 9)
    known = {row.text: logits for row, logits in everything}
    np.testing.assert_allclose([logits for _, logits in made], [known[text] for text in rows], atol=1e-5)
    seen = {row: int(known[row].argmax()) for row in rows}

    def answers(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return numbers, np.array([seen[texts[number]] for number in numbers.tolist()])

    assert rows == [text for part in chosen(texts, [10, 10, 10, 10], 3, answers) for text in part]


@pytest.mark.usefixtures("small_shards")
def test_stopped_work_goes_on_with_the_same_texts(teacher: Path, tmp_path: Path, monkeypatch: Any) -> None:
    options: dict[str, Any] = {"select": 40, "rounds": 3, "threads": 1}
    file = pool(tmp_path)
    whole = compress.label(teacher, file, tmp_path / "whole", **options)
    written = label_module.write_shard

    def stops(directory: Path, number: int, *rest: Any) -> None:
        if number == 3:
            raise KeyboardInterrupt
        written(directory, number, *rest)

    monkeypatch.setattr(label_module, "write_shard", stops)
    with pytest.raises(KeyboardInterrupt):
        compress.label(teacher, file, tmp_path / "labels", **options)
    monkeypatch.setattr(label_module, "write_shard", written)
    made = compress.label(teacher, file, tmp_path / "labels", **options)
    same = {name: content for name, content in tree(whole.path).items() if name.startswith("shard")}
    assert same == {name: content for name, content in tree(made.path).items() if name.startswith("shard")}
    early = compress.label(teacher, file, tmp_path / "early", time_limit=1e-9, **options)
    assert early.rows == 7 and early.manifest.notes["rows_asked"] == 40
    made = compress.label(teacher, file, tmp_path / "early", **options)
    assert same == {name: content for name, content in tree(made.path).items() if name.startswith("shard")}
    with pytest.raises(CompressError, match="unfinished|already"):
        compress.label(teacher, file, tmp_path / "early", select=39, rounds=3, threads=1)


def test_one_round_is_of_random_texts(teacher: Path, tmp_path: Path) -> None:
    made = compress.label(teacher, pool(tmp_path), tmp_path / "labels", select=30, rounds=1)
    order = np.random.default_rng(0).permutation(len(POOL))[:30]
    assert [row.text for row, _ in made] == [POOL[number] for number in order]
    assert made.manifest.notes["chosen_by"] == "chance"


@pytest.mark.usefixtures("small_shards")
def test_near_copies_are_labelled_once(teacher: Path, tmp_path: Path) -> None:
    file, options = pool(tmp_path, [*POOL[:20], *POOL[:4]]), {"deduplicate": True}
    made = compress.label(teacher, file, tmp_path / "labels", **options)
    assert [row.text for row, _ in made] == POOL[:20] and made.manifest.notes["near_copies_left_out"] == 4
    parts = [
        compress.label(teacher, file, tmp_path / f"part-{part}", shard=(part, 2), **options).path for part in (1, 2)
    ]
    merged = merge_labels(parts, tmp_path / "merged")
    assert [row.text for row, _ in merged] == POOL[:20] and merged.manifest.notes["near_copies_left_out"] == 4


def test_a_language_model_is_asked_only_the_chosen_texts(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("openai")
    options: dict[str, Any] = {"select": 40, "rounds": 2}
    silent = {*POOL[::5]}
    with serving(lambda text: {"": "?"} if text in silent else chances(text)) as server:
        estimate: Any = labelled(server, tmp_path / "labels", POOL, dry_run=True, **options)
        assert estimate.questions == 40 and not server.asked
        made = labelled(server, tmp_path / "labels", POOL, **options)
        asked = {one["messages"][1]["content"] for one in server.asked}
        assert len(asked) == len(server.asked) == 40
        unanswered = [json.loads(line)["text"] for line in (made.path / "unanswered.jsonl").open()]
        assert {*unanswered} == asked & silent and {row.text for row, _ in made} == asked - silent
        labelled(server, tmp_path / "again", POOL, **options)
        assert len(server.asked) == 40


def test_a_budget_ends_between_rounds_and_more_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    with serving(chances) as server:
        options: dict[str, Any] = {"prices": prices(tmp_path), "concurrency": 2, "select": 32, "rounds": 2}
        made = labelled(server, tmp_path / "labels", POOL, budget=0.15, **options)
        assert made.rows in (8, 16, 24)
        whole = labelled(server, tmp_path / "labels", POOL, budget=10.0, **options)
        straight = labelled(server, tmp_path / "straight", POOL, **options)
        assert whole.rows == 32 == len(server.asked) == len({row.text for row, _ in whole})
    assert [row.text for row, _ in whole] == [row.text for row, _ in straight]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 2}, "--rounds changes nothing without --select"),
        ({"seed": 2}, "--seed changes nothing without --select"),
        ({"select": 5, "shard": (1, 2)}, "--shard does not go with --select; leave it out"),
        ({"select": 5, "engine": "ray"}, "--engine does not go with --select"),
        ({"select": 5, "deduplicate": True}, "--deduplicate does not go with --select"),
        ({"select": 0}, "select"),
        ({"select": 5, "rounds": 0}, "rounds"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(CompressError) as error:
        Label("teacher", "pool.txt", "labels", **options)
    assert said in str(error.value)


def test_a_pool_has_to_be_large_enough(teacher: Path, tmp_path: Path) -> None:
    file = pool(tmp_path, [*POOL[:20], *POOL[:3]])
    with pytest.raises(
        CompressError, match="--select 21 is more than the 20 texts of pool.txt, 3 near copies left out"
    ):
        compress.label(teacher, file, tmp_path / "labels", select=21)
    assert not (tmp_path / "labels").exists()
    assert compress.label(teacher, file, tmp_path / "labels", select=20).rows == 20


def test_scores_are_not_chosen_by(tmp_path: Path) -> None:
    scores = write(tmp_path / "scores", classifier("bert", num_labels=1, problem_type="regression"))
    with pytest.raises(CompressError, match="--select is for texts of one class each; use --rows N"):
        compress.label(scores, pool(tmp_path), tmp_path / "labels", select=20)


@pytest.mark.parametrize("rounds", [1, 4])
def test_hard_texts_judge_nothing_silently(rounds: int, teacher: Path, tmp_path: Path, caplog: Any) -> None:
    made: LabelDir = compress.label(teacher, pool(tmp_path), tmp_path / "labels", select=60, rounds=rounds)
    agreement_rows(LabelledPool((made,)), made.shards.task)
    assert ("were chosen because they are hard" in caplog.text) == (rounds > 1)
