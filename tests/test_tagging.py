"""Tagging words: sentences from files, alignment of words with pieces, and every stage of a tagger's life."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForTokenClassification

from compress import plugins
from compress.benchmarking import candidates as candidates_module
from compress.benchmarking.benchmark import benchmark
from compress.benchmarking.result_fields import quality_fields
from compress.benchmarking.results.files import Results
from compress.cli import execute
from compress.data import Example, content_sha256, open_source, read_examples
from compress.data.examples import infer_labels, sentence
from compress.data.tokenization import at_words, by_sentence, encode, first_tokens
from compress.errors import CompressError
from compress.evaluation.metrics import (
    ACCURACY,
    interval,
    paired_difference,
    sentence_bootstrap,
    sentence_mean_interval,
    sentence_weights,
)
from compress.inference.batching import logits_of
from compress.inference.compute import Compute
from compress.inference.predict import load as load_classifier
from compress.inference.runners import LoadedModel
from compress.inference.torch_run import TorchRun
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import Model
from compress.pruning.scoring import scoring_batches
from compress.recipes import BenchmarkSettings, Choice, Phase, StudentRecipe, resolved
from compress.reporting.tables import flips_of
from compress.requests.compression import export, head_study, prune, quantize
from compress.requests.training import run
from compress.surgery.unit_masks import mask_hooks
from compress.tasks import find_task, metrics_by_name, of_rows
from compress.training.training_data import LabelledPool, TrainingRow, agreement_rows, collator, tokenized
from tests.support.labelling import label
from tests.support.results import line as made_up
from tests.support.tagging import TAGS, bilstm_tagger, cnn_tagger, conllu, pruned_tagger, sentences, tagger
from tests.support.tiny import FAMILIES, PRUNABLE, classifier, load, tokenizer, write
from tests.support.training_data import TRAINING, distilled, finetuned

MINIBERT = StudentRecipe(
    description="a tiny tagger",
    architecture=Choice("transformer", options={"depth": 1}),
    phases=(Phase((Choice("kl", 0.5, {"temperature": 2.0}), Choice("hidden-cosine"), Choice("hard-label", 0.5))),),
    training=TRAINING,
    name="tiny-tagger",
)
BILSTM = replace(
    MINIBERT,
    architecture=Choice("bilstm", options={"embedding_size": 16, "hidden_size": 8, "dense_size": 8}),
    phases=(Phase((Choice("logit-mse"),)),),
    name="tiny-bilstm-tagger",
)
TRAIN, VALIDATION, TEST = sentences(200), sentences(30, seed=1), sentences(30, seed=2)
LONG = Example(sentence(["good"] * 90), tags=("GOOD",) * 90)


# Sentences


def write_treebank(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


TREEBANK = """\
# sent_id = 1
# text = Vado al mare.
1\tVado\tandare\tVERB\tV\t_\t0\troot\t_\t_
2-3\tal\t_\t_\t_\t_\t_\t_\t_\t_
2\ta\ta\tADP\tE\t_\t4\tcase\t_\t_
3\til\til\tDET\tRD\t_\t4\tdet\t_\t_
4\tmare\tmare\tNOUN\tS\t_\t1\tobl\t_\tSpaceAfter=No
5\t.\t.\tPUNCT\tFS\t_\t1\tpunct\t_\t_

