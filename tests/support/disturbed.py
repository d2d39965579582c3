"""``compress``, disturbed in its training: ``python -m tests.support.disturbed KIND PROCESS STEP COMMAND ...``.

After that many steps, process PROCESS is killed (KIND is ``kill``), or raises an error (``fail``).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from compress.cli import main
from compress.inference import processes
from compress.labelling import label as label_module
from compress.training.trainer import DistillationTrainer
from tests.support import torch_as_it_is


def disturb(kind: str, process: int, step: int) -> None:
    original = DistillationTrainer.compute_loss

    def disturbed(self: Any, *given: Any, **named: Any) -> Any:
        if processes.rank() == process and self.state.global_step == step:
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("disturbed")
        return original(self, *given, **named)

    DistillationTrainer.compute_loss = disturbed  # type: ignore[method-assign]


if __name__ == "__main__":
    label_module.choose_runtime = torch_as_it_is
    disturb(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sys.argv[1:4] = []
    main()
