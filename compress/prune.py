"""Stage: take from a model what it can do without, for real, and win back what was lost.

Vocabulary, layers, heads and neurons, and hidden width go in this order, in one command, and one recovery ends it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.artifact import Manifest, ModelDir, parent_entry
from compress.data import Example, check_roles, content_sha256, describe_rows, encode_gold, row_key
from compress.errors import CompressError
from compress.export import export, exporter_for
from compress.importance import scoring_batches, scoring_rows
from compress.label import teacher_logits
from compress.labels import LabelDir, open_labels
from compress.measuring.side_by_side import Speed, time_side_by_side
from compress.measuring.timing import Ratio
from compress.metrics import Metric, find_metric
from compress.output import WORK_FOLDER, write_atomically, writing
from compress.progress import Progress, silent
from compress.recipes import Pruning, Training
from compress.recovery import RECOVERY, check_labels, losses_of, recover, selection_for
from compress.tokens import maximum_length
from compress.transfer import Gold, Lessons, Pool

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from compress.cuts import Shrinking
    from compress.masks import Masks
    from compress.types import Batch

logger = logging.getLogger("compress")

CURVE_NAME, PICTURE_NAME = "pruning_curve.csv", "pruning_curve.svg"
REPORT_NAME = "pruning.json"
ON_TRAIN = "train (the scoring rows)"
BATCH_SIZES = (1, 32)  # at which each removal is timed


def prune(
    model: ModelDir | str | Path,
    pruning: Pruning,
    output: str | Path,
    *,
    train: Sequence[Example],
    validation: Sequence[Example] = (),
    vocabulary: Iterable[Example] | None = None,
    labels: Sequence[LabelDir | str | Path] = (),
    training: Training = RECOVERY,
    measure: bool = True,
    drop_overlap: bool = False,
    metric: str | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 0,
    force: bool = False,
    quiet: bool = True,
    progress: Progress = silent,
) -> ModelDir:
    """Remove structure from a model and return the smaller one.

    ``report.html`` in its directory, and ``pruning.json`` with the same figures, say after each removal how many
    weights and operations are left, how fast that is in each runtime, and what it costs; ``pruning_curve.csv`` is the
    metric step by step.

    Args:
        pruning: what to remove, and how it is chosen.
        train: gold rows; some of them, drawn at random, score what may go.
        validation: gold rows that judge and select; without any the scoring rows judge, which flatters, and it is said.
        vocabulary: text whose word pieces stay, and no others; None keeps all.
        labels: text for the recovery, labelled by the unpruned model or its teacher; the texts of ``train`` are always
            learned from.
        measure: time the model after each removal.
        threads: processor threads; speeds are measured on one, or as many as are said.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    import torch

    from compress.device import resolve_device
    from compress.saving import describe_architecture, write_model

    source = model if isinstance(model, ModelDir) else ModelDir.open(model)
    pruning.check()
    if not (pruning.removes_units or pruning.layers or pruning.hidden or vocabulary is not None):
        raise CompressError(
            "nothing to remove; say what with --heads 60%, --ffn 40%, --layers 2, --hidden 25% or --vocabulary FILE, "
            "or how far to go with --max-accuracy-drop 1.0 or --speedup 1.5"
        )
    label_dirs = open_labels(labels)
    check_labels(source, label_dirs, pruning.recover, bool(validation))
    sample = scoring_rows(train, pruning.examples, seed)
    pool: Any = Pool(label_dirs) if label_dirs else None
    roles = {"train": train, "unlabeled": pool, "validation": validation}
    checked = check_roles({role: rows for role, rows in roles.items() if rows}, drop_overlap=drop_overlap)
    train = checked.sets["train"]  # type: ignore[assignment]
    sample = scoring_rows(train, pruning.examples, seed)
    if pool is not None:
        pool = checked.sets["unlabeled"].without(frozenset(map(row_key, train)))  # type: ignore[union-attr]
    chosen_metric = find_metric(metric, task=source.task, classes=len(source.labels))
    torch_device = resolve_device(device)
    if threads:
        torch.set_num_threads(threads)
    gold = {
        role: Gold(rows, encode_gold(rows, source.labels, task=source.task, name=role))
        for role, rows in (("sample", sample), ("train", train), ("validation", validation))
    }
    data = describe_rows({"train": train, "validation": validation})
    corpus = {"vocabulary": content_sha256(vocabulary)} if vocabulary is not None else {}
    request = {
        "stage": "prune", "model": source.sha256, **asdict(pruning), **corpus, "training": asdict(training),
        "data": data, "labels": [directory.manifest.files for directory in label_dirs], "seed": seed,
        "metric": chosen_metric.name,
    }  # fmt: skip
    whole: Any = source.load()
    _check_model(whole, pruning)
    whole.to(torch_device)
    with writing(output, request, force=force) as working:
        work = _Work(source, pruning, gold, chosen_metric, working, torch_device, threads, seed, progress)
        state, decided = work.shrink(whole, vocabulary)
        notes: dict[str, Any] = {}
        if pruning.recover:
            notes["recovery"] = asdict(work.recover(state, pool, training, quiet))
        found = work.report(state, decided, work.speeds(state) if measure else [], Path(output).name)
        manifest = Manifest(
            stage="prune",
            name=Path(output).name,
            task=source.task,
            labels=source.labels,
            architecture=describe_architecture(state.model),
            parents=(parent_entry("unpruned", source),),
            recipe={**asdict(pruning), "training": asdict(training)},
            data=(
                *(source.manifest.data if source.manifest else ()),
                *data,
                *(entry for directory in label_dirs for entry in directory.manifest.data),
            ),
            metrics=(state.metric_entry,),
            notes={**found, **notes},
            seeds={"seed": seed},
        )
        write_model(state.model, state.tokenizer, manifest, working)
    return ModelDir.open(output)