# text = 50 000 rows
1\t50 000\t50000\tNUM\t_\t_\t0\troot\t_\t_
1.1\tof\tof\tADP\t_\t_\t_\t_\t_\t_
2\trows\trow\tNOUN\t_\t_\t1\tdep\t_\t_
"""


def test_a_treebank_is_words_and_tags(tmp_path: Path) -> None:
    rows = read_examples(open_source(write_treebank(tmp_path / "a.conllu", TREEBANK), role="train", labelled=True))
    assert [row.words for row in rows] == [("Vado", "a", "il", "mare", "."), ("50\u00a0000", "rows")]
    assert [row.tags for row in rows] == [("VERB", "ADP", "DET", "NOUN", "PUNCT"), ("NUM", "NOUN")]
    assert of_rows(rows) == "tagging" and infer_labels(rows) == ("ADP", "DET", "NOUN", "NUM", "PUNCT", "VERB")
    assert find_task("tagging").gold(rows, infer_labels(rows) or (), "train") == [[5, 0, 1, 2, 4], [3, 2]]


def test_a_treebank_without_its_tags_is_the_same_words(tmp_path: Path) -> None:
    path = write_treebank(tmp_path / "a.conllu", TREEBANK)
    pool = list(open_source(path, role="unlabeled", labelled=False))
    assert [(row.text, row.tags) for row in pool] == [("Vado a il mare .", None), ("50\u00a0000 rows", None)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 Vado andare VERB", "line 3 is not a line of CoNLL-U"),
        ("one\tVado\tandare\tVERB", "line 3 is not a line of CoNLL-U"),
        ("1\t \tandare\tVERB", "line 3 is not a line of CoNLL-U"),
        ("1\tVado\tandare\t_", "line 3 has no tag in its fourth cell"),
        ("1\tVado", "line 3 has no tag in its fourth cell"),
    ],
)
def test_a_line_that_is_no_word_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write_treebank(tmp_path / "a.conllu", f"# one\n# two\n{line}\n\n")
    with pytest.raises(CompressError, match=message):
        list(open_source(path, role="train", labelled=True))


def test_json_lines_with_words_and_tags(tmp_path: Path) -> None:
    rows = [{"id": 1, "words": ["New York", "shines"], "tags": ["PROPN", "VERB"]}, {"words": ["Yes"], "tags": ["INTJ"]}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    read = read_examples(open_source(path, role="train", labelled=True))
    assert read == [
        Example("New\u00a0York shines", tags=("PROPN", "VERB")),
        Example("Yes", tags=("INTJ",)),
    ]
    assert [row.words for row in open_source(path, role="unlabeled", labelled=False)] == [row.words for row in read]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": ["a", "b"], "tags": ["X"]}, "line 1 has 1 tags for 2 words"),
        ({"words": "a b", "tags": ["X", "Y"]}, "line 1 has text .*, and needs a list of words"),
        ({"words": ["a", ""], "tags": ["X", "Y"]}, "line 1 has a list of 2 .*, and needs a list of words"),
        ({"words": ["a"], "tags": [{}]}, "line 1 has a list of 1 .*, and needs a list of words"),
    ],
)
def test_json_lines_with_a_wrong_row(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(CompressError, match=message):
        list(open_source(path, role="train", labelled=True))


def test_words_beside_a_label_are_still_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"words": ["good", "film"], "label": "yes"}, {"words": ["bad", "film"], "label": "no"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    read = list(open_source(path, role="train", labelled=True, text_column="words"))
    assert read[0] == Example("good film", None, "yes")


def test_tags_change_the_fingerprint_only_of_rows_with_tags() -> None:
    assert content_sha256([Example("a b", tags=("X", "Y"))]) != content_sha256([Example("a b", tags=("Y", "X"))])
    assert content_sha256([Example("a b", None, "x")]) == (
        "1c3334b052dd85a5691c42a5b34d5b550b6841ace8a42ad7b787e9470c260eb8"
    )


def test_mistakes_of_tags_are_named() -> None:
    with pytest.raises(CompressError, match="1 of 2 rows have a tag for each word"):
        of_rows([Example("a", tags=("X",)), Example("b", None, "x")])
    with pytest.raises(CompressError, match=r"Row 2 of test \(.*\) has the tag 'Z'.*allowed are X, Y"):
        find_task("tagging").gold([Example("a", tags=("X",)), Example("b", tags=("Z",))], ("X", "Y"), "test")
    with pytest.raises(CompressError, match=r"Row 1 of test \(.*\) has 1 tags for 2 words"):
        find_task("tagging").gold([Example("a b", tags=("X",))], ("X", "Y"), "test")
    with pytest.raises(CompressError, match="has 0 tags for 1 words"):
        find_task("tagging").gold([Example("a", None, "X")], ("X", "Y"), "test")


# Alignment


def test_a_word_starts_where_its_first_piece_stands() -> None:
    assert first_tokens([None, 0, 1, 1, 1, 3, None]) == [0, 1, 2, 0, 0, 4, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_words_of_several_pieces(family: str) -> None:
    rows = [Example("the plotless film\u00a0story ."), Example("good")]
    tokens = encode(tokenizer(family), rows, 64, by_word=True)
    numbers = [[start for start in starts if start] for starts in tokens["words"]]
    assert numbers == [[1, 2, 3, 4], [1]]
    assert len(tokens["input_ids"][0]) > 6 and tokens["words"][0][0] == tokens["words"][0][-1] == 0


def test_logits_are_taken_where_words_start() -> None:
    logits = np.arange(2 * 4 * 2, dtype=np.float32).reshape(2, 4, 2)
    starts = np.array([[0, 1, 0, 3], [0, 1, 0, 0]])
    found = at_words(logits, starts, [3, 2])
    assert found[[0, 2, 3]].tolist() == [[2, 3], [6, 7], [10, 11]]
    assert np.isnan(found[[1, 4]]).all()
    assert [part.shape for part in by_sentence(found, [3, 2])] == [(3, 2), (2, 2)]
    logits[0, 2] = np.nan  # of a piece inside a word, which nobody reads
    at_words(logits, starts, [3, 2])
    logits[0, 1] = np.nan
    with pytest.raises(CompressError, match="not finite"):
        at_words(logits, starts, [3, 2])


def test_a_word_that_was_cut_off_is_wrong_and_teaches_nothing(tmp_path: Path) -> None:
    model, tokens = tagger(), tokenizer()
    rows = [LONG, Example("good film", tags=("GOOD", "PLAIN"))]
    logits = logits_of(rows, TorchRun(model), tokens, max_length=12, by_word=True)
    assert logits.shape == (92, 3) and np.isnan(logits[10:90]).all() and np.isfinite(logits[[9, 90, 91]]).all()
    predicted = find_task("tagging").predictions(logits)
    assert (predicted[10:90] == -1).all() and predicted[0] == logits[0].argmax()
    written = tokenized(
        tmp_path / "rows.arrow",
        [
            TrainingRow(row, part, tags)
            for row, part, tags in zip(
                rows, by_sentence(logits, [90, 2]), find_task("tagging").gold(rows, TAGS, "train"), strict=True
            )
        ],
        tokens,
        max_length=8,
        task=find_task("tagging"),
    )
    taught = written
    assert [row["labels"] for row in taught] == [[1] * 6, [1, 2]]
    assert [row["row"] for row in taught] == [0, 1]
    batch = collator(0)(list(taught))
    assert batch["words"].dtype == torch.bool and batch["words"].shape == (2, 8) and int(batch["words"].sum()) == 8
    assert batch["labels"].tolist() == [1] * 7 + [2]
    assert np.allclose(batch["teacher_logits"], logits[[0, 1, 2, 3, 4, 5, 90, 91]])


def test_a_word_that_the_teacher_did_not_answer_teaches_nothing(tmp_path: Path) -> None:
    logits = np.array([[1, 2, 3], [np.nan] * 3, [4, 5, 6]], dtype=np.float32)
    unread = np.full((1, 3), np.nan, dtype=np.float32)
    rows = [TrainingRow(Example("bad"), unread), TrainingRow(Example("good film end"), logits)]
    written = tokenized(tmp_path / "rows.arrow", rows, tokenizer(), max_length=16, task=find_task("tagging"))
    (row,) = written
    assert row["words"] == [0, 1, 0, 1, 0] and row["labels"] == [-100, -100] and row["row"] == 0
    assert row["teacher_logits"] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("make", [tagger, pruned_tagger, bilstm_tagger, cnn_tagger])
def test_answers_do_not_depend_on_the_batch(make: Any) -> None:
    rows = [*TEST[:12], LONG]
    run_model = TorchRun(make())
    together = logits_of(rows, run_model, tokenizer(), max_length=64, by_word=True)
    alone = np.concatenate([logits_of([row], run_model, tokenizer(), max_length=64, by_word=True) for row in rows])
    assert np.allclose(together, alone, atol=1e-4, equal_nan=True)


# Word metrics


def test_accuracy_counts_words_and_draws_sentences() -> None:
    # Ten sentences of four words; all words of a sentence are right or all are wrong.
    right = np.repeat([1, 1, 1, 1, 1, 1, 0, 0, 0, 0], 4)
    gold, which = np.ones(40, dtype=int), np.repeat(np.arange(10), 4)
    low, high = interval(right, gold, metric=ACCURACY, classes=2, sentences=which)
    # The share of ten draws of a coin of 0.6: quantiles of Binomial(10, 0.6) / 10.
    assert (low, high) == (0.3, 0.9)
    narrow = interval(right, gold, metric=ACCURACY, classes=2)
    assert narrow[1] - narrow[0] < 0.6 * (high - low)


def test_the_bootstrap_of_sums_is_the_bootstrap_of_words() -> None:
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 9, 40)
    which, right = np.repeat(np.arange(40), sizes), draw.random(sizes.sum()) < 0.7
    fast = sentence_mean_interval(right, which, seed=3)
    slow = sentence_bootstrap((right,), lambda x: x.mean(), which, seed=3)
    assert fast == pytest.approx(slow, abs=1e-12)
    mixed = draw.permutation(len(which))  # words need not be in order
    assert sentence_bootstrap((right[mixed],), lambda x: x.mean(), which[mixed], seed=3) == pytest.approx(slow)
    with pytest.raises(CompressError, match="one sentence, or query"):
        sentence_mean_interval(right, np.zeros(len(right)))


def test_words_of_a_drawn_sentence_weigh_alike() -> None:
    which = np.repeat(np.arange(5), [1, 2, 3, 4, 5])
    weights = next(sentence_weights(which, np.random.default_rng(1)))
    assert weights.sum() == pytest.approx(15)
    assert all(len(set(weights[which == one].tolist())) == 1 for one in range(5)) and len(set(weights.tolist())) > 1


def test_differences_of_words_have_no_mcnemar() -> None:
    gold, which = np.ones(40, dtype=int), np.repeat(np.arange(10), 4)
    model, reference = np.ones(40, dtype=int), np.repeat([1, 1, 1, 1, 1, 0, 0, 0, 0, 0], 4)
    found = paired_difference(model, reference, gold, metric=ACCURACY, classes=2, sentences=which)
    assert found.points == 50 and (found.low, found.high) == (20, 80) and found.mcnemar_p is None
    macro = paired_difference(model, reference, gold, metric=metrics_by_name()["macro-f1"], classes=2, sentences=which)
    assert macro.low < macro.points < macro.high
    alike = paired_difference(model, model, gold, metric=ACCURACY, classes=2, sentences=which)
    assert alike.points == 0 and alike.low < 0 < alike.high  # 40 words cannot make it certain


def test_the_metrics_of_tagging_are_those_of_classes() -> None:
    assert find_task("tagging").metric().name == "accuracy"
    assert find_task("tagging").metric("macro-f1", ("a", "b", "c")).name == "macro-f1"
    with pytest.raises(CompressError, match="does not fit tagging"):
        find_task("tagging").metric("pearson")


def test_quality_of_words_by_hand() -> None:
    gold, which = np.array([0, 1, 1, 2, 0]), np.array([0, 0, 0, 1, 1])
    teacher = 9.0 * np.eye(3)[[0, 1, 1, 2, 1]]
    model = 9.0 * np.eye(3)[[0, 1, 2, 2, 0]]
    model[3] = np.nan  # cut off
    found = quality_fields(
        {"t": teacher, "m": model},
        gold,
        baseline="t",
        metric=ACCURACY,
        task=find_task("tagging"),
        labels=("a", "b", "c"),
        sentences=which,
    )["m"]
    assert found["metric"] == 0.6 and found["metric_rows"] == 5 and found["mcnemar_p"] is None
    assert [(one["row"], one["word"], one["gold"], one["predicted"]) for one in found["flips_lost"]] == [
        (0, 2, 1, 2),
        (1, 0, 2, -1),
    ]
    (won,) = found["flips_won"]
    assert won == {"row": 1, "word": 1, "gold": 0, "predicted": 0, "change": pytest.approx(99.97, abs=0.02)}
    line = made_up("m", data_sha256="x", labels=["a", "b", "c"], **found)
    (flips,) = flips_of([line], {"x": ["one two three", "four five"]})
    assert list(flips.lost.texts) == ["three: one two three", "four: four five"]
    assert [row[1].text for row in flips.lost.rows] == ["b", "c"]
    by_label = {one["label"]: one for one in found["classes"]}
    assert by_label["c"]["recall"] == 0 and by_label["c"]["low"] is None  # words of one sentence only
    assert by_label["a"]["rows"] == 2 and by_label["a"]["low"] is not None


# Every stage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tagging")


@pytest.fixture(scope="module")
def teacher(folder: Path) -> Model:
    """An encoder fine-tuned on a treebank, which it learns."""
    path = write(folder / "encoder", classifier("bert"))
    body: Any = AutoModel.from_pretrained(path)
    body.save_pretrained(path)
    longer = replace(TRAINING, epochs=40.0, learning_rate=3e-3, evaluations=4)
    return finetuned(
        path,
        folder / "teacher",
        train=TRAIN,
        validation=VALIDATION,
        training=longer,
        device="cpu",
        threads=1,
        overlap="drop",
    )


@pytest.fixture(scope="module")
def labels(folder: Path, teacher: Model) -> LabelDir:
    path = folder / "pool.conllu"
    path.write_text(conllu([*sentences(60, seed=5), LONG]), encoding="utf-8")
    pool = open_source(path, role="unlabeled", labelled=False)
    return label(teacher, pool, folder / "labels", compute=Compute(device="cpu", threads=1))


@pytest.fixture(scope="module")
def student(folder: Path, teacher: Model, labels: LabelDir) -> Model:
    return taught(folder, teacher, labels, MINIBERT)


@pytest.fixture(scope="module")
def bilstm(folder: Path, teacher: Model, labels: LabelDir) -> Model:
    return taught(folder, teacher, labels, BILSTM)


def taught(folder: Path, teacher: Model, labels: LabelDir, recipe: StudentRecipe, **options: Any) -> Model:
    name = recipe.name + ("-control" if options.get("control") else "")
    return distilled(
        teacher,
        recipe,
        folder / name,
        labels=[labels],
        train=TRAIN,
        validation=VALIDATION,
        overlap="drop",
        device="cpu",
        threads=1,
        **options,
    )


def accuracy(model: Model, rows: Sequence[Example] = TEST) -> float:
    answers = load_classifier(model, compute=Compute(device="cpu", threads=1)).predict(rows)
    right = [
        tag == gold
        for answer, row in zip(answers, rows, strict=True)
        for tag, gold in zip(answer["tags"], row.tags or (), strict=True)
    ]
    return sum(right) / len(right)


def test_finetuning_makes_a_tagger_that_learns(teacher: Model) -> None:
    manifest = teacher.manifest
    assert manifest.task == teacher.task == "tagging" and teacher.labels == TAGS
    assert teacher.config["architectures"] == ["BertForTokenClassification"]
    assert accuracy(teacher) > 0.9
    # What selected the checkpoint is the accuracy over the words of the whole set, last batch included.
    kept = [row for row in VALIDATION if row.words not in {other.words for other in TRAIN}]
    assert manifest.metrics[0]["value"] == pytest.approx(accuracy(teacher, kept))
    model, _ = load(teacher.path)
    assert type(model).__name__ == "BertForTokenClassification"
    assert "AutoModelForTokenClassification" in (teacher.path / "README.md").read_text()


def test_labels_are_the_logits_of_every_word(teacher: Model, labels: LabelDir) -> None:
    rows = list(labels)
    assert labels.manifest.task == "tagging" and len(rows) == 61
    assert all(logits.shape == (len(row.words), 3) for row, logits in rows)
    example, found = rows[4]
    run_teacher, tokens = TorchRun(teacher.load()), teacher.tokenizer
    assert np.allclose(found, logits_of([example], run_teacher, tokens, max_length=64, by_word=True), atol=1e-4)
    long = next(logits for row, logits in rows if len(row.words) == 90)
    assert np.isfinite(long[:62]).all() and np.isnan(long[62:]).all()


def test_labels_can_select(labels: LabelDir) -> None:
    selection = agreement_rows(LabelledPool((labels,)), find_task("tagging"))
    known = {row.text: logits for row, logits in labels}
    for row in selection.rows:
        assert isinstance(row.label, list)
        predicted = find_task("tagging").predictions(known[row.example.text])
        assert row.label == np.where(predicted < 0, -100, predicted).tolist()


def test_students_of_both_kinds(teacher: Model, student: Model, bilstm: Model) -> None:
    for model, kind in ((student, "BertForTokenClassification"), (bilstm, "BiLSTMForTokenClassification")):
        manifest = model.manifest
        assert manifest.task == "tagging" and model.labels == TAGS
        assert model.config["architectures"] == [kind] and model.parameters < teacher.parameters
        assert manifest.metrics[0]["rows"] <= len(VALIDATION)
    assert student.manifest.recipe == resolved(MINIBERT)
    assert accuracy(student) > 0.8  # the teacher's first layer is where it starts from


def test_a_student_that_starts_narrow(folder: Path, teacher: Model, labels: LabelDir) -> None:
    narrow = replace(
        MINIBERT,
        architecture=Choice("transformer", options={"depth": 2, "hidden_size": 16}),
        phases=(Phase((Choice("logit-mse"),)),),
        name="narrow",
    )
    model = taught(folder, teacher, labels, narrow)
    assert model.config["hidden_size"] == 16 and set(model.labels) == set(TAGS)


def test_the_control_learns_from_tags_alone(folder: Path, teacher: Model, labels: LabelDir) -> None:
    control = taught(folder, teacher, labels, BILSTM, control=True)
    assert control.manifest.notes["control"] is True


def test_a_pool_without_gold_rows(folder: Path, teacher: Model, labels: LabelDir) -> None:
    made = distilled(teacher, BILSTM, folder / "unlabelled", labels=[labels], device="cpu", threads=1)
    assert made.manifest.metrics[0]["split"].startswith("held-out pool")


def test_heads_are_scored_by_sentence_and_removed(folder: Path, teacher: Model, labels: LabelDir) -> None:
    made = prune(
        teacher,
        folder / "pruned",
        train=TRAIN,
        validation=VALIDATION,
        overlap="drop",
        labels=[labels],
        training=TRAINING,
        device="cpu",
        threads=1,
        heads="50%",
        recover=1.0,
    )
    manifest = made.manifest
    assert sum(manifest.architecture["heads_per_layer"]) == 4
    assert made.config["architectures"] == ["PrunedBertForTokenClassification"] and made.task == "tagging"
    assert accuracy(made) > 0.8
    opened = AutoModelForTokenClassification.from_pretrained(made.path)
    assert type(opened).__name__ == "PrunedBertForTokenClassification"


def test_the_heads_of_a_tagger_are_studied_by_words(folder: Path, teacher: Model) -> None:
    made = head_study(
        teacher,
        folder / "heads",
        train=TRAIN,
        validation=TEST,
        overlap="drop",
        criteria=("gradient", "oracle"),
        step=0.5,
        device="cpu",
        threads=1,
    )
    study = json.loads((made / "heads.json").read_text())
    assert study["value"] == pytest.approx(accuracy(teacher)) and study["heads_per_layer"] == [4, 4]
    assert all(one["mcnemar_p"] is None for one in study["ablation"])  # words of a sentence are not independent


def test_the_gradient_of_a_sentence_is_that_of_its_words(teacher: Model) -> None:
    from compress.pruning.criteria.gradient import importance

    model: Any = teacher.load()
    tokens, rows = teacher.tokenizer, [TRAIN[0], LONG]
    gold = find_task("tagging").gold(rows, TAGS, "train")
    batches = list(scoring_batches(rows, gold, tokens, max_length=64, task=find_task("tagging"), device="cpu"))
    scores = importance(model, batches)
    totals = torch.zeros(2, 4)
    for row, tags in zip(rows, gold, strict=True):
        read = encode(tokens, [row], 64, by_word=True)
        places = [place for place, start in enumerate(read["words"][0]) if start]
        with mask_hooks(model) as hooks:
            factors = hooks.per_example(1)
            logits = model(input_ids=torch.from_numpy(np.array(read["input_ids"]))).logits[0, places]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(tags[: len(places)]), reduction="sum")
            totals += torch.cat(torch.autograd.grad(loss, factors)).abs()
    assert torch.allclose(scores, totals / 2, rtol=1e-3)


@pytest.mark.parametrize(("family", "make"), [*((family, pruned_tagger) for family in PRUNABLE), ("bert", tagger)])
def test_every_family_reloads_and_exports(family: str, make: Any, tmp_path: Path) -> None:
    model = make(family)
    source = Model.open(write(tmp_path / "model", model, family))
    exported = export(source, tmp_path / "onnx")
    assert exported.task == "tagging" and exported.labels == TAGS
    expected = logits_of(TEST, TorchRun(model), tokenizer(family), max_length=64, by_word=True)
    assert np.allclose(
        expected, logits_of(TEST, TorchRun(source.load()), source.tokenizer, max_length=64, by_word=True)
    )
    answers = load_classifier(exported, compute=Compute(device="cpu", threads=1)).predict(TEST)
    tags = [TAGS[tag] for tag in expected.argmax(axis=1)]
    assert [tag for answer in answers for tag in answer["tags"]] == tags


def test_the_bilstm_reloads_and_exports(bilstm: Model, tmp_path: Path) -> None:
    exported = export(bilstm, tmp_path / "onnx")
    assert exported.config["architectures"] == ["BertForTokenClassification"]
    assert load_classifier(exported, compute=Compute(threads=1)).predict([*TEST, LONG]) == load_classifier(
        bilstm, compute=Compute(device="cpu", threads=1)
    ).predict([*TEST, LONG])
    remote = AutoModelForTokenClassification.from_pretrained(bilstm.path, trust_remote_code=True)
    assert type(remote).__name__ == "BiLSTMForTokenClassification"


def test_int8_is_checked_on_words(student: Model, tmp_path: Path) -> None:
    made = quantize(student, tmp_path / "int8", validation=[*VALIDATION, LONG], threads=1)
    assert made.task == "tagging"
    check = made.manifest.notes["check"]
    assert made.manifest.metrics[0]["rows"] == 31 and check["agreement"] > 0.9
    assert np.isfinite(check["largest_logit_difference"])
    assert quantize(student, tmp_path / "unchecked").manifest.notes["checked"] is False  # type: ignore[union-attr]


def test_words_are_measured(teacher: Model, student: Model, bilstm: Model, tmp_path: Path) -> None:
    from compress.requests.measuring import report

    rows = [*TEST, LONG]
    exported = export(student, tmp_path / "onnx")
    results = tmp_path / "results.jsonl"
    lines = benchmark(
        teacher,
        [student, bilstm, exported],
        rows,
        BenchmarkSettings(
            rounds=3,
            batch_sizes=(1,),
            competitors=("transformers-pipeline", "torch-dynamic-int8"),
            competitor_models=("teacher",),
            padded_teacher=False,
        ),
        output=results,
        train=TRAIN,
    )
    words = sum(len(row.words) for row in rows)
    found = {(line.model, line.runtime): line for line in lines}
    assert found["teacher", "torch"].metric == pytest.approx(accuracy(teacher, rows))
    assert found[exported.name, "onnxruntime"].metric == pytest.approx(accuracy(student, rows))
    assert {line.metric_rows for line in lines} == {words}
    assert {line.data_rows for line in lines} == {len(rows)}
    baseline = found["word-majority", "numpy"]
    assert baseline.kind == "baseline" and baseline.metric > 0.95  # here the tag follows from the word
    assert not {"majority", "tfidf", "static-embedding"} & {model for model, _ in found}
    assert found["teacher", "torch-dynamic-int8"].metric == pytest.approx(accuracy(teacher, rows), abs=0.1)
    left_out = {one["name"]: one["reason"] for one in lines[0].left_out}
    assert "tag words" in left_out["transformers-pipeline"]
    assert not any(line.predictions for line in lines)
    report([results], tmp_path / "report")
    assert (tmp_path / "report").is_dir()


def test_a_reference_model_tags_too(teacher: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    monkeypatch.setattr(candidates_module, "REFERENCE_MODELS", {"distilbert": ("distilbert", shape)})
    candidates_module.build_reference_model("distilbert", tmp_path / "body", teacher)
    runner = LoadedModel.open(Model.open(tmp_path / "body"), 0, (16,))
    runner.function = TorchRun(Model.open(tmp_path / "body").load())
    assert runner.run(runner.prepare(TEST[:3])).shape == (sum(len(row.words) for row in TEST[:3]), 3)
    assert runner.run(runner.prepare(TEST[:3], length=16)).shape == (3, 16, 3)  # no words: only for its speed


def test_the_tagging_baseline_by_hand(tmp_path: Path) -> None:
    baseline = plugins.find("baselines", "word-majority").load()
    train = [Example("The run"), Example("run the END")]
    (tmp_path / "baseline").mkdir()
    baseline.fit(tmp_path / "baseline", train, np.array([0, 1, 2, 0, 1]), find_task("tagging"), 3, None)
    runner = baseline.start(tmp_path / "baseline", threads=1, device="cpu")
    answers = np.exp(runner.run(runner.prepare([Example("THE run"), Example("unseen")])))
    # Of all words 2, 2, 1 have the tags 0, 1, 2, one more each: 3/8, 3/8, 2/8, added to what the word itself has.
    assert np.allclose(answers[0], np.array([2 + 3 / 8, 3 / 8, 2 / 8]) / 3)
    assert np.allclose(answers[1], np.array([3 / 8, 1 + 3 / 8, 1 + 2 / 8]) / 3)
    assert np.allclose(answers[2], np.array([3 / 8, 1 + 3 / 8, 2 / 8]) / 2)  # only "END" occurs once
    assert runner.parameters == 4 * 3


@pytest.mark.parametrize("name", ["albert", "distilbert", "mobilebert"])
def test_students_of_other_families_do_not_tag(name: str) -> None:
    architecture = plugins.find("architectures", name).function
    with pytest.raises(CompressError, match="this teacher tags words; use the student minibert-3 or bilstm-tagger"):
        architecture(tagger(), tokenizer(), TRAIN)


def test_a_baseline_of_another_task_is_refused(teacher: Model) -> None:
    with pytest.raises(
        CompressError, match="the baseline tfidf is for classification, multi-label, regression, not tagging"
    ):
        benchmark(teacher, [], TEST, BenchmarkSettings(baselines=("tfidf",), rounds=3), train=TRAIN)


def test_a_prediction_is_a_line_of_words_and_tags(teacher: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["predict", "--model", str(teacher.path), "-q", "the good film", LONG.text]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["words"] == ["the", "good", "film"] and first["tags"] == ["PLAIN", "GOOD", "PLAIN"]
    assert len(first["probabilities"]) == 3 and first["text"] == "the good film"
    assert second["tags"][62:] == [None] * 28 and None not in second["tags"][:62]


STUDY = """
title = "Tags"
description = "of nothing"
[data]
train = [{ set = "tiny/one", split = "train" }, { set = "tiny/two", split = "train" }]
test = [{ set = "tiny/one", split = "dev" }, { set = "tiny/two", split = "dev" }]
unlabeled = [{ set = "tiny/one", split = "train" }]
validation_slice = { share_of_train = 0.2 }
overlap = "drop"
[teacher]
model = "teacher"
quantize = false
[[students]]
recipe = "RECIPE"
quantize = false
training = { epochs = 1.0, batch_size = 16, evaluations = 1, precision = "float32" }
[benchmark]
batch_sizes = [1]
rounds = 3
runtimes = ["torch"]
"""


def test_a_study_of_several_treebanks(folder: Path, teacher: Model, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    for number, name in enumerate(("one", "two")):
        for split, rows in (("train", TRAIN[number::2]), ("dev", TEST[number::2])):
            (tmp_path / "tiny" / f"{name}-{split}.conllu").write_text(conllu(rows), encoding="utf-8")
    (tmp_path / "small.toml").write_text(
        'description = "tiny"\n[architecture]\nname = "bilstm"\nembedding_size = 8\nhidden_size = 4\ndense_size = 4\n'
        '[[phases]]\nlosses = [{ name = "logit-mse" }]\n'
    )
    (tmp_path / "tags.toml").write_text(STUDY.replace("RECIPE", str(tmp_path / "small.toml")))
    placed: dict[str, Any] = {"data_root": tmp_path, "model_root": folder, "device": "cpu", "threads": 1}
    made = run(str(tmp_path / "tags.toml"), tmp_path / "study", **placed)
    lines = Results.open(made / "results.jsonl")
    assert {line.data for line in lines} == {"tiny/one dev + tiny/two dev"}
    assert {line.kind for line in lines} == {"teacher", "model", "control", "baseline"}
    assert {line.metric_rows for line in lines} == {sum(len(row.words) for row in TEST)}


def test_gold_in_one_column() -> None:
    assert find_task("tagging").column([[1, 2], [3]]).tolist() == [1, 2, 3]
    assert find_task("regression").column([0.5, 1.5]).tolist() == [0.5, 1.5]
    assert find_task("tagging").column([]).tolist() == []
