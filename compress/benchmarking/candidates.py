"""What a benchmark measures: models and their controls, baselines, competitors, and models with random weights.

A *candidate* is a model, an *entry* a candidate and what runs it. Baselines and competitors are measured in the same
rounds as the models; each is built later, in a process of its own, in a folder of the benchmark's scratch.

Random weights are as fast as trained ones. A *reference model* is a published architecture, for scale: published
speed-ups are against BERT-base or BERT-large. It has the teacher's vocabulary and labels, so that it reads the same
rows. A *pruning step* is an intermediate shape of a pruned model, to measure the effect of each removal. ``compress
prune`` notes the config after each removal in the manifest; each shape but the last, which is the pruned model itself,
is built here. It reads rows as the pruned model does, whose tokenizer it has (the vocabulary is cut before all else).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from compress import plugins
from compress.benchmarking.competitors import interpreter
from compress.benchmarking.results.schema import REFERENCE_RUNTIME
from compress.data.tokenization import maximum_length
from compress.errors import CompressError, Unavailable, did_you_mean, first_line, refuse, some_of
from compress.host import without_home
from compress.inference.runners import NATIVE, serving_runtime
from compress.models.manifest import VOCABULARIES, Manifest, describe_files, file_sha256
from compress.models.model_dir import (
    MEMBERS,
    REMOVALS,
    CascadeDir,
    LanguageModelMember,
    Model,
    open_model,
    parent_entry,
    removal_shapes,
    removals_of,
)
from compress.progress import logger
from compress.recipes.benchmark_settings import REFERENCE_MODELS
from compress.recipes.student import control_key
from compress.tasks import everything

AnyModel = Model | str | Path

DERIVED_STAGES = ("export", "quantize", "calibrate")
POSITIONS = 512  # of a reference model, at least


@dataclass(frozen=True)
class Candidate:
    """A model under measurement; ``recipe`` trained it.

    ``kind`` is ``teacher``, ``model``, ``cascade``, ``control``, ``baseline``, ``reference-model`` or ``pruning-step``.
    ``model`` is its directory; that of a baseline does not exist until it is built. ``control_of`` names the first
    model that a control belongs to, ``control`` the control that belongs to a model. ``removals`` are what compress
    prune took, in turn; ``step_of`` names the pruned model that a pruning step became.
    """

    model: Model
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
    directory: Model
    plugin: str
    device: str
    folder: str = "runtimes"
    source: Model | None = None
    python: Path | None = None

    @property
    def title(self) -> str:
        return f"{self.candidate.name} in {self.runtime}"

    @property
    def kind(self) -> str:
        return "competitor" if self.folder == "competitors" else self.candidate.kind

    @property
    def is_reference(self) -> bool:
        return self.kind == "teacher" and self.runtime == REFERENCE_RUNTIME


def open_candidates(teacher: AnyModel, models: Sequence[AnyModel], controls: Sequence[AnyModel]) -> list[Candidate]:
    """Open the teacher, the models and the controls, in this order, each under a name of its own.

    Raises:
        CompressError: the teacher is not a torch directory, labels differ from the teacher's, or a model comes twice.
    """
    first = Model.open(teacher)
    refuse(
        (
            first.form != "a torch",
            f"the teacher {first.path} is {first.form} model, but speed-ups are against the teacher in torch; "
            "give the directory it was exported from as --teacher and this one as --model",
        )
    )
    found = [Candidate(first, first.name, "teacher", recipe=_recipe(first), removals=removals_of(first))]
    for path, flagged in [(m, False) for m in models] + [(m, True) for m in controls]:
        model = open_model(path)
        is_cascade = isinstance(model, CascadeDir)
        refuse(
            (
                model.task != first.task or not same_labels(model.labels, first.labels),
                f"{model.path} has the labels {some_of(model.labels)}, the teacher {first.path} has "
                f"{some_of(first.labels)}; models are compared only when their labels are the same in the same order",
            ),
            (
                isinstance(model, CascadeDir) and isinstance(model.members[-1], LanguageModelMember),
                f"{model.path} asks a language model on a server, which is not measured; give members of it, such as "
                f"{model.path / MEMBERS / '1'}",
            ),
            (is_cascade and flagged, f"{model.path} is a cascade, which is no control; give it with --model"),
        )
        if model.path.resolve() == first.path.resolve():
            logger.info("%s is the teacher, which is measured in any case", model.path)
            continue
        notes = model.manifest.notes
        control_of = str(notes.get("control_of") or "")
        if is_cascade:
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
    return Candidate(Model(scratch / f"{kind}-{name}"), free, kind)


def same_labels(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether two models mean the same classes: equal names, or one of them only numbers its classes.

    A model fine-tuned on integer labels has ``0, 1``, and many of the hub have ``LABEL_0, LABEL_1``.
    """
    if len(one) != len(other):
        return False
    numbered = [[f"{prefix}{index}" for index in range(len(one))] for prefix in ("", "LABEL_")]
    return list(one) == list(other) or list(one) in numbered or list(other) in numbered


