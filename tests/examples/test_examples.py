"""The scripts of examples/ run as they stand, on tiny models and rows in memory in place of their cell "Inputs"."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pandas
import pytest
from datasets import Dataset
from transformers import AutoModel

import compress
import compress.tasks
from compress.data import Example
from tests.support.samples import SAMPLES
from tests.support.tiny import classifier, write
from tests.support.training_data import TINY_STUDENT

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASKS = {
    "single_label": "classification",
    "multi_label": "multi-label",
    "regression": "regression",
    "tagging": "tagging",
    "entities": "entities",
}


def cells(name: str) -> list[tuple[str, str]]:
    """Return the titles and the code of a script's cells."""
    parts = (EXAMPLES / f"{name}.py").read_text("utf-8").split("# %% ")[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def record(row: Example) -> dict[str, Any]:
    if row.tags is not None:
        return {"words": row.words, "tags": row.tags}
    return {"text": row.text, "label": row.label if row.labels is None else row.labels}


def tiny_inputs(name: str, folder: Path) -> dict[str, Any]:
    rows = [SAMPLES[TASKS[name]](count, seed) for seed, count in enumerate((120, 60, 60, 60))]
    train, validation, test, _ = ([record(row) for row in part] for part in rows)
    (folder / "student.toml").write_text(TINY_STUDENT)
    body: Any = AutoModel.from_pretrained(write(folder / "teacher", classifier("bert")))
    body.save_pretrained(write(folder / "encoder", classifier("bert")))
    return {
        "train": Dataset.from_list(train),
        "validation": validation,
        "test": pandas.DataFrame(test),
        "texts": [row.text for row in rows[3]],
        "teacher": str(folder / "teacher"),
        "encoder": folder / "encoder",
        "student": folder / "student.toml",
    }


def test_each_task_has_an_example() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*TASKS}
    assert {*TASKS.values()} == {*compress.tasks.everything()}


@pytest.mark.parametrize("name", TASKS)
def test_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (title, inputs), *rest = cells(name)
    assert title.startswith("Inputs")
    named = {node.id for node in ast.walk(ast.parse(inputs)) if isinstance(node, ast.Name)}
    given = tiny_inputs(name, tmp_path)
    namespace: dict[str, Any] = {one: given[one] for one in named & given.keys()} | {"compress": compress}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    for _, code in rest:
        exec(compile(code, name, "exec"), namespace)
    frame = namespace["results"].to_pandas()
    assert {"teacher", "model"} <= {*frame["kind"]} and (tmp_path / "report" / "report.html").is_file()
