"""What examples/ holds runs as it stands, on tiny models and rows in memory in place of the cell "Inputs"."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from datasets import Dataset
from transformers import AutoModel

import compress
import compress.tasks
from compress.data import Example
from tests.support.chat_server import KEY, serving
from tests.support.samples import SAMPLES
from tests.support.tiny import classifier, write
from tests.support.training_data import TINY_STUDENT

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
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


def run(
    name: str, own: list[tuple[str, str]], given: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Run the cells after the first, in place of the cell "Inputs" with what it names of ``given``."""
    _, (title, inputs), *rest = own
    assert title.startswith("Inputs")
    stored = [node for node in ast.walk(ast.parse(inputs)) if isinstance(node, ast.Name)]
    named = {node.id for node in stored if isinstance(node.ctx, ast.Store)}
    namespace: dict[str, Any] = {one: given[one] for one in named & given.keys()} | {"compress": compress}
    patch.chdir(folder)
    patch.setenv("COMPRESS_CACHE", str(folder / "cache"))
    for _, code in rest:
        exec(compile(code, name, "exec"), namespace)
    frame = namespace["results"].to_pandas()
    assert {"teacher", "model"} <= {*frame["kind"]}
    return namespace


@pytest.mark.parametrize("name", TASKS)
def test_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(name, cells(name), tiny_inputs(name, tmp_path), tmp_path, monkeypatch)
    assert (tmp_path / "report" / "report.html").is_file()


def notebook(name: str) -> list[tuple[str, str]]:
    """Return the titles and the code of a notebook's cells; the first installs."""
    made = json.loads((EXAMPLES / f"{name}.ipynb").read_text("utf-8"))
    assert made["nbformat"] == 4 and not any(cell.get("outputs") for cell in made["cells"])
    codes = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    return [(code.partition("\n")[0].removeprefix("# "), code) for code in codes]


def test_few_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tiny_inputs("single_label", tmp_path)
    given |= {"train": [*given["train"]][:24], "way": "frozen"}
    found = run("few_labels", notebook("few_labels"), given, tmp_path, monkeypatch)
    assert found["teacher"].manifest.notes["few_shot"] and (tmp_path / "report" / "report.html").is_file()


def test_from_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    given = tiny_inputs("single_label", tmp_path)
    labels = tuple(sorted({row["label"] for row in given["train"]}))
    known = {row["text"]: row["label"] for role in ("train", "validation") for row in given[role]}
    recipe = re.sub(r"min_steps\w* = \d+\n", "", (ROOT / "students" / "encoder.toml").read_text("utf-8"))
    (tmp_path / "whole.toml").write_text(recipe)
    (tmp_path / "prompt.txt").write_text("Films.")
    (tmp_path / "prices.toml").write_text("[tiny]\ninput = 100\noutput = 1000\n")
    given |= {
        "texts": given["train"]["text"],
        "gold": given["validation"],
        "unlabelled": given["texts"],
        "labels": labels,
        "prompt": tmp_path / "prompt.txt",
        "prices": tmp_path / "prices.toml",
        "model": "openai:tiny",
        "rows": 60,
        "least": 0.8,
        "whole": tmp_path / "whole.toml",
    }
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    *first, (_, joining) = notebook("from_a_prompt")

    with serving(lambda text: {label: 0.9 if label == known[text] else 0.1 for label in labels}) as server:
        found = run("from_a_prompt", first, given | {"base_url": server.url}, tmp_path, monkeypatch)
        own = found["fast"].predict(given["unlabelled"])
        surer = np.median([one["probability"] for one in own])
        for text, one in zip(given["unlabelled"], own, strict=True):  # where the student is sure, both say the same
            agrees = one["probability"] >= surer
            known[text] = one["label"] if agrees else next(label for label in labels if label != one["label"])
        exec(joining, found)
    assert found["paid"].manifest.notes["bought"]["usd"] > 0 and len([*found["free"]]) == 120
    assert found["joined"].manifest.notes["usd_per_1000_texts"]["alone"] > 0
