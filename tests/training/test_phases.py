"""Phases: division of steps, frozen parameters, teachers, and and that a stopped run resumes in its step range."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.labelling.label_dir import LabelDir
from compress.models.batch import NO_TARGET, Batch
from compress.models.components import attention_layers
from compress.models.modeling.families import layers_of
from compress.recipes import Choice, Phase, StudentRecipe, Vocabulary
from compress.tasks import default
from compress.training import phases, teacher_signal
from compress.training import trainer as training_module
from compress.training.distill import possible_phases
from compress.training.modifiers.module_replacing import attach
from compress.training.phases import StepRange, parameters_by_part, prepared
from compress.training.teacher_signal import ActivationRecorder, LiveTeacher
from compress.training.trainer import Outcome, WeightedLoss, attach_losses, summary
from compress.training.training_data import Masker, held_out
from tests.support.tiny import FAMILIES, HEADS, bilstm, classifier, tokenizer, write
from tests.support.training_data import (
    BILSTM,
    TRAINING,
    TRANSFORMER,
    distilled,
    state,
    stop_at,
    train_rows,
    validation_rows,
)

GOLD, KL, MSE, HIDDEN = Choice("hard-label"), Choice("kl"), Choice("logit-mse"), Choice("hidden-cosine")


def in_phases(*phases: Phase, recipe: StudentRecipe = TRANSFORMER, **training: Any) -> StudentRecipe:
    return replace(recipe, phases=phases, training=replace(TRAINING, **training))


def taught(teacher: Path, output: Path, recipe: StudentRecipe, labels: LabelDir, **options: Any) -> Any:
    options = {"train": train_rows(), "validation": validation_rows(), **options}
    return distilled(teacher, recipe, output, labels=[labels], **options)


# Precision


def test_every_phase_computes_in_the_precision_of_the_recipe(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    computed = []

    def note(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, torch.nn.Linear) and module.training:
            computed.append(output.dtype)

    hook = torch.nn.modules.module.register_module_forward_hook(note)
    try:
        phases = in_phases(Phase((KL,)), Phase((MSE,)), precision="bfloat16")
        made = taught(teacher, tmp_path / "student", phases, labels)
    finally:
        hook.remove()
    assert len(computed) > 10 and set(computed) == {torch.bfloat16}
    assert made.manifest.notes["precision"] == "bfloat16"


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("large", "vocabulary"), [("shared-projection", None), ("mixed-vocabulary", Vocabulary(120))], ids=str
)
def test_losses_compute_in_float32_but_those_of_large_products(
    teacher: Path,
    labels: LabelDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    large: str,
    vocabulary: Vocabulary | None,
    precision: str,
) -> None:
    dtypes: dict[str, set[torch.dtype]] = {}

    def noting(one: WeightedLoss, *given: Any) -> torch.Tensor:
        dtypes.setdefault(one.function.func.__module__.rpartition(".")[2], set()).add(
            (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
        )
        return one.function(*given)

    def attached(*given: Any) -> list[WeightedLoss]:
        return [one._replace(function=partial(noting, one)) for one in attach_losses(*given)]

    monkeypatch.setattr(training_module, "attach_losses", attached)
    as_deep = replace(
        TRANSFORMER,
        architecture=Choice("transformer", options={"depth": 2}),
        vocabulary=vocabulary,
        phases=(Phase((KL, MSE, Choice(large))),),
        training=replace(TRANSFORMER.training, precision=precision),
    )
    taught(teacher, tmp_path / "student", as_deep, labels)
    exact = {"kl": {torch.float32}, "logit_mse": {torch.float32}}
    assert dtypes == exact | {large.replace("-", "_"): {getattr(torch, precision)}}


# What rests


def test_the_parts_of_a_student_are_all_of_it_once() -> None:
    for model in (classifier("bert"), classifier("electra"), bilstm()):
        found = parameters_by_part(model)
        ids = [id(parameter) for part in found.values() for parameter in part]
        assert sorted(ids) == sorted(id(parameter) for parameter in model.parameters())
        assert found["embeddings"] and found["layers"]
    electra = classifier("electra")
    widened = dict(electra.named_parameters())["electra.embeddings_project.weight"]
    assert any(parameter is widened for parameter in parameters_by_part(electra)["embeddings"])
    assert len(parameters_by_part(classifier("bert"))["head"]) == 4  # the classifier's and the pooler's
    resting = StepRange("one", Phase((KL,), frozen=("head",)), 1)
    with pytest.raises(CompressError, match="frozen names 'head'"), prepared(bilstm(), None, resting):
        pass


def test_a_progressive_phase_changes_its_layer_only(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    changed: list[set[str]] = []
    watched = Watch(changed)
    deep = replace(TRANSFORMER, architecture=Choice("transformer", options={"depth": 2}))
    recipe = in_phases(Phase((HIDDEN,), by_layer="progressive", frozen=("head",)), Phase((KL,)), recipe=deep)
    with watched:
        made = taught(teacher, tmp_path / "student", recipe, labels)
    # hidden-cosine teaches the last layer only: nothing is taught while the first one is.
    assert changed[0] == set()
    assert changed[1] and all(".layer.1." in name for name in changed[1])
    assert any("classifier" in name for name in changed[2]) and any(".layer.0." in name for name in changed[2])
    notes = made.manifest.notes
    assert [part["steps"] for part in notes["step_ranges"]] == [4, 4, 9]
    assert notes["steps"] == notes["planned_steps"] == 17 and notes["best_step"] > 8
    assert [part["best_score"] is None for part in notes["step_ranges"]] == [True, True, False]


class Watch:
    """Notes which weights each step range changed."""

    def __init__(self, changed: list[set[str]]) -> None:
        self.changed = changed

    def __enter__(self) -> None:
        import compress.training.phases as phases

        self.original = phases.train

        def train(model: Any, *inputs: Any, **named: Any) -> Any:
            before = {name: value.clone() for name, value in model.state_dict().items()}
            outcome = self.original(model, *inputs, **named)
            after = model.state_dict()
            self.changed.append({name for name in before if not torch.equal(before[name], after[name])})
            return outcome

        phases.train = train  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        import compress.training.phases as phases

        phases.train = self.original


# Text


def test_a_phase_reads_the_text_it_names(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    import compress.training.phases as phases

    read: list[int] = []
    original = phases.train

    def train(model: Any, rows: Any, *inputs: Any, **named: Any) -> Any:
        read.append(len(rows))
        return original(model, rows, *inputs, **named)

    recipe = in_phases(Phase((MSE,), text="pool"), Phase((GOLD,), text="gold"), Phase((KL,)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "train", train)
        taught(teacher, tmp_path / "student", recipe, labels)
    gold = len(train_rows())
    assert read == [read[2] - gold, gold, read[2]] and read[0] > 0


def test_validation_rows_of_like_length_are_evaluated_together(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["bad", "good film " * 9, "good", "bad film " * 5]
    rows = [Example(text, None, "negative" if "bad" in text else "positive") for text in texts]
    seen: list[tuple[list[int], list[int]]] = []
    evaluate = training_module.DistillationTrainer.prediction_step

    def watched(self: Any, model: Any, inputs: dict[str, Any], *given: Any, **named: Any) -> Any:
        seen.append((inputs["attention_mask"].sum(1).tolist(), inputs["labels"].tolist()))
        return evaluate(self, model, inputs, *given, **named)

    monkeypatch.setattr(training_module.DistillationTrainer, "prediction_step", watched)
    taught(teacher, tmp_path / "s", in_phases(Phase((KL,)), max_steps=1), labels, validation=rows)
    assert seen[0] == ([3, 3, 12, 20], [0, 1, 0, 1])


def test_two_phases_of_one_text_read_it_in_orders_of_their_own(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[int]] = []
    original = training_module.DistillationTrainer.training_step

    def step(self: Any, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        read.append(inputs["input_ids"].flatten().tolist())
        return original(self, model, inputs, *rest, **named)

    monkeypatch.setattr(training_module.DistillationTrainer, "training_step", step)
    taught(teacher, tmp_path / "student", in_phases(Phase((MSE,)), Phase((MSE,)), max_steps=4, batch_size=8), labels)
    assert len(read) == 4 and read[:2] != read[2:] and read[0] not in read[2:]


def test_a_phase_for_gold_rows_is_left_out_where_there_are_none(
    teacher: Path, labels: LabelDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = in_phases(Phase((MSE,)), Phase((GOLD,), name="fine-tuning", text="gold"))
    made = taught(teacher, tmp_path / "student", recipe, labels, train=())
    assert "step_ranges" not in made.manifest.notes  # one was left
    assert "the phase fine-tuning" in caplog.text and "left out" in caplog.text


def test_a_gold_label_loss_without_gold_rows_gives_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    mixed, alone = Phase((GOLD, KL)), Phase((GOLD,), name="hard")
    assert possible_phases(in_phases(mixed, alone), ()) == (mixed,)
    assert "so that hard-label adds nothing" in caplog.text
    assert "the phase hard of" in caplog.text and "left out" in caplog.text
    assert possible_phases(in_phases(mixed, alone), train_rows()) == (mixed, alone)


def test_the_control_learns_from_gold_in_one_phase(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    recipe = in_phases(Phase((HIDDEN,), text="pool"), Phase((KL,)))
    made = taught(teacher, tmp_path / "student", recipe, labels)
    control = taught(teacher, tmp_path / "control", recipe, labels, control=True)
    assert "step_ranges" not in control.manifest.notes
    assert control.manifest.notes["planned_steps"] == made.manifest.notes["planned_steps"]


# Who teaches


def test_a_general_phase_needs_the_encoder_to_be_named(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    recipe = in_phases(Phase((HIDDEN,), teacher="encoder", text="pool"), Phase((KL,)))
    with pytest.raises(CompressError, match="name it with .compress distill --encoder"):
        taught(teacher, tmp_path / "student", recipe, labels)
    encoder = write(tmp_path / "encoder", classifier("bert", seed=3))
    made = taught(teacher, tmp_path / "student", recipe, labels, encoder=encoder)
    assert [parent["name"] for parent in made.manifest.parents] == ["tiny-bert", "encoder"]
    own = taught(teacher, tmp_path / "other", recipe, labels, encoder=teacher)
    assert any(not torch.equal(a, b) for a, b in zip(state(made.path).values(), state(own.path).values(), strict=True))


def test_a_watched_model_shows_its_attention() -> None:
    model = classifier("bert")
    layers = attention_layers(model)
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    batch = Batch(ids, torch.tensor([[1, 1, 1], [1, 1, 0]]))
    watched = ActivationRecorder(model, frozenset({"attention", "hidden"}))
    with torch.no_grad():
        _, outputs = watched(batch)
        expected = layers[0].rows[0](outputs.hidden[0])
    assert outputs.layers == len(layers) == len(outputs.queries) == len(outputs.values)
    assert outputs.queries[0].shape == (2, HEADS, 3, layers[0].size)
    torch.testing.assert_close(outputs.queries[0].transpose(1, 2).reshape(2, 3, -1), expected)
    assert not any(layer.rows[0]._forward_hooks for layer in layers)


def test_teachers_of_two_phases_do_not_see_each_others_calls() -> None:
    model = classifier("bert")
    ids = torch.tensor([[5, 6, 7, 8]])
    batch = Batch(ids, torch.ones_like(ids))
    first, second = (LiveTeacher(model, frozenset({"attention"})) for _ in range(2))
    one = first(batch, None)
    released = weakref.ref(one.queries[0])
    assert len(second(batch, None).queries) == len(one.queries) == len(attention_layers(model))
    del one
    assert released() is None


def test_masked_text_gets_the_teachers_logits_of_masked_text() -> None:
    model = classifier("bert")
    ids = torch.tensor([[5, 6, 7, 8]])
    batch = Batch(ids, torch.ones_like(ids))
    cached = torch.tensor([[9.0, -9.0]])
    live = LiveTeacher(model, frozenset())
    assert torch.equal(live(batch, cached).logits, cached)
    masked = live(replace(batch, targets=torch.full_like(ids, NO_TARGET)), cached).logits
    with torch.no_grad():
        torch.testing.assert_close(masked, model(ids, attention_mask=batch.attention_mask).logits)


def test_masking_has_its_share_in_the_proportions_of_bert() -> None:
    torch.manual_seed(0)
    tokens = tokenizer("bert")
    ids = torch.full((100, 200), tokens.convert_tokens_to_ids("film"))
    ids[:, 0], ids[:, -1] = tokens.cls_token_id, tokens.pad_token_id
    mask = torch.ones_like(ids)
    mask[:, -1] = 0
    masked = Masker(tokens, 0.15)(Batch(ids, mask))
    assert masked.targets is not None
    chosen = masked.targets != NO_TARGET
    assert not chosen[:, 0].any() and not chosen[:, -1].any()
    assert torch.equal(masked.targets[chosen], ids[chosen]) and torch.equal(masked.input_ids[~chosen], ids[~chosen])
    n = int(chosen.sum())
    assert abs(n - 0.15 * 100 * 198) < 4 * (100 * 198 * 0.15 * 0.85) ** 0.5
    hidden = int((masked.input_ids[chosen] == tokens.mask_token_id).sum())
    same = int((masked.input_ids[chosen] == ids[chosen]).sum())
    assert abs(hidden - 0.8 * n) < 4 * (n * 0.8 * 0.2) ** 0.5 + n * 0.1 / len(tokens)
    assert abs(same - 0.1 * n) < 4 * (n * 0.1 * 0.9) ** 0.5 + n * 0.1 / len(tokens) * 2


# Module replacing (BERT-of-Theseus)


def test_module_replacing_uses_predecessors_as_often_as_it_says() -> None:
    torch.manual_seed(0)
    old, student = classifier("bert"), classifier("bert", seed=5)
    del layers_of(student)[1]
    student.config.num_hidden_layers = 1
    ids = torch.tensor([[5, 6, 7]])
    own = student(ids).logits
    replacing = attach(student, old, start=0.4, until=0.5)
    used = []
    handle = layers_of(old)[1].register_forward_hook(lambda *_: used.append(1))
    student.train()
    runs = 600
    for _ in range(runs):
        student(ids)
    assert abs(len(used) - 0.6 * runs) < 4 * (runs * 0.6 * 0.4) ** 0.5
    replacing.step(0.25)
    assert replacing.probability == pytest.approx(0.7)
    replacing.step(0.5)
    assert replacing.probability == 1.0
    used.clear()
    student.eval()
    replacing.step(0.0)
    assert torch.equal(student(ids).logits, own) and not used  # selection sees successors only
    student.train()
    replacing.detach()
    student(ids)
    assert not used and "forward" not in vars(layers_of(student)[0])
    handle.remove()


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"albert"}))
def test_a_predecessor_gives_exactly_its_teachers_states(family: str) -> None:
    old, student = classifier(family), classifier(family, seed=5)
    student.base_model.embeddings.load_state_dict(old.base_model.embeddings.state_dict())
    if family == "mpnet":  # the position bias is the encoder's, not a layer's
        student.base_model.encoder.relative_attention_bias = old.base_model.encoder.relative_attention_bias
    if family == "electra":
        student.base_model.embeddings_project = old.base_model.embeddings_project
    replacing = attach(student, old, schedule="constant", start=1e-9)
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    student.train()
    for module in student.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(0)
    with torch.no_grad():
        ours, theirs = student.base_model(ids), old.eval().base_model(ids)
    torch.testing.assert_close(ours.last_hidden_state, theirs.last_hidden_state)
    replacing.step(0.9)
    assert replacing.probability == 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "cosine"}, "schedule = 'cosine' is not known"),
        ({"start": 0.0}, "must be above 0 and at most 1"),
        ({"until": 2.0}, "must be above 0 and at most 1"),
    ],
)
def test_module_replacing_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        attach(classifier("bert"), classifier("bert"), **options)


def test_module_replacing_refuses_models_that_do_not_fit() -> None:
    with pytest.raises(CompressError, match="of one family and width; these are compress-bilstm and bert"):
        attach(bilstm(), classifier("bert"))  # type: ignore[arg-type]
    three = classifier("bert")
    layers_of(three).append(layers_of(classifier("bert"))[0])
    with pytest.raises(CompressError, match="divides the teacher's 3 layers, not 2"):
        attach(classifier("bert"), three)


def test_shared_layers_do_not_rest_or_stand_in_for_each_other() -> None:
    shared = classifier("albert")
    second = StepRange("second", Phase((KL,)), 1, frozen_layers=1)
    with pytest.raises(CompressError, match="use by_layer = 'stacked'"), prepared(shared, None, second):
        pass
    with pytest.raises(CompressError, match="share their weights"):
        attach(classifier("albert"), shared)


def test_theseus_trains_through_the_pipeline(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replacing = Phase((GOLD,), text="gold", frozen=("embeddings", "head"), modifier=Choice("module-replacing"))
    changed: list[set[str]] = []
    recipe = in_phases(replacing, Phase((GOLD,), text="gold"))
    made_whole: list[bool] = []

    def recorder(*given: Any, whole: bool, **named: Any) -> ActivationRecorder:
        made_whole.append(whole)
        return ActivationRecorder(*given, whole=whole, **named)

    monkeypatch.setattr(training_module, "ActivationRecorder", recorder)
    with Watch(changed):
        made = taught(teacher, tmp_path / "student", recipe, labels)
    assert made_whole == [True, False]  # what draws in each pass gets batches in one
    assert changed[0] and all(".layer." in name for name in changed[0])
    assert any("embeddings" in name for name in changed[1])
    assert state(made.path).keys() == state(taught(teacher, tmp_path / "plain", TRANSFORMER, labels).path).keys()


# Stopped


def test_a_resumed_run_does_not_repeat_finished_phases(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on in the precision in which it was begun, whatever a trial says by then."""
    from compress.training.trainer import DistillationTrainer

    tried = {"auto": "float32"}
    monkeypatch.setattr(training_module, "resolve_precision", lambda precision, _: tried.get(precision, precision))
    recipe = in_phases(Phase((HIDDEN,), name="inside"), Phase((KL,)), evaluations=4, precision="auto")
    made = taught(teacher, tmp_path / "whole", recipe, labels)
    whole = state(made.path)
    first = made.manifest.notes["step_ranges"][0]["steps"]
    with monkeypatch.context() as patch:
        stop_at(first + 5, patch, DistillationTrainer, "compute_loss")
        with pytest.raises(KeyboardInterrupt):
            taught(teacher, tmp_path / "student", recipe, labels)
    (done,) = (tmp_path / ".student.partial").rglob("phase-1-inside/outcome.json")
    assert json.loads(done.read_text())["value"]["steps"] == first
    done.with_name("metrics.jsonl").unlink()  # as an earlier version left it, which wrote none
    corrected = replace(recipe, description="What only people read.", missing=("nothing",))
    ranges_begun: list[str] = []

    def beginning(self: Any, *given: Any, **named: Any) -> Any:
        ranges_begun.append(Path(self.args.output_dir).name)
        return train(self, *given, **named)

    train = DistillationTrainer.train
    monkeypatch.setattr(DistillationTrainer, "train", beginning)
    tried["auto"] = "bfloat16"
    resumed = taught(teacher, tmp_path / "student", corrected, labels)
    assert ranges_begun == ["phase-2"] and resumed.manifest.notes["precision"] == "float32"
    weights = state(resumed.path)
    for key in whole:
        torch.testing.assert_close(weights[key], whole[key], atol=1e-6, rtol=1e-5)
    assert resumed.manifest.notes["steps"] == made.manifest.notes["steps"] > first


