"""Students of another family than their teacher's: what of the teacher they start from, exactly."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedModel,
)

from compress import plugins
from compress.errors import CompressError
from compress.models.components import attention_layers, embeddings_of, head_of, heads_per_layer, input_names
from compress.models.model_dir import Model
from compress.models.modeling.families import layers_of
from compress.training.architectures._initialization import Directions, centred_basis, leading_directions, token_vectors
from tests.support.tiny import LABELS, LAYERS, classifier, examples, onnx_directory, pruned, tokenizer, write
from tests.training.architectures.test_initialization import build, logits

PLAIN = ["bert", "electra", "mpnet", "roberta", "xlm-roberta", "distilbert", "albert"]
TEXTS = ["the film is good", "dull", "a very slow plot with its cold ending and a stale story"]


def states(model: PreTrainedModel, family: str = "bert") -> tuple[Tensor, ...]:
    """Hidden states of the texts without padding: one ``[N, D]`` tensor for the embeddings and each layer."""
    encoded = tokenizer(family)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**encoded, output_hidden_states=True).hidden_states
    return tuple(state[encoded["attention_mask"].bool()] for state in hidden)


def one_layer(family: str) -> PreTrainedModel:
    return build("transformer", classifier(family), family, depth=1, start="blocks")


# Directions


def test_directions_are_the_best_of_their_rank() -> None:
    """Eckart and Young 1936: what is lost is the tail of the singular values, in however many parts they come."""
    vectors = torch.randn(60, 10, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 10)
    found = leading_directions(iter(vectors.split(7)), 4)
    singular = torch.linalg.svdvals(vectors)
    assert found.error == pytest.approx(float((singular[4:] ** 2).sum() / (singular**2).sum()), rel=1e-4)
    lost = vectors - vectors @ found.basis @ found.basis.T
    assert float((lost**2).sum()) == pytest.approx(float((singular[4:] ** 2).sum()), rel=1e-4)
    torch.testing.assert_close(found.basis.T @ found.basis, torch.eye(4), atol=1e-5, rtol=0)
    assert leading_directions([vectors], 10).error == 0
    assert leading_directions([torch.zeros(3, 4)], 2).error == 0


def test_a_frequent_token_counts_more() -> None:
    often, rare = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    found: Directions = leading_directions([often.expand(9, 2), rare], 1)
    assert found.basis[:, 0].abs().tolist() == pytest.approx([1, 0]) and found.error == pytest.approx(4 / 13)


@pytest.mark.parametrize("width", [2, 5, 33])
def test_the_centred_basis_spans_what_has_no_mean(width: int) -> None:
    basis = centred_basis(width)
    torch.testing.assert_close(basis.T @ basis, torch.eye(width - 1).double())
    torch.testing.assert_close(basis.sum(dim=0), torch.zeros(width - 1).double())


def test_directions_of_many_parts_need_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    leading_directions((torch.full((1, 300), float(number % 7)) for number in range(3000)), 2)  # 2 GB of squares
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


@pytest.mark.parametrize("family", PLAIN)
def test_token_vectors_are_what_the_teacher_normalises(family: str) -> None:
    teacher: Any = classifier(family)
    seen: list[Tensor] = []
    teacher.base_model.embeddings.LayerNorm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    row = examples(3)[2:]
    encoded = tokenizer(family)(row[0].text, return_tensors="pt")
    with torch.no_grad():
        teacher(**encoded)
    (vectors,) = token_vectors(embeddings_of(teacher), tokenizer(family), row)
    torch.testing.assert_close(vectors, seen[0][0], atol=1e-6, rtol=0)
    (words,) = token_vectors(embeddings_of(teacher), tokenizer(family), row, words_only=True)
    assert torch.equal(words, embeddings_of(teacher).words[encoded["input_ids"][0]])


# ALBERT


@pytest.mark.parametrize("family", ["albert", "bert", "roberta", "xlm-roberta"])
def test_a_full_rank_albert_equals_a_teacher_of_one_layer(family: str) -> None:
    teacher = one_layer(family)
    width = embeddings_of(teacher).words.shape[1]
    student = build("albert", teacher, family, embedding_size=width)
    assert student.config.model_type == "albert" and student.config.num_hidden_layers == 1
    torch.testing.assert_close(logits(student, family), logits(teacher, family), atol=2e-5, rtol=0)
    assert student.config.embedding_error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("family", ["distilbert", "electra"])
def test_an_albert_keeps_hidden_states_of_another_head(family: str) -> None:
    teacher = one_layer(family)
    width = embeddings_of(teacher).words.shape[1]
    student = build("albert", teacher, family, embedding_size=width)
    torch.testing.assert_close(states(student, family)[-1], states(teacher, family)[-1], atol=2e-5, rtol=0)
    for mine, theirs in zip(head_of(student), head_of(teacher), strict=True):
        assert torch.equal(mine.weight, theirs.weight) and torch.equal(mine.bias, theirs.bias)


def test_an_albert_layer_is_the_middle_one_of_the_teachers() -> None:
    teacher: Any = classifier("bert")
    student = build("albert", teacher, embedding_size=8, depth=5)
    assert len(layers_of(student)) == 1 and student.config.num_hidden_layers == 5
    assert torch.equal(attention_layers(student)[0].rows[0].weight, attention_layers(teacher)[1].rows[0].weight)


def test_fewer_directions_lose_more_and_say_how_much() -> None:
    """What the student reads is the projection of what the teacher reads, in angle and in length."""
    teacher: Any = classifier("bert")
    with torch.no_grad():
        teacher.bert.embeddings.LayerNorm.weight.fill_(1.0)
        teacher.bert.embeddings.LayerNorm.bias.zero_()  # so that what the teacher reads has the energy 32
    errors, cosines = [], []
    for size in (32, 24, 12, 4):
        student: Any = build("albert", teacher, embedding_size=size)
        assert student.get_input_embeddings().weight.shape[1] == size
        widen = student.albert.encoder.embedding_hidden_mapping_in
        encoded = tokenizer()(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            read = widen(student.albert.embeddings(encoded["input_ids"]))[encoded["attention_mask"].bool()]
        errors.append(student.config.embedding_error)
        cosines.append(float(torch.cosine_similarity(read, states(teacher)[0]).mean()))
        left = 32 * (1 - student.config.embedding_error)
        assert float(read.square().sum(dim=1).mean()) == pytest.approx(left, rel=1e-3)
    assert errors == sorted(errors) and errors[0] == pytest.approx(0, abs=1e-6) and 0.3 < errors[-1] < 1
    assert cosines == sorted(cosines, reverse=True) and cosines[0] > 0.9999 and cosines[1] > 0.9


def test_an_albert_from_a_larger_albert() -> None:
    teacher = classifier("albert")
    student = build("albert", teacher, "albert", embedding_size=16, depth=1)
    assert student.config.num_hidden_layers == 1 and heads_per_layer(student) == [4]
    shared = [layers_of(model)[0].state_dict() for model in (teacher, student)]
    assert all(torch.equal(shared[0][name], shared[1][name]) for name in shared[0])


def test_an_albert_keeps_segments() -> None:
    teacher = one_layer("bert")
    student = build("albert", teacher, embedding_size=32)
    encoded = tokenizer()("the film", "the plot is good", return_tensors="pt")
    assert encoded["token_type_ids"].any()
    with torch.no_grad():
        torch.testing.assert_close(student(**encoded).logits, teacher(**encoded).logits, atol=2e-5, rtol=0)


# DistilBERT


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "xlm-roberta"])
def test_a_full_depth_distilbert_has_the_teachers_hidden_states(family: str) -> None:
    teacher = classifier(family)
    student = build("distilbert", teacher, family, depth=LAYERS)
    assert student.config.model_type == "distilbert" and input_names(student) == ("input_ids", "attention_mask")
    for mine, theirs in zip(states(student, family), states(teacher, family), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=0)
    same_head = torch.allclose(logits(student, family), logits(teacher, family), atol=1e-4)
    assert same_head is (family == "distilbert")  # ReLU in place of tanh


def test_a_distilbert_takes_the_layers_that_start_says() -> None:
    teacher = classifier("bert")
    student = build("distilbert", teacher, depth=1, start="blocks")
    theirs = attention_layers(teacher)[1]
    assert torch.equal(attention_layers(student)[0].rows[1].weight, theirs.rows[1].weight)
    assert len(layers_of(student)) == 1


def test_the_tokenizer_of_a_distilbert_makes_no_segments(tmp_path: Path) -> None:
    """A client that feeds what the tokenizer gives would hand over an input that the class does not take."""
    teacher = classifier("bert")
    directory = Model.open(write(tmp_path / "student", build("distilbert", teacher)))
    assert list(directory.tokenizer("the film")) == ["input_ids", "attention_mask"]
    kept = Model.open(write(tmp_path / "teacher", teacher)).tokenizer
    assert list(kept("the film")) == ["input_ids", "token_type_ids", "attention_mask"]


# MobileBERT


def test_a_mobilebert_has_the_width_and_heads_of_its_teacher() -> None:
    student = build("mobilebert", classifier("bert"), embedding_size=8, depth=3)
    config = student.config
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (32, 4, 3)
    assert (config.intra_bottleneck_size, config.intermediate_size, config.num_feedforward_networks) == (8, 32, 4)
    assert config.trigram_input and config.normalization_type == "no_norm" and config.hidden_act == "relu"
    assert heads_per_layer(student) == [4, 4, 4] and {layer.size for layer in attention_layers(student)} == {2}
    assert [state.shape[-1] for state in states(student)] == [32] * 4


@pytest.mark.parametrize("family", ["albert", "bert", "electra", "roberta", "distilbert"])
def test_the_embeddings_of_a_mobilebert_start_near_its_teachers(family: str) -> None:
    teacher = classifier(family)
    width = embeddings_of(teacher).words.shape[1]
    read = states(build("mobilebert", teacher, family, embedding_size=width), family)[0]
    taught: Any = teacher.base_model
    encoded = tokenizer(family)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():  # ALBERT widens its embeddings behind the first hidden state
        given = taught.embeddings(encoded["input_ids"])
        widen = embeddings_of(teacher).projection
        given = (given if widen is None else widen(given))[encoded["attention_mask"].bool()]
    cosine = torch.cosine_similarity(read, given)
    assert cosine.mean() > 0.98 and cosine.min() > 0.9
    torch.testing.assert_close(read.norm(dim=-1).mean(), given.norm(dim=-1).mean(), rtol=0.1, atol=0)


def test_a_last_word_has_the_same_neighbour_in_a_padded_text() -> None:
    teacher, padding = classifier("bert"), tokenizer().pad_token_id
    with torch.no_grad():
        teacher.get_input_embeddings().weight[padding] = torch.arange(32.0)  # trained ones are seldom zero
    student = build("mobilebert", teacher, embedding_size=8)
    assert not student.get_input_embeddings().weight[padding].any()


# A shape from scratch


def test_a_random_student_has_any_shape_and_depends_on_the_seed() -> None:
    options: dict[str, Any] = {"start": "random", "depth": 5, "hidden_size": 48, "ffn_size": 100, "heads": 6}
    student = build("transformer", classifier("bert"), **options)
    assert heads_per_layer(student) == [6] * 5 and student.config.hidden_size == 48
    assert student.config.intermediate_size == 100 and logits(student).shape == (3, 2)
    again = build("transformer", classifier("bert"), **options)  # the helper sets the seed
    assert torch.equal(logits(student), logits(again))
    torch.manual_seed(1)
    other = plugins.find("architectures", "transformer").function(classifier("bert"), tokenizer(), [], **options)
    assert not torch.equal(logits(student), logits(other.eval()))


def test_a_narrow_student_of_a_small_vocabulary_is_small() -> None:
    """Zhao et al. 2019: twelve layers, 48 wide, 4,928 pieces, under 7 MB; each of the twelve heads is four wide."""
    config = BertConfig(vocab_size=4928, hidden_size=384, num_attention_heads=12, intermediate_size=1536)
    teacher = BertForSequenceClassification(config)
    bytes_of = {}
    for width in (48, 192):
        student = build("transformer", teacher, depth=1.0, hidden_size=width)
        assert len(layers_of(student)) == 12
        assert {layer.size for layer in attention_layers(student)} == {width // 12}
        bytes_of[width] = 4 * sum(parameter.numel() for parameter in student.parameters())
    assert bytes_of[48] < 7_000_000 and 7_000_000 < bytes_of[192] < 30_000_000


# A checkpoint


def checkpoint(directory: Path, family: str = "bert") -> Path:
    """Write a masked language model as an encoder, such as pre-training gives."""
    config: Any = classifier(family).config
    config.num_hidden_layers = 1
    torch.manual_seed(5)
    model = AutoModelForMaskedLM.from_config(config)
    model.save_pretrained(directory)
    tokenizer(family).save_pretrained(directory)
    return directory


def test_a_student_starts_from_a_checkpoint(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "encoder")
    student = build("checkpoint", classifier("bert", labels=("a", "b", "c")), model=str(directory))
    encoder = BertForMaskedLM.from_pretrained(directory)
    for name, weight in encoder.bert.state_dict().items():
        assert torch.equal(student.bert.state_dict()[name], weight)
    assert student.config.id2label == {0: "a", 1: "b", 2: "c"} and student.config.num_hidden_layers == 1
    assert student.config.problem_type == "single_label_classification"
    scores = build("checkpoint", classifier("bert", labels=("score",)), model=str(directory))
    assert scores.config.problem_type == "regression" and logits(scores).shape == (3, 1)


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "encoder", "roberta")
    with pytest.raises(CompressError, match=r"has another vocabulary than the teacher \(\d+ of the teacher's \d+ "):
        build("checkpoint", classifier("bert"), model=str(directory))


def test_an_incomplete_onnx_or_absent_checkpoint_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    directory = checkpoint(tmp_path / "encoder")
    weights = load_file(directory / "model.safetensors")
    del weights["bert.encoder.layer.0.output.dense.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CompressError, match=r"lacks weights of its own architecture \(1, such as bert.encoder.layer.0"):
        build("checkpoint", classifier("bert"), model=str(directory))
    with pytest.raises(CompressError, match="does not exist"):
        build("checkpoint", classifier("bert"), model=str(tmp_path / "nowhere"))
    with pytest.raises(CompressError, match="is an ONNX model, which cannot be trained"):
        build("checkpoint", classifier("bert"), model=str(onnx_directory("bert").path))


@pytest.mark.parametrize(
    ("family", "name", "options", "message"),
    [
        ("bert", "albert", {"embedding_size": 33}, "embedding_size = 33 is not possible; give 2 to 32, the"),
        ("electra", "albert", {"embedding_size": 17}, "embedding_size = 17 is not possible; give 2 to 16"),
        ("bert", "albert", {"embedding_size": 1}, "embedding_size = 1 is not possible"),
        ("bert", "albert", {"embedding_size": 8, "depth": 0}, "depth = 0 is not possible; give 1 layer or more"),
        ("mobilebert", "albert", {}, "cannot start from a 'mobilebert' teacher, whose layers have bottlenecks"),
        ("bert", "distilbert", {"depth": 3}, "depth = 3 is not possible: the teacher has 2 layers"),
        ("bert", "distilbert", {"start": "random"}, "start = 'random' is not known; use 'spread'"),
        ("electra", "distilbert", {}, "'electra' teacher, whose embeddings of width 16 are widened by a matrix"),
        ("albert", "distilbert", {}, "'albert' teacher, whose embeddings of width 16 are widened"),
        ("mobilebert", "distilbert", {}, "cannot start from a 'mobilebert' teacher"),
        ("bert", "mobilebert", {"intra_bottleneck": 10}, "intra_bottleneck = 10 is not possible; .* teacher's 4 heads"),
        ("bert", "mobilebert", {"embedding_size": 64}, "embedding_size = 64 is not possible"),
        ("mobilebert", "mobilebert", {}, "a mobilebert student cannot start from a 'mobilebert' teacher"),
        ("mobilebert", "transformer", {"hidden_size": 16}, "a MobileBERT teacher, whose width lies in its bottlenecks"),
        ("mobilebert", "transformer", {"ffn_size": 16}, "gives its own 32 and 64 only; choose fewer layers with depth"),
        ("bert", "transformer", {"heads": 2}, "heads = 2 is for start = 'random'; .* has the teacher's 4"),
        ("bert", "transformer", {"start": "random", "heads": 5}, "hidden_size = 32 is not a multiple of 5 heads"),
        ("bert", "transformer", {"start": "random", "heads": 0}, "is not a multiple of 0 heads"),
        ("mobilebert", "transformer", {"start": "random", "heads": 32}, "is not a multiple of 32 heads"),
        ("bert", "transformer", {"start": "random", "depth": 0}, "depth = 0 is not possible; give 1 layer or more"),
        ("bert", "transformer", {"start": "random", "ffn_size": 0}, "ffn_size = 0 is not possible; give 1 or more"),
    ],
)
def test_what_cannot_be_built(family: str, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        build(name, classifier(family), family, **options)


@pytest.mark.parametrize("name", ["albert", "distilbert", "mobilebert"])
def test_a_pruned_teacher_is_refused(name: str) -> None:
    with pytest.raises(CompressError, match=f"a {name} student cannot start from a 'compress-pruned-bert' teacher"):
        build(name, pruned())


def test_a_head_without_a_dense_layer_is_refused() -> None:
    teacher = classifier("mobilebert", labels=LABELS)
    teacher.config.classifier_activation = False
    without = type(teacher)(teacher.config)
    with pytest.raises(CompressError, match="classifies without a dense layer before its classifier"):
        head_of(without)
