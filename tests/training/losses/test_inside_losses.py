"""Losses on hidden states, attention, masked words and weights give the value that a hand computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, PreTrainedModel

from compress import plugins
from compress.errors import CompressError
from compress.models.batch import NO_TARGET, Batch, Outputs
from compress.recipes import Choice
from compress.training.losses._common import VocabularyHead, kept_layer_map, layer_map
from compress.training.losses.shared_projection import weights
from compress.training.trainer import attach_losses, detach_loss_modules
from tests.support import tiny

# KL of (3/4, 1/4) from (1/2, 1/2); scores (ln 3, 0) are the former, (0, 0) the latter.
THREE_QUARTERS = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
LN3 = math.log(3)


def loss(name: str) -> Callable[..., Tensor]:
    return plugins.find("losses", name).function


def learned(name: str, student: PreTrainedModel, teacher: PreTrainedModel, **options: Any) -> Any:
    torch.manual_seed(0)
    return plugins.find("losses", name).load().learned(student, teacher, **options)


def mask_of(*lengths: int) -> Batch:
    mask = torch.tensor([[1] * length + [0] * (max(lengths) - length) for length in lengths])
    return Batch(mask, mask)


def hidden(*layers: list[list[list[float]]]) -> Outputs:
    """Hidden states of layers, each rows x tokens x width."""
    states = tuple(torch.tensor(layer) for layer in layers)
    return Outputs(torch.zeros(states[0].shape[0], 2), states)


def first(*layers: list[list[float]]) -> Outputs:
    """First-token states of layers, each rows x width."""
    return hidden(*([[vector] for vector in layer] for layer in layers))


def heads(queries: list[Any], keys: list[Any] | None = None, values: list[Any] | None = None) -> Outputs:
    """One layer of attention vectors, rows x heads x tokens x width; what is not given equals the queries."""
    made = [(torch.tensor(queries if part is None else part),) for part in (queries, keys, values)]
    return Outputs(torch.zeros(len(queries), 2), (), *made)


def bert(**settings: Any) -> PreTrainedModel:
    """Return a tiny classifier of another width, with embeddings as wide as the hidden states."""
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    torch.manual_seed(3)
    config = BertConfig(**{"vocab_size": len(tiny.tokenizer()), **shape, **settings})
    return BertForSequenceClassification(config).eval()


@pytest.mark.parametrize(
    ("student", "teacher", "layers", "pairs"),
    [
        (4, 12, "uniform", [(1, 3), (2, 6), (3, 9), (4, 12)]),
        (6, 12, "skip", [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10)]),
        (6, 12, "last", [(1, 7), (2, 8), (3, 9), (4, 10), (5, 11)]),
        (3, 12, "last", [(1, 10), (2, 11)]),
        (3, 12, "final", [(3, 12)]),
        (9, 6, "final", [(9, 6)]),
        (4, 6, "uniform", [(1, 2), (2, 3), (3, 5), (4, 6)]),
        (1, 6, "skip", []),
        (1, 6, "last", []),
        (4, 6, "1, 2,5,6", [(1, 1), (2, 2), (3, 5), (4, 6)]),
    ],
)
def test_layer_maps(student: int, teacher: int, layers: str, pairs: list[tuple[int, int]]) -> None:
    assert layer_map(student, teacher, layers) == pairs


@pytest.mark.parametrize("layers", ["1,2", "1,2,7", "1,2,x", "1,2,3,", "middle"])
def test_layers_that_are_not_there_are_refused(layers: str) -> None:
    with pytest.raises(CompressError, match="3 numbers from 0 to 6" if layers[0] == "1" else "uniform, skip, last"):
        layer_map(3, 6, layers)


@pytest.mark.parametrize(
    ("before", "after", "taught"),
    [([0, 1, 2, 3, 4, 5], [0, 1, 2, 5], "1,2,5,6"), ([0, 2, 3, 5], [2, 3], "2,4"), ([0, 1], [0, 1], "1,2")],
)
def test_a_layer_that_stays_gives_what_the_next_one_was_fed_with(
    before: list[int], after: list[int], taught: str
) -> None:
    assert kept_layer_map(before, after) == taught
    assert len(layer_map(len(after), len(before), taught)) == len(after)


def test_a_student_deeper_than_its_teacher_is_refused() -> None:
    with pytest.raises(CompressError, match="this one has 7 layers and the teacher 6: use layers = 'final'"):
        layer_map(7, 6)


# patience and first-cosine: (3, 4) has length 5 and cosine 0.6 with (1, 0); their squared distance is 0.8.
PUPIL = first([[9.0, 9.0], [9.0, 9.0]], [[3.0, 4.0], [0.0, 2.0]], [[9.0, 9.0], [9.0, 9.0]])
ELSEWHERE = [[-1.0, 0.0], [-1.0, 0.0]]
MASTER = first(ELSEWHERE, ELSEWHERE, [[7.0, 0.0], [0.0, 1.0]], [[3.0, 4.0], [0.0, -1.0]], ELSEWHERE)


@pytest.mark.parametrize(
    ("options", "by_hand"),
    [
        ({}, (0.8 + 0.0) / 2),
        ({"layers": "skip"}, (0.8 + 0.0) / 2),
        ({"layers": "last"}, (0.0 + 4.0) / 2),
        ({"normalised": False}, ((16.0 + 16.0) + 1.0) / 2),
    ],
)
def test_patience_by_hand_is_the_mean_over_rows(options: dict[str, Any], by_hand: float) -> None:
    assert loss("patience")(PUPIL, MASTER, mask_of(1, 1), **options).item() == pytest.approx(by_hand, abs=1e-6)


def test_first_cosine_by_hand() -> None:
    value = loss("first-cosine")(PUPIL, MASTER, mask_of(1, 1), layers="skip")
    assert value.item() == pytest.approx((0.4 + 0.0) / 2, abs=1e-6)


@pytest.mark.parametrize("name", ["patience", "first-cosine"])
def test_cached_first_tokens_give_what_hidden_states_give(name: str) -> None:
    cached = Outputs(MASTER.logits, first=torch.stack([layer[:, 0] for layer in MASTER.hidden], dim=1))
    live, from_cache = (loss(name)(PUPIL, teacher, mask_of(1, 1)) for teacher in (MASTER, cached))
    assert live > 0
    torch.testing.assert_close(from_cache, live)


@pytest.mark.parametrize("name", ["patience", "first-cosine"])
def test_first_tokens_of_unequal_widths_are_refused(name: str) -> None:
    wider = first(*([[1.0, 0.0, 0.0]] * 2 for _ in range(5)))
    with pytest.raises(CompressError, match=f"{name} needs equal widths; the student has 2 and the teacher 3: .*mse"):
        loss(name)(PUPIL, wider, mask_of(1, 1))


# Two examples of two and of one token, one head of width 1: the score of a query and a key is their product.
STILL = heads([[[[0.0], [0.0]]], [[[0.0], [5.0]]]])
LOOKING = heads([[[[1.0], [0.0]]], [[[0.0], [5.0]]]], keys=[[[[LN3], [0.0]]], [[[0.0], [7.0]]]])


def test_attention_kl_is_the_mean_over_tokens_then_examples() -> None:
    # The first example's two queries pay THREE_QUARTERS and 0; the second has one key, so that nothing differs.
    value = loss("attention-kl")(STILL, LOOKING, mask_of(2, 1))
    assert value.item() == pytest.approx((THREE_QUARTERS / 2 + 0) / 2, rel=1e-6)


def test_attention_mse_is_the_mean_over_pairs_of_real_tokens() -> None:
    # Scores differ by ln 3 in one of four pairs of the first example, and not in the one pair of the second.
    assert loss("attention-mse")(STILL, LOOKING, mask_of(2, 1)).item() == pytest.approx(LN3**2 / 5, rel=1e-6)


def test_attention_scores_are_scaled_and_averaged_over_heads() -> None:
    # Width 4: (1, 1, 1, 1) times (3, 3, 3, 3) is 12, divided by 2. The other head is zero.
    ones, threes, nothing = [[1.0] * 4], [[3.0] * 4], [[0.0] * 4]
    student = heads([[nothing, nothing]])
    assert loss("attention-mse")(student, heads([[ones, nothing]], [[threes, nothing]]), mask_of(1)).item() == 18.0


@pytest.mark.parametrize("name", ["attention-kl", "attention-mse", "relations"])
def test_unequal_heads_are_refused(name: str) -> None:
    two = heads([[[[0.0], [0.0]]] * 2] * 2)
    with pytest.raises(CompressError, match=f"the loss {name} compares head by head, .* 1 heads, the teacher 2: "):
        loss(name)(STILL, two, mask_of(2, 1))


def test_relations_of_the_models_own_heads_are_minilm_one() -> None:
    # Queries and keys give what attention-kl gives; a value relation of (a, 0) with a^2 = ln 3 the same again.
    looking = heads(
        [[[[1.0], [0.0]]], [[[0.0], [5.0]]]],
        keys=[[[[LN3], [0.0]]], [[[0.0], [7.0]]]],
        values=[[[[math.sqrt(LN3)], [0.0]]], [[[0.0], [1.0]]]],
    )
    only = loss("relations")(STILL, looking, mask_of(2, 1), relations=["attention"])
    both = loss("relations")(STILL, looking, mask_of(2, 1), relations=["attention", "value"])
    assert only.item() == pytest.approx(THREE_QUARTERS / 4, rel=1e-6)
    assert both.item() == pytest.approx(THREE_QUARTERS / 2, rel=1e-6)


def test_relations_split_heads_anew_for_any_number_and_width() -> None:
    # Two heads of width 1 become one of width 2: the first token's product with itself is 2 a^2 / sqrt(2) = ln 3.
    a = math.sqrt(LN3 / math.sqrt(2))
    teacher = heads([[[[a], [0.0]], [[a], [0.0]]]])
    student = heads([[[[0.0] * 3, [0.0] * 3]]])
    value = loss("relations")(student, teacher, mask_of(2), relation_heads=1)
    assert value.item() == pytest.approx(3 * THREE_QUARTERS / 2, rel=1e-6)


def test_relations_can_learn_from_a_lower_layer_of_the_teacher() -> None:
    lower, upper = LOOKING, STILL
    teacher = Outputs(lower.logits, (), *(getattr(lower, k) + getattr(upper, k) for k in ("queries", "keys", "values")))
    assert loss("relations")(STILL, teacher, mask_of(2, 1), relations=["attention"]).item() == 0
    value = loss("relations")(STILL, teacher, mask_of(2, 1), relations=["attention"], teacher_layer=1)
    assert value.item() == pytest.approx(THREE_QUARTERS / 4, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relations": ["query", "head"]}, r"relations = \['query', 'head'\] is not allowed; use some of query, "),
        ({"relations": []}, r"relations = \[\] is not allowed"),
        ({"relation_heads": 3}, "a width of 1 does not divide into 3 relation heads"),
        ({"relation_heads": -1}, "a width of 1 does not divide into -1 relation heads"),
        ({"teacher_layer": 2}, "teacher_layer = 2 is not possible .* layers 1 to 1, or 0 for the last"),
        ({"teacher_layer": 1, "layers": "uniform"}, "teacher_layer = 1 is not possible with layers = 'uniform'"),
    ],
)
def test_what_relations_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        loss("relations")(STILL, LOOKING, mask_of(2, 1), **options)


def projection() -> nn.Linear:
    """Return ``h -> (h, 2 h + 1)``."""
    linear = nn.Linear(1, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0], [2.0]]))
        linear.bias.copy_(torch.tensor([0.0, 1.0]))
    return linear


def test_hidden_mse_is_the_mean_over_width_and_real_tokens() -> None:
    # 3 becomes (3, 7), which differs from (3, 5) by (0, 2); the second token not at all; the third is padding.
    student = hidden([[[8.0], [8.0]], [[8.0], [8.0]]], [[[3.0], [0.0]], [[1.0], [9.0]]])
    teacher = hidden(
        [[[0.0, 0.0]] * 2] * 2, [[[0.0, 0.0]] * 2] * 2, [[[3.0, 5.0], [0.0, 1.0]], [[1.0, 3.0], [0.0, 0.0]]]
    )
    assert loss("hidden-mse")(student, teacher, mask_of(2, 1), projection()).item() == pytest.approx((2 + 0 + 0) / 3)


def test_embedding_mse_by_hand() -> None:
    student = hidden([[[3.0], [0.0]], [[1.0], [9.0]]], [[[8.0], [8.0]]] * 2)
    teacher = hidden([[[3.0, 5.0], [0.0, 1.0]], [[1.0, 3.0], [0.0, 0.0]]], [[[4.0, 4.0]] * 2] * 2)
    assert loss("embedding-mse")(student, teacher, mask_of(2, 1), projection()).item() == pytest.approx(2 / 3)


def test_normalised_hidden_states_have_neither_scale_nor_offset() -> None:
    student, teacher = hidden([[[0.0, 0.0]]], [[[1.0, 3.0]]]), hidden([[[0.0, 0.0]]], [[[50.0, 70.0]]])
    value = loss("hidden-mse")(student, teacher, mask_of(1), nn.Identity(), normalised=True)
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert loss("hidden-mse")(student, teacher, mask_of(1), nn.Identity()).item() == (49**2 + 67**2) / 2


def test_hidden_statistics_by_hand() -> None:
    # (1, 3) has mean 2 and variance 1, (2, 6) has 4 and 4; padding does not count.
    student = hidden([[[0.0, 0.0]] * 2], [[[1.0, 3.0], [9.0, 0.0]]])
    teacher = hidden([[[0.0, 0.0]] * 2], [[[2.0, 6.0], [0.0, 0.0]]])
    batch = Batch(torch.ones(1, 2), torch.tensor([[1, 0]]))
    assert loss("hidden-statistics")(student, teacher, batch).item() == pytest.approx(5000 * 4 + 5 * 3)
    assert loss("hidden-statistics")(student, teacher, batch, mean_factor=1.0, variance_factor=0.0).item() == 4


@pytest.mark.parametrize("name", ["hidden-mse", "embedding-mse"])
def test_a_projection_is_learned_if_widths_differ_or_on_request(name: str) -> None:
    teacher = tiny.classifier()
    assert isinstance(learned(name, teacher, teacher), nn.Identity)
    assert learned(name, teacher, teacher, projected=True).weight.shape == (32, 32)
    assert learned(name, bert(), teacher).weight.shape == (32, 16)


def masked(targets: list[list[int]]) -> Batch:
    ids = torch.ones(len(targets), len(targets[0]), dtype=torch.long)
    return Batch(ids, ids, targets=torch.tensor(targets))


def test_mlm_by_hand_is_the_mean_over_masked_tokens() -> None:
    # The hidden states are the logits here: (ln 3, 0) is (3/4, 1/4). The last token is not masked.
    student = hidden([[[LN3, 0.0], [0.0, 0.0], [9.0, 0.0]]])
    value = loss("mlm")(student, Outputs(student.logits), masked([[0, 1, NO_TARGET]]), nn.Identity())
    assert value.item() == pytest.approx((-math.log(0.75) - math.log(0.5)) / 2, rel=1e-6)


SAME = nn.ModuleDict({"student": nn.Identity(), "teacher": nn.Identity()})


def test_vocabulary_kl_adds_cross_entropy_of_the_teachers_head() -> None:
    # At T = 2 the teacher's (2 ln 3, 0) is (3/4, 1/4); at T = 1, where its head learns, (9/10, 1/10).
    student, teacher = hidden([[[0.0, 0.0], [9.0, 0.0]]]), hidden([[[2 * LN3, 0.0], [0.0, 0.0]]])
    batch = masked([[1, NO_TARGET]])
    value = loss("vocabulary-kl")(student, teacher, batch, SAME)
    assert value.item() == pytest.approx(4 * THREE_QUARTERS - math.log(0.1), rel=1e-5)
    triple = loss("vocabulary-kl")(student, teacher, batch, SAME, mlm=0.4)
    assert triple.item() == pytest.approx(value.item() - 0.4 * math.log(0.5), rel=1e-5)


def test_the_student_does_not_teach_the_teachers_head() -> None:
    model = tiny.classifier()
    parts = learned("vocabulary-kl", model, model)
    teacher = hidden(torch.randn(2, 3, 32).tolist())
    batch = masked([[5, NO_TARGET, 6], [NO_TARGET, 7, NO_TARGET]])
    gradients = []
    for scale in (1.0, 30.0):
        parts.zero_grad()
        student = hidden((scale * torch.randn(2, 3, 32)).tolist())
        loss("vocabulary-kl")(student, teacher, batch, parts).backward()
        gradients.append(parts["teacher"].dense.weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("name", ["mlm", "vocabulary-kl"])
def test_without_masked_tokens_the_loss_is_zero_with_a_gradient(name: str) -> None:
    model = tiny.classifier()
    student = hidden(torch.randn(1, 2, 32).tolist())
    student.logits.requires_grad_()
    value = loss(name)(student, student, masked([[NO_TARGET, NO_TARGET]]), learned(name, model, model))
    value.backward()
    assert value.item() == 0 and student.logits.grad is not None and student.logits.grad.abs().sum() == 0


def test_the_vocabulary_head_is_berts_own() -> None:
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    torch.manual_seed(0)
    model = BertForMaskedLM(config).eval()
    head, theirs = VocabularyHead(model), model.cls.predictions
    head.dense.load_state_dict(theirs.transform.dense.state_dict())
    head.norm.load_state_dict(theirs.transform.LayerNorm.state_dict())
    head.norm.eps = config.layer_norm_eps
    with torch.no_grad():
        head.bias.copy_(theirs.bias.normal_())
    states = torch.randn(3, 16)
    torch.testing.assert_close(head(states), theirs(states))


def test_vocabulary_head_has_the_width_of_factorised_embeddings() -> None:
    electra = tiny.classifier("electra")
    head = VocabularyHead(electra)
    assert head.dense.weight.shape == (16, 32)
    assert head(torch.randn(3, 32)).shape == (3, len(tiny.tokenizer()))
    assert set(head.state_dict()) == {"dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias"}


def test_what_vocabulary_kl_refuses() -> None:
    with pytest.raises(CompressError, match="the student has 50 pieces and the teacher "):
        learned("vocabulary-kl", bert(vocab_size=50), tiny.classifier())


ANY = Outputs(torch.zeros(1, 2))


@pytest.mark.parametrize("direction", ["down", "up"])
def test_shared_projection_by_hand(direction: str) -> None:
    student, teacher = bert(), tiny.classifier()
    part = learned("shared-projection", student, teacher, direction=direction)
    value = loss("shared-projection")(ANY, ANY, mask_of(1), part, direction=direction)
    source, target = (teacher, student) if direction == "down" else (student, teacher)
    distances = []
    for layer in (0, 1):
        for shape, matrices in weights(source, layer).items():
            for matrix, goal in zip(matrices, weights(target, layer)[shape], strict=True):
                moved = torch.einsum("pm,mn,nq->pq", part.left[shape], matrix, part.right[shape])
                distances.append(((moved - goal) ** 2).mean().item())
    assert len(distances) == 12
    assert value.item() == pytest.approx(sum(distances) / 12, rel=1e-4)


def test_shared_projection_has_one_pair_of_matrices_per_shape() -> None:
    part = learned("shared-projection", bert(), tiny.classifier())
    shapes = {name: tuple(parameter.shape) for name, parameter in part.named_parameters()}
    assert shapes == {
        "left.attention": (16, 32),
        "right.attention": (32, 16),
        "left.widened": (24, 64),
        "right.widened": (32, 16),
        "left.narrowed": (16, 32),
        "right.narrowed": (64, 24),
    }


def test_shared_projection_is_zero_for_equal_models() -> None:
    model = tiny.classifier()
    part = learned("shared-projection", model, model)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.eye(len(parameter)))
    assert loss("shared-projection")(ANY, ANY, mask_of(1), part).item() == 0


def test_shared_projection_reads_trained_layers_only() -> None:
    part = learned("shared-projection", bert(), tiny.classifier())

    def value(trained: tuple[int, ...] | None) -> float:
        return loss("shared-projection")(Outputs(ANY.logits, trained_layers=trained), ANY, mask_of(1), part).item()

    assert value(None) == pytest.approx((value((1,)) + value((2,))) / 2) and value((1,)) != value((2,))
    assert value(()) == 0


def test_what_shared_projection_refuses() -> None:
    with pytest.raises(CompressError, match="the student has 3 layers and the teacher 2: give the student depth = 2"):
        learned("shared-projection", bert(num_hidden_layers=3), tiny.classifier())
    with pytest.raises(CompressError, match="direction = 'sideways' is not allowed; use 'down' or 'up'"):
        learned("shared-projection", bert(), tiny.classifier(), direction="sideways")


def mixed(ids: list[list[int]]) -> Batch:
    tensor = torch.tensor(ids)
    return Batch(tensor, torch.ones_like(tensor), mixed_ids=tensor, mixed_mask=torch.ones_like(tensor))


def test_mixed_text_in_the_teachers_pieces_alone_is_whole_text() -> None:
    student, teacher = bert(), tiny.classifier()
    batch = mixed([[2, 7, 8, 3]])
    with torch.no_grad():
        said = Outputs(teacher(**batch.inputs()).logits)
    value = loss("mixed-vocabulary")(ANY, said, batch, learned("mixed-vocabulary", student, teacher))
    assert value.item() == pytest.approx(0, abs=1e-6)


def test_mixed_vocabulary_by_hand() -> None:
    # Every piece is the student's: the teacher reads the projected embeddings.
    student, teacher = bert(), tiny.classifier()
    part, offset = learned("mixed-vocabulary", student, teacher), teacher.config.vocab_size
    pieces = torch.tensor([[2, 7, 8, 3], [2, 9, 9, 3]])
    embedded = student.get_input_embeddings()(pieces) @ part.projection.weight.T + part.projection.bias
    read = teacher(inputs_embeds=embedded, attention_mask=torch.ones_like(pieces)).logits
    said = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    p, q = (said / 3).softmax(-1), (read / 3).softmax(-1)
    value = loss("mixed-vocabulary")(ANY, Outputs(said), mixed((pieces + offset).tolist()), part, temperature=3.0)
    assert value.item() == pytest.approx((9 * p * (p / q).log()).sum().item() / 2, rel=1e-4)


def test_mixed_vocabulary_trains_the_embeddings_it_read() -> None:
    student, teacher = bert(), tiny.classifier()
    part, offset = learned("mixed-vocabulary", student, teacher), teacher.config.vocab_size
    loss("mixed-vocabulary")(ANY, ANY, mixed([[2, 7, offset + 11, 3]]), part).backward()
    gradient = student.get_input_embeddings().weight.grad
    assert gradient.abs().sum(dim=1).nonzero().flatten().tolist() == [11]
    assert set(part.state_dict()) == {"projection.weight", "projection.bias"}


def test_the_module_of_a_loss_gets_the_options_that_it_names() -> None:
    student, teacher = (tiny.classifier("bert") for _ in range(2))
    options = {"layers": "final", "normalised": True}  # of the loss alone
    for projected, kind in ((True, nn.Linear), (False, nn.Identity)):
        choice = Choice("hidden-mse", options=options | {"projected": projected})
        (made,) = attach_losses([choice], teacher, student)
        assert isinstance(made.trained[0], kind) and made.function.keywords == choice.options
        detach_loss_modules(student)


def test_contrastive_by_hand() -> None:
    """Cosines of 1 within the pair and of 0 to a third text; that has no other of its class, and a fourth no label."""
    ids = torch.ones(4, 1, dtype=torch.long)
    states = hidden([[[0.0, 0.0]]] * 4, [[[2.0, 0.0]], [[1.0, 0.0]], [[0.0, 3.0]], [[1.0, 0.0]]])
    batch = Batch(ids, ids, labels=torch.tensor([0, 0, 1, NO_TARGET]))
    assert loss("contrastive")(states, states, batch, temperature=0.5).item() == pytest.approx(
        math.log(1 + math.exp(-2)), rel=1e-5
    )
    alone = Batch(ids, ids, labels=torch.tensor([0, 1, 2, 3]))
    assert loss("contrastive")(states, states, alone).item() == 0.0


@pytest.mark.parametrize("labels", [torch.zeros(2, 3), torch.tensor([0, 1, 1])])
def test_contrastive_compares_texts_of_one_class_each(labels: Tensor) -> None:
    ids = torch.ones(2, 2, dtype=torch.long)
    words = ids.bool() if labels.dim() == 1 else None
    states = hidden([[[1.0, 0.0]] * 2] * 2)
    with pytest.raises(CompressError, match="the loss contrastive compares texts of one class each; use hard-label"):
        loss("contrastive")(states, states, Batch(ids, ids, labels=labels, words=words))