def training_seed(model: Model) -> int | None:
    """Return the seed that a model was trained with, where its manifest says so; derived models keep it."""
    return model.manifest.seeds.get("seed")


def vocabulary_sha256(model: Model) -> str:
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
    to_onnx: Callable[[Model], Model],
    device: str = "cpu",
) -> list[Entry]:
    """Give every candidate its runtimes; a torch model goes through ``to_onnx`` where a runtime opens ONNX only.

    Without ``runtimes`` each model runs where its texts are answered. The teacher always runs in torch, and in every
    other runtime that is used, so that each model can be compared with it in its own runtime too; in the native
    library only where that was asked for.

    Raises:
        CompressError: an unknown runtime, or a model that opens in none of those that were asked for.
    """
    known = runtimes or ("torch", "onnxruntime", NATIVE)
    opens = {name: str(plugins.find("runtimes", name).load().OPENS) for name in known}
    entries: list[Entry] = []
    for candidate in candidates[1:]:
        model = candidate.model
        kind = "onnx" if model.is_onnx else NATIVE if model.is_native else "torch"
        wanted = (
            [name for name in runtimes if kind in ("torch", opens[name], name)]
            if runtimes
            else [serving_runtime(model, device)]
        )
        refuse(
            (
                not wanted,
                f"{candidate.name} is {model.form} model and does not open in {', '.join(opens)}; add --runtime "
                f"{serving_runtime(model, device)}",
            )
        )
        for name in wanted:
            directory = to_onnx(model) if opens[name] == "onnx" and kind == "torch" else model
            entries.append(Entry(candidate, name, directory, name, device))
    teacher = candidates[0]
    others = (entry.runtime for entry in entries if entry.runtime != NATIVE)
    used = dict.fromkeys([REFERENCE_RUNTIME, *others, *runtimes])
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


def _recipe(model: Model) -> str:
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
    refuse(*((counts[c.name] > 1, f"{c.model.path} is given twice; give each model once") for c in candidates))
    return candidates


