"""The curve, the manifest and the page of a pruned model."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from compress.inference.compute import Compute
from compress.inference.predict import load as load_classifier
from compress.models.model_dir import Model
from compress.reporting.pruning_page import pruning_page
from tests.support.pruning import content, curve, pruned
from tests.support.training_data import validation_rows


def test_the_curve_as_csv_and_picture(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "60%", step=0.25)
    rows = curve(made.path)
    assert [int(row["heads_removed"]) for row in rows] == [0, 2, 4, 5]
    assert [int(row["heads_kept"]) for row in rows] == [8, 6, 4, 3]
    assert {row["split"] for row in rows} == {"validation"} and {row["rows"] for row in rows} == {"16"}
    assert {row["metric"] for row in rows} == {"accuracy"} and {row["recovered"] for row in rows} == {"False"}

    def accuracy(directory: Path) -> float:
        answers = load_classifier(directory, compute=Compute(device="cpu", threads=1)).predict(validation_rows())
        return sum(a["label"] == row.label for a, row in zip(answers, validation_rows(), strict=True)) / 16

    assert float(rows[0]["value"]) == accuracy(teacher)
    assert float(rows[-1]["value"]) == accuracy(made.path)
    picture = ElementTree.parse(made.path / "pruning_curve.svg").getroot()
    assert picture.tag.endswith("svg")


def test_without_validation_the_curve_is_marked_as_train(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", validation=[], examples=10)
    assert {row["split"] for row in curve(made.path)} == {"train (the scoring rows)"}
    assert {row["rows"] for row in curve(made.path)} == {"10"}
    assert made.manifest.metrics[0]["split"] == "train (the scoring rows)"


def test_the_manifest(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "60%", examples=20, seed=4)
    manifest = made.manifest
    assert manifest.parents == ({"role": "unpruned", "name": "tiny-bert", "sha256": Model.open(teacher).sha256},)
    assert {"heads": "60%", "criterion": "gradient", "examples": 20, "step": 0.1, "normalise": True}.items() <= (
        manifest.recipe.items()
    )
    assert manifest.notes["removed"] == "5 of 8 heads"
    assert manifest.seeds == {"seed": 4} and manifest.labels == ("negative", "positive")
    assert [(d["role"], d["rows"]) for d in manifest.data] == [("train", 40), ("validation", 16)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]
    json.loads((made.path / "config.json").read_text())


def test_every_speed_is_shown_with_its_interval(teacher: Path, tmp_path: Path) -> None:
    found = content(pruned(teacher, tmp_path / "small", "3", ffn="50%", multiple=8))
    ratios = {"nothing": (1.0, 1.0, 1.0), "heads": (1.3, 1.0, 1.9), "neurons": (1.8, 1.7, 1.9)}
    found["speeds"] = [
        {
            "name": name,
            "runtime": "torch",
            "threads": 1,
            "batch_size": 1,
            "latency_ms": 2.0,
            "speedup": value,
            "low": low,
            "high": high,
        }
        for name, (value, low, high) in ratios.items()
    ]
    page = pruning_page(found)
    told = "Batch size 1: ×1.80 (×1.70 to ×1.90) in torch, each against the unpruned model"
    assert any(sentence.startswith(told) for sentence in page.verdict)
    figure = page.contents[0]
    assert [row[3].text for row in figure.rows] == ["×1.00", "×1.30", "×1.80"]
    assert "| ×1.30 (2.00 ms, ×1.00 to ×1.90" in figure.markdown and "| heads (" in figure.markdown
    assert "×1.00 to ×1.90" in figure.rows[1][3].small and "×1.30" in figure.pictures[0].wide


def test_layers_that_lose_nothing_are_not_drawn(teacher: Path, tmp_path: Path) -> None:
    found = content(pruned(teacher, tmp_path / "small", "3"))
    assert [figure.title for figure in pruning_page(found).contents][1:] == ["Step by step", "Heads that are left"]
