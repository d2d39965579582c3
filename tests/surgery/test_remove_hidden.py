"""Hidden width: what goes with a position, compared with weights selected by name; all kinds of pruning together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from compress.errors import CompressError
from compress.exporting.export import padded_example
from compress.models.batch import Batch
from compress.models.components import heads_per_layer
from compress.models.model_dir import Model
from compress.models.modeling.families import PRUNED_FIELDS, head_size_of
from compress.models.modeling.pruned import MODEL_CLASSES, kept_heads, to_pruned
from compress.models.saving import describe_architecture
from compress.pruning.scoring import hidden_importance
from compress.requests.compression import export
from compress.surgery.remove import Member, remove_heads, remove_hidden, remove_layers, remove_neurons
from tests.models.modeling.test_pruned import logits_without_compress
from tests.support.tiny import (
    FAMILIES,
    HEADS,
    PRUNABLE,
    bilstm,
    classifier,
    examples,
    load,
    physical_layers,
    tokenizer,
    write,
)

NARROWABLE = [family for family in PRUNABLE if family != "mobilebert"]
WIDTH, HEAD = 32, 8
GONE = [0, 3, 4, 9, 17, 18, 22, 31]
STAY = [position for position in range(WIDTH) if position not in GONE]
HEADS_STAY = [0, 2, 3]
OWN_EMBEDDINGS = {"albert", "electra"}  # whose embeddings are narrower than what they are projected to

READERS = re.compile(
    r"\.(query|key|value|q|k|v|q_lin|k_lin|v_lin|Wqkv|query_proj|key_proj|value_proj|lin1|Wi|ffn|intermediate\.dense)"
    r"\.weight$"
)
WRITERS = re.compile(
    r"(attention\.output\.dense|attention\.dense|\.output\.dense|attn\.o|out_lin|lin2|Wo|ffn_output|embeddings_project"
    r"|embedding_hidden_mapping_in|embed_proj)\.(weight|bias)$"
)
NORMS = re.compile(r"(LayerNorm|norm|layer_norm)\.(weight|bias)$")
TABLES = re.compile(r"(word|position|token_type|tok|rel)_embeddings\.weight$")
POOLED = re.compile(r"^(\w+\.)?(pooler(\.dense)?|pre_classifier|classifier\.dense|head\.dense)\.(weight|bias)$")
ANSWERS = re.compile(r"^classifier(\.out_proj)?\.weight$")
CONVOLUTION = re.compile(r"conv\.conv\.(weight|bias)$")


def hidden_dimensions(name: str, family: str) -> list[int]:
    """Return along which dimensions of a weight the hidden positions lie, from its name alone."""
    if family in OWN_EMBEDDINGS and ".embeddings." in name:
        return []
    if POOLED.search(name) or CONVOLUTION.search(name):
        return [0, 1] if name.endswith("weight") else [0]
    if READERS.search(name) or TABLES.search(name) or ANSWERS.search(name):
        return [1]
    return [0] if WRITERS.search(name) or NORMS.search(name) else []


def selected(weights: dict[str, Tensor], family: str, *, heads: bool) -> dict[str, Tensor]:
    """Return the weights that stay without ``GONE`` and, with ``heads``, without head 1 of every layer."""
    made = {}
    rows = torch.tensor([head * HEAD + offset for head in HEADS_STAY for offset in range(HEAD)])
    for name, weight in weights.items():
        for dimension in hidden_dimensions(name, family):
            weight = weight.index_select(dimension, torch.tensor(STAY))
        if heads:
            if re.search(r"\.(query|key|value|q|k|v|[qkv]_lin|(query|key|value)_proj)\.(weight|bias)$", name):
                weight = weight.index_select(0, rows)
            elif name.endswith("Wqkv.weight"):
                weight = weight.index_select(0, torch.cat((rows, WIDTH + rows, 2 * WIDTH + rows)))
            elif re.search(r"(attention\.output\.dense|attention\.dense|attn\.o|out_lin|attn\.Wo)\.weight$", name):
                weight = weight.index_select(1, rows)
            elif name.endswith("relative_attention_bias.weight"):
                weight = weight.index_select(1, torch.tensor(HEADS_STAY))
        made[name] = weight
    return made


def by_hand(model: PreTrainedModel, family: str) -> PreTrainedModel:
    """Return the stock model of hidden width 24 and 3 heads a layer that a whole model becomes."""
    settings = model.config.to_dict()
    names = ("dim", "n_heads") if family == "distilbert" else ("hidden_size", "num_attention_heads")
    settings |= dict(zip(names, (len(STAY), len(HEADS_STAY)), strict=True))
    if "pooler_hidden_size" in settings:
        settings["pooler_hidden_size"] = len(STAY)
    made = AutoModelForSequenceClassification.from_config(type(model.config)(**settings)).eval()
    made.load_state_dict(selected(model.state_dict(), family, heads=True))
    return made


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(**padded_example(model, 3, 11)).logits


def without_a_head(model: PreTrainedModel) -> None:
    remove_heads(model, {layer: [1] for layer in range(len(heads_per_layer(model)))})


@pytest.mark.parametrize("family", NARROWABLE)
def test_a_narrower_model_is_the_one_made_by_hand(family: str, tmp_path: Path) -> None:
    model, other = classifier(family).train(), classifier(family)
    expected = logits(by_hand(model, family))
    assert (expected - logits(other)).abs().max() > 1e-3
    remove_hidden(model, GONE)
    assert all(module.training for module in model.modules()) and all(p.requires_grad for p in model.parameters())
    whole_heads = to_pruned(model).eval()
    assert (model.config.hidden_size, model.config.num_attention_heads) == (24, 3)
    assert head_size_of(model.config) == HEAD and heads_per_layer(model) == [HEADS] * physical_layers(family)
    for name, weight in selected(other.state_dict(), family, heads=False).items():
        assert torch.equal(model.state_dict()[name], weight), name
    reloaded, _ = load(write(tmp_path / "model", whole_heads, family))
    assert type(reloaded) is MODEL_CLASSES[family]
    assert torch.equal(logits(reloaded), logits(model.eval())) and torch.equal(logits(whole_heads), logits(reloaded))
    without_a_head(reloaded)
    torch.testing.assert_close(logits(reloaded), expected, atol=1e-5, rtol=0)
    without_a_head(other)
    remove_hidden(other, GONE)
    torch.testing.assert_close(logits(other), expected, atol=1e-5, rtol=0)
    assert describe_architecture(other)["hidden_size"] == 24


@pytest.mark.parametrize("family", NARROWABLE)
def test_as_many_heads_as_the_width_makes_are_a_stock_model(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    remove_hidden(model, GONE)
    without_a_head(model)
    made, _ = load(write(tmp_path / "model", to_pruned(model), family))
    assert torch.equal(logits(made), logits(model))
    assert kept_heads(made) == [HEADS_STAY] * physical_layers(family) and made.config.original_heads == HEADS
    if family == "mpnet":  # has a row of position biases for each of the four
        assert type(made) is MODEL_CLASSES[family]
    else:
        assert type(made) is type(model) and type(made).__module__.startswith("transformers.")
    # Once more, by position among what is left.
    remove_hidden(made, range(16))
    remove_heads(made, {0: [0]})
    again, _ = load(write(tmp_path / "again", to_pruned(made), family))
    assert torch.equal(logits(again), logits(made)) and kept_heads(again)[0] == [2, 3]
    assert again.config.hidden_size == 8 and again.config.original_heads == HEADS


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "electra", "modernbert"])
def test_a_tagger_becomes_narrower_too(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_config(classifier(family).config).eval()
    whole = model.state_dict()
    remove_hidden(model, GONE)
    for name, weight in selected(whole, family, heads=False).items():
        assert torch.equal(model.state_dict()[name], weight), name
    opened, _ = load(write(tmp_path / "model", to_pruned(model), family))
    assert torch.equal(logits(opened), logits(model)) and logits(opened).shape == (3, 11, 2)


VARIANTS = {
    "a convolution": ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "positions without a norm": ("deberta-v2", {"norm_rel_ebd": "none"}),
    "projections of positions": ("deberta-v2", {"share_att_key": False}),
    "positions and segments in the input": ("deberta-v2", {"position_biased_input": True, "type_vocab_size": 2}),
    "embeddings as wide as the layers": ("electra", {"embedding_size": WIDTH}),
    "embeddings of their own": ("albert", {"embedding_size": WIDTH}),
    "biases everywhere": ("modernbert", {"attention_bias": True, "mlp_bias": True, "norm_bias": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_family_become_narrower_too(variant: str) -> None:
    family, settings = VARIANTS[variant]
    config = classifier(family).config
    for name, value in settings.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    if variant == "embeddings as wide as the layers":
        assert not hasattr(model.electra, "embeddings_project")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    remove_hidden(model, GONE)
    assert torch.equal(logits(to_pruned(model)), logits(model))
    own = family in OWN_EMBEDDINGS and variant != "embeddings as wide as the layers"
    for name, weight in model.state_dict().items():
        if variant == "projections of positions":
            name = name.replace("pos_key_proj", "key_proj").replace("pos_query_proj", "query_proj")
        dimensions = [1] if ".embeddings." in name and weight.dim() == 2 else hidden_dimensions(name, family)
        dimensions = [0] if ".embeddings.LayerNorm" in name else dimensions
        if own and ".embeddings." in name:
            dimensions = []
        assert all(weight.shape[dimension] == 24 for dimension in dimensions), name
    assert before.keys() == model.state_dict().keys()


def test_a_norm_keeps_its_order_when_most_of_it_goes() -> None:
    """Python's sets of integers are not in order once they lose many; torch-pruning's layer norms are neither."""
    norm = nn.LayerNorm(1024)
    with torch.no_grad():
        norm.weight.copy_(torch.arange(1024.0))
    stay = torch.randperm(1024, generator=torch.Generator().manual_seed(0))[:256].sort().values
    Member(norm, reads=False).keep(stay)
    assert torch.equal(norm.weight, stay.float()) and norm.normalized_shape == (256,)


def batch(family: str) -> Batch:
    rows = examples(8)
    texts = tokenizer(family)([row.text for row in rows], padding=True, return_tensors="pt")
    labels = torch.tensor([int(row.label == "positive") for row in rows])
    return Batch(texts["input_ids"], texts["attention_mask"], labels=labels)


@pytest.mark.parametrize("family", NARROWABLE)
def test_importance_is_the_slope_of_the_loss_as_a_position_fades(family: str) -> None:
    model = classifier(family).double().train()
    rows = batch(family)
    found = hidden_importance(model, [rows])
    assert found.shape == (WIDTH,) and found.dtype == torch.float32 and (found >= 0).all()
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    halves = [
        Batch(rows.input_ids[part], rows.attention_mask[part], labels=rows.labels[part])
        for part in (slice(0, 5), slice(5, 8))
    ]
    first, second = (hidden_importance(model, [half]) for half in halves)
    for given in (halves, reversed(halves)):
        torch.testing.assert_close(hidden_importance(model, given), (5 * first + 3 * second) / 8, atol=1e-6, rtol=1e-4)
    model.eval()
    whole = {name: weight.clone() for name, weight in model.state_dict().items()}
    step = 1e-3  # rotary positions are float32 even here
    for position in (0, 13, 31):
        slope = 0.0
        for sign in (1, -1):
            for name, weight in model.state_dict().items():
                faded = whole[name].clone()
                for dimension in hidden_dimensions(name, family):
                    faded.select(dimension, position).mul_(1 - sign * step)
                weight.copy_(faded)
            with torch.no_grad():  # in double: two nearly equal losses are subtracted
                answers = model(**rows.inputs()).logits
            slope += sign * nn.functional.cross_entropy(answers, rows.labels).item() / (2 * step)
        assert abs(slope) == pytest.approx(found[position].item(), rel=1e-2, abs=1e-4)
    model.load_state_dict(whole)


def test_a_width_at_which_a_family_has_no_projection_is_refused() -> None:
    model = classifier("electra")  # its embeddings are 16 wide
    with pytest.raises(CompressError, match="16 is the width of this model's embeddings.*remove 8 more or fewer"):
        remove_hidden(model, range(16))
    assert model.config.hidden_size == WIDTH
    model = classifier("albert")  # whose projection is always there
    remove_hidden(model, range(16))
    assert torch.equal(logits(to_pruned(model)), logits(model))


@pytest.mark.parametrize("model", [classifier("mobilebert"), bilstm()], ids=["mobilebert", "bilstm"])
def test_families_that_cannot_become_narrower_are_refused(model: PreTrainedModel) -> None:
    for attempt in (lambda: remove_hidden(model, range(8)), lambda: hidden_importance(model, [batch("bert")])):
        with pytest.raises(CompressError, match="albert, bert, deberta-v2, .* can be"):
            attempt()


def test_removing_no_position_changes_nothing() -> None:
    model = classifier("bert")
    remove_hidden(model, [])
    assert model.config.hidden_size == WIDTH and not hasattr(model.config, "kept_heads")


def composed(family: str) -> PreTrainedModel:
    """Return a model without a layer, some heads, some neurons and some of its width, as far as its family allows."""
    model = classifier(family, layers=3)
    last = physical_layers(family) - 1
    if family != "albert":
        remove_layers(model, [1])
    remove_heads(model, {0: [1, 2], last: [0]} if last else {0: [1]})
    if family != "mobilebert":
        remove_neurons(model, {0: [2, 40], last: [0]} if last else {0: [0]})
        remove_hidden(model, GONE)
    return to_pruned(model)


@pytest.mark.parametrize("family", PRUNABLE)
def test_all_kinds_of_pruning_together_reload_and_learn(family: str, tmp_path: Path) -> None:
    model = composed(family)
    reloaded, _ = load(write(tmp_path / "model", model, family))
    assert type(reloaded) is type(model) and torch.equal(logits(reloaded), logits(model))
    reloaded.train()
    rows = batch(family)
    optimizer = torch.optim.SGD(reloaded.parameters(), lr=1e-2)
    reloaded(**rows.inputs(), labels=rows.labels).loss.backward()
    without = [name for name, parameter in reloaded.named_parameters() if parameter.grad is None]
    assert without == []
    before = logits(reloaded.eval())
    optimizer.step()
    assert not torch.equal(logits(reloaded), before)


def test_compositions_open_without_compress(tmp_path: Path) -> None:
    expected = []
    for family in PRUNABLE:
        write(tmp_path / family, composed(family), family)
        with torch.no_grad():
            texts = tokenizer(family)(["the film is good", "dull"], padding=True, return_tensors="pt")
            expected.append(composed(family)(**texts).logits.tolist())
    found = logits_without_compress(tmp_path, PRUNABLE)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_compositions_become_onnx_with_a_stock_config(family: str, tmp_path: Path) -> None:
    source = Model.open(write(tmp_path / "model", composed(family), family))
    exported = export(source, tmp_path / "onnx")  # within 1e-4 of the model, or refused
    config = AutoConfig.from_pretrained(exported.path)
    assert config.model_type == family and not set(PRUNED_FIELDS) & set(config.to_dict())
    architecture = exported.manifest.architecture
    assert architecture["hidden_size"] == (WIDTH if family == "mobilebert" else 24) == config.hidden_size
    assert architecture.get("kept_layers") == (None if family == "albert" else [0, 2])
    assert ("Layers kept, counted from 1: [1, 3]" in (exported.path / "README.md").read_text()) == (family != "albert")