def test_a_bilstm_can_learn_in_phases_too(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    recipe = in_phases(Phase((MSE,), frozen=("embeddings",)), Phase((MSE,)), recipe=BILSTM)
    changed: list[set[str]] = []
    with Watch(changed):
        taught(teacher, tmp_path / "student", recipe, labels)
    assert "embedding.weight" not in changed[0] and "embedding.weight" in changed[1]


def test_a_phase_in_which_nothing_learns_is_refused(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    recipe = in_phases(Phase((KL,), frozen=("embeddings", "layers", "head")))
    with pytest.raises(CompressError, match="nothing learns; leave a part out"):
        taught(teacher, tmp_path / "student", recipe, labels)


def written(labels: LabelDir, folder: Path) -> tuple[Any, Any]:
    """The rows of a pool with its logits, and what makes a batch of some."""
    from compress.training.training_data import Gold, LabelledPool, TrainingData, collator, tokenized

    data = TrainingData(LabelledPool((labels,)).labelled, Gold())
    rows = tokenized(folder / "rows.arrow", data.rows("all"), tokenizer("bert"), max_length=32, task=default())
    return rows, collator(0)


def test_first_states_are_cached_where_rows_are_read_again(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compress.training.phases import phase_signal
    from compress.training.teacher_signal import cached_first_states
    from compress.training.trainer import TrainingRun

    model = classifier("bert")
    rows, collate = written(labels, tmp_path)
    run = TrainingRun(tmp_path, TRAINING, default(), Compute("cpu"))
    phase = Phase((Choice("patience", options={"layers": "skip"}), KL))
    steps = 2 * len(rows) // TRAINING.batch_size + 1
    assert isinstance(phase_signal(StepRange("few", phase, 3), model, rows, collate, run, tmp_path), LiveTeacher)
    signal = phase_signal(StepRange("many", phase, steps), model, rows, collate, run, tmp_path)
    assert isinstance(signal, partial) and signal.func is cached_first_states
    arrays = collate([rows[row] for row in (7, 2, 30)])
    batch = Batch(arrays["input_ids"], arrays["attention_mask"], rows=arrays["rows"])
    given_first = signal(batch, arrays["teacher_logits"]).first
    with torch.no_grad():
        hidden = model(batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True).hidden_states
    assert given_first is not None
    expected = torch.stack([states[:, 0] for states in hidden], dim=1)
    np.testing.assert_allclose(given_first.numpy(), expected.numpy(), atol=5e-3, rtol=2e-3)
    size = 2 * len(rows) * len(hidden) * model.config.hidden_size
    for limit, kind in ((size, partial), (size - 1, LiveTeacher)):
        monkeypatch.setattr(phases, "FIRST_STATES_LIMIT_BYTES", limit)
        many = StepRange("many", phase, steps)
        assert isinstance(phase_signal(many, model, rows, collate, run, tmp_path), kind)


def test_one_row_whose_first_states_are_no_numbers_is_enough(labels: LabelDir, tmp_path: Path) -> None:
    model = classifier("bert")
    rows, collate = written(labels, tmp_path)
    counts = np.unique(np.concatenate(rows["input_ids"]), return_counts=True)
    rare = int(counts[0][counts[1] == 1][-1])  # in one row, which is not the shortest
    with torch.no_grad():
        model.get_input_embeddings().weight[rare] = torch.inf  # type: ignore[operator]
    with pytest.raises(CompressError, match="larger than float16 holds"):
        teacher_signal.write_first_states(
            tmp_path / "first.npy", rows, model, collate, device="cpu", precision="float32"
        )
    assert list(tmp_path.glob("first*")) == []


def test_the_best_step_counts_earlier_step_ranges() -> None:
    before = Outcome(9, 8, None, None, "", "float32", 1.0)
    last = Outcome(20, 15, 0.8, 5, "validation", "float32", 2.5)
    told = summary([before, before, last])
    assert told["best_step"] == 8 + 8 + 5
    assert (told["planned_steps"], told["steps"], told["seconds"]) == (38, 31, 4.5)


def test_of_a_large_pool_so_many_rows_are_held_out_and_no_more() -> None:
    rows = [Example(f"row {number}") for number in range(20_000)]
    few, many = (sum(held_out(row, size) for row in rows) for size in (20_000, 200_000))
    assert 900 < few < 1100  # 5%
    assert 150 < many < 250  # 2,000 of 200,000
