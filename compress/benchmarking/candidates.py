"""Candidates of a benchmark: open the models, check that they are comparable, and assign runtimes."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compress import plugins
from compress.errors import CompressError, some_of
from compress.models.cascade_dir import CascadeDir, open_model
from compress.models.manifest import VOCABULARIES, file_sha256
from compress.models.model_dir import ModelDir, removals_of
from compress.progress import logger
from compress.recipes.controls import control_key

Model = ModelDir | str | Path

REFERENCE_RUNTIME = "torch"  # what a user of the teacher runs today
DERIVED_STAGES = ("export", "quantize", "calibrate")


@dataclass(frozen=True)
class Candidate:
    """A model under measurement; ``recipe`` trained it.

    ``kind`` is ``teacher``, ``model``, ``cascade``, ``control``, ``baseline``, ``reference-model`` or ``pruning-step``.
    ``model`` is its directory; that of a baseline does not exist until it is built. ``control_of`` names the first
    model that a control belongs to, ``control`` the control that belongs to a model. ``removals`` are what compress
    prune took, in turn; ``step_of`` names the pruned model that a pruning step became.
    """

    model: ModelDir
    name: str
    kind: str
    control_of: str = ""
    recipe: str = ""
    control: str = ""
    removals: tuple[str, ...] = ()
    step_of: str = ""


@dataclass(frozen=True)
class Entry:
    """A candidate and what runs it.

    ``runtime`` is what lines call it, ``plugin`` of ``folder`` is what starts ``directory``: the model's own, an ONNX
    export of it, or what the plug-in of a baseline or a competitor builds from ``source``. ``python`` is the
    interpreter of a competitor that has an environment of its own.
    """

    candidate: Candidate
    runtime: str
    directory: ModelDir
    plugin: str
    device: str
    folder: str = "runtimes"
    source: ModelDir | None = None
    python: Path | None = None

    @property
    def title(self) -> str:
        return f"{self.candidate.name} in {self.runtime}"

    @property
    def kind(self) -> str:
        return "competitor" if self.folder == "competitors" else self.candidate.kind

    @property
    def has_random_weights(self) -> bool:
        """Whether it is there for its speed and has no quality."""
        return self.kind in {"reference-model", "pruning-step"}

    @property
    def is_reference(self) -> bool:
        return self.kind == "teacher" and self.runtime == REFERENCE_RUNTIME


def open_candidates(teacher: Model, models: Sequence[Model], controls: Sequence[Model]) -> list[Candidate]:
    """Open the teacher, the models and the controls, in this order, each under a name of its own.

    Raises:
        CompressError: the teacher is not a torch directory, labels differ from the teacher's, or a model comes twice.
    """
    first = ModelDir.open(teacher)
    if first.is_onnx:
        raise CompressError(
            f"the teacher {first.path} is an ONNX model, but speed-ups are against the teacher in torch; "
            "give the directory it was exported from as --teacher and this one as --model"
        )
    found = [Candidate(first, first.name, "teacher", recipe=_recipe(first), removals=removals_of(first))]
    for path, flagged in [(m, False) for m in models] + [(m, True) for m in controls]:
        model = open_model(path)
        if model.task != first.task or not same_labels(model.labels, first.labels):
            raise CompressError(
                f"{model.path} has the labels {some_of(model.labels)}, the teacher {first.path} has "
                f"{some_of(first.labels)}; models are compared only when their labels are the same in the same order"
            )
        if model.path.resolve() == first.path.resolve():
            logger.info("%s is the teacher, which is measured in any case", model.path)
            continue
        notes = model.manifest.notes
        control_of = str(notes.get("control_of") or "")
        if isinstance(model, CascadeDir):
            if flagged:
                raise CompressError(f"{model.path} is a cascade, which is no control; give it with --model")
            found.append(Candidate(model, model.name, "cascade"))
            continue
        kind = "control" if flagged or control_of or notes.get("control") is True else "model"
        found.append(Candidate(model, model.name, kind, control_of, _recipe(model), removals=removals_of(model)))
    found = [_like_its_source(candidate, found) for candidate in _with_own_names(found)]
    found = [_with_student(candidate, found) for candidate in found]
    return [_with_control(candidate, found) for candidate in found]


def new_candidate(name: str, kind: str, candidates: Sequence[Candidate], scratch: Path) -> Candidate:
    """Return a candidate in a folder that does not exist yet, under a name that no model of the benchmark has."""
    free = f"{name} ({kind})" if any(c.name == name for c in candidates) else name
    return Candidate(ModelDir(scratch / f"{kind}-{name}"), free, kind)


def same_labels(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether two models mean the same classes: equal names, or one of them only numbers its classes.

    A model fine-tuned on integer labels has ``0, 1``, and many of the hub have ``LABEL_0, LABEL_1``.
    """
    if len(one) != len(other):
        return False
    numbered = [[f"{prefix}{index}" for index in range(len(one))] for prefix in ("", "LABEL_")]
    return list(one) == list(other) or list(one) in numbered or list(other) in numbered


def training_seed(model: ModelDir) -> int | None:
    """Return the seed that a model was trained with, where its manifest says so; derived models keep it."""
    return model.manifest.seeds.get("seed")


def vocabulary_sha256(model: ModelDir) -> str:
    """Return a fingerprint of a directory's tokenizer files; empty where it has none."""
    files = {name: file_sha256(model.path / name) for name in VOCABULARIES if (model.path / name).is_file()}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() if files else ""


