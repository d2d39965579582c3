"""Students start from their teacher: which layers, which directions, and exactly how much of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from compress import plugins
from compress.data import Example
from compress.errors import CompressError
from compress.models.components import attention_layers
from compress.models.modeling.families import layers_of
from compress.models.networks.build_small import kept_pieces, project
from compress.training.architectures._initialization import (
    PASS_ROWS,
    Directions,
    choose_layers,
    hidden_states,
    leading_directions,
    project_model,
)
from tests.support.tiny import (
    FAMILIES,
    HEADS,
    LAYERS,
    assert_reloaded,
    bilstm,
    classifier,
    examples,
    load,
    pruned,
    tokenizer,
    write,
)

TEXTS = ["the film is good", "dull", "a very slow plot with its cold ending and a stale story"]
STUDENTS: list[tuple[str, dict[str, Any]]] = [
    ("bilstm", {"embedding_size": 16, "hidden_size": 8, "dense_size": 8}),
    ("cnn", {"embedding_size": 16, "filters": 6, "second_filters": 5, "dense_size": 8}),
    ("ngram", {"embedding_size": 16, "buckets": 40, "dense_size": 8}),
    ("transformer", {"depth": 1}),
    ("transformer", {"depth": 1, "hidden_size": 20, "ffn_size": 24}),
    ("transformer", {"depth": 3, "start": "random", "hidden_size": 24, "ffn_size": 40, "heads": 2}),
    ("albert", {"embedding_size": 8, "depth": 3}),
    ("distilbert", {"depth": 1}),
    ("mobilebert", {"embedding_size": 8, "depth": 3}),
]
# Of which teachers a student cannot start: MobileBERT's layers are nobody else's, and DistilBERT has no matrix behind
# its embeddings.
IMPOSSIBLE = [
    *(("mobilebert", name) for name in ("albert", "distilbert", "mobilebert")),
    *((family, "distilbert") for family in ("albert", "electra")),
]
CASES = [
    (family, name, options)
    for family in FAMILIES
    for name, options in STUDENTS
    if (family, name) not in IMPOSSIBLE and not (family == "mobilebert" and options.get("ffn_size") == 24)
]
NARROWED = [family for family in FAMILIES if family != "mobilebert"]


def build(name: str, teacher: PreTrainedModel, family: str = "bert", **options: Any) -> Any:
    torch.manual_seed(0)
    function: Callable[..., Any] = plugins.find("architectures", name).function
    return function(teacher, tokenizer(family), examples(), **options).eval()


def logits(model: Any, family: str = "bert", extra: int = 0) -> Tensor:
    """Logits of the texts; ``extra`` columns of padding more than they need."""
    encoded = tokenizer(family)(TEXTS, padding=True, return_tensors="pt")
    padding = {"input_ids": tokenizer(family).pad_token_id, "attention_mask": 0, "token_type_ids": 0}
    inputs = {k: torch.nn.functional.pad(v, (0, extra), value=padding[k]) for k, v in encoded.items()}
    with torch.no_grad():
        result: Tensor = model(**inputs).logits
    return result


def test_every_architecture_is_tested_here() -> None:
    assert {*(name for name, _ in STUDENTS), "checkpoint"} == set(plugins.names("architectures"))


@pytest.mark.parametrize(("family", "name", "options"), CASES)
def test_padding_does_not_change_the_logits(family: str, name: str, options: dict[str, Any]) -> None:
    student = build(name, classifier(family), family, **options)
    torch.testing.assert_close(logits(student, family, extra=7), logits(student, family), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("family", "name", "options"), CASES)
def test_a_student_is_bit_equal_after_save_and_load(
    family: str, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    student = build(name, classifier(family, labels=("a", "b", "c")), family, **options)
    reloaded, _ = load(write(tmp_path / "student", student, family))
    assert_reloaded(student, reloaded)
    torch.testing.assert_close(logits(reloaded, family), logits(student, family), atol=1e-6, rtol=1e-5)
    assert reloaded.config.id2label == {0: "a", 1: "b", 2: "c"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_teacher_at_its_own_width_is_a_copy(family: str) -> None:
    teacher = classifier(family)
    student = build("transformer", teacher, family, depth=LAYERS)
    assert torch.equal(logits(student, family), logits(teacher, family))


@pytest.mark.parametrize("family", FAMILIES)
def test_fewer_layers_at_full_width_are_exact_copies(family: str) -> None:
    teacher = classifier(family)
    student = build("transformer", teacher, family, depth=1, start="blocks")
    assert student.config.num_hidden_layers == len(layers_of(student)) == 1
    source = layers_of(teacher)[0 if family == "albert" else 1]
    for mine, theirs in zip(layers_of(student)[0].parameters(), source.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(student.get_input_embeddings().weight, teacher.get_input_embeddings().weight)


def directions(model: Any, family: str, basis: Tensor | None = None) -> list[Tensor]:
    """Hidden states of the texts, padding left out, each with length 1: one ``[N, D]`` tensor a layer."""
    encoded = tokenizer(family)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**encoded, output_hidden_states=True).hidden_states
    rows = [state[encoded["attention_mask"].bool()] for state in states]
    return [torch.nn.functional.normalize(row if basis is None else row @ basis, dim=-1) for row in rows]


@pytest.mark.parametrize("family", NARROWED)
def test_a_narrower_student_starts_near_its_teacher(family: str) -> None:
    """Cosine of its hidden states with the teacher's, written in the student's directions. 28 of 32 are kept."""
    teacher = classifier(family)
    student = build("transformer", teacher, family, depth=LAYERS, hidden_size=28)
    assert student.config.hidden_size == 28 and student.get_input_embeddings().weight.shape[1] in {28, 16}
    encoded = tokenizer(family)([row.text for row in examples()], padding=True, return_tensors="pt")
    basis = leading_directions(hidden_states(teacher, dict(encoded)), 28).basis
    torch.testing.assert_close(basis.T @ basis, torch.eye(28), atol=1e-5, rtol=0)
    fresh = AutoModelForSequenceClassification.from_config(student.config).eval()
    expected = directions(teacher, family, basis)
    started, random = (
        [float((one * two).sum(dim=-1).mean()) for one, two in zip(directions(model, family), expected, strict=True)]
        for model in (student, fresh)
    )
    assert started[0] > 0.95 and min(started) > 0.5
    assert max(map(abs, random)) < 0.45


def test_directions_found_in_chunks_equal_those_of_all_rows() -> None:
    teacher = classifier()
    encoded = dict(tokenizer()([row.text for row in examples(2 * PASS_ROWS + 3)], padding=True, return_tensors="pt"))
    with torch.no_grad():
        hidden = teacher(**encoded, output_hidden_states=True).hidden_states
    states = torch.cat([state[encoded["attention_mask"].bool()] for state in hidden]).double()
    _, sizes, directions = torch.linalg.svd(states, full_matrices=False)
    rows: list[int] = []
    teacher.register_forward_pre_hook(lambda _, inputs, named: rows.append(len(named["input_ids"])), with_kwargs=True)
    found = leading_directions(hidden_states(teacher, encoded), 5)
    assert rows == [PASS_ROWS, PASS_ROWS, 3]
    assert 1 - found.error == pytest.approx(float(sizes[:5].square().sum() / sizes.square().sum()))
    best = directions[:5].T.float()
    torch.testing.assert_close(found.basis @ found.basis.T, best @ best.T, atol=1e-5, rtol=0)


def first_dimensions(kept: int = 28, energy: float = 1.0) -> tuple[Any, Any]:
    """A teacher, and a student in the first dimensions of its 32; a head's query and key have rank 7 of 8."""
    teacher = classifier()
    student = build("transformer", teacher, depth=LAYERS, hidden_size=kept)
    with torch.no_grad():
        for layer in attention_layers(teacher):
            layer.rows[0].weight[7::8], layer.rows[0].bias[7::8] = 0.0, 0.0
    project_model(teacher, student, [0, 1], Directions(torch.eye(32)[:, :kept], 1 - energy))
    return teacher, student


