"""What ``compress.load(DIR).predict`` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest

from compress.data import Example
from compress.errors import CompressError
from compress.inference.batching import open_runtime
from compress.inference.compute import Compute
from compress.inference.predict import load, predict
from compress.models.manifest import Manifest
from compress.models.model_dir import Model
from compress.models.output_dir import finish
from compress.quantization.quantize import Judge
from compress.requests.compression import export
from tests.support import tiny
from tests.support.tagging import tagger
from tests.support.tiny import torch_directory, write

CPU = Compute("cpu", 1)


def test_texts_pairs_and_examples_are_taken() -> None:
    model = load(torch_directory("bert"), compute=CPU)
    (text,), (same,) = model.predict(["a good film"]), model.predict([Example("a good film")])
    assert text == same
    (pair,), (same,) = model.predict([("a film", "a plot")]), model.predict([Example("a film", "a plot")])
    assert pair == same and model.predict([]) == []


def test_one_text_has_one_prediction() -> None:
    model = load(torch_directory("bert"), compute=CPU)
    assert [model.predict("a good film")] == model.predict(["a good film"])
    assert [model.predict(("a film", "a plot"))] == model.predict([("a film", "a plot")])
    assert model.predict(np.array(["a good film"])) == model.predict(iter(["a good film"]))


def test_tables_of_texts_are_taken() -> None:
    model = load(torch_directory("bert"), compute=CPU)
    texts = ["a good film", "", "bad"]
    expected = model.predict(texts)
    rows = [{"text": text} for text in texts]
    for table in (rows, datasets.Dataset.from_list(rows), pandas.DataFrame({"text": texts}), pandas.Series(texts)):
        assert model.predict(table) == expected


def test_probabilities_are_an_array() -> None:
    model = load(torch_directory("bert"), compute=CPU)
    found = model.predict_proba(["a good film", "bad"])
    assert found.shape == (2, len(model.labels)) and found.sum(axis=1) == pytest.approx(1)
    for row, one in zip(found, model.predict(["a good film", "bad"], probabilities=True), strict=True):
        assert row == pytest.approx([*one["probabilities"].values()], abs=1e-4)
    assert model.predict_proba("bad").shape == (1, 2) and model.predict_proba([]).shape == (0, 2)


@pytest.mark.parametrize("labels", [("score",), None])
def test_scores_and_tags_have_no_array_of_probabilities(labels: tuple[str, ...] | None, tmp_path: Path) -> None:
    model = tiny.classifier("bert", labels=labels) if labels else tagger()
    with pytest.raises(CompressError, match="has no probabilities of its labels"):
        load(write(tmp_path / "model", model), compute=CPU).predict_proba(["a good film"])


def test_a_text_that_was_cut_says_so() -> None:
    model = load(torch_directory("bert"), compute=CPU)
    texts = ["film " * 62, "film " * 63, ("film", "film " * 90), ""]
    assert [one.get("truncated") for one in model.predict(texts[:2] + texts[3:])] == [None, True, None]
    assert model.predict([texts[2]])[0] | {"truncated": True, "unread_tokens": 30} == model.predict([texts[2]])[0]
    long = "film " * 99_999  # of which only a part would be read to know that it is cut
    assert model.predict(long)["unread_tokens"] == 99_999 - 62


def test_a_tagged_sentence_that_was_cut_says_so(tmp_path: Path) -> None:
    model = load(write(tmp_path / "tagger", tagger()), compute=CPU)
    short, long, empty = model.predict(["film " * 9, "film " * 99, ""])
    assert (
        "truncated" not in short
        and long["unread_tokens"] == 99 - 62
        and long["tags"][-1] is None
        and empty["tags"] == []
    )


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (b"a good film", "is of type bytes, which holds no rows here"),
        (1, "is of type int, which holds no rows here"),
        (("a", "b", "c"), "('a', 'b', 'c') is neither a text nor a tuple of two texts"),
        ([("a", "b", "c")], "('a', 'b', 'c') is neither a text nor a tuple of two texts"),
        ([("a", None)], "('a', None) is neither a text"),
        ([1], "1 is neither a text"),
        ([b"a"], "b'a' is neither a text"),
        (["\ud800"], "'\\ud800' is neither a text nor a tuple of two texts that are UTF-8"),
        (["a", ("a", "b")], "some of these rows are texts and some are pairs"),
    ],
)
def test_what_is_no_text_is_refused(texts: Any, says: str) -> None:
    with pytest.raises(CompressError) as caught:
        load(torch_directory("bert"), compute=CPU).predict(texts)
    assert says in str(caught.value)


def test_a_tagger_refuses_pairs(tmp_path: Path) -> None:
    write(tmp_path / "tagger", tagger())
    with pytest.raises(CompressError, match="a tagger reads one text, and these rows are pairs"):
        load(tmp_path / "tagger", compute=CPU).predict([("a film", "a plot")])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "needs either TEXT arguments or --data FILE"),
        ({"texts": ["lost"], "data": [{"text": "a film"}]}, "needs either TEXT arguments or --data FILE"),
        ({"texts": ["a film"], "text_column": "review"}, "--text-column changes nothing without --data FILE"),
        ({"texts": ["a film"], "format": "csv"}, "--format changes nothing without --data FILE"),
        ({"texts": ["a film"], "threads": -3}, "--threads -3 is not a whole number from 0 to 1024"),
        ({"texts": ["a film"], "threads": "3"}, "--threads 3 is not a whole number from 0 to 1024"),
    ],
)
def test_options_that_change_nothing_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(CompressError, match=says):
        predict(torch_directory("bert"), **given)


def test_it_predicts_texts_and_data() -> None:
    model = torch_directory("bert")
    expected = [load(model, compute=CPU).predict("a film") | {"text": "a film"}]
    assert [*predict(model, "a film", threads=1)] == [*predict(model, ["a film"], threads=1)] == expected
    assert [*predict(model, data=[{"review": "a film"}], text_column="review", threads=1)] == expected
    assert [*predict(model, [])] == []
    with pytest.raises(CompressError, match="takes no textcolumn; of data it takes label_column, text_column, text_p"):
        predict(model, data=[{"review": "a film"}], textcolumn="review")  # type: ignore[call-arg]


def edited(directory: Path, **changes: Any) -> Path:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    return directory


SIGMOID = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.1.0"}}


@pytest.mark.parametrize(
    ("noted", "is_sigmoid"),
    [
        (SIGMOID, True),
        ({"sentence_transformers": {"version": "5.1.0"}}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
    ],
)
@pytest.mark.parametrize("kind", ["torch", "onnx", "exported"])
def test_score_of_a_cross_encoder_has_its_activation(
    kind: str, noted: dict[str, Any], is_sigmoid: bool, tmp_path: Path
) -> None:
    """The torch model, a graph of its logits with the same config, and the graph that is exported of it."""
    plain = tiny.write(tmp_path / "plain", tiny.classifier("bert", labels=("score",)))
    pairs = [("a good film", "fine"), ("bad", "a joke")]
    logits = np.array([found["score"] for found in load(plain).predict(pairs)])
    if kind == "onnx":
        model = tmp_path / "graph"
        export(plain, model)
        (model / "compress.json").unlink()
        edited(model, **noted)
    else:
        model = edited(plain, **noted)
    if kind == "exported":
        model = export(model, tmp_path / "out").path
    scores = [found["score"] for found in load(model).predict(pairs)]
    assert scores == pytest.approx(1 / (1 + np.exp(-logits)) if is_sigmoid else logits, abs=2e-4)


def test_other_activation_of_a_cross_encoder_is_refused(tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "model", tiny.classifier("bert", labels=("score",)))
    edited(model, sentence_transformers={"activation_fn": "os.system"})
    with pytest.raises(CompressError, match=r"'os.system', and Sigmoid and Identity are known"):
        load(model)


def test_pruning_refuses_a_score_with_an_activation(tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "model", tiny.classifier("bert", labels=("score",)))
    with pytest.raises(CompressError, match="cross-encoder, whose score is the sigmoid of its logit"):
        Model.open(edited(model, **SIGMOID)).load(plain=True)


def test_several_scores_are_refused(tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "model", tiny.classifier("bert"))
    with pytest.raises(CompressError, match=r"gives a text 2 scores \(problem_type = regression\)"):
        load(edited(model, problem_type="regression"))


@pytest.mark.parametrize("by", ["classes", None, [], 1])
def test_acceptance_by_something_unknown_is_refused(by: Any, tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "model", tiny.classifier("bert"))
    notes = {"acceptance": {"by": by, "threshold": 0.5, "thresholds": dict.fromkeys(tiny.LABELS, 0.5)}}
    finish(model, Manifest(stage="calibrate", labels=tiny.LABELS, notes=notes))
    with pytest.raises(CompressError, match="has no thresholds that 'compress calibrate' writes"):
        load(model)


def test_quantizing_judges_a_cross_encoder_by_its_scores(tmp_path: Path) -> None:
    """Its graph has the activation, which is not computed once more where int8 is compared with fp32."""
    model = edited(tiny.write(tmp_path / "model", tiny.classifier("bert", labels=("score",))), **SIGMOID)
    fp32 = export(model, tmp_path / "fp32").path
    arrays = {name: np.ones((2, 5), np.int64) for name in ("input_ids", "attention_mask")}
    found = Judge(Model.open(model), fp32, fp32, threads=1).models["fp32"].function(arrays)
    assert found == pytest.approx(open_runtime(model, "torch", threads=1)(arrays), abs=1e-5)
