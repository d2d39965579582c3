"""Few labelled rows: a head on the mean state of a sentence encoder, chosen by cross-validation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from transformers import AutoModel, AutoModelForSequenceClassification

from compress.data import Example
from compress.data.examples import row_keys
from compress.errors import CompressError
from compress.models.components import head_of
from compress.models.model_dir import Model
from compress.models.modeling.families import POOLED
from compress.requests.compression import export, prune
from tests.support.tiny import PLAIN, classifier, write
from tests.support.training_data import TRAINING, TRANSFORMER, distilled, finetuned, pool_rows

SHORT = replace(TRAINING, max_steps=4, learning_rate=1e-2)
CLASSES = {"good": "good great fine warm", "bad": "bad dull slow cold", "other": "funny silly moving tired"}
BATCH = torch.tensor([[2, 7, 9, 30, 3], [2, 11, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def rows(each: int = 8) -> list[Example]:
    """Rows of three classes, told apart by a word of each."""
    return [
        Example(f"{PLAIN[number]} {words.split()[number % 4]} {PLAIN[3 * number % 14]}", None, label)
        for label, words in CLASSES.items()
        for number in range(each)
    ]


def encoder(folder: Path, family: str = "bert") -> Path:
    """A directory with the body of a model and no head."""
    path = write(folder / "encoder", classifier(family), family)
    body: Any = AutoModel.from_pretrained(path)
    body.save_pretrained(path)
    return path


def made(folder: Path, family: str = "bert", way: str = "frozen", train: Any = None, **options: Any) -> Model:
    given: dict[str, Any] = {"train": train or rows(), "training": SHORT, "few_shot": way, **options}
    return finetuned(encoder(folder, family), folder / "teacher", **given)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=BATCH[0], attention_mask=BATCH[1]).logits
    return found


def read_by_head(folder: Path) -> torch.Tensor:
    """Return what the last layer is to read of the batch, of the encoder alone, by hand."""
    body: Any = AutoModel.from_pretrained(folder / "encoder").eval()
    with torch.no_grad():
        states = body(input_ids=BATCH[0], attention_mask=BATCH[1]).last_hidden_state
    means = torch.stack([state[mask == 1].mean(dim=0) for state, mask in zip(states, BATCH[1], strict=True)])
    return torch.tanh(means / means.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("family", POOLED)
def test_a_head_reads_the_mean_of_the_tokens_of_an_encoder_that_stays(family: str, tmp_path: Path) -> None:
    network = made(tmp_path, family).load()
    _, output = head_of(network)
    torch.testing.assert_close(logits(network), output(read_by_head(tmp_path)).detach(), atol=1e-5, rtol=1e-4)


def test_the_strength_is_chosen_by_the_scores_of_scikit_learn(tmp_path: Path) -> None:
    model = made(tmp_path, seed=1)
    network, train = model.load(), rows()
    seen: list[torch.Tensor] = []
    head_of(network)[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for row in train:
        network(**model.tokenizer(row.text, return_tensors="pt"))
    features, gold = torch.cat(seen).numpy(), np.array([model.labels.index(row.label) for row in train])
    folds = [*StratifiedGroupKFold(3, shuffle=True, random_state=1).split(features, gold, row_keys(train))]
    expected = {}
    for c in (1, 10, 100):
        judged = cross_val_predict(LogisticRegression(C=c, max_iter=1000), features, gold, cv=folds)
        expected[f"C = {c}"] = float((judged == gold).mean())
    chosen, (metric,) = model.manifest.notes["few_shot"], model.manifest.metrics
    assert chosen["scores"] == {"frozen": pytest.approx(expected)} and chosen["folds"] == 3
    assert metric["value"] == max(expected.values()) == expected[f"C = {chosen['strength']:g}"]
    assert metric["split"] == "train (cross-validation)" and metric["rows"] == len(train)
    assert [one["role"] for one in model.manifest.data] == ["train"]


def test_both_ways_are_judged_and_the_better_one_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "compress")
    model = made(tmp_path, way="chosen")
    chosen = model.manifest.notes["few_shot"]
    best = {way: max(scores.values()) for way, scores in chosen["scores"].items()}
    assert [*best] == ["contrastive", "frozen"] and chosen["encoder"] == max(sorted(best)[::-1], key=best.__getitem__)
    assert f"the {chosen['encoder']} encoder is taken, its head with C = {chosen['strength']:g}" in caplog.text
    assert all(f"{way} encoder: accuracy {score:.4f} by cross-validation" in caplog.text for way, score in best.items())


def test_contrastive_fine_tuning_moves_texts_of_a_class_together(tmp_path: Path) -> None:
    model = made(tmp_path, way="contrastive", training=replace(SHORT, max_steps=20, epochs=20.0, learning_rate=3e-3))
    before, after = (load_file(path / "model.safetensors") for path in (tmp_path / "encoder", model.path))
    assert model.manifest.notes["steps"] == 20 and [*model.manifest.notes["few_shot"]["scores"]] == ["contrastive"]
    assert any(not torch.equal(after[f"bert.{name}"], before[name]) for name in before if "encoder.layer" in name)
    lines = [json.loads(line) for line in (model.path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss/contrastive"] for line in lines if "loss/contrastive" in line]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_later_stages_take_it_as_any_other(family: str, tmp_path: Path) -> None:
    model = made(tmp_path, family)
    expected = logits(model.load())
    stock: Any = AutoModelForSequenceClassification.from_pretrained(model.path)
    remote: Any = AutoModelForSequenceClassification.from_pretrained(model.path, trust_remote_code=True)
    assert torch.equal(logits(stock), expected) and torch.equal(logits(remote), expected)
    graph = export(model, tmp_path / "graph")
    assert graph.config["model_type"] == family and "pooling" not in graph.config
    assert graph.manifest.notes["largest logit difference from torch"] < 1e-5
    data: dict[str, Any] = {"train": rows(), "validation": rows(12)[-4:], "overlap": "drop", "device": "cpu"}
    smaller = prune(model, tmp_path / "smaller", heads="2", measure=False, **data)
    student = distilled(model, TRANSFORMER, tmp_path / "student", unlabeled=pool_rows())
    for made_of_it in (smaller, student):
        assert made_of_it.config["pooling"] == "mean" and made_of_it.labels == model.labels
        assert logits(made_of_it.load()).isfinite().all()


def test_plain_fine_tuning_goes_on_from_it(tmp_path: Path) -> None:
    first = made(tmp_path)
    again = finetuned(first, tmp_path / "again", train=rows(), validation=validation(), training=SHORT)
    assert again.config["pooling"] == "mean" and again.labels == first.labels


def validation() -> list[Example]:
    return [replace(row, text=f"zebra {row.text}") for row in rows(4)]


def with_labels(*labels: str) -> list[Example]:
    return [replace(row, label=labels[number % len(labels)]) for number, row in enumerate(rows())]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": [*rows(), Example("one film", None, "odd")]}, "3 rows of each class, and train has fewer of 'odd'"),
        ({"train": with_labels("0.5", "1.25", "3.75")}, "--few-shot is for rows of one class each"),
        ({"train": [Example(row.text, labels=(str(row.label),)) for row in rows()]}, "--few-shot is for rows of one"),
        ({"train": [Example("a b", tags=("X", "Y"))] * 9}, "--few-shot is for rows of one class each"),
        ({"validation": validation()}, "--few-shot chooses by --train alone; leave out --validation"),
        ({"windows": "16,8,mean"}, "leave out --windows"),
        ({"class_weights": "balanced", "logit_adjustment": 0.0}, "leave out --class-weights, --logit-adjustment"),
        ({"few_shot": "often"}, "few_shot = 'often' must be one of 'chosen', 'frozen' or 'contrastive'"),
        ({"few_shot": None}, "--validation FILE is missing: it selects the best checkpoint; or give --few-shot"),
        ({"overlap": "drop"}, "--drop-overlap changes nothing without --validation"),
    ],
)
def test_what_it_refuses(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=message):
        made(tmp_path, **{"way": options.pop("few_shot", "chosen"), **options})
    assert [path.name for path in tmp_path.iterdir()] == ["encoder"]


def test_encoders_whose_head_cannot_read_the_mean_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="encoder is a 'distilbert' encoder; use a sentence encoder of bert, mpnet"):
        made(tmp_path, "distilbert")


@pytest.mark.parametrize("pooling", ["max", 3])
def test_another_pooling_is_refused(pooling: Any, tmp_path: Path) -> None:
    model = made(tmp_path)
    config = json.loads((model.path / "config.json").read_text())
    (model.path / "config.json").write_text(json.dumps({**config, "pooling": pooling}))
    with pytest.raises(CompressError, match="pooling"):
        Model.open(model.path, verify=False).load()


def test_rows_of_the_same_text_are_judged_by_models_of_others(tmp_path: Path) -> None:
    """Of a label that says nothing, rows that occur twice tell only who has seen their copies."""
    generator = np.random.default_rng(0)
    once: Sequence[Example] = [
        Example(f"{PLAIN[number % 15]} {PLAIN[number // 15]}", None, str(generator.choice(["a", "b"])))
        for number in range(60)
    ]
    model = made(tmp_path, train=[*once, *once])
    assert model.manifest.metrics[0]["value"] < 0.7
