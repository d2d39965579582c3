"""Whole layers: what a model computes without them, which go, and how what is left is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from compress.errors import CompressError
from compress.exporting.export import padded_example
from compress.models.batch import Batch
from compress.models.components import ffn_widths, heads_per_layer, kept_layers
from compress.models.modeling.families import PRUNABLE as FAMILY
from compress.models.modeling.families import layers_of
from compress.models.modeling.pruned import MODEL_CLASSES, kept_heads, to_pruned
from compress.models.saving import describe_architecture
from compress.pruning.scoring import choose_removed_layers, value_of
from compress.surgery.remove import removable_layers, remove_heads, remove_layers, remove_neurons, skipped
from compress.surgery.unit_masks import mask_hooks
from tests.support.tiny import PRUNABLE, bilstm, classifier, examples, load, tokenizer, write

FAMILIES = [family for family in PRUNABLE if family != "albert"]
DEPTH = 4
GONE = [1, 2]


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(**padded_example(model, 3, 11)).logits


def test_what_quantization_knew_of_layers_goes_with_their_numbers() -> None:
    model = classifier("bert")
    model.config.activation_ranges = {"bert.encoder.layer.1.output.dense": 3.0}
    remove_layers(model, [0])
    assert not hasattr(model.config, "activation_ranges")


def built_without(model: PreTrainedModel, family: str, gone: list[int]) -> PreTrainedModel:
    """Return a stock model of fewer layers that was given the weights of those that stay, by name."""
    settings = model.config.to_dict()
    depth = "n_layers" if family == "distilbert" else "num_hidden_layers"
    stay = [layer for layer in range(settings[depth]) if layer not in gone]
    settings[depth] = len(stay)
    if family == "modernbert":
        settings["layer_types"] = [settings["layer_types"][layer] for layer in stay]
    shallow = AutoModelForSequenceClassification.from_config(type(model.config)(**settings)).eval()
    weights = {}
    for name, weight in model.state_dict().items():
        before, found, after = name.partition(f"{FAMILY[family].layers}.")
        number, _, rest = after.partition(".")
        if not found:
            weights[name] = weight
        elif int(number) in stay:
            weights[f"{before}{found}{stay.index(int(number))}.{rest}"] = weight
    shallow.load_state_dict(weights)
    return shallow


@pytest.mark.parametrize("family", FAMILIES)
def test_a_removed_layer_equals_a_skipped_one(family: str) -> None:
    model = classifier(family, layers=DEPTH)
    whole, shallow = logits(model), logits(built_without(model, family, GONE))
    with skipped(model, GONE):
        assert len(layers_of(model)) == 2
        assert torch.equal(logits(model), shallow)
    assert torch.equal(logits(model), whole) and not torch.equal(whole, shallow)
    deeper = logits(built_without(model, family, [1, 2, 3]))
    model.train()
    remove_layers(model, GONE)
    assert all(module.training for module in model.modules())
    assert kept_layers(model) == model.config.kept_layers == [0, 3]
    assert model.config.num_hidden_layers == len(layers_of(model)) == 2
    assert torch.equal(logits(model.eval()), shallow)
    remove_layers(model, [1])  # a position among the layers that are left
    assert kept_layers(model) == [0] and torch.equal(logits(model), deeper)
    architecture = describe_architecture(model)
    assert architecture["layers"] == 1 and architecture["kept_layers"] == [0]
    assert "kept_layers" not in describe_architecture(classifier(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_fewer_layers_stays_of_its_stock_class(family: str, tmp_path: Path) -> None:
    model = classifier(family, layers=DEPTH)
    stock = type(model)
    remove_layers(model, [3, 1])
    expected = logits(model)
    written = write(tmp_path / "model", to_pruned(model), family)
    assert not list(written.glob("*.py"))
    opened = AutoModelForSequenceClassification.from_pretrained(written).eval()
    assert type(opened) is stock and torch.equal(logits(opened), expected)
    assert kept_layers(opened) == [0, 2] and not hasattr(opened.config, "kept_heads")
    remove_layers(opened, [1])
    again, _ = load(write(tmp_path / "again", to_pruned(opened), family))
    assert kept_layers(again) == [0] and torch.equal(logits(again), logits(opened))


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_heads_and_neurons_go_together(family: str, tmp_path: Path) -> None:
    model = classifier(family, layers=DEPTH)
    remove_heads(model, {0: [1], 2: [0, 3], 3: [2]})
    if family != "mobilebert":
        remove_neurons(model, {2: [7, 8], 3: [0]})
    remove_layers(model, GONE)
    widths = [64, 64] if family == "mobilebert" else [64, 63]
    assert kept_heads(model) == [[0, 2, 3], [0, 1, 3]] and ffn_widths(model) == widths
    expected = logits(model)
    pruned, _ = load(write(tmp_path / "model", to_pruned(model), family))
    assert type(pruned) is MODEL_CLASSES[family] and torch.equal(logits(pruned), expected)
    assert (kept_layers(pruned), heads_per_layer(pruned), ffn_widths(pruned)) == ([0, 3], [3, 3], widths)
    with mask_hooks(pruned) as hooks:
        hooks.mask([[1, 1, 1], [0, 1, 1]])
        masked = logits(pruned)
    remove_heads(pruned, {1: [0]})
    assert kept_heads(pruned) == [[0, 2, 3], [1, 3]]
    torch.testing.assert_close(logits(pruned), masked, atol=1e-5, rtol=0)
    remove_layers(pruned, [1])
    again, _ = load(write(tmp_path / "again", to_pruned(pruned), family))
    assert kept_layers(again) == [0] and kept_heads(again) == [[0, 2, 3]]
    assert torch.equal(logits(again), logits(pruned))


@pytest.mark.parametrize("family", [family for family in PRUNABLE if family != "mobilebert"])
def test_as_many_neurons_less_in_all_layers_make_a_stock_model(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    layers = len(layers_of(model))
    remove_neurons(model, {layer: [layer, 9, 20] for layer in range(layers)})
    opened, _ = load(write(tmp_path / "model", to_pruned(model), family))
    assert type(opened) is type(model) and torch.equal(logits(opened), logits(model))
    assert ffn_widths(opened) == [61] * layers and not hasattr(opened.config, "ffn_per_layer")
    if layers > 1:  # what is uneven again becomes one of our own classes again
        remove_neurons(opened, {0: [3]})
        assert type(to_pruned(opened)) is MODEL_CLASSES[family] and ffn_widths(to_pruned(opened)) == [60, 61]


def test_a_pruned_model_that_becomes_even_becomes_a_stock_model() -> None:
    model = classifier("bert", layers=3)
    remove_heads(model, {1: [0]})
    model = to_pruned(model)
    assert type(model) is MODEL_CLASSES["bert"]
    remove_layers(model, [1])
    assert type(to_pruned(model)) is type(classifier("bert")) and torch.equal(logits(to_pruned(model)), logits(model))


def batches() -> list[Batch]:
    rows, made = examples(24), []
    for start in range(0, 24, 8):
        texts = tokenizer("bert")([row.text for row in rows[start : start + 8]], padding=True, return_tensors="pt")
        labels = torch.tensor([int(row.label == "positive") for row in rows[start : start + 8]])
        made.append(Batch(texts["input_ids"], texts["attention_mask"], labels=labels))
    return made


def test_layers_are_removed_greedily_by_loss() -> None:
    model, rows = classifier("bert", layers=DEPTH).train(), batches()
    steps = choose_removed_layers(model, iter(rows), 2)
    assert model.training and len(layers_of(model)) == DEPTH
    model.eval()

    def loss_without(gone: list[int]) -> float:
        return -value_of(built_without(model, "bert", gone), rows, "loss")

    first, second = steps
    alone = [loss_without([layer]) for layer in range(DEPTH)]
    assert first["layer"] == alone.index(min(alone)) and first["loss"] == pytest.approx(min(alone))
    others = {layer: loss_without([first["layer"], layer]) for layer in range(DEPTH) if layer != first["layer"]}
    assert second["layer"] == min(others, key=lambda layer: others[layer])
    assert second["loss"] == pytest.approx(min(others.values()))
    remove_layers(model, [step["layer"] for step in steps])
    assert -value_of(model, rows, "loss") == pytest.approx(second["loss"])
    (third,) = choose_removed_layers(model, rows, 1)
    assert third["layer"] in {0, 1} and third["number"] == model.config.kept_layers[third["layer"]]


@pytest.mark.parametrize("count", [0, 4, 9])
def test_more_layers_than_can_go_are_refused(count: int) -> None:
    with pytest.raises(CompressError, match=f"{count} of 4 layers cannot be removed; give a number from 1 to 3"):
        choose_removed_layers(classifier("bert", layers=DEPTH), batches(), count)


def test_the_first_layer_of_a_modernbert_is_never_chosen() -> None:
    assert removable_layers(classifier("modernbert", layers=3)) == [1, 2]
    assert {step["layer"] for step in choose_removed_layers(classifier("modernbert", layers=3), batches(), 2)} == {1, 2}


def test_layers_of_a_model_that_has_none_are_refused() -> None:
    with pytest.raises(CompressError, match="'compress-bilstm' model are not known to compress; .* from bert, deb"):
        removable_layers(bilstm())
    with pytest.raises(CompressError, match="an ALBERT has one layer, used 2 times, so that none can go"):
        removable_layers(classifier("albert"))


def test_the_convolution_of_a_deberta_follows_its_first_layer() -> None:
    config = classifier("deberta-v2", layers=3).config
    config.conv_kernel_size, config.conv_act = 3, "gelu"
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    expected = logits(built_without(model, "deberta-v2", [0]))
    with skipped(model, [0]):
        assert torch.equal(logits(model), expected)
    remove_layers(model, [0])
    assert torch.equal(logits(to_pruned(model)), expected)


def test_removing_no_layer_changes_nothing() -> None:
    model = classifier("bert")
    remove_layers(model, [])
    assert kept_layers(model) == [0, 1] and not hasattr(model.config, "kept_layers")