def test_scores_of_narrower_heads_are_exact_at_equal_rank() -> None:
    teacher, student = first_dimensions()
    states = torch.randn(5, 28)
    for old, new in zip(attention_layers(teacher), attention_layers(student), strict=True):
        with torch.no_grad():
            wide = torch.nn.functional.pad(states, (0, 4))
            theirs, ours = (
                [linear(rows).unflatten(-1, (HEADS, -1)) for linear in layer.rows[:2]]
                for layer, rows in ((old, wide), (new, states))
            )
        expected = torch.einsum("ihd,jhd->hij", *theirs) / 8**0.5
        torch.testing.assert_close(torch.einsum("ihd,jhd->hij", *ours) / 7**0.5, expected, atol=1e-4, rtol=1e-4)


def test_a_narrower_norm_equals_the_teachers_in_kept_dimensions() -> None:
    states = torch.randn(4000, 32) * torch.tensor([1.0] * 28 + [0.1] * 4)
    energy = float(states[:, :28].square().sum() / states.square().sum())
    teacher, student = first_dimensions(energy=energy)
    with torch.no_grad():
        theirs = teacher.bert.embeddings.LayerNorm(states)[:, :28]
        ours = student.bert.embeddings.LayerNorm(states[:, :28])
    assert float(ours.norm() / theirs.norm()) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("family", NARROWED)
