"""Small students compute what their papers say: convolutions as torch has them, n-grams one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from compress import plugins
from compress.errors import CompressError
from compress.models.networks.cnn.model import CNNForSequenceClassification, CNNForTokenClassification, offsets_of
from compress.models.networks.ngram.model import multipliers
from compress.surgery.remove_vocabulary import cut_vocabulary
from tests.support.tagging import tagger
from tests.support.tiny import classifier, cnn, examples, ngram, tokenizer

IDS = torch.tensor([[2, 7, 11, 7, 3, 0, 0], [2, 9, 3, 0, 0, 0, 0]])
LENGTHS = torch.tensor([5, 3])


def convolved(states: torch.Tensor, linear: torch.Tensor, bias: torch.Tensor, width: int) -> torch.Tensor:
    """Return ``[T, F]`` of ``[T, E]`` by torch's own convolution, zeros beyond the text."""
    kernel = torch.stack(linear.chunk(width), dim=-1)  # [F, E, width]
    offsets = offsets_of(width)
    padded = nn.functional.pad(states.T[None], (-offsets[0], offsets[-1]))
    return torch.relu(nn.functional.conv1d(padded, kernel, bias))[0].T


@pytest.mark.parametrize("pooling", ["max", "max-mean"])
@pytest.mark.parametrize("second", [0, 5])
def test_windows_are_convolutions_over_the_text_alone(second: int, pooling: str) -> None:
    model = cnn(widths=(1, 2, 3, 4), filters=6, second_filters=second, second_width=3, pooling=pooling)
    with torch.no_grad():
        found = model.encode(IDS, LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            states = model.embedding(model.remap[IDS[row, :length]])
            weights, biases = list(model.first.weight.split([6, 12, 18, 24])), model.first_bias.split(6)
            layers = [convolved(states, *one, width) for width, one in enumerate(zip(weights, biases, strict=True), 1)]
            features = torch.cat(layers, dim=-1)
            if second:
                features = convolved(features, model.second.weight, model.second_bias, 3)
            expected = features.amax(dim=0)
            if pooling == "max-mean":
                expected = torch.cat((expected, features.mean(dim=0)))
            torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_n_grams_are_hashed_one_by_one(pooling: str) -> None:
    model = ngram(longest=3, buckets=50, pooling=pooling)
    factors = multipliers(len(tokenizer()), 3)
    with torch.no_grad():
        found = model.encode(IDS, LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            ids = [*IDS[row, :length].tolist(), 0, 0]
            total = torch.zeros(model.config.embedding_size)
            for place in range(length):
                total += model.embedding.weight[model.remap[ids[place]]]
                for n in (2, 3):
                    code = sum(factor * id for factor, id in zip(factors, ids[place : place + n], strict=False))
                    total += model.ngrams.weight[(n - 2) * 50 + code % 50]
            torch.testing.assert_close(found[row], total / length if pooling == "mean" else total)


@pytest.mark.parametrize(("size", "longest"), [(30522, 1), (30522, 2), (30522, 3), (250_002, 3), (1000, 5)])
def test_hashes_are_exact_in_float32(size: int, longest: int) -> None:
    found = multipliers(size, longest)
    assert len(found) == longest == len(set(found)) and found[0] == 1 and all(one % 2 for one in found)
    assert sum(found) * (size - 1) < 2**24


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("cnn", {"widths": (0, 1)}, r"widths = \[0, 1\] is not possible"),
    ("cnn", {"widths": (2, 2)}, r"widths = \[2, 2\] is not possible"),
    ("cnn", {"widths": ()}, r"widths = \[\] is not possible"),
    ("cnn", {"filters": 0}, "filters = 0 is not possible"),
    ("cnn", {"second_filters": -1}, "second_filters = -1 is not possible"),
    ("cnn", {"pooling": "mean"}, "pooling = 'mean' is not known; use 'max' or 'max-mean'"),
    ("ngram", {"longest": 0}, "longest = 0 is not possible"),
    ("ngram", {"longest": 40}, "longest = 40 is not possible: n-grams of 40 tokens"),
    ("ngram", {"buckets": 0}, "buckets = 0 is not possible"),
    ("ngram", {"pooling": "max"}, "pooling = 'max' is not known; use 'mean' or 'sum'"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD)
def test_sizes_that_make_no_model_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    build = plugins.find("architectures", name).function
    with pytest.raises(CompressError, match=message):
        build(classifier(), tokenizer(), examples(), **options)


def test_hashes_of_all_ids_that_a_teacher_knows_fit() -> None:
    teacher = classifier()
    teacher.resize_token_embeddings(1000)
    build = plugins.find("architectures", "ngram").function
    with pytest.raises(CompressError, match="longest = 23 is not possible: n-grams of 23 tokens of 1,000 are too many"):
        build(teacher, tokenizer(), examples(), longest=23)


def test_n_grams_do_not_tag_words() -> None:
    with pytest.raises(CompressError, match="use the student bilstm-tagger"):
        plugins.find("architectures", "ngram").function(tagger(), tokenizer(), examples())


def test_the_vocabulary_of_hashes_is_not_cut() -> None:
    with pytest.raises(CompressError, match="n-grams are hashes of token ids"):
        cut_vocabulary(ngram(), tokenizer(), examples())


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (CNNForSequenceClassification, {}),
        (CNNForSequenceClassification, {"second_filters": 5}),
        (CNNForSequenceClassification, {"pairs": "siamese"}),
        (CNNForTokenClassification, {}),
    ],
)
def test_a_cnn_computes_in_training_what_it_answers(kind: Any, settings: dict[str, Any]) -> None:
    """Its first layer is then computed once for each distinct token of the batch."""
    model = cnn(kind, dropout=0.0, **settings)
    with torch.no_grad():
        trained, answered = model.train()(IDS).logits, model.eval()(IDS).logits
    torch.testing.assert_close(trained, answered)
    assert len(answered.flatten().unique()) == answered.numel() or kind is CNNForTokenClassification
