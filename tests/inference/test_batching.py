"""Batches of rows of similar length: logits are those of each text alone, also of models that read padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.data.examples import Example
from compress.errors import CompressError
from compress.inference.batching import EqualLengths, exact_batches, logits_of, open_runtime, run_by_length
from compress.inference.compute import Compute
from compress.models.model_dir import Model
from compress.models.saving import save_model
from tests.support import tiny
from tests.support.labelling import label

TEXTS = ("good", "a very bad and slow film with its end", "the plot is great", "the story is dull and silly")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
OF_QWEN = {**SHAPE, "num_key_value_heads": 2, "max_position_embeddings": 64}
# Families that no student, pruning or export is for, and what their configs call their sizes.
KINDS: dict[str, dict[str, Any]] = {
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "fnet": {**SHAPE, "max_position_embeddings": 64},
    "nystromformer": {
        **SHAPE,
        "max_position_embeddings": 64,
        "num_landmarks": 64,
        "segment_means_seq_len": 64,
        "conv_kernel_size": 3,
    },
    "convbert": {**SHAPE, "max_position_embeddings": 64, "embedding_size": 32, "head_ratio": 2, "num_groups": 1},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "qwen2": OF_QWEN,
    "llama": OF_QWEN,
    "camembert": {**SHAPE, "max_position_embeddings": 66},
}


def make(kind: str, directory: Path) -> Path:
    tokenizer = tiny.tokenizer("bert")
    if kind == "mobilebert":
        save_model(tiny.classifier(kind), tiny.tokenizer(kind), directory)
        return directory
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer) + 8,  # some add tokens of their own
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,
        problem_type="single_label_classification",
        **KINDS[kind],
    )
    save_model(AutoModelForSequenceClassification.from_config(config).eval(), tokenizer, directory)
    return directory


def one_by_one(directory: Path) -> np.ndarray:
    """Return what transformers answers to each text alone."""
    model = Model.open(directory).load()
    tokenizer = Model.open(directory).tokenizer
    with torch.no_grad():
        answers = [model(tokenizer(text, return_tensors="pt")["input_ids"])[0] for text in TEXTS]
    return torch.cat(answers).numpy()


@pytest.mark.parametrize("kind", ["mobilebert", *KINDS])
def test_a_batch_of_several_lengths_gives_the_logits_of_each_text_alone(kind: str, tmp_path: Path) -> None:
    directory = make(kind, tmp_path / kind)
    run = open_runtime(directory, "torch", threads=1)
    tokenizer = Model.open(directory).plain_tokenizer
    found = logits_of([Example(text) for text in TEXTS], run, tokenizer, max_length=60)
    np.testing.assert_allclose(found, one_by_one(directory), atol=1e-4)


@pytest.mark.parametrize("kind", ["mobilebert", "fnet"])
def test_labels_are_those_of_each_text_alone(kind: str, tmp_path: Path) -> None:
    directory = make(kind, tmp_path / kind)
    unlabeled = tmp_path / "texts.txt"
    unlabeled.write_text("\n".join(TEXTS))
    from compress.data import open_source

    source = open_source(unlabeled, role="unlabeled", labelled=False)
    labelled = label(directory, source, tmp_path / "labels", compute=Compute("cpu", threads=1))
    np.testing.assert_allclose([logits for _, logits in labelled], one_by_one(directory), atol=1e-4)


class Counted:
    """Sums of embeddings ``[B, 2]``, with the padding or without it, and the sizes of the batches."""

    device_ms = 7.0

    def __init__(self, *, reads_padding: bool) -> None:
        self.reads_padding = reads_padding
        self.batches: list[int] = []

    def __call__(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        self.batches.append(len(arrays["input_ids"]))
        ids = arrays["input_ids"] + 1.0
        sums = (ids if self.reads_padding else ids * arrays["attention_mask"]).sum(axis=1)
        return np.stack([sums, -sums], axis=1)


def arrays() -> dict[str, np.ndarray]:
    mask = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]])
    return {"input_ids": 4 * mask, "attention_mask": mask}


def test_rows_stay_together_where_padding_changes_nothing() -> None:
    run = Counted(reads_padding=False)
    exact = EqualLengths(run, 1e-3)
    first, second = exact(arrays()), exact(arrays())
    assert run.batches == [1, 2, 4, 4]  # a trial of two calls, once
    assert first.tolist() == second.tolist() == [[15, -15], [5, -5], [10, -10], [5, -5]]


def test_rows_of_one_length_run_together_where_padding_matters() -> None:
    run = Counted(reads_padding=True)
    exact: Any = EqualLengths(run, 1e-3)
    first, second = exact(arrays()), exact(arrays())
    assert run.batches == [1, 2, *[2, 1, 1] * 2]
    assert first.tolist() == second.tolist() == [[15, -15], [5, -5], [10, -10], [5, -5]]
    assert exact.device_ms == 21.0  # of three groups
    exact({name: values[:1] for name, values in arrays().items()})
    assert exact.device_ms == 7.0


def test_what_is_known_is_not_tried_and_counts_of_words_are_left_out() -> None:
    run = Counted(reads_padding=True)
    counted = {**arrays(), "counts": np.array([3, 1, 2, 1])}  # as the rows of a tagger have them
    found = EqualLengths(run, 0.0, padding_matters=True)(counted)
    assert run.batches == [2, 1, 1] and found.tolist() == [[15, -15], [5, -5], [10, -10], [5, -5]]


def test_batches_of_one_length_are_not_tried() -> None:
    run = Counted(reads_padding=True)
    EqualLengths(run, 1e-3)({"input_ids": np.ones((2, 3)), "attention_mask": np.ones((2, 3), dtype=int)})
    assert run.batches == [2]


@pytest.mark.parametrize("model_type", ["bert", "compress-pruned-roberta", "compress-cnn"])
def test_families_that_parity_tests_hold_are_not_tried(model_type: str) -> None:
    run = Counted(reads_padding=False)
    assert exact_batches(run, {"model_type": model_type}) is run


def test_rows_are_sorted_and_their_logits_put_back() -> None:
    batches: list[list[int]] = []

    def run(rows: list[int]) -> np.ndarray:
        batches.append(rows)
        return np.array([[row, -row] for row in rows], dtype=np.float32)

    logits = run_by_length([5, 2, 9, 2, 7], run, 2)
    assert batches == [[1, 3], [0, 4], [2]]
    assert logits.dtype == np.float32 and logits[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_logits_of_words_follow_their_rows() -> None:
    counts = [2, 0, 1]

    def run(rows: list[int]) -> np.ndarray:
        return np.array([[10 * row + word] for row in rows for word in range(counts[row])], dtype=np.float32)

    assert run_by_length([3, 2, 1], run, 2, counts)[:, 0].tolist() == [0, 1, 20]


def test_no_rows_and_logits_that_are_not_finite_are_refused() -> None:
    with pytest.raises(CompressError, match="no rows"):
        run_by_length([], lambda rows: np.empty((0, 2)), 2)
    with pytest.raises(CompressError, match="not finite numbers; its weights are damaged"):
        run_by_length([1], lambda rows: np.array([[np.nan]]), 2)