@dataclass(frozen=True)
class _Work:
    """A pruning under way: what it was asked for, and on what it is judged."""

    source: ModelDir
    pruning: Pruning
    gold: Mapping[str, Gold]
    metric: Metric
    working: Path
    device: str
    threads: int
    seed: int
    progress: Progress

    @property
    def folder(self) -> Path:
        return self.working / WORK_FOLDER

    def shrink(
        self, whole: PreTrainedModel, vocabulary: Iterable[Example] | None
    ) -> tuple[Shrinking, dict[str, Any]]:
        """Remove everything that was asked for, in place, and judge each removal; return also what was decided."""
        from compress.cuts import Shrinking
        from compress.masks import masks_of

        tokenizer = self.source.load_tokenizer()
        judged = "validation" if self.gold["validation"].examples else "sample"
        state = Shrinking(
            whole, tokenizer, self.gold[judged], self.metric, len(self.source.labels),
            min(128, maximum_length(tokenizer, self.source.config)), self.folder / "cuts",
            "validation" if judged == "validation" else ON_TRAIN,
        )  # fmt: skip
        found: dict[str, Any] = {}
        if vocabulary is not None:
            found["vocabulary"] = state.keep_vocabulary(vocabulary)
        if self.pruning.layers:
            order = self._decided("layers", lambda: self._layers(state))
            found["layers"] = order
            state.remove_layers([step["layer"] for step in order])
        if self.pruning.removes_units:
            decision = self._decided("units", lambda: self._units(state))
            found |= {key: decision[key] for key in ("importance", "curve")}
            state.remove_units(masks_of(decision["masks"]))
        if self.pruning.hidden:
            state.remove_hidden(self._decided("hidden", lambda: self._positions(state)))
        state.reloadable()
        return state, found

    def _batches(self, state: Shrinking) -> list[Batch]:
        """Return the scoring rows as the model reads them now."""
        sample = self.gold["sample"]
        return list(
            scoring_batches(
                sample.examples, sample.labels, state.tokenizer, max_length=state.max_length, task=self.source.task,
                device=self.device,
            )
        )

    def _decided(self, name: str, decide: Callable[[], Any]) -> Any:
        """Return what was decided, JSON values; a command that is repeated remembers it."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            write_atomically(path, json.dumps(decide()) + "\n")
        return json.loads(path.read_text(encoding="utf-8"))

    def _layers(self, state: Shrinking) -> list[dict[str, Any]]:
        """Return the layers that go, one after the other, with the loss on the scoring rows without them."""
        from compress.depth import choose_layers
        from compress.unit_choice import layers_to_remove

        with self.progress("Removing layers", None):
            count = layers_to_remove(state.model, self.pruning)
            return [asdict(step) for step in choose_layers(state.model, self._batches(state), count)]

    def _units(self, state: Shrinking) -> dict[str, Any]:
        """Return which heads and neurons stay, as masks, and the path that led there."""
        from compress.unit_choice import choose_units

        chosen = choose_units(
            self._batches(state), state.judge("path"), state.reference, self.pruning, self._speedup_of(state),
            seed=self.seed, progress=self.progress,
        )  # fmt: skip
        return {
            "masks": {part: [row.int().tolist() for row in rows] for part, rows in chosen.masks.items()},
            "importance": {part: scores.tolist() for part, scores in chosen.scores.items()},
            "curve": chosen.curve,
        }

    def _positions(self, state: Shrinking) -> list[int]:
        """Return the positions of the hidden width that matter least."""
        from compress.unit_choice import positions_to_remove
        from compress.width import hidden_importance

        with self.progress("Scoring hidden width", None):
            scores = hidden_importance(state.model, self._batches(state))
            return sorted(scores.argsort(stable=True)[: positions_to_remove(state.model, self.pruning)].tolist())

    def _speedup_of(self, state: Shrinking) -> Callable[[Masks], Ratio]:
        """Return what measures how fast the model is without some units, against the whole one."""
        from compress.masks import closed_units
        from compress.modeling.pruned import to_pruned
        from compress.saving import save_model
        from compress.slicing import remove_heads, remove_neurons

        runtime = "onnxruntime" if exporter_for(self.source) else "torch"

        def measure(masks: Masks) -> Ratio:
            smaller = deepcopy(state.model)
            remove_heads(smaller, closed_units(masks.get("heads", ())))
            if "neurons" in masks:
                remove_neurons(smaller, closed_units(masks["neurons"]))
            candidate = self.folder / "candidate"
            save_model(to_pruned(smaller).cpu().eval(), state.tokenizer, candidate)
            found = self._timed(
                {"whole": state.directories[0], "candidate": candidate}, runtime, (self.pruning.speedup_batch_size,)
            )[-1]
            logger.info("%s: x%.2f (%.2f to %.2f)", _counted(masks), found.speedup, found.low, found.high)
            return Ratio(found.speedup, found.low, found.high)

        return measure

    def recover(self, state: Shrinking, pool: Pool | None, training: Training, quiet: bool) -> Any:
        """Distil the whole model into what is left of it."""
        from compress.modeling.families import head_size_of

        train, validation = self.gold["train"], self.gold["validation"]
        own = [directory for directory in pool.labels if directory.teacher_sha256 == self.source.sha256] if pool else []
        logits = teacher_logits(self.source, train.examples, labels=own, device=self.device, threads=self.threads)
        # The whole model as it reads the tokens that are left.
        whole = next(d for d, cut in reversed(list(zip(state.directories, state.cuts, strict=True)))
                     if cut.removal in {"nothing", "vocabulary"})  # fmt: skip
        outcome = recover(
            state.model, state.tokenizer, ModelDir.open(whole, verify=False).load(),
            Lessons(pool, replace(train, logits=logits), hold_out=not validation.examples),
            selection_for(pool, validation, self.metric.name, self.source.task),
            epochs=self.pruning.recover, losses=losses_of(self.pruning.recovery, head_size_of(state.model.config)),
            training=training, working=self.working, task=self.source.task, seed=self.seed, device=self.device,
            threads=self.threads, quiet=quiet,
        )  # fmt: skip
        state.done("recovery", 0, 0)
        return outcome

    def speeds(self, state: Shrinking) -> list[Speed]:
        """Time the model after each removal, all in one run; recovery changes no shape."""
        directories = {
            cut.removal: directory
            for cut, directory in zip(state.cuts, state.directories, strict=True)
            if cut.removal != "recovery"
        }
        found: list[Speed] = []
        for runtime in ("torch", *(("onnxruntime",) if exporter_for(self.source) else ())):
            with self.progress(f"Timing in {runtime}", None):
                found += self._timed(directories, runtime, BATCH_SIZES)
        return found

    def _timed(self, directories: Mapping[str, Path], runtime: str, batch_sizes: Sequence[int]) -> list[Speed]:
        places = {name: _opened_by(runtime, path) for name, path in directories.items()}
        rows = self.gold["validation"].examples or self.gold["sample"].examples
        return time_side_by_side(places, rows, runtime=runtime, threads=self.threads or 1, batch_sizes=batch_sizes)

    def report(
        self, state: Shrinking, decided: Mapping[str, Any], speeds: Sequence[Speed], name: str
    ) -> dict[str, Any]:
        """Write pages, tables and pictures, and return what the manifest notes of them."""
        from compress.reporting.curves import curve_csv, draw_curve
        from compress.reporting.pruning import removed, write_report

        curve = list(decided.get("curve", ()))
        if curve and state.cuts[-1].removal == "recovery":
            stopped = next(point for point in curve if point["chosen"])
            won = {key: getattr(state.cuts[-1], key) for key in ("value", "points", "low", "high")}
            curve.append({**stopped, **won, "recovered": True})
        content = {
            "name": name, "model": self.source.name, "model_sha256": self.source.sha256, "metric": self.metric.name,
            "split": state.split, "rows": len(state.gold.examples), "criterion": self.pruning.criterion,
            "cuts": [asdict(cut) for cut in state.cuts], "speeds": [asdict(speed) for speed in speeds],
            **decided, "curve": curve,
        }  # fmt: skip
        write_atomically(self.working / REPORT_NAME, json.dumps(content, indent=1) + "\n")
        write_report(content, self.working)
        if curve:
            write_atomically(self.working / CURVE_NAME, curve_csv(curve))
            write_atomically(self.working / PICTURE_NAME, draw_curve(name, self.metric.name, curve).picture.wide)
        return {
            "removed": removed(content["cuts"]),
            # A target may leave heads or neurons as they are.
            "shapes": [{"removal": c.removal, "config": c.config} for c in state.cuts if c.removed or not c.of],
        }  # fmt: skip


def _check_model(model: PreTrainedModel, pruning: Pruning) -> None:
    """Refuse a model that cannot give what is asked for, before anything is written."""
    from compress.gates import gates_work
    from compress.unit_choice import amounts_of, layers_to_remove, positions_to_remove
    from compress.width import members

    if pruning.layers:
        layers_to_remove(model, pruning)
    if pruning.hidden:
        members(model)
        positions_to_remove(model, pruning)
    if not pruning.removes_units:
        return
    for part in amounts_of(model, pruning):
        if not gates_work(model, part):
            raise CompressError(
                f"gates on the {part} of a {model.config.model_type!r} model do not reach its logits; it cannot be "
                "pruned"
            )


def _opened_by(runtime: str, directory: Path) -> Path:
    """Return the directory that a runtime opens: of ONNX, the export of a torch directory, made once."""
    if runtime == "torch":
        return directory
    target = directory.with_name(f"{directory.name}-onnx")
    export(ModelDir.open(directory, verify=False), target, force=True)
    return target


def _counted(masks: Masks) -> str:
    """Return what masks close, in words."""
    counts = {part: sum(int((row == 0).sum()) for row in rows) for part, rows in masks.items()}
    return " and ".join(f"{count:,} {part}" for part, count in counts.items()) + " removed"
