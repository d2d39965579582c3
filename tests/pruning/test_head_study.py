"""compress heads: each table against code of another kind, going on after a stop, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.models.manifest import Manifest
from compress.models.model_dir import Model
from compress.pruning import scoring as scoring_module
from compress.pruning.evaluation import MaskedEvaluation
from compress.pruning.head_study import RANDOM_ORDERS
from compress.reporting import pruning_page
from compress.reporting.pruning_page import heads_page, holm
from compress.reporting.svg import Series
from compress.requests.compression import head_study
from compress.surgery.remove import remove_heads
from tests.support.tiny import HEADS, LABELS, LAYERS, bilstm, classifier, tokenizer, write
from tests.support.training_data import train_rows, validation_rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "tiny-bert", classifier("bert"))


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return studied(model, tmp_path_factory.mktemp("heads") / "study", criteria=("gradient", "oracle", "random"))


def studied(model: Path, output: Path | None, **options: Any) -> Path:
    given: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), "device": "cpu", "step": 0.25}
    given |= options
    return head_study(model, output, **given)


def content(directory: Path) -> dict[str, Any]:
    study: dict[str, Any] = json.loads((directory / "heads.json").read_text())
    return study


def test_without_an_output_the_same_study_is_found_in_the_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path))
    first, second = (studied(model, None, criteria=("random",), examples=8) for _ in range(2))
    assert first == second and (second / "heads.json").is_file() and second.is_relative_to(tmp_path)


def log_probabilities_without(remove: dict[int, list[int]], rows: Sequence[Example]) -> list[Tensor]:
    """Return the answers ``[C]`` of the model whose heads are sliced off, one text at a time."""
    smaller, tokens = classifier("bert"), tokenizer()
    remove_heads(smaller, remove)
    with torch.no_grad():
        return [smaller(**tokens(row.text, return_tensors="pt")).logits[0].log_softmax(-1) for row in rows]


def accuracy_without(remove: dict[int, list[int]]) -> float:
    rows = validation_rows()
    answers = log_probabilities_without(remove, rows)
    return fmean(LABELS[int(answer.argmax())] == row.label for answer, row in zip(answers, rows, strict=True))


def loss_without(remove: dict[int, list[int]]) -> float:
    rows = train_rows()
    answers = log_probabilities_without(remove, rows)
    return fmean(-float(answer[LABELS.index(str(row.label))]) for answer, row in zip(answers, rows, strict=True))


def test_single_heads_are_what_a_sliced_model_loses(finished: Path) -> None:
    study = content(finished)
    whole = accuracy_without({})
    assert study["value"] == pytest.approx(whole)
    assert [(one["layer"], one["head"]) for one in study["ablation"]] == [
        (layer, head) for layer in range(LAYERS) for head in range(HEADS)
    ]
    for one in study["ablation"]:
        value = accuracy_without({one["layer"]: [one["head"]]})
        assert one["value"] == pytest.approx(value)
        assert one["points"] == pytest.approx(100 * (value - whole)) and one["low"] <= one["points"] <= one["high"]
    assert len({one["value"] for one in study["ablation"]}) > 1


def test_the_kept_head_is_chosen_on_scoring_rows_only(finished: Path) -> None:
    for one in content(finished)["one_head"]:
        without = [{one["layer"]: [h for h in range(HEADS) if h != kept]} for kept in range(HEADS)]
        assert one["head"] == np.argmin([loss_without(removed) for removed in without])
        assert one["value"] == pytest.approx(accuracy_without(without[one["head"]]))


def test_the_evolution_ends_with_one_head_a_layer(finished: Path) -> None:
    study = content(finished)
    orders = {(one["order"], one["seed"]) for one in study["evolution"]}
    assert len(orders) == 2 + RANDOM_ORDERS
    for order, seed in orders:
        steps = [one for one in study["evolution"] if (one["order"], one["seed"]) == (order, seed)]
        assert [one["heads_removed"] for one in steps] == [0, 2, 4, 6]
        assert steps[0]["points"] == 0 and steps[0]["value"] == study["value"]
    middle = {one["value"] for one in study["evolution"] if one["heads_removed"] == 4}
    assert len(middle) > 1  # orders differ


def test_the_oracle_is_the_loss_that_a_removal_costs(finished: Path) -> None:
    whole = loss_without({})
    expected = [[loss_without({layer: [head]}) - whole for head in range(HEADS)] for layer in range(LAYERS)]
    np.testing.assert_allclose(content(finished)["criteria"]["oracle"], expected, atol=1e-6)


def test_the_oracle_order_removes_the_lowest_scores_first(finished: Path) -> None:
    study = content(finished)
    scores = np.array(study["criteria"]["oracle"])
    lowest = [divmod(int(index), HEADS) for index in np.argsort(scores, axis=None, kind="stable")[:2]]
    remove: dict[int, list[int]] = {}
    for layer, head in lowest:
        remove.setdefault(layer, []).append(head)
    (step,) = [s for s in study["evolution"] if s["order"] == "oracle" and s["heads_removed"] == 2]
    assert step["value"] == pytest.approx(accuracy_without(remove))


def test_a_directory_holds_the_same_as_page_tables_and_pictures(finished: Path) -> None:
    manifest = Manifest.read(finished / "compress.json")
    assert manifest.stage == manifest.kind == "heads" and set(manifest.files) >= {"heads.json", "report.html"}
    page, markdown = ((finished / name).read_text() for name in ("report.html", "report.md"))
    study = content(finished)
    for figure in heads_page(study).contents:
        assert figure.title in page and figure.title in markdown
        assert (finished / f"{figure.name}.svg").read_text().startswith("<svg")
    with (finished / "ablation.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [float(row["Points"]) for row in rows] == [one["points"] for one in study["ablation"]]
    with pytest.raises(CompressError, match="is a directory of heads, not a model"):
        Model.open(finished)


def test_the_verdict_names_the_first_uncertain_and_lossy_steps(finished: Path) -> None:
    study = content(finished)
    intervals = [
        (0, 0.0, 0.0),
        (1, -0.9, 0.3),
        (2, -1.1, 0.5),
        (3, -0.8, 0.4),
        (4, -3.0, 0.1),
        (5, -5.0, -2.0),
        (6, -2.0, 1.0),
    ]
    study["evolution"] = [
        {
            "order": "gradient",
            "seed": 0,
            "heads_removed": removed,
            "share_removed": removed / 8,
            "value": 0.5,
            "points": (low + high) / 2,
            "low": low,
            "high": high,
        }
        for removed, low, high in intervals
    ]
    told = heads_page(study).verdict[-1]
    assert "order 1 head (12%: −0.30 points, −0.90 to +0.30) cost surely less than 1 point" in told
    assert "; up to 4 heads (50%: −1.45 points, −3.00 to +0.10) 16 rows cannot tell a loss from chance" in told
    study["evolution"] = study["evolution"][:1] + study["evolution"][5:]
    told = heads_page(study).verdict[-1]
    assert "no heads cost surely less than 1 point; the first to go are a loss for certain on 16 rows" in told


def test_no_head_hides_another_and_bars_have_bounds(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = content(finished) | {"value": 0.99}
    for one in study["evolution"]:
        one |= {"value": 0.99, "low": -3.0, "high": 5.0}
    drawn: dict[str, Sequence[Series]] = {}
    monkeypatch.setattr(
        pruning_page, "line_chart", lambda series, *, title, **_: drawn.setdefault(title, series) and ""
    )
    heads_page(study)
    places = [x for series in drawn["One head removed"] for x, _ in series.points]
    assert len(places) == len(set(places)) == HEADS * LAYERS
    assert {round(x) for x in places} == set(range(1, LAYERS + 1))
    gradient = drawn["Fewer and fewer heads"][0]
    assert gradient.name == "gradient" and {bar for bar in gradient.bars} == {(96.0, 100.0)}


def test_a_stopped_study_goes_on_where_it_was(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = content(studied(model, tmp_path / "whole", criteria=("gradient", "oracle")))
    original, computed = MaskedEvaluation.predicted, []

    def predicted(self: MaskedEvaluation, masks: Any = None) -> Any:
        before = len(list(self.folder.glob("*.json"))) if self.folder.is_dir() else 0
        found = original(self, masks)
        if len(list(self.folder.glob("*.json"))) > before:
            computed.append(1)
            if len(computed) == 6:
                raise KeyboardInterrupt
        return found

    monkeypatch.setattr(MaskedEvaluation, "predicted", predicted)
    with pytest.raises(KeyboardInterrupt):
        studied(model, tmp_path / "stopped", criteria=("gradient", "oracle"))
    assert not (tmp_path / "stopped").exists()
    monkeypatch.setattr("compress.plugins.find", no_more_scoring(["oracle"]))
    assert content(studied(model, tmp_path / "stopped", criteria=("gradient", "oracle"))) == expected


@pytest.mark.parametrize(("criterion", "last"), [("oracle", 5), ("shapley", 5), ("gradient", 12)])
def test_a_criterion_of_many_evaluations_goes_on_behind_the_last(
    criterion: str, last: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, asked = scoring_module.value_of, []

    def counted(*arguments: Any) -> float:
        if len(asked) == last and not resumed:  # of gradient alone in the oracle's order of the third picture
            raise KeyboardInterrupt
        asked.append(1)
        return float(original(*arguments))

    resumed: list[int] = []
    monkeypatch.setattr(scoring_module, "value_of", counted)
    with pytest.raises(KeyboardInterrupt):
        studied(model, tmp_path / "stopped", criteria=(criterion,))
    damaged, *_ = tmp_path.glob(".stopped.partial/.work/values/*.json")
    damaged.write_text('["half a')  # is evaluated again
    resumed.append(1)
    stopped = content(studied(model, tmp_path / "stopped", criteria=(criterion,)))
    once = len(asked)
    asked.clear()
    assert stopped == content(studied(model, tmp_path / "whole", criteria=(criterion,)))
    assert len(asked) == once - 1 > last


def no_more_scoring(names: list[str]) -> Any:
    from compress.plugins import find

    def looked_up(folder: str, name: str) -> Any:
        plugin = find(folder, name)
        if folder == "criteria" and name in names:

            class Stopped:
                parameters = plugin.parameters

                def function(self, *_: Any, **__: Any) -> Any:
                    raise AssertionError(f"{name} was computed again")

            return Stopped()
        return plugin

    return looked_up


def test_a_test_that_was_not_made_has_no_verdict(finished: Path) -> None:
    study = content(finished)
    page, tested = heads_page(study), next(one for one in heads_page(study).contents if one.title == "One head removed")
    assert "Holm's correction" in tested.caption and "McNemar" in page.verdict[1]
    assert {row[-1].text for row in tested.rows} <= {"yes", "no"}
    for one in study["ablation"]:
        one["mcnemar_p"] = None
    page, untested = (
        heads_page(study),
        next(one for one in heads_page(study).contents if one.title == "One head removed"),
    )
    assert "McNemar" not in untested.caption + " ".join(page.verdict) and "Holm" not in untested.caption
    assert {cell.text for row in untested.rows for cell in row[-2:]} == {"–"}
    assert "not tested" in untested.pictures[0].wide and "within chance" not in untested.pictures[0].wide


def test_holms_correction() -> None:
    assert holm([0.001, 0.02, None, 0.004], 0.01) == [True, False, None, True]
    assert holm([0.004, 0.004, 0.004], 0.01) == [False, False, False]
    assert holm([], 0.01) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criteria": ("gradeint",)}, "unknown criterion 'gradeint'"),
        ({"train": []}, "no rows to score the heads on; give labelled rows with --train FILE"),
        ({"validation": []}, "no rows to measure on; give labelled rows with --validation FILE"),
        ({"examples": 0}, "examples = 0 must be at least 1"),
        ({"step": 0.0}, "step = 0.0 must be above 0"),
        ({"validation": train_rows()}, "All 40 rows of train also occur in validation"),
        ({"train": [replace(train_rows()[0], label="great")]}, "which the model does not know"),
    ],
)
def test_what_cannot_be_studied(options: dict[str, Any], message: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=message):
        studied(model, tmp_path / "study", **options)
    assert not (tmp_path / "study").exists()


def test_a_model_without_heads_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.support.training_data import labelled_file

    write(tmp_path / "lstm", bilstm())
    files = [
        str(labelled_file(tmp_path / name, rows))
        for name, rows in (("t.csv", train_rows()), ("v.csv", validation_rows()))
    ]
    arguments = ["heads", "--model", str(tmp_path / "lstm"), "--train", files[0], "--validation", files[1]]
    assert execute([*arguments, "-o", str(tmp_path / "study")]) == 2
    assert "attention heads of a 'compress-bilstm' model are not known" in capsys.readouterr().err
