"""Quantization-aware training: what is rounded, what is remembered, and what is left when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from compress.errors import CompressError
from compress.models.components import example_inputs
from compress.models.integer_rounding import fake_symmetric, grid_of
from compress.models.model_dir import Model
from compress.models.modeling.families import layers_of
from compress.quantization.hessian_sensitivity import PARTS
from compress.recipes import Choice, Phase, StudentRecipe, load_recipe
from compress.training.modifiers import fake_quantization, groupwise_quantization
from tests.support.tiny import bilstm, classifier, tokenizer, write
from tests.support.training_data import TRAINING, TRANSFORMER, distilled, stop_at, train_rows, validation_rows

GOLD = (Choice("hard-label"),)


def linears(model: PreTrainedModel) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def batches(model: PreTrainedModel, count: int = 4) -> list[dict[str, torch.Tensor]]:
    return [example_inputs(model, batch_size=4, seed=seed) for seed in range(count)]


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


# Q8BERT


def test_ranges_are_moving_averages_from_the_first_batch_on() -> None:
    student = without_dropout(classifier("bert"))
    seen: list[float] = []
    name = "bert.encoder.layer.0.attention.self.query"
    student.get_submodule(name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].abs().max().item()))
    attached = fake_quantization.attach(student, classifier("bert"), decay=0.75, start=0.5)
    student.train()
    for batch in batches(student, 3):
        student(**batch)
    student.eval()
    student(**batches(student, 1)[0])  # evaluation moves no range
    attached.detach()
    expected = 0.75 * (0.75 * seen[0] + 0.25 * seen[1]) + 0.25 * seen[2]
    assert student.config.activation_ranges[name] == pytest.approx(expected, rel=1e-6)
    assert set(student.config.activation_ranges) == set(linears(student))


def test_linear_layers_and_embeddings_use_rounded_values() -> None:
    student = without_dropout(classifier("bert"))
    attached = fake_quantization.attach(student, classifier("bert"))
    linear, table = student.bert.encoder.layer[0].intermediate.dense, student.bert.embeddings.word_embeddings
    inputs = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    found = linear.train()(inputs)
    rounded = [fake_symmetric(t, t.abs().max(), 8) for t in (inputs, linear.weight)]
    assert torch.equal(found, nn.functional.linear(*rounded, linear.bias))
    ids = torch.tensor([[7, 8], [9, 7]])
    assert torch.equal(table(ids), fake_symmetric(table.weight, table.weight.abs().max(), 8)[ids])
    # Gradients reach the weights that are kept as if nothing were rounded.
    found.sum().backward()
    expected = rounded[0].sum((0, 1)).expand(64, 32)
    assert linear.weight.grad is not None and torch.allclose(linear.weight.grad, expected)
    attached.detach()


def test_nothing_is_left_when_it_ends() -> None:
    student = classifier("bert")
    before, keys = {k: v.clone() for k, v in student.state_dict().items()}, set(student.__dict__)
    inputs = batches(student, 1)[0]
    with torch.no_grad():
        expected = student(**inputs).logits
        attached = fake_quantization.attach(student, classifier("bert"))
        student.train()
        student(**inputs)
        student.eval()
        assert not torch.equal(student(**inputs).logits, expected)
        attached.detach()
        assert torch.equal(student(**inputs).logits, expected)
    after = student.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[key], before[key]) for key in before)
    assert set(student.__dict__) == keys
    assert all("forward" not in module.__dict__ and not module._forward_hooks for module in student.modules())


def test_rounding_starts_at_its_share_and_always_in_evaluation() -> None:
    student = without_dropout(classifier("bert"))
    inputs = batches(student, 1)[0]
    with torch.no_grad():
        expected = student(**inputs).logits
        attached = fake_quantization.attach(student, classifier("bert"), start=0.5)
        student.train()
        attached.step(0.49)
        assert torch.equal(student(**inputs).logits, expected)
        attached.step(0.5)
        rounded = student(**inputs).logits
        assert not torch.equal(rounded, expected)
        attached.step(0.49)
        assert torch.equal(student.eval()(**inputs).logits, rounded)  # what is selected is what is used
        attached.detach()
        assert torch.equal(student(**inputs).logits, expected)


@pytest.mark.parametrize(
    ("attach", "options", "message"),
    [
        (fake_quantization.attach, {"decay": 1.0}, "decay = 1.0 must be at least 0 and below 1"),
        (fake_quantization.attach, {"start": -0.1}, "start = -0.1 must be"),
        (groupwise_quantization.attach, {"bits": [2, 9]}, r"bits\[1\] = 9 is not possible"),
        (groupwise_quantization.attach, {"bits": []}, "bits = \\[\\] needs a number"),
        (groupwise_quantization.attach, {"bits": [2], "groups": 0}, "groups = 0 must be at least 1"),
        (groupwise_quantization.attach, {"bits": [2], "embedding_bits": 16}, "embedding_bits = 16 is not possible"),
    ],
)
def test_options_out_of_range(attach: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    student = classifier("bert")
    with pytest.raises(CompressError, match=message):
        attach(student, classifier("bert"), **options)
    assert "forward" not in linears(student)["classifier"].__dict__


@pytest.mark.parametrize("attach", [fake_quantization.attach, groupwise_quantization.attach])
def test_a_bilstm_is_refused(attach: Callable[..., Any]) -> None:
    with pytest.raises(CompressError, match="is for transformers, and the student is a 'compress-bilstm'"):
        attach(bilstm(), classifier("bert"), **({"bits": [2]} if attach is groupwise_quantization.attach else {}))


# Q-BERT


def test_a_teacher_with_other_tokens_does_not_choose_the_bits() -> None:
    student, teacher = classifier("bert"), classifier("bert")
    student.resize_token_embeddings(50)
    with pytest.raises(CompressError, match="the teacher reads other tokens; give one number of bits"):
        groupwise_quantization.attach(student, teacher, bits=[2, 3])
    groupwise_quantization.attach(student, teacher, bits=[3]).detach()


def test_layers_get_their_bits_after_the_first_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = without_dropout(classifier("bert")), classifier("bert", seed=1)
    asked: list[Any] = []
    measure = groupwise_quantization.layer_sensitivities

    def spy(model: PreTrainedModel, parts: Any) -> Any:
        asked.append(list(parts))
        return measure(model, parts)

    monkeypatch.setattr(groupwise_quantization, "layer_sensitivities", spy)
    attached = groupwise_quantization.attach(student, teacher, bits=[2, 4], groups=8, activation_bits=0)
    student.train()
    inputs = batches(student, PARTS)
    for done, batch in enumerate(inputs):
        attached.step(done / 10)
        assert attached.layer_bits == [0, 0]
        student(**batch)
    attached.step(0.5)
    assert sorted(attached.layer_bits) == [2, 4]
    # The teacher's answers were measured with.
    assert [answers.tolist() for _, answers in asked[0]] == [teacher(**b).logits.argmax(1).tolist() for b in inputs]
    with torch.no_grad():
        logits = student.eval()(**inputs[0]).logits
    bits = attached.layer_bits
    attached.detach()
    assert set(student.state_dict()) == set(teacher.state_dict())  # no buffer is left, nor saved
    decided = student.config.weight_bits
    assert [decided[f"bert.encoder.layer.{layer}.output.dense"] for layer in (0, 1)] == bits
    assert decided["bert.embeddings.word_embeddings"] == decided["bert.pooler.dense"] == 8
    assert "classifier" not in decided
    assert student.config.weight_groups == 8 and not hasattr(student.config, "activation_ranges")
    # The same model with its weights rounded for good gives the same logits.
    with torch.no_grad():
        for name, width in decided.items():
            weight = student.get_submodule(name).weight
            weight.copy_(grid_of(weight, width, 8).fake(weight))
        assert torch.equal(student(**inputs[0]).logits, logits)


def test_what_is_evaluated_is_rounded_however_early() -> None:
    """The best weights may be those of an evaluation before enough batches were seen."""
    student = without_dropout(classifier("bert"))
    attached = groupwise_quantization.attach(student, classifier("bert", seed=1), bits=[2, 4], groups=8)
    inputs = batches(student, 1)[0]
    student.train()
    student(**inputs)
    with torch.no_grad():
        before = student(**inputs).logits
        rounded = student.eval()(**inputs).logits
    assert sorted(attached.layer_bits) == [2, 4] and not torch.allclose(before, rounded, atol=1e-3)
    attached.detach()
    assert set(student.config.weight_bits.values()) == {2, 4, 8}


def test_one_number_of_bits_needs_no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupwise_quantization, "layer_sensitivities", None)
    student = classifier("bert")
    attached = groupwise_quantization.attach(student, classifier("bert"), bits=[3])
    student.train()(**batches(student, 1)[0])
    attached.detach()
    assert student.config.weight_bits["bert.encoder.layer.1.attention.self.key"] == 3
    assert len(student.config.activation_ranges) == len(linears(student)) - 1


def test_a_restart_keeps_bits_and_ranges() -> None:
    student = without_dropout(classifier("bert"))
    attached = groupwise_quantization.attach(student, classifier("bert"), bits=[2, 3])
    student.train()
    for batch in batches(student, PARTS):
        student(**batch)
    attached.step(0.1)
    saved, bits = {k: v.clone() for k, v in student.state_dict().items()}, attached.layer_bits
    again = classifier("bert", seed=3)
    resumed = groupwise_quantization.attach(again, classifier("bert"), bits=[2, 3])
    again.load_state_dict(saved)
    assert resumed.layer_bits == bits != [0, 0]
    inputs = batches(student, 1)[0]
    with torch.no_grad():
        assert torch.equal(again.eval()(**inputs).logits, student.eval()(**inputs).logits)
    attached.detach()
    resumed.detach()
    assert again.config.weight_bits == student.config.weight_bits
    assert again.config.activation_ranges == student.config.activation_ranges


def test_without_any_batch_nothing_is_claimed() -> None:
    student = classifier("bert")
    student.config.activation_ranges = {"classifier": 1.0}  # of an earlier training
    groupwise_quantization.attach(student, classifier("bert"), bits=[2, 3]).detach()
    assert not hasattr(student.config, "weight_bits") and not hasattr(student.config, "activation_ranges")


# In a recipe


def recipe(modifier: Choice, **training: Any) -> StudentRecipe:
    phase = Phase(GOLD, text="gold", modifier=modifier)
    architecture = Choice("transformer", options={"depth": 1.0})
    return replace(TRANSFORMER, architecture=architecture, phases=(phase,), training=replace(TRAINING, **training))


@pytest.mark.parametrize("name", ["q8bert", "q-bert"])
def test_the_recipes_start_from_the_teacher_itself(name: str) -> None:
    from compress.training.architectures.transformer import build

    student = load_recipe("students", name)
    assert [row.family for row in student.survey] == ["quantization"]
    teacher = classifier("bert")
    built = build(teacher, tokenizer(), [], **student.architecture.options)
    assert all(torch.equal(weight, teacher.state_dict()[key]) for key, weight in built.state_dict().items())
    assert len(layers_of(built)) == len(layers_of(teacher))


def test_ranges_survive_a_stopped_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = write(tmp_path / "teacher", classifier("bert"))
    asked = recipe(Choice("fake-quantization", options={"decay": 0.9}), epochs=4.0, evaluations=4)
    rows: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), "threads": 1, "device": "cpu"}
    whole = distilled(teacher, asked, tmp_path / "whole", **rows)
    with monkeypatch.context() as patched:
        stop_at(5, patched, fake_quantization.FakeQuantization, "step")
        with pytest.raises(KeyboardInterrupt):
            distilled(teacher, asked, tmp_path / "stopped", **rows)
    resumed = distilled(teacher, asked, tmp_path / "stopped", **rows)
    ranges = whole.config["activation_ranges"]
    assert ranges and resumed.config["activation_ranges"] == pytest.approx(ranges, rel=1e-4)
    assert AutoConfig.from_pretrained(whole.path).activation_ranges == ranges


def test_a_control_and_a_later_student_claim_no_ranges(tmp_path: Path) -> None:
    model = classifier("bert")
    model.config.activation_ranges = dict.fromkeys(linears(model), 3.0)
    teacher = write(tmp_path / "teacher", model)
    assert Model.open(teacher).config["activation_ranges"]
    rows: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), "threads": 1, "device": "cpu"}
    made = distilled(teacher, recipe(Choice("fake-quantization")), tmp_path / "c", control=True, **rows)
    assert "activation_ranges" not in made.config
