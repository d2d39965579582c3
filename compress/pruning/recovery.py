"""Recovery: distil the unpruned model into the pruned one, while or after heads and neurons are removed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from transformers import PretrainedConfig

from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.labelling.label import teacher_logits
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import ModelDir
from compress.models.modeling.families import head_size_of
from compress.models.output_dir import WORK_FOLDER
from compress.models.prunable_units import Part
from compress.progress import Progress
from compress.pruning.evaluation import PruningRows
from compress.pruning.pruned_state import PrunedState
from compress.recipes import Choice, Phase, Pruning, Training
from compress.surgery.unit_masks import Masks, masks_at
from compress.training import phases
from compress.training.monitoring import join_logs
from compress.training.trainer import Outcome, TrainingRun
from compress.training.training_data import Selection, TrainingData

RECOVERY = Training(epochs=1.0, min_steps=400, learning_rate=5e-5, evaluations=8)
# The cubic schedule masks heads and neurons in this share of the recovery's epochs, at a constant learning rate. All
# are masked after MASKED_BY of that phase, so that the model trains without them before they are removed.
MASKING_SHARE, MASKED_BY = 0.6, 0.9
MASKING_FOLDER = "masking"


def check_labels(source: ModelDir, label_dirs: Sequence[LabelDir], recover: float, validation: bool) -> None:
    """Raise an error for a recovery without rows to select by, and for labels that are unused or of another model."""
    if recover and not validation and not label_dirs:
        raise CompressError("--recover needs rows to select the checkpoint by; give --validation FILE, or --labels DIR")
    if label_dirs and not recover:
        raise CompressError("--labels is for recovery, which was not asked for; add --recover 1")
    known = {source.sha256, *(str(parent["sha256"]) for parent in source.manifest.parents)}
    for directory in label_dirs:
        if directory.teacher_sha256 not in known:
            raise CompressError(
                f"{directory.path} was labelled by {directory.teacher_name}, which is neither "
                f"{source.name} nor its teacher; label the text again with 'compress label --teacher ...'"
            )


def recovery_losses(recovery: str, config: PretrainedConfig, layers: str) -> tuple[Choice, ...]:
    """Return the losses of ``--recovery``: of logits, and of hidden states by a layer map or of token relations."""
    if recovery == "hidden":
        return (Choice("logit-mse"), Choice("hidden-mse", options={"layers": layers}))
    if recovery == "relations":
        # As many relation heads as a head is wide divide any number of heads that a layer has left.
        return (Choice("logit-mse"), Choice("relations", options={"relation_heads": head_size_of(config)}))
    return (Choice("logit-mse"),)


def recovery_training(training: Training, epochs: float) -> Training:
    """Return the training of so many passes over the rows; below one, few rows get that share of its least steps."""
    return replace(training.part(min(1.0, epochs)), epochs=epochs, max_steps=training.max_steps)


@dataclass(frozen=True)
class Recovery:
    """Distillation of the unpruned model ``source`` into the pruned one, on the rows of a pruning stage.

    ``selection`` are the rows that select the checkpoint.
    """

    source: ModelDir
    rows: PruningRows
    selection: Selection | None
    config: Pruning
    training: Training
    compute: Compute
    progress: Progress

    @cached_property
    def training_data(self) -> TrainingData:
        """The text of the pool and of train with the logits of the unpruned model, which may have to be computed."""
        pool, train = self.rows.pool, self.rows.train
        own = [labels for labels in pool.labels if labels.teacher_sha256 == self.source.sha256] if pool else []
        logits = teacher_logits(self.source, train.examples, compute=self.compute, labels=own, progress=self.progress)
        kept = pool if pool is None or self.rows.validation.examples else pool.part(held=False)
        return TrainingData(kept, replace(train, logits=logits))

    def mask_gradually(self, state: PrunedState, units: Mapping[Part, int], folder: Path) -> Masks:
        """Train a model while the cubic schedule masks heads and neurons, and return the masks.

        ``folder`` keeps the outcome for a run that is resumed.
        """
        outcome = phases.load_finished(folder, state.model)
        if outcome is None:
            (folder / WORK_FOLDER).mkdir(parents=True, exist_ok=True)
            options = {
                "keep_heads": self.config.keep_heads,
                "multiple": self.config.multiple,
                "normalise": self.config.normalise,
                "until": MASKED_BY,
                "heads": units.get("heads", 0),
                "neurons": units.get("neurons", 0),
            }
            training = replace(self._part_of_training(MASKING_SHARE), schedule="constant")
            modifier = Choice("gradual-pruning", options=options)
            outcome = self._distil(state, folder, training, self.compute, modifier=modifier, title="Masking")
            phases.save_finished(folder, state.model, outcome)
        state.trained = True
        assert outcome.masked is not None
        return masks_at(state.model, outcome.masked)

    def recover(self, state: PrunedState, working: Path) -> Outcome:
        """Train the pruned model for the rest of the epochs, select its best checkpoint, and record it."""
        share, compute = 1.0, self.compute
        if self.config.schedule == "cubic":
            share = 1 - MASKING_SHARE
            compute = replace(
                compute, seed=compute.seed + phases.SEEDS_APART
            )  # another order of rows than while masking
        outcome = self._distil(state, working, self._part_of_training(share), compute, selection=self.selection)
        if self.config.schedule == "cubic":
            join_logs({"masking": working / WORK_FOLDER / MASKING_FOLDER, "recovery": working}, working)
        state.trained = True
        state.record("recovery", 0, 0)
        return outcome

    def _part_of_training(self, share: float) -> Training:
        return recovery_training(self.training, self.config.recover).part(share)

    def _distil(
        self,
        state: PrunedState,
        working: Path,
        training: Training,
        compute: Compute,
        *,
        selection: Selection | None = None,
        modifier: Choice | None = None,
        title: str = "Recovering",
    ) -> Outcome:
        phase = Phase(recovery_losses(self.config.recovery, state.model.config, state.layer_map), modifier=modifier)
        live = phase.needs & {"hidden", "attention"}
        teacher = ModelDir.open(state.teacher, verify=False).load() if live else None
        (outcome,) = phases.fit(
            state.model,
            state.tokenizer,
            replace(self.training_data, selection=selection),
            TrainingRun(working, training, self.source.task, compute, self.progress, title),
            phases=(phase,),
            teachers={"task": teacher},
        )
        return outcome
