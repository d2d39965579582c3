"""How a pruned model wins back what was lost: by what it learns and is selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.errors import CompressError
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import ModelDir
from compress.models.output_dir import WORK_FOLDER
from compress.recipes import Choice, Phase, Pruning, Training
from compress.training.schedule import SEEDS_APART
from compress.training.training_data import Gold, Pool, Selection, TrainingData, agreement_rows

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from compress.pruning.pruned_state import Shrinking
    from compress.surgery.unit_masks import Masks
    from compress.training.trainer import Outcome


RECOVERY = Training(epochs=1.0, learning_rate=5e-5, evaluations=8, patience=4)
# Of the recovery, in which the cubic schedule masks units, the last of them when so much of that is done: what is left
# learns for a moment before the units are cut out. The rate is constant meanwhile, and falls in the rest.
MASKING_SHARE, MASKED_BY = 0.6, 0.9


def check_labels(source: ModelDir, label_dirs: Sequence[LabelDir], recover: float, validation: bool) -> None:
    """Refuse a recovery that has nothing to be selected by, and labels that nothing reads or another model made."""
    if recover and not validation and not label_dirs:
        raise CompressError("--recover needs rows to select the checkpoint by; give --validation FILE, or --labels DIR")
    if label_dirs and not recover:
        raise CompressError("--labels is for recovery, which was not asked for; add --recover 1")
    parents = source.manifest.parents if source.manifest else ()
    known = {source.sha256, *(str(parent["sha256"]) for parent in parents)}
    for directory in label_dirs:
        if directory.teacher_sha256 not in known:
            raise CompressError(
                f"{directory.path} was labelled by {directory.manifest.parents[0]['name']}, which is neither "
                f"{source.name} nor its teacher; label the text again with 'compress label --teacher ...'"
            )


def losses_of(recovery: str, config: PretrainedConfig, layers: str) -> tuple[Choice, ...]:
    """Return what ``--recovery`` names: logits, beside them hidden states by a layer map, or relations of tokens."""
    from compress.models.modeling.families import head_size_of

    if recovery == "hidden":
        return (Choice("logit-mse"), Choice("hidden-mse", options={"layers": layers}))
    if recovery == "relations":
        # As many relation heads as a head is wide divide any number of heads that a layer has left.
        return (Choice("logit-mse"), Choice("relations", options={"relation_heads": head_size_of(config)}))
    return (Choice("logit-mse"),)


def check_noise(model: PreTrainedModel) -> None:
    """Refuse to mask units of a whole model by the gradients of a training that has none at first.

    A model that drops nothing out says what its teacher says: the first units would go by the noise of rounding.
    """
    from torch import nn

    if not any(module.p > 0 for module in model.modules() if isinstance(module, nn.Dropout)):
        raise CompressError(
            "--schedule cubic masks units by the gradients of its training, which begin at zero for a model without "
            "dropout such as this one; use --schedule steps, or remove --layers too"
        )


def selection_for(pool: Pool | None, validation: Gold, metric: str, task: str) -> Selection | None:
    """Return what the recovered checkpoint is selected by, if there is anything."""
    if validation.examples:
        return Selection(list(validation.rows()), "validation", metric)
    return agreement_rows(pool, task) if pool is not None else None


@dataclass(frozen=True)
class Recovery:
    """Distillation of a whole model into what is left of it.

    ``training_data`` makes the rows to learn from, which may take a run of the whole model; ``fitting`` is what
    :func:`compress.training.phases.fit` is told beside them.
    """

    pruning: Pruning
    training: Training
    training_data: Callable[[], TrainingData]
    selection: Selection | None
    fitting: Mapping[str, Any]

    def mask(self, state: Shrinking, folder: Path) -> Masks:
        """Let heads and neurons go one after the other in the first part of the training; return what stays.

        ``folder`` keeps the outcome for a command that is repeated.
        """
        from compress.pruning.targets import announced_amounts
        from compress.surgery.unit_masks import masks_at
        from compress.training.phases import recall, remember

        amounts = announced_amounts(state.model, self.pruning)
        options = {
            "heads": amounts.get("heads", 0),
            "neurons": amounts.get("neurons", 0),
            "until": MASKED_BY,
            "keep_heads": self.pruning.keep_heads,
            "multiple": self.pruning.multiple,
            "normalise": self.pruning.normalise,
        }
        outcome = recall(folder, state.model)
        if outcome is None:
            (folder / WORK_FOLDER).mkdir(parents=True, exist_ok=True)
            masking = Choice("gradual-pruning", options=options)
            training = replace(self._part_of_training(MASKING_SHARE), schedule="constant")
            outcome = self._learn(state, folder, training, self.fitting["seed"], None, masking)
            remember(folder, state.model, outcome)
        state.trained = True
        assert outcome.masked is not None
        return masks_at(state.model, outcome.masked)

    def recover(self, state: Shrinking, working: Path) -> Outcome:
        """Train what is left, for what a masking has left of the epochs, and keep its best checkpoint."""
        training, seed = self._part_of_training(1.0), self.fitting["seed"]
        if self.pruning.schedule == "cubic":
            training = self._part_of_training(1 - MASKING_SHARE)
            seed += SEEDS_APART  # with the masking's own its first rows would all be read again
        outcome = self._learn(state, working, training, seed, self.selection)
        state.trained = True
        state.done("recovery", 0, 0)
        return outcome

    def _part_of_training(self, share: float) -> Training:
        return replace(
            self.training,
            epochs=share * self.pruning.recover,
            max_steps=self.training.max_steps and max(1, round(share * self.training.max_steps)),
        )

    def _learn(
        self,
        state: Shrinking,
        working: Path,
        training: Training,
        seed: int,
        selection: Selection | None,
        modifier: Choice | None = None,
    ) -> Outcome:
        from compress.training.phases import Teachers, fit

        losses = losses_of(self.pruning.recovery, state.model.config, state.layer_map)
        phase = Phase(losses, modifier=modifier)
        live = phase.needs & {"hidden", "attention"}
        teacher = ModelDir.open(state.whole, verify=False).load() if live else None
        (outcome,) = fit(
            state.model,
            state.tokenizer,
            self.training_data(),
            selection,
            phases=(phase,),
            teachers=Teachers(teacher),
            training=training,
            working=working,
            **{**self.fitting, "seed": seed},
        )
        return outcome