def plan_baselines(
    wanted: bool | Sequence[str],
    candidates: Sequence[Candidate],
    scratch: Path,
    *,
    has_train: bool,
    pairs: bool = False,
) -> list[Entry]:
    """Return an entry for each baseline, which run on the CPU: for all of the teacher's task, none, or those named.

    Raises:
        CompressError: an unknown baseline, one of another task or of ``pairs``, or named ones without training rows.
    """
    names = plugins.names("baselines") if wanted is True else wanted or ()
    lacks_train = f"the baselines {', '.join(names)} are fitted on training rows; give them with --train FILE"
    refuse((names and not has_train and wanted is not True, lacks_train))
    if names and not has_train:
        logger.info("no baselines: they are fitted on labelled training rows, which --train FILE gives")
        return []
    entries: list[Entry] = []
    teacher = candidates[0].model
    for given in dict.fromkeys(names):
        plugin = plugins.find("baselines", given)
        module, name = plugin.load(), plugin.name
        able = [
            one
            for one in everything().values()
            if name in (*one.baselines, *one.pair_baselines) or one in getattr(module, "TASKS", ())
        ]
        if not pairs and name in teacher.task.pair_baselines:
            refuse((wanted is not True, f"the baseline {name} compares the texts of pairs; leave it out"))
        elif teacher.task in able:
            new = new_candidate(name, "baseline", candidates, scratch)
            entries.append(Entry(new, str(module.RUNTIME), new.model, name, "cpu", "baselines", teacher))
        elif wanted is not True:
            raise CompressError(
                f"the baseline {name} is for {', '.join(sorted(able))}, not {teacher.task}; leave it out"
            )
    return entries


def competitor_models(candidates: Sequence[Candidate], names: Sequence[str]) -> list[Candidate]:
    """Return the models that competitors run: torch models that are no controls, or those of them that were named.

    Raises:
        CompressError: a name that is none of them.
    """
    possible = {c.name: c for c in candidates if c.kind in {"teacher", "model"} and not c.model.is_onnx}
    is_none = f"is no torch model of this benchmark; choose of {', '.join(possible)}."
    refuse(*((n not in possible, f"--competitor-model {n} {is_none}{did_you_mean(n, possible)}") for n in names))
    return [possible[name] for name in (dict.fromkeys(names) or possible)]


def plan_competitors(
    names: Sequence[str],
    models: Sequence[Candidate],
    scratch: Path,
    *,
    device: str,
    has_train: bool,
) -> tuple[list[Entry], list[dict[str, str]]]:
    """Return an entry for each competitor (``all``: every one) and model, and those that cannot run here: name and
    reason.

    Raises:
        CompressError: an unknown competitor.
    """
    entries: list[Entry] = []
    left_out: list[dict[str, str]] = []
    known = plugins.names("competitors")
    for name in dict.fromkeys(plugins.find("competitors", name).name for name in (known if "all" in names else names)):
        module = plugins.find("competitors", name).load()
        tags = bool(models) and models[0].model.task.by_word
        lacks = {
            f"it does not run on {device}": device not in module.DEVICES,
            "it classifies whole texts, and these models tag words": tags and not getattr(module, "TAGS", False),
            "it reads training rows; give them with --train": getattr(module, "NEEDS_TRAIN", False) and not has_train,
        }
        try:
            if reason := next((reason for reason, holds in lacks.items() if holds), ""):
                raise Unavailable(reason)
            python = Path(interpreter(module))
        except Unavailable as error:
            left_out.append(left_out_entry(name, error))
            continue
        isolated = python if getattr(module, "ENVIRONMENT", "") else None
        for number, candidate in enumerate(models):
            place = Model(scratch / f"competitor-{name}-{number}")
            entries.append(Entry(candidate, name, place, name, device, "competitors", candidate.model, isolated))
    return entries, left_out


def left_out_entry(name: str, error: CompressError, directory: Path | None = None) -> dict[str, str]:
    """Say that something is left out, and return what lines record of it.

    Results are shared, so that the reason names no folder of this host: ``directory`` becomes the name.
    """
    reason = str(error).removeprefix(f"{name}: ")
    logger.warning("%s is left out: %s", name, reason)
    for path in filter(None, (directory, directory and directory.resolve())):
        reason = reason.replace(str(path), name)
    return {"name": name, "reason": without_home(reason)}


def build_reference_models(names: Sequence[str], candidates: Sequence[Candidate], scratch: Path) -> list[Candidate]:
    """Write each reference model into a folder of its own and return what is measured; the same weights every time."""
    found = []
    for name in dict.fromkeys(name.replace("_", "-") for name in names):
        logger.info("%s: building", name)
        found.append(new_candidate(name, "reference-model", candidates, scratch))
        build_reference_model(name, found[-1].model.path, candidates[0].model)
    return found


