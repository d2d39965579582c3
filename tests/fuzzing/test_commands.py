"""Three hundred changes of what commands read end in a sentence or the right work, in bounded time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support import REPOSITORY


def test_commands_on_changed_files_and_options(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzzing", "--cases", "300", "-o", str(summary)],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert summary.is_file(), run.stderr
    found = json.loads(summary.read_text())
    assert not found["faults"]
    outcomes = [outcome for counts in found["commands"].values() for outcome in counts]
    assert {"refused", "worked"} == {*outcomes}
