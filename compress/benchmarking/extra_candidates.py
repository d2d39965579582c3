"""Plan baselines, competitors and reference models, which are measured in the same rounds as the models.

Each is built later, in a process of its own, in a folder of the benchmark's scratch.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from compress import plugins
from compress.benchmarking.candidates import REFERENCE_RUNTIME, Build, Candidate, Entry
from compress.benchmarking.competitors import interpreter
from compress.errors import CompressError, Unavailable, did_you_mean
from compress.host import without_home
from compress.models.model_dir import ModelDir
from compress.recipes.reference_shapes import check_reference_model

logger = logging.getLogger("compress")

ALL = "all"


def plan_baselines(names: Sequence[str] | None, candidates: Sequence[Candidate], scratch: Path) -> list[Entry]:
    """Give each baseline (without ``names`` all of the teacher's task) a place; on the processor, where they live.

    Raises:
        CompressError: an unknown baseline, or one of another task.
    """
    entries = []
    task = candidates[0].model.task
    for name in plugins.names("baselines") if names is None else _distinct(names):
        plugin = plugins.find("baselines", name)
        module, name = plugin.load(), plugin.name
        if task not in module.TASKS:
            if names is None:
                continue
            raise CompressError(f"the baseline {name} is for {' and '.join(module.TASKS)}, not {task}; leave it out")
        place = ModelDir(scratch / f"baseline-{name}")
        candidate = Candidate(place, _free(name, "baseline", candidates), "baseline")
        build = Build("baselines", name, candidates[0].model)
        entries.append(Entry(candidate, str(module.RUNTIME), place, name, "cpu", "baselines", build))
    return entries


def plan_reference_models(
    names: Sequence[str], candidates: Sequence[Candidate], scratch: Path, device: str
) -> list[Entry]:
    """Give each reference model a place, in torch.

    Raises:
        CompressError: an unknown reference model.
    """
    entries = []
    for name in _distinct(map(check_reference_model, names)):
        place = ModelDir(scratch / f"reference-model-{name}")
        candidate = Candidate(place, _free(name, "reference-model", candidates), "reference-model")
        build = Build("reference_models", name, candidates[0].model)
        entries.append(Entry(candidate, REFERENCE_RUNTIME, place, REFERENCE_RUNTIME, device, build=build))
    return entries


def competitor_models(candidates: Sequence[Candidate], names: Sequence[str]) -> list[Candidate]:
    """Return the models that competitors run: torch models that are no controls, or those of them that were named.

    Raises:
        CompressError: a name that is none of them.
    """
    possible = {c.name: c for c in candidates if c.kind in {"teacher", "model"} and not c.model.is_onnx}
    for name in names:
        if name not in possible:
            raise CompressError(
                f"--competitor-model {name} is no torch model of this benchmark; choose of {', '.join(possible)}."
                f"{did_you_mean(name, possible)}"
            )
    return [possible[name] for name in (_distinct(names) or possible)]


def plan_competitors(
    names: Sequence[str],
    models: Sequence[Candidate],
    scratch: Path,
    *,
    device: str,
    has_train: bool,
) -> tuple[list[Entry], list[dict[str, str]]]:
    """Give each competitor (``all``: every one) and model a place, and say which cannot run here: its name and the
    reason.

    Raises:
        CompressError: an unknown competitor.
    """
    wanted = (
        plugins.names("competitors")
        if ALL in names
        else _distinct(plugins.find("competitors", name).name for name in names)
    )
    entries: list[Entry] = []
    left_out: list[dict[str, str]] = []
    for name in wanted:
        module = plugins.find("competitors", name).load()
        try:
            if device not in module.DEVICES:
                raise Unavailable(f"it does not run on {device}")
            if models and models[0].model.task == "tagging" and not getattr(module, "TAGS", False):
                raise Unavailable("it classifies whole texts, and these models tag words")
            if getattr(module, "NEEDS_TRAIN", False) and not has_train:
                raise Unavailable("it reads training rows; give them with --train")
            python = Path(interpreter(module))
        except Unavailable as error:
            left_out.append(left_out_entry(name, error))
            continue
        isolated = python if getattr(module, "ENVIRONMENT", "") else None
        for number, candidate in enumerate(models):
            place = ModelDir(scratch / f"competitor-{name}-{number}")
            build = Build("competitors", name, candidate.model)
            entries.append(Entry(candidate, name, place, name, device, "competitors", build, isolated))
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


def _free(name: str, kind: str, candidates: Sequence[Candidate]) -> str:
    """Return a name that no model of the benchmark has."""
    return f"{name} ({kind})" if any(c.name == name for c in candidates) else name


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
