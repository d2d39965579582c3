"""Run commands one after the other: ``python -m tests.support.several_commands JSON``, of lists of words.

Precision ``auto`` is float32 on every processor. Starting several processes takes longer than they train in a test.
"""

from __future__ import annotations

import json
import sys

from compress.cli import execute
from compress.inference import compute, processes
from compress.labelling import label as label_module
from tests.support import torch_as_it_is

if __name__ == "__main__":
    label_module.choose_runtime = torch_as_it_is
    compute.has_bfloat16 = lambda: False
    sys.exit(processes.run_command(lambda: max([execute(command) for command in json.loads(sys.argv[1])])))
