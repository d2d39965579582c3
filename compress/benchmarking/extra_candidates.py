"""Floors, peers and bodies: what is measured beside the models, in the same rounds.

They are planned here and built in a process of their own, each in a folder of the benchmark's scratch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType

from compress import plugins
from compress.benchmarking.candidates import BASELINE_RUNTIME, Build, Contender, Entry
from compress.errors import CompressError, Unavailable, did_you_mean
from compress.host import without_home
from compress.models.model_dir import ModelDir
from compress.recipes.reference_shapes import check_body

logger = logging.getLogger("compress")

ALL = "all"


def plan_floors(names: Sequence[str] | None, contenders: Sequence[Contender], scratch: Path) -> list[Entry]:
    """Give each floor (without ``names`` all of the teacher's task) a place; on the processor, where they live.

    Raises:
        CompressError: an unknown floor, or one of another task.
    """
    entries = []
    task = contenders[0].model.task
    for name in plugins.names("floors") if names is None else _distinct(names):
        plugin = plugins.find("floors", name)
        module, name = plugin.load(), plugin.name
        if task not in module.TASKS:
            if names is None:
                continue
            raise CompressError(f"the floor {name} is for {' and '.join(module.TASKS)}, not {task}; leave it out")
        place = ModelDir(scratch / f"floor-{name}", None)
        contender = Contender(place, _free(name, "floor", contenders), "floor")
        build = Build("floors", name, contenders[0].model)
        entries.append(Entry(contender, str(module.RUNTIME), place, name, "cpu", "floors", build))
    return entries


def plan_bodies(names: Sequence[str], contenders: Sequence[Contender], scratch: Path, device: str) -> list[Entry]:
    """Give each body a place, in torch.

    Raises:
        CompressError: an unknown body.
    """
    entries = []
    for name in _distinct(map(check_body, names)):
        place = ModelDir(scratch / f"body-{name}", None)
        contender = Contender(place, _free(name, "body", contenders), "body")
        build = Build("bodies", name, contenders[0].model)
        entries.append(Entry(contender, BASELINE_RUNTIME, place, BASELINE_RUNTIME, device, build=build))
    return entries


def peer_models(contenders: Sequence[Contender], names: Sequence[str]) -> list[Contender]:
    """Return the models that peers run: torch models that are no controls, or those of them that were named.

    Raises:
        CompressError: a name that is none of them.
    """
    possible = {c.name: c for c in contenders if c.kind in {"teacher", "model"} and not c.model.is_onnx}
    for name in names:
        if name not in possible:
            raise CompressError(
                f"--peer-model {name} is no torch model of this benchmark; choose of {', '.join(possible)}."
                f"{did_you_mean(name, possible)}"
            )
    return [possible[name] for name in (_distinct(names) or possible)]


def plan_peers(
    names: Sequence[str],
    models: Sequence[Contender],
    scratch: Path,
    *,
    device: str,
    has_train: bool,
    interpreter: Callable[[ModuleType], str],
) -> tuple[list[Entry], list[dict[str, str]]]:
    """Give each peer (``all``: every one) and model a place, and say which cannot run here: its name and the reason.

    Raises:
        CompressError: an unknown peer.
    """
    wanted = plugins.names("peers") if ALL in names else _distinct(plugins.find("peers", name).name for name in names)
    entries: list[Entry] = []
    left_out: list[dict[str, str]] = []
    for name in wanted:
        module = plugins.find("peers", name).load()
        try:
            if device not in module.DEVICES:
                raise Unavailable(f"it does not run on {device}")
            if models and models[0].model.task == "tagging" and not getattr(module, "TAGS", False):
                raise Unavailable("it classifies whole texts, and these models tag words")
            if module.NEEDS_TRAIN and not has_train:
                raise Unavailable("it reads training rows; give them with --train")
            python = Path(interpreter(module))
        except Unavailable as error:
            left_out.append(left_out_entry(name, error))
            continue
        isolated = python if getattr(module, "ENVIRONMENT", "") else None
        for number, contender in enumerate(models):
            place, build = ModelDir(scratch / f"peer-{name}-{number}", None), Build("peers", name, contender.model)
            entries.append(Entry(contender, name, place, name, device, "peers", build, isolated))
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


def _free(name: str, kind: str, contenders: Sequence[Contender]) -> str:
    """Return a name that no model of the benchmark has."""
    return f"{name} ({kind})" if any(c.name == name for c in contenders) else name


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
