"""The precision of a training: the one that is wanted, if its networks compute in it, else float32."""

import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.errors import CompressError, first_line, interruptions, system_fault
from compress.inference.compute import autocast
from compress.models.output_dir import PREPARED, WORK_FOLDER
from compress.models.resumption import cached_json
from compress.progress import logger
from compress.training.cpu_steps import fast_steps
from compress.training.teacher_signal import ActivationRecorder
from compress.training.tokenized_dataset import batch_of
from compress.training.trainer import TrainingRun

PRECISION_NAME = "precision.json"


def settle_precision(
    run: TrainingRun, student: PreTrainedModel, teachers: Sequence[PreTrainedModel], tensors: Mapping[str, Tensor]
) -> TrainingRun:
    """Return a run in the precision in which it was begun, for a trial of speed may say another one at another time.

    At the first start, networks that fail in bfloat16 on a few rows are trained in float32, and a warning says so. Some
    families mask with numbers that it does not hold (DeBERTa), or mix it with float32 (XMOD).

    Args:
        teachers: those that run in every step.
        tensors: a few rows, as :func:`compress.training.tokenized_dataset.collator` joins them.

    Raises:
        CompressError: bfloat16 was asked for and fails, or the code of a network fails in float32 too.
    """

    def fault_in(precision: str) -> str:
        """Say which network cannot compute a step; in float32 only where the code of transformers raises an error."""
        for network in (student, *teachers):
            try:
                _step(network, tensors, run.compute.device, precision, learns=network is student)
            except CompressError:
                raise
            except Exception as error:
                if interruptions or system_fault(error) or precision == "float32" and not _is_theirs(error):
                    raise
                return f"{type(network).__name__} fails in {precision} ({type(error).__name__}: {first_line(error)})"
        return ""

    def choose() -> dict[str, str]:
        wanted, reason = run.precision, ""
        if wanted != "float32" and (reason := fault_in(wanted)):
            if run.compute.precision != "auto":
                raise CompressError(f"--precision {wanted}: {reason}; give float32, or leave the option out")
            wanted = "float32"
        if wanted == "float32" and (fault := fault_in(wanted)):
            raise CompressError(f"{fault}; correct its config.json, or use a model of another type")
        if reason:
            logger.warning("computing in float32: %s", reason)
        return {"precision": wanted, "reason": reason}

    settled = cached_json(run.folder / WORK_FOLDER / PREPARED / PRECISION_NAME, choose)
    reason = settled["reason"]
    return replace(
        run,
        training=replace(run.training, precision=settled["precision"]),
        compute=replace(run.compute, precision="float32") if reason else run.compute,
        precision_reason=reason,
    )


def _step(
    network: PreTrainedModel, tensors: Mapping[str, Tensor], device: str, precision: str, *, learns: bool
) -> None:
    """Compute what a step of training computes; weights and random numbers stay as they are."""
    network.to(device)  # type: ignore[arg-type]
    network.train(learns)
    rows = batch_of({name: tensor.to(device) for name, tensor in tensors.items()})
    with (
        fast_steps(device) as around_forward,
        torch.random.fork_rng(devices=[]),
        torch.set_grad_enabled(learns),
        autocast(device, precision),
        around_forward if learns else nullcontext(),
    ):
        total = ActivationRecorder(network, frozenset())(rows)[0].float().sum()
    if total.requires_grad:
        total.backward()
    network.zero_grad()
    network.train(False)


def _is_theirs(error: Exception) -> bool:
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = any(name.startswith("compress.models.modeling.") for name in modules)
    return not ours and any(name.startswith("transformers.models.") for name in modules)
