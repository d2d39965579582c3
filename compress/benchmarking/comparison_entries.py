"""Entries of what the models are compared with: baselines and competitors.

They are measured in the same rounds as the models. Each is built later, in a process of its own, in a folder of the
benchmark's scratch.
"""

from collections.abc import Sequence
from pathlib import Path

from compress import plugins
from compress.benchmarking.candidates import Candidate, Entry, new_candidate
from compress.benchmarking.competitors import interpreter
from compress.errors import CompressError, Unavailable, did_you_mean
from compress.host import without_home
from compress.models.model_dir import ModelDir
from compress.progress import logger


def plan_baselines(names: Sequence[str] | None, candidates: Sequence[Candidate], scratch: Path) -> list[Entry]:
    """Return an entry for each baseline, which run on the CPU; without ``names`` for all of the teacher's task.

    Raises:
        CompressError: an unknown baseline, or one of another task.
    """
    entries = []
    teacher = candidates[0].model
    task = teacher.task
    for given in plugins.names("baselines") if names is None else dict.fromkeys(names):
        plugin = plugins.find("baselines", given)
        module, name = plugin.load(), plugin.name
        if task not in module.TASKS:
            if names is None:
                continue
            raise CompressError(f"the baseline {name} is for {' and '.join(module.TASKS)}, not {task}; leave it out")
        new = new_candidate(name, "baseline", candidates, scratch)
        entries.append(Entry(new, str(module.RUNTIME), new.model, name, "cpu", "baselines", teacher))
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
    wanted = plugins.names("competitors") if "all" in names else names
    entries: list[Entry] = []
    left_out: list[dict[str, str]] = []
    for name in dict.fromkeys(plugins.find("competitors", name).name for name in wanted):
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
