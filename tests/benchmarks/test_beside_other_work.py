"""The script that times stages beside other work; what it finds is committed, not tested."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compress.inference.compute import Compute
from tests.support import REPOSITORY, module_from
from tests.support.tiny import classifier, write

SCRIPT = REPOSITORY / "benchmarks" / "speed" / "beside_other_work.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_from(SCRIPT)


def test_every_load_command_and_variant_has_a_line(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[tuple[int, int]] = []

    @contextmanager
    def unloaded(processes: int, niceness: int) -> Any:
        loads.append((processes, niceness))
        yield

    @contextmanager
    def started(name: str, options: Any) -> Any:
        yield type("Worker", (), {"name": name, "asked": 0, "stdin": (tmp_path / "stdin").open("w")})

    def ask(worker: Any, command: str) -> float:
        worker.asked += 1
        return float(len(worker.name) + worker.asked)

    monkeypatch.setattr(script, "others_load", lambda: 0.0)
    for name, fake in (("busy", unloaded), ("started", started), ("ask", ask)):
        monkeypatch.setattr(script, name, fake)
    given = ["--teacher", "teacher", "--train", "train.tsv", "--lock", str(tmp_path / "lock")]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given, "--loads", "idle", "two", "-o", str(tmp_path / "out.jsonl")])
    script.main()
    assert sorted(loads) == 3 * [(0, 0)] + 3 * [(2, 0)]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {(line["load"], line["command"], line["variant"]) for line in lines} == {
        (load, command, variant)
        for load in ("idle", "two")
        for command in ("label", "finetune", "distill", "prune")
        for variant in ("before", "sleeping", "now", "one thread")
    }
    assert all(sorted(line["all_seconds"])[1] == line["seconds"] for line in lines)


@pytest.mark.parametrize("command", ["label", "finetune", "distill", "prune"])
def test_every_stage_runs(command: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LABELLED_ROWS", "SCORING_ROWS", "VALIDATION_ROWS"):
        monkeypatch.setattr(script, name, 20)
    rows = "".join(f"a film that is number {number} \t{number % 2}\n" for number in range(80))
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + rows)
    teacher = write(tmp_path / "teacher", classifier("bert", layers=3), "bert")
    work = script.Work(teacher, str(tmp_path / "train.tsv"), tmp_path)
    work.onnx = work.teacher  # an export takes longer than all else here
    texts = [{row.text for row in part} for part in (work.train, work.validation, work.pool)]
    assert [len(part) for part in texts] == [20, 20, 20] and len(set.union(*texts)) == 60
    script.STAGES[command](work, Compute("cpu", 1), tmp_path / "made")
    assert (tmp_path / "made" / "compress.json").is_file()