def test_nothing_of_a_narrower_student_is_random(family: str) -> None:
    teacher = classifier(family)
    students = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        made = plugins.find("architectures", "transformer").function(
            teacher, tokenizer(family), examples(), depth=1, hidden_size=20
        )
        students.append(made.state_dict())
    assert all(torch.equal(students[0][key], students[1][key]) for key in students[0])


@pytest.mark.parametrize(
    ("there", "depth", "start", "layers"),
    [
        (12, 6, "spread", [0, 2, 4, 7, 9, 11]),  # DistilBERT
        (12, 4, "blocks", [2, 5, 8, 11]),  # TinyBERT, counted from 0
        (12, 6, "blocks", [1, 3, 5, 7, 9, 11]),
        (6, 4, "blocks", [1, 2, 4, 5]),  # as the uniform map teaches them
        (6, 3, "spread", [0, 2, 5]),
        (12, 6, "first", [0, 1, 2, 3, 4, 5]),
        (12, 0.5, "spread", [0, 2, 4, 7, 9, 11]),
        (6, 0.5, "spread", [0, 2, 5]),
        (6, 1.0, "spread", [0, 1, 2, 3, 4, 5]),
        (6, 1, "spread", [0]),
        (6, 1, "blocks", [5]),
        (6, 0.2, "first", [0]),
    ],
)
def test_which_layers(there: int, depth: int | float, start: str, layers: list[int]) -> None:
    assert choose_layers(there, depth, start) == layers