def precision_of(entry: Entry) -> str | None:
    """Return what a runtime multiplies in, as torch calls it: what it says itself, or float32 for torch models."""
    if entry.folder != "runtimes":
        return None
    module = plugins.find("runtimes", entry.plugin).load()
    return getattr(module, "PRECISION", "float32" if module.OPENS == "torch" else None)


def plan_entries(
    candidates: Sequence[Candidate],
    runtimes: Sequence[str],
    to_onnx: Callable[[ModelDir], ModelDir],
    device: str = "cpu",
) -> list[Entry]:
    """Give every candidate its runtimes; a torch model goes through ``to_onnx`` where a runtime opens ONNX only.

    Without ``runtimes`` each model runs where it opens natively. The teacher always runs in torch, and in every other
    runtime that is used, so that each model can be compared with it in its own runtime too.

    Raises:
        CompressError: an unknown runtime, or a model that opens in none of those that were asked for.
    """
    opens = {name: str(plugins.find("runtimes", name).load().OPENS) for name in runtimes or ("torch", "onnxruntime")}
    entries: list[Entry] = []
    for candidate in candidates[1:]:
        model = candidate.model
        kind = "onnx" if model.is_onnx else "torch"
        wanted = [name for name in opens if opens[name] == kind or (runtimes and kind == "torch")]
        if not wanted:
            raise CompressError(
                f"{candidate.name} is an ONNX model and does not open in {', '.join(opens)}; add --runtime onnxruntime"
            )
        for name in wanted:
            directory = to_onnx(model) if opens[name] == "onnx" and kind == "torch" else model
            entries.append(Entry(candidate, name, directory, name, device))
    teacher = candidates[0]
    used = dict.fromkeys([REFERENCE_RUNTIME, *(entry.runtime for entry in entries), *runtimes])
    own: list[Entry] = []
    for name in used:
        try:
            directory = to_onnx(teacher.model) if opens.get(name) == "onnx" else teacher.model
        except CompressError as error:
            if name in runtimes:
                raise
            logger.warning("the teacher is not measured in %s: %s", name, error)
            continue
        own.append(Entry(teacher, name, directory, name, device))
    return own + entries


def _recipe(model: ModelDir) -> str:
    """Return the recipe that made a model, or the stage without one; what is derived has only that of its source."""
    manifest = model.manifest
    return "" if manifest.stage in DERIVED_STAGES else str(manifest.recipe.get("name") or manifest.stage)


def _like_its_source(candidate: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """Give an export or int8 model the recipe of what it was made from, and a control's the mark of a control."""
    if candidate.kind == "teacher" or candidate.model.manifest.stage not in DERIVED_STAGES:
        return candidate
    source = _source(candidate, candidates)
    if source is None:
        return candidate
    kind = "control" if "control" in (source.kind, candidate.kind) else "model"
    return replace(candidate, kind=kind, recipe=source.recipe, control_of=candidate.control_of or source.control_of)


def _source(candidate: Candidate, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return what an export or int8 model was made from, in several steps too, among candidates but the teacher."""
    parents = {parent.get("sha256") for parent in candidate.model.manifest.parents}
    found = next((c for c in candidates if c.kind != "teacher" and c.model.sha256 in parents), None)
    if found and found.model.manifest.stage in DERIVED_STAGES:
        return _source(found, [c for c in candidates if c is not found]) or found
    return found


def _with_student(control: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """Name the student that a control belongs to, where its manifest does not: the first of the same recipe."""
    if control.kind != "control" or control.control_of:
        return control
    models = [c for c in candidates if c.kind == "model"]
    same = [c for c in models if c.recipe and c.recipe == control.recipe]
    same = same or [c for c in models if _key(c) and _key(c) == _key(control)]
    seed, is_onnx = training_seed(control.model), control.model.is_onnx
    same.sort(key=lambda c: (training_seed(c.model) != seed, c.model.is_onnx != is_onnx))
    return replace(control, control_of=same[0].name) if same else control


def _with_control(candidate: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """Name the control that belongs to a model: trained alike, or said to be its own; of int8 that of its source."""
    if candidate.kind != "model":
        return candidate
    derived = candidate.model.manifest.stage in DERIVED_STAGES
    student = (_source(candidate, candidates) if derived else None) or candidate
    controls = [c for c in candidates if c.kind == "control"]
    own = [c for c in controls if c.control_of == student.name]
    own = own or [c for c in controls if _key(c) and _key(c) == _key(student)]
    own.sort(key=lambda c: c.model.is_onnx != candidate.model.is_onnx)
    return replace(candidate, control=own[0].name) if own else candidate


def _key(candidate: Candidate) -> str:
    return control_key(candidate.model.manifest.recipe, training_seed(candidate.model))


def _with_own_names(candidates: list[Candidate]) -> list[Candidate]:
    """Tell apart models that bear the same name by their directory, then by the ones above it."""
    for parts in range(1, 1 + max(len(candidate.model.path.resolve().parts) for candidate in candidates)):
        counts = Counter(candidate.name for candidate in candidates)
        candidates = [
            replace(c, name="/".join(c.model.path.resolve().parts[-parts:])) if counts[c.name] > 1 else c
            for c in candidates
        ]
    counts = Counter(candidate.name for candidate in candidates)
    twice = next((c for c in candidates if counts[c.name] > 1), None)
    if twice is not None:
        raise CompressError(f"{twice.model.path} is given twice; give each model once")
    return candidates
