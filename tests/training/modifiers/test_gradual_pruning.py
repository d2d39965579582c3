"""Gradual pruning: when units go, by what they are chosen, and that a stop in between changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.models.batch import Batch
from compress.models.components import Part, example_inputs, has_units, units_of
from compress.models.modeling.pruned import to_pruned
from compress.pruning.criteria.gradient import importance
from compress.recipes import Choice, Phase
from compress.surgery import unit_masks
from compress.surgery.remove import remove_heads, remove_neurons
from compress.surgery.unit_masks import masked_positions
from compress.tasks import default
from compress.training import phases
from compress.training.modifiers import gradual_pruning
from compress.training.modifiers.gradual_pruning import STATE, GradualPruning, attach, masked_share
from compress.training.phases import fit
from compress.training.trainer import Outcome, TrainingRun
from compress.training.training_data import Gold, Selection, TrainingData, TrainingRow
from tests.support.tiny import HEADS, LABELS, LAYERS, PRUNABLE, bilstm, classifier, physical_layers, pruned, tokenizer
from tests.support.training_data import TRAINING, stop_at, train_rows, validation_rows

NEURONS = 64
PARTS: tuple[Part, ...] = ("heads", "neurons")


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def batches(model: PreTrainedModel, sizes: Sequence[int] = (4, 3)) -> list[Batch]:
    """Batches of random tokens with labels."""
    made = []
    for seed, size in enumerate(sizes):
        inputs = example_inputs(model, batch_size=size, seed=seed)
        made.append(Batch(inputs["input_ids"], inputs["attention_mask"], labels=torch.arange(size) % 2))
    return made


def loss_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    assert batch.labels is not None
    return nn.functional.cross_entropy(model(**batch.inputs()).logits.float(), batch.labels)


def learn(model: PreTrainedModel, given: Sequence[Batch], attached: GradualPruning) -> None:
    """Run batches forwards and backwards as training does, but leave the weights alone."""
    model.train()
    for batch in given:
        loss_of(model, batch).backward()
        attached.gather()
    model.zero_grad()


def totals(model: PreTrainedModel, part: Part) -> Tensor:
    return model.get_buffer(f"{STATE}.{part}.totals")


def masked(attached: GradualPruning, part: Part) -> int:
    return sum(int((mask == 0).sum()) for mask in attached.masks[part])


# When


def test_the_schedule_is_equation_1() -> None:
    final, begin, end = 0.6, 0.0, 1.0
    for progress in (0.0, 0.1, 0.25, 0.5, 0.9, 1.0):  # s_t = s_f + (s_i - s_f) (1 - (t - t_0) / (n dt))^3
        assert final * masked_share(progress) == pytest.approx(final + (begin - final) * (1 - progress / end) ** 3)
    assert [masked_share(k / 2) for k in range(3)] == [0, 0.875, 1]


def test_units_are_masked_by_the_cubic_schedule() -> None:
    model = without_dropout(classifier("bert"))
    attached = attach(model, None, heads=6, neurons=64, until=0.6, updates=3, multiple=1)
    found = []
    for done in range(10):
        attached.step(done / 10)
        found.append((masked(attached, "heads"), masked(attached, "neurons")))
        learn(model, batches(model, (2,)), attached)
    # After a third, 1 - (2/3)^3 = 19/27; after two thirds, 26/27: of 6 heads 4.2 and 5.8, of 64 neurons 45.04 and 61.6.
    assert found == [(0, 0)] * 2 + [(4, 45)] * 2 + [(6, 62)] * 2 + [(6, 64)] * 4


def test_masked_units_stay_masked_and_layers_keep_their_share() -> None:
    model = without_dropout(classifier("bert"))
    attached = attach(model, None, heads=4, neurons=70, updates=5, keep_heads=2, multiple=16)
    before = attached.masks
    for done in range(10):
        attached.step(done / 10)
        learn(model, batches(model, (2,)), attached)
        now = attached.masks
        assert all((new <= old).all() for part in PARTS for new, old in zip(now[part], before[part], strict=True))
        assert all(int(mask.sum()) % 16 == 0 for mask in now["neurons"])
        before = now
    assert [int(mask.sum()) for mask in before["heads"]] == [2, 2]
    assert masked(attached, "neurons") == 64  # the nearest to 70 that widths of 16 allow


def test_a_short_phase_masks_the_rest_at_its_end() -> None:
    model = without_dropout(classifier("bert"))
    attached = attach(model, None, heads=5, until=1.0)
    attached.step(0.0)
    learn(model, batches(model), attached)
    assert masked(attached, "heads") == 0
    attached.detach()
    assert masked(attached, "heads") == 5


def test_without_any_batch_nothing_is_masked() -> None:
    attached = attach(classifier("bert"), None, heads=5)
    attached.detach()
    assert masked(attached, "heads") == 0


# By what


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", PRUNABLE)
def test_importance_is_that_of_the_gradient_criterion(family: str, part: Part) -> None:
    model = without_dropout(classifier(family))
    if not has_units(model, part):
        assert (family, part) == ("mobilebert", "neurons")
        with pytest.raises(CompressError, match="several feed-forward networks"):
            attach(model, None, neurons=32)
        return
    given = batches(model)
    rows = sum(len(batch.input_ids) for batch in given)
    attached = attach(model, None, **{part: 2 if part == "heads" else 24}, multiple=1, updates=2, until=1.0)
    for done in (0.0, 0.5):  # all kept, then with some masked
        attached.step(done)
        assert (masked(attached, part) > 0) == (done > 0)
        learn(model, given, attached)
        expected = importance(model.eval(), given, attached.masks[part], part=part)
        torch.testing.assert_close(totals(model, part) / rows, expected, atol=1e-6, rtol=1e-4)
        assert expected.shape == (physical_layers(family), HEADS if part == "heads" else NEURONS)


def test_the_lowest_units_are_removed_raw_or_normalised() -> None:
    from compress.surgery.unit_masks import mask_lowest, normalised

    for normalise in (True, False):
        model = without_dropout(classifier("bert", seed=1))
        attached = attach(model, None, heads=4, updates=1, until=1.0, normalise=normalise)
        learn(model, batches(model), attached)
        scores = totals(model, "heads").clone()
        attached.detach()
        expected = mask_lowest(normalised(scores) if normalise else scores, [torch.ones(HEADS)] * LAYERS, 4)
        assert [mask.tolist() for mask in attached.masks["heads"]] == [mask.tolist() for mask in expected]


def test_a_batch_that_is_read_in_parts_counts_each_example_alike() -> None:
    """A model that reads padding takes rows of one length at a time, and the loss is the mean over all of them."""
    model = without_dropout(classifier("bert"))
    (batch,) = batches(model, (4,))
    attached = attach(model, None, heads=2, updates=1, until=1.0)
    model.train()
    inputs = batch.inputs()
    parts = [{name: values[part] for name, values in inputs.items()} for part in (slice(0, 3), slice(3, 4))]
    logits = torch.cat([model(**part).logits for part in parts])
    assert batch.labels is not None
    nn.functional.cross_entropy(logits, batch.labels).backward()
    attached.gather()
    model.zero_grad()
    expected = importance(model.eval(), [batch], attached.masks["heads"], part="heads")
    torch.testing.assert_close(totals(model, "heads") / 4, expected, atol=1e-6, rtol=1e-4)


def test_layers_of_unequal_width_are_scored_each_by_itself() -> None:
    model = without_dropout(pruned("bert"))  # 2 and 3 heads
    given = batches(model)
    attached = attach(model, None, heads=3, updates=1, until=1.0)
    learn(model, given, attached)
    expected = importance(model.eval(), given)
    torch.testing.assert_close(totals(model, "heads") / 7, expected, atol=1e-6, rtol=1e-4)
    attached.detach()
    assert [len(mask) for mask in attached.masks["heads"]] == [2, 3]
    assert [int(mask.sum()) for mask in attached.masks["heads"]] == [1, 1]


def test_bfloat16_gives_nearly_the_same_importance() -> None:
    model = without_dropout(classifier("bert"))
    attached = attach(model, None, heads=2, neurons=32)
    learn(model, batches(model), attached)
    exact = {part: totals(model, part).clone() for part in PARTS}
    for part in PARTS:
        totals(model, part).zero_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        learn(model, batches(model), attached)
    for part in PARTS:
        found = totals(model, part)
        assert found.dtype == torch.float32 and not torch.equal(found, exact[part])
        assert torch.corrcoef(torch.stack([found.flatten(), exact[part].flatten()]))[0, 1] > 0.99


# What the student is meanwhile and afterwards


def test_training_is_unchanged_before_the_first_mask() -> None:
    plain, model = (without_dropout(classifier("bert")) for _ in range(2))
    attach(model, None, heads=4, neurons=64)
    assert len(list(model.parameters())) == len(list(plain.parameters()))  # nothing more for optimiser or clipping
    (batch,) = batches(model, (4,))
    for one in (plain, model):
        loss_of(one.train(), batch).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["albert", "bert", "modernbert"])
def test_evaluations_see_what_is_open_and_count_for_nothing(family: str) -> None:
    model = without_dropout(classifier(family))
    (batch,) = batches(model, (4,))
    attached = attach(model, None, heads=2, updates=1, until=0.5)
    learn(model, [batch], attached)
    attached.step(0.5)
    before = totals(model, "heads").clone()
    model.eval()
    found = model(**batch.inputs()).logits
    found.sum().backward()
    assert torch.equal(totals(model, "heads"), before)
    attached.detach()
    with torch.no_grad():
        whole = model(**batch.inputs()).logits
        with unit_masks.masked(model, {"heads": attached.masks["heads"]}):
            expected = model(**batch.inputs()).logits
    assert torch.equal(found, expected) and not torch.equal(found, whole)


def test_removing_masked_units_keeps_the_logits() -> None:
    model = without_dropout(classifier("bert"))
    (batch,) = batches(model, (4,))
    attached = attach(model, None, heads=4, neurons=64, updates=2)
    for done in (0.0, 0.35, 0.7):
        attached.step(done)
        learn(model, [batch], attached)
    with torch.no_grad():
        expected = model.eval()(**batch.inputs()).logits
        attached.detach()
        removed = {part: masked_positions(masks) for part, masks in attached.masks.items()}
        remove_heads(model, removed["heads"])
        remove_neurons(model, removed["neurons"])
        torch.testing.assert_close(model(**batch.inputs()).logits, expected, atol=1e-5, rtol=1e-5)
    for part, kept in (("heads", 2 * HEADS - 4), ("neurons", 2 * NEURONS - 64)):
        assert sum(units.count for units in units_of(model, part)) == kept  # type: ignore[arg-type]


def test_nothing_is_left_when_it_ends() -> None:
    model = without_dropout(classifier("bert"))
    before, keys = {key: value.clone() for key, value in model.state_dict().items()}, set(model.__dict__)
    attached = attach(model, None, heads=4, neurons=64)
    learn(model, batches(model), attached)
    attached.step(0.7)
    attached.detach()
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[key], before[key]) for key in before)
    assert set(model.__dict__) == keys and model.config.to_dict() == classifier("bert").config.to_dict()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert masked(attached, "heads") == 4  # it can still tell


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "heads = 0 and neurons = 0 say how many go"),
        ({"heads": -1, "neurons": 5}, "neither may be below 0"),
        ({"heads": 7}, "heads = 7 of 8 is more than 2 layers can give that keep at least 1 each; give at most 6"),
        ({"heads": 5, "keep_heads": 2}, "keep at least 2 each; give at most 4"),
        ({"neurons": 65}, "neurons = 65 of 128 is more .* keep at least 32 each; give at most 64"),
        ({"heads": 2, "until": 0.0}, "until = 0.0 must be above 0 and at most 1"),
        ({"heads": 2, "until": 1.1}, "until = 1.1 must be"),
        ({"heads": 2, "updates": 0}, "updates = 0 must be at least 1"),
        ({"heads": 2, "keep_heads": 0}, "keep_heads = 0 must be at least 1"),
        ({"neurons": 2, "multiple": 0}, "multiple = 0 must be at least 1"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    model = classifier("bert")
    with pytest.raises(CompressError, match=message):
        attach(model, None, **options)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_bilstm_is_refused() -> None:
    with pytest.raises(CompressError, match="the attention heads of a 'compress-bilstm' model are not known"):
        attach(bilstm(), None, heads=1)


# In phases

OPTIONS = {"heads": 4, "neurons": 64, "until": 0.8, "updates": 4}
PRUNING = Phase(
    (Choice("hard-label"),), name="pruning", text="gold", modifier=Choice("gradual-pruning", options=OPTIONS)
)
RECOVERY = Phase((Choice("hard-label"),), name="recovery", text="gold")


def trained(
    folder: Path,
    planned: Sequence[Phase] = (PRUNING,),
    *,
    model: PreTrainedModel | None = None,
    steps: int = 12,
    selected: bool = False,
) -> tuple[PreTrainedModel, list[Outcome]]:
    """Train a tiny BERT on gold rows; the same folder goes on where a start before was stopped."""
    model = model or classifier("bert")
    gold = Gold(train_rows(), [LABELS.index(str(row.label)) for row in train_rows()])
    rows = [TrainingRow(row, None, LABELS.index(str(row.label))) for row in validation_rows()]
    training = replace(TRAINING, epochs=1000.0, max_steps=steps, evaluations=6)
    (folder / ".work").mkdir(parents=True, exist_ok=True)
    outcomes = fit(
        model,
        tokenizer(),
        TrainingData(None, gold, Selection(rows, "validation", None) if selected else None),
        TrainingRun(folder, training, default(), Compute("cpu", 1)),
        phases=planned,
        teachers={},
    )
    return model, outcomes


def same(ours: PreTrainedModel, theirs: PreTrainedModel) -> None:
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=1e-5)


def test_a_phase_returns_its_masks(tmp_path: Path) -> None:
    model, (outcome,) = trained(tmp_path)
    assert outcome.masked is not None and outcome.best_score is None
    assert {part: sum(map(len, by_layer)) for part, by_layer in outcome.masked.items()} == {"heads": 4, "neurons": 64}
    assert STATE not in dict(model.named_children())


@pytest.mark.parametrize("step", [1, 5, 11])
def test_a_stopped_phase_goes_on_as_if_it_had_not(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, (expected,) = trained(tmp_path / "whole")
    with monkeypatch.context() as patched:
        stop_at(step, patched, GradualPruning, "step")
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "stopped")
    resumed: list[int] = []
    original = gradual_pruning.PartMasks.mask

    def masking(self: Any, share: float) -> None:
        resumed.append(self.count)
        original(self, share)

    monkeypatch.setattr(gradual_pruning.PartMasks, "mask", masking)
    model, (found,) = trained(tmp_path / "stopped")
    assert found.masked == expected.masked
    same(model, whole)
    # Updates come before steps 3, 5, 8 and 10, counted from 0, and every second step is followed by a checkpoint.
    taken = {1: 0, 5: 1, 11: 3}[step]
    assert len(resumed) == 2 * (4 - taken)


def test_a_phase_stopped_after_its_last_step_is_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, (expected,) = trained(tmp_path / "whole")
    with monkeypatch.context() as patched:
        stop_at(0, patched, phases, "masked_positions")
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "stopped")
    model, (found,) = trained(tmp_path / "stopped")
    assert (found.masked, found.steps) == (expected.masked, expected.steps)
    same(model, whole)


def test_a_resumed_run_recalls_the_masks_of_a_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = (PRUNING, RECOVERY)
    whole, expected = trained(tmp_path / "whole", planned, steps=24, selected=True)
    with monkeypatch.context() as patched:
        stop_at(1, patched, phases, "train")
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "stopped", planned, steps=24, selected=True)
    model, found = trained(tmp_path / "stopped", planned, steps=24, selected=True)
    assert found[0].masked and found[0].masked == expected[0].masked
    assert found[1].masked is None and found[1].best_score is not None
    same(model, whole)


def test_pruned_sliced_and_recovered_in_one_folder(tmp_path: Path) -> None:
    model, (pruning,) = trained(tmp_path)
    assert pruning.masked is not None
    remove_heads(model, dict(enumerate(pruning.masked["heads"])))
    remove_neurons(model, dict(enumerate(pruning.masked["neurons"])))
    smaller, (recovery,) = trained(tmp_path, (RECOVERY,), model=to_pruned(model), selected=True)
    assert recovery.steps > 0 and recovery.best_score is not None
    assert sum(units.count for units in units_of(smaller)) == LAYERS * HEADS - 4
    _, (again,) = trained(tmp_path)  # a later start finds the same
    assert again.masked == pruning.masked


def test_a_phase_that_masks_units_does_not_select(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="phase-1-pruning masks units until .* let a phase without it"):
        trained(tmp_path, selected=True)