@pytest.mark.parametrize("start", ["spread", "blocks", "first"])
def test_layers_are_distinct_and_in_order_for_every_depth(start: str) -> None:
    for there in range(1, 25):
        for depth in range(1, there + 1):
            chosen = choose_layers(there, depth, start)
            assert len(chosen) == depth and chosen == sorted(set(chosen)) and 0 <= chosen[0] and chosen[-1] < there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 3}, "depth = 3 is not possible: the teacher has 2 layers; use 1 to 2"),
        ({"depth": 0}, "depth = 0 is not possible"),
        ({"depth": 0.1}, "depth = 0.1 is not possible"),
        ({"start": "last"}, "start = 'last' is not known; use 'spread', 'blocks' or 'first'"),
        ({"hidden_size": 18}, "hidden_size = 18 is not possible: it must be a multiple of the teacher's 4 heads"),
        ({"hidden_size": 64}, "at most its width 32"),
        ({"hidden_size": -4}, "hidden_size = -4 is not possible"),
        ({"ffn_size": 65}, "ffn_size = 65 is not possible: the teacher's is 64"),
        ({"ffn_size": -1}, "ffn_size = -1 is not possible"),
    ],
)
def test_shapes_that_a_teacher_cannot_give(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        build("transformer", classifier("bert"), **options)


@pytest.mark.parametrize("teacher", [pruned, bilstm])
def test_teachers_that_a_transformer_cannot_start_from(teacher: Callable[[], PreTrainedModel]) -> None:
    with pytest.raises(CompressError, match="cannot start from a 'compress-.*or the student bilstm"):
        build("transformer", teacher())


def test_the_shape_of_an_encoder_that_is_not_known() -> None:
    config = AutoConfig.for_model("gpt2", n_embd=32, n_layer=2, n_head=4, vocab_size=100)
    with pytest.raises(CompressError, match="'gpt2' teacher"):
        build("transformer", AutoModelForSequenceClassification.from_config(config))


def test_a_width_at_which_electra_has_no_projection() -> None:
    with pytest.raises(CompressError, match="hidden_size = 16 is not possible: it is the width of this teacher's emb"):
        build("transformer", classifier("electra"), "electra", hidden_size=16)


# The siamese BiLSTM: one encoder for both texts of a pair

PAIRS = [("the film is good", "dull"), ("a", "a very slow plot with its cold ending"), ("the story", "the story")]


def siamese(family: str = "bert", **options: Any) -> Any:
    torch.manual_seed(0)
    rows = [Example(one.text, other.text) for one, other in zip(examples(), examples()[5:], strict=False)]
    given = {"embedding_size": 16, "hidden_size": 8, "dense_size": 8, "pairs": "siamese", **options}
    return plugins.find("architectures", "bilstm").function(classifier(family), tokenizer(family), rows, **given).eval()


def pair_logits(model: Any, pairs: Any, family: str = "bert", extra: int = 0) -> Tensor:
    encoded = tokenizer(family)(pairs, padding=True, return_tensors="pt")
    padding = {"input_ids": tokenizer(family).pad_token_id, "attention_mask": 0, "token_type_ids": 0}
    with torch.no_grad():
        result: Tensor = model(
            **{k: torch.nn.functional.pad(v, (0, extra), value=padding[k]) for k, v in encoded.items()}
        ).logits
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_a_siamese_student_reads_each_text_by_itself(family: str) -> None:
    """Its states are those that the same LSTM gives for the texts alone, without special tokens."""
    student, tokens = siamese(family), tokenizer(family)
    seen: list[Tensor] = []
    student.dense.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    pair_logits(student, PAIRS, family)

    def state(text: str) -> Tensor:
        ids = tokens(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            _, (final, _) = student.lstm(student.embedding(student.remap[ids]))
        return torch.cat((final[0, 0], final[1, 0]))

    for row, (text, other) in zip(seen[0], PAIRS, strict=True):
        one, two = state(text), state(other)
        torch.testing.assert_close(row, torch.cat((one, two, one * two, (one - two).abs())), atol=1e-6, rtol=1e-5)
    assert student.dense.in_features == 8 * student.config.hidden_size


@pytest.mark.parametrize("family", FAMILIES)
def test_a_siamese_student_ignores_padding_and_reloads_bit_equal(family: str, tmp_path: Path) -> None:
    student = siamese(family)
    expected = pair_logits(student, PAIRS, family)
    torch.testing.assert_close(pair_logits(student, PAIRS, family, extra=9), expected, atol=1e-6, rtol=1e-5)
    for row, pair in zip(expected, PAIRS, strict=True):
        torch.testing.assert_close(pair_logits(student, [pair], family)[0], row, atol=1e-6, rtol=1e-5)
    reloaded, _ = load(write(tmp_path / "student", student, family))
    assert_reloaded(student, reloaded)
    torch.testing.assert_close(pair_logits(reloaded, PAIRS, family), expected, atol=1e-6, rtol=1e-5)


def test_product_and_distance_ignore_the_order_of_the_texts() -> None:
    student = siamese()
    swapped = [(b, a) for a, b in PAIRS]
    assert not torch.allclose(pair_logits(student, PAIRS)[:2], pair_logits(student, swapped)[:2], atol=1e-5)
    width = 4 * student.config.hidden_size
    with torch.no_grad():
        student.dense.weight[:, :width] = 0
    assert torch.equal(pair_logits(student, PAIRS), pair_logits(student, swapped))
    assert pair_logits(student, PAIRS).unique(dim=0).shape[0] == 3
    with torch.no_grad():
        student.dense.weight[:, width : width + width // 2] = 0  # the distance alone is left: nothing for equal texts
    same = pair_logits(student, [("the story", "the story"), ("dull", "dull"), ("dull", "good")])
    assert torch.equal(same[0], same[1]) and not torch.equal(same[1], same[2])


def test_a_single_text_is_a_pair_with_an_empty_second() -> None:
    student = siamese()
    torch.testing.assert_close(pair_logits(student, ["the film"]), pair_logits(student, [("the film", "")]))
    ids = torch.zeros(2, 3, dtype=torch.long)
    with torch.no_grad():
        assert torch.isfinite(student(ids, torch.tensor([[0, 0, 0], [1, 1, 0]])).logits).all()


def test_a_siamese_student_trains_with_dropout_and_gradients() -> None:
    student = siamese(dropout=0.5).train()
    encoded = tokenizer()(PAIRS, padding=True, return_tensors="pt")
    student(**encoded, labels=torch.tensor([0, 1, 0])).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in student.parameters())


def test_what_a_siamese_student_cannot_be_built_from() -> None:
    with pytest.raises(CompressError, match="has single ones; use pairs = 'joined'"):
        build("bilstm", classifier("bert"), pairs="siamese")
    with pytest.raises(CompressError, match="pairs = 'twins' is not known; use 'joined' or 'siamese'"):
        build("bilstm", classifier("bert"), pairs="twins")
    tokens = tokenizer()
    tokens._tokenizer.post_processor = None
    with pytest.raises(CompressError, match="needs a tokenizer that puts a separator after each text"):
        plugins.find("architectures", "bilstm").function(
            classifier("bert"), tokens, [Example("the film", "dull")], pairs="siamese"
        )


# BiLSTM


def small(**options: Any) -> Any:
    given = {"embedding_size": 16, "hidden_size": 8, "dense_size": 8, **options}
    return build("bilstm", classifier("bert"), **given)


def test_pieces_that_are_rare_share_the_row_of_the_unknown_token() -> None:
    tokens = tokenizer()
    texts = [Example("the film the plot")] * 2 + [Example("the ending")]
    kept = kept_pieces(tokens, texts, 2)
    assert set(kept) == {*tokens.all_special_ids, *tokens.convert_tokens_to_ids(["the", "film", "plot"])}
    student = plugins.find("architectures", "bilstm").function(classifier("bert"), tokens, texts, minimum_count=2)
    unknown = student.remap[tokens.unk_token_id]
    for word in ("end", "good", "z"):
        assert student.remap[tokens.convert_tokens_to_ids(word)] == unknown
    known = student.remap[tokens.convert_tokens_to_ids(["the", "film", "plot"])].tolist()
    assert len({*known, int(unknown)}) == 4


def test_every_token_id_maps_into_the_smaller_vocabulary() -> None:
    student = small()
    assert len(student.remap) == student.config.tokenizer_size == len(tokenizer())
    assert sorted(set(student.remap.tolist())) == list(range(student.config.vocab_size))
    assert student.embedding.num_embeddings == student.config.vocab_size < len(tokenizer())


def test_texts_that_differ_in_rare_pieces_only_look_the_same() -> None:
    student = plugins.find("architectures", "bilstm").function(
        classifier("bert"), tokenizer(), [Example("the film")] * 2, embedding_size=8, hidden_size=4
    )
    with torch.no_grad():
        one, two, three = (
            student.eval()(**tokenizer()(text, return_tensors="pt")).logits for text in ("the z", "the q", "the film")
        )
    assert torch.equal(one, two) and not torch.equal(one, three)


def test_both_texts_of_a_pair_are_counted() -> None:
    assert kept_pieces(tokenizer(), [Example("the", "film"), Example("film", "the")], 2) == kept_pieces(
        tokenizer(), [Example("the film the film")], 2
    )


def test_embeddings_keep_distances_of_the_teachers_vectors() -> None:
    """At full rank a projection is a rotation: all distances scale by one factor."""
    vectors = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    kept = list(range(0, 50, 2))
    projected = project(vectors, kept, 12)
    ratios = torch.pdist(projected) / torch.pdist(vectors[kept])
    torch.testing.assert_close(ratios, ratios[0].expand_as(ratios), atol=1e-4, rtol=1e-4)
    assert projected.std().item() == pytest.approx(1, rel=1e-5)


def test_a_narrower_projection_is_the_best_of_its_rank() -> None:
    """Eckart and Young 1936: what is lost is the tail of the singular values."""
    vectors = torch.randn(40, 10, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 10)
    kept = list(range(40))
    projected = project(vectors, kept, 4)
    singular = torch.linalg.svdvals(vectors - vectors.mean(dim=0))
    ratio = (projected**2).sum() / projected.std() ** 2 * projected.std() ** 2
    scaled = projected * ((singular[:4] ** 2).sum() / ratio).sqrt()
    torch.testing.assert_close(torch.linalg.svdvals(scaled), singular[:4], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("asked", "width"), [(16, 16), (300, 32)])
def test_embeddings_are_at_most_as_wide_as_the_teachers(asked: int, width: int) -> None:
    assert small(embedding_size=asked).embedding.weight.shape[1] == width


def test_electra_embeddings_are_as_wide_as_its_vectors() -> None:
    assert build("bilstm", classifier("electra"), "electra", embedding_size=300).embedding.embedding_dim == 16


def test_a_text_without_any_token_runs() -> None:
    student = small()
    ids = torch.zeros(2, 3, dtype=torch.long)
    mask = torch.tensor([[0, 0, 0], [1, 1, 0]])
    with torch.no_grad():
        assert torch.isfinite(student(ids, mask).logits).all()


def test_the_order_of_words_counts() -> None:
    student = small()
    with torch.no_grad():
        one, two = (
            student(**tokenizer()(t, return_tensors="pt")).logits for t in ("the film is good", "good is film the")
        )
    assert not torch.allclose(one, two, atol=1e-4)


def test_a_regression_stays_one() -> None:
    student = build("bilstm", classifier("bert", labels=("score",)), hidden_size=4)
    assert student.config.problem_type == "regression" and logits(student).shape == (3, 1)


@pytest.mark.parametrize(
    "options", [{"hidden_size": 0}, {"embedding_size": 0}, {"dense_size": -1}, {"dropout": 1.5}, {"minimum_count": -1}]
)
def test_widths_that_make_no_model(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CompressError, match=f"{name} = "):
        small(**options)
