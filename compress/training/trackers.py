"""Report a training to an experiment tracker while it runs, through the integrations of transformers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from compress.models.output_dir import work_title

TENSORBOARD_FOLDER = "runs"  # the default of TensorBoard's own writer; transformers' is deleted with the checkpoints


@contextmanager
def reporting(trainer: Trainer, tracker: str | None, begun: int) -> Iterator[None]:
    """Report what the block trains as a run named after the output and the phase; None reports nothing.

    Args:
        begun: steps that a resumed training has behind it; TensorBoard shows what is done again once.
    """
    if tracker is None:
        yield
        return
    trainer.args.run_name = work_title(Path(trainer.args.output_dir or ""))
    trainer.args.project = "compress"  # of trackio alone; others have a variable for it
    callback: Any = INTEGRATION_TO_CALLBACK[tracker]()
    if tracker == "tensorboard" and trainer.is_world_process_zero():
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR", TENSORBOARD_FOLDER)).expanduser()
        callback.tb_writer = SummaryWriter(str(folder / trainer.args.run_name), purge_step=begun + 1)
    if tracker == "mlflow":  # its file store cannot keep loss as a file and as the folder of its terms
        log = callback.on_log
        callback.on_log = lambda *given, logs, **named: log(
            *given, logs={key.replace("/", "_"): value for key, value in logs.items()}, **named
        )
    ours = tracker != "wandb" or callback._wandb.run is None
    trainer.add_callback(callback)
    try:
        yield
    finally:
        # Also after an error, else the next training of a study would report to this one's run.
        if tracker != "wandb":
            callback.on_train_end(trainer.args, trainer.state, trainer.control)
        elif ours:  # the integration leaves its run open
            callback._wandb.finish()