def build_reference_model(name: str, directory: Path, teacher: Model) -> None:
    """Write a reference model with the tokenizer and labels of a teacher; the same weights every time."""
    from compress.models.saving import save_model

    tokenizer = teacher.tokenizer
    model_type, shape = REFERENCE_MODELS[name]
    config = {
        "model_type": model_type,
        "vocab_size": max(len(tokenizer), int(teacher.config.get("vocab_size", 0))),
        "max_position_embeddings": max(POSITIONS, maximum_length(tokenizer, teacher.config)),
        "pad_token_id": tokenizer.pad_token_id,
        **shape,
    }
    save_model(_random_model(config, teacher, seed=0), tokenizer, directory)


def plan_pruning_steps(candidates: Sequence[Candidate]) -> list[tuple[Candidate, Mapping[str, Any]]]:
    """Return the shapes that pruned torch models had before their last removal, whose files are not there yet.

    Of each it is the pruned model by another name and with its first removals only, and the config of the shape.

    Raises:
        CompressError: no model had two removals.
    """
    found = []
    for candidate in candidates:
        shapes = [] if candidate.kind != "model" or candidate.model.is_onnx else removal_shapes(candidate.model)
        for number, (_, config) in enumerate(shapes[:-1], 1):
            found.append((pruning_step(candidate, tuple(removal for removal, _ in shapes[:number])), config))
    refuse(
        (
            not found,
            "--pruning-steps takes two or more removals of one 'compress prune' apart, and no torch model here had "
            "them; give such a model with --model, or leave it out",
        )
    )
    return found


def pruning_step(pruned: Candidate, removals: tuple[str, ...]) -> Candidate:
    """Return a pruned model as it was after some of its removals, in turn; its files are still those of the model."""
    *others, last = (REMOVALS[removal] for removal in removals)
    name = f"{pruned.name}: fewer {' and '.join(filter(None, (', '.join(others), last)))}"
    changed: dict[str, Any] = {"kind": "pruning-step", "removals": removals, "step_of": pruned.name}
    return replace(pruned, name=name, recipe="", control="", **changed)


def build_pruning_steps(steps: Sequence[tuple[Candidate, Mapping[str, Any]]], scratch: Path) -> list[Candidate]:
    """Write every pruning step into a folder of its own and return what is measured; the same weights every time.

    Raises:
        CompressError: a shape that cannot be built.
    """
    from compress.models.saving import describe_architecture, save_model

    found = []
    for number, (step, config) in enumerate(steps):
        directory, source = scratch / f"pruning-step-{number}", step.model
        try:
            # Two models may have had the same shape: their pruning steps differ by their weights.
            model = _random_model(config, source, seed=crc32(step.name.encode()))
        except Exception as error:  # configs and models refuse what is wrong by many classes of their own
            raise CompressError(
                f"{step.name} cannot be built from the manifest of {source.path}: {first_line(error)}; leave "
                "--pruning-steps out"
            ) from error
        save_model(model, source.tokenizer, directory)
        manifest = Manifest(
            stage="",
            name=step.name,
            task=source.task,
            labels=source.labels,
            architecture=describe_architecture(model),
            parents=(parent_entry("pruned", source),),
            files=describe_files(directory),
        )
        found.append(replace(step, model=Model(directory, manifest)))
    return found


def _random_model(config: Mapping[str, Any], labels_from: Model, seed: int) -> Any:
    """Return a classifier of the shape of a config, with the task and labels of another model."""
    import torch
    from transformers import AutoConfig

    settings = {**config, **labels_from.task.head_settings(labels_from.labels)}
    torch.manual_seed(seed)
    return labels_from.task.auto_model().from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
