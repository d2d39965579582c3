"""The script that holds our importance of heads, and our removal of them, against others; its figures are committed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from compress.benchmarking.competitors import environments_folder
from compress.errors import CompressError
from compress.pruning.scoring import head_importance
from compress.training.training_data import Gold
from tests.support import REPOSITORY
from tests.support.tiny import HEADS, LABELS, LAYERS, PRUNABLE, classifier, examples, physical_layers, tokenizer, write

FOLDER = REPOSITORY / "benchmarks" / "parity"
ROWS = examples(12)
TEXTS = [row.text for row in ROWS]
GOLD = [LABELS.index(row.label) for row in ROWS if row.label]


@pytest.fixture(scope="module")
def parity() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    import importance_parity

    yield importance_parity
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def scripts(parity: Any) -> Any:
    return sys.modules["head_gradients"]


@pytest.fixture(scope="module")
def made(scripts: Any) -> Any:
    return scripts.head_gradients(classifier(), tokenizer(), TEXTS, GOLD)


@pytest.mark.parametrize("family", PRUNABLE)
def test_importance_is_that_of_one_backward_for_each_example(scripts: Any, family: str) -> None:
    model, tokens = classifier(family), tokenizer(family)
    found = scripts.head_gradients(model, tokens, TEXTS, GOLD)
    assert found.signed.shape == (len(ROWS), physical_layers(family), HEADS)
    ours = head_importance(model, [(row.text, row.label or "") for row in ROWS], tokenizer=tokens)
    torch.testing.assert_close(ours.double(), scripts.exact(found), rtol=1e-4, atol=1e-7)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "mpnet"])
def test_the_gradients_are_the_slopes_of_the_loss(scripts: Any, family: str) -> None:
    model, tokens = classifier(family).double(), tokenizer(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = scripts.head_gradients(model, tokens, TEXTS[:3], GOLD[:3])
    for layer in range(physical_layers(family)):
        slopes = scripts.finite_differences(model, tokens, TEXTS[:3], GOLD[:3], layer=layer, head=1)
        torch.testing.assert_close(slopes, found.signed[:, layer, 1], rtol=1e-5, atol=1e-8)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_differs_in_a_case_that_can_be_done_by_hand(scripts: Any) -> None:
    """One head helps every second row and harms the others; the other helps all rows by half as much."""
    signed = torch.tensor([[1.0, 0.5], [-1.0, 0.5], [1.0, 0.5], [-1.0, 0.5]]).double()[:, None]
    case = scripts.HeadGradients(signed, 2 * signed.abs(), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert scripts.exact(case).tolist() == [[1.0, 0.5]]
    assert scripts.summed_first(case, 1).tolist() == [[1.0, 0.5]]
    assert scripts.summed_first(case, 2).tolist() == [[0.0, 0.5]]
    assert scripts.summed_first(case, 3).tolist() == [[(1 / 3 + 1) / 2, 0.5]]  # batches of three rows and of one
    assert scripts.never_zeroed(case, 1).tolist() == [[0.5, 1.25]]  # of 1, 0, 1, 0 and of 0.5, 1, 1.5, 2
    assert scripts.never_zeroed(case, 4).tolist() == [[0.0, 0.5]]
    assert scripts.divided_by_tokens(case).tolist() == [[0.4, 0.2]]
    assert scripts.authors_code(case).tolist() == [[2.0, 1.0]]
    both = scripts.HeadGradients(signed.repeat(1, 2, 1), 2 * signed.abs().repeat(1, 2, 1), case.tokens)
    assert scripts.authors_code(both).tolist() == [[0.8, 0.4], [2.0, 1.0]]  # the last layer by example


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("zeroed", [True, False])
def test_a_shared_factor_has_the_mean_of_the_gradients(scripts: Any, made: Any, size: int, zeroed: bool) -> None:
    """What implementations with batches and shared factors do, done so: the last batch of twelve rows is smaller."""
    model, tokens = classifier(), tokenizer()
    factors = torch.ones(LAYERS, HEADS, requires_grad=True)

    def scale(layer: int) -> Any:
        return lambda module, inputs: (inputs[0] * factors[layer].repeat_interleave(inputs[0].shape[-1] // HEADS),)

    for layer, projection in enumerate(scripts.output_projections(model)):
        projection.register_forward_pre_hook(scale(layer))
    total, batches = torch.zeros(LAYERS, HEADS), 0
    for start in range(0, len(TEXTS), size):
        batch = tokens(TEXTS[start : start + size], padding=True, return_tensors="pt")
        model(**batch, labels=torch.tensor(GOLD[start : start + size])).loss.backward()
        assert factors.grad is not None
        total += factors.grad.abs()
        batches += 1
        if zeroed:
            factors.grad = None
    variant = scripts.summed_first if zeroed else scripts.never_zeroed
    torch.testing.assert_close((total / batches).double(), variant(made, size), rtol=1e-4, atol=1e-7)


def test_only_the_first_token_of_the_last_layer_matters(made: Any) -> None:
    torch.testing.assert_close(made.by_token[:, -1], made.signed[:, -1].abs())
    first = made.by_token[:, 0] / made.signed[:, 0].abs()
    assert first.min() > 0.999 and first.median() > 1.1
    assert made.tokens.tolist() == [len(tokenizer()(text)["input_ids"]) for text in TEXTS]


@pytest.fixture(scope="module")
def lines(parity: Any, made: Any) -> Any:
    return parity.variants(classifier(), tokenizer(), made, Gold(ROWS, GOLD), seed=0)


def test_every_variant_is_ranked_and_judged(parity: Any, made: Any, lines: Any) -> None:
    by_name = {(line["variant"], line["batch_size"], line["normalised_by_layer"]): line for line in lines}
    assert len(by_name) == len(lines) == 2 * len(parity.VARIANTS)
    for line in lines:
        assert line["heads_removed"] == 5  # 60% of eight
        assert line["heads_shared_lowest"] <= line["heads_shared"] <= line["heads_shared_highest"] <= 5
        assert line["points_low"] <= line["points"] <= line["points_high"]
    for by_layer in (False, True):
        same = [by_name[key] for key in (("exact", None, by_layer), ("summed over the batch first", 1, by_layer))]
        tokens = by_name["divided by all tokens", None, by_layer]
        for line in (*same, tokens):
            assert line["rank_correlation_lowest"] > 0.999 and line["heads_shared_lowest"] == 5 and line["points"] == 0
        assert [line["ratio"] for line in same] == pytest.approx([1, 1])
        assert tokens["ratio_lowest"] == pytest.approx(1 / float(made.tokens.mean())) == tokens["ratio_highest"]
        assert by_name["never zeroed", 1, by_layer]["rank_correlation_highest"] < 0.999


def test_heads_that_both_remove_are_counted(parity: Any) -> None:
    one, other = [torch.tensor([0.0, 1.0, 0.0]), torch.ones(3)], [torch.tensor([0.0, 0.0, 1.0]), torch.ones(3)]
    assert parity.shared_heads(one, other) == 1
    assert parity.spread("x", [2, 1, 3]) == {"x": 2, "x_lowest": 1, "x_highest": 3}
    scores = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 50.0]])
    raw, by_layer = (parity.masks_of(scores, choice) for choice in (False, True))
    assert [mask.tolist() for mask in raw] == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert [mask.tolist() for mask in by_layer] == [[0, 0, 1, 1], [0, 0, 0, 1]]


def sst2(root: Path, *, dev: str = "a fine end") -> Path:
    folder = root / "glue" / "SST-2"
    folder.mkdir(parents=True)
    rows = "".join(f"{row.text} \t{LABELS.index(row.label or '')}\n" for row in ROWS)
    (folder / "train.tsv").write_text(f"sentence\tlabel\n{rows}", encoding="utf-8")
    (folder / "dev.tsv").write_text(f"sentence\tlabel\n{dev} \t1\na dull plot \t0\n", encoding="utf-8")
    return root


def test_rows_of_dev_score_no_head(parity: Any, tmp_path: Path) -> None:
    train, dev = parity.rows_of(sst2(tmp_path, dev=TEXTS[3]), 11, 0, LABELS)
    assert sorted(row.text for row in train.examples) == sorted(set(TEXTS) - {TEXTS[3]})
    assert [row.text for row in dev.examples] == [TEXTS[3], "a dull plot"] and dev.labels == [1, 0]
    with pytest.raises(CompressError, match="--examples 12 .* 11 rows"):
        parity.rows_of(tmp_path, 12, 0, LABELS)
    with pytest.raises(CompressError, match="--data-root"):
        parity.rows_of(None, 12, 0, LABELS)


@pytest.mark.parametrize("away", [0.0, 1.0])
def test_the_exit_status_says_whether_all_agree(
    parity: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: float
) -> None:
    monkeypatch.setattr(parity, "python_of", lambda *_: Path(sys.executable))
    monkeypatch.setattr(
        parity, "removal", lambda *case: {"kind": "removal", "of": case[1], "difference": away, "tolerance": 0.5}
    )
    teacher, output = write(tmp_path / "tiny", classifier()), tmp_path / "results" / "found.jsonl"
    typed = ["--model", str(teacher), "--data-root", str(sst2(tmp_path)), "--examples", "8", "-o", str(output)]
    monkeypatch.setattr(sys, "argv", ["importance_parity.py", *typed])
    assert parity.main() == int(away > 0.5)
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds == ["importance"] * 3 + ["variant"] * 2 * len(parity.VARIANTS) + ["removal"] * 5
    assert {line["train_rows"] for line in lines} == {8} and {line["dev_rows"] for line in lines} == {2}
    assert all(line["difference"] <= line["tolerance"] for line in lines if line["kind"] == "importance")
    assert not any(text in output.read_text(encoding="utf-8") for text in TEXTS)


def test_the_tables_of_the_page(lines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs"))
    import script_tables

    results = tmp_path / "importance-parity.jsonl"
    monkeypatch.setattr(script_tables, "RESULTS", tmp_path)
    removal = {
        "kind": "removal",
        "of": "tiny",
        "family": "bert",
        "heads_per_layer": [2, 3],
        "whole_difference": 0.0,
        "difference": 2e-7,
        "change": 0.5,
        "parameters": 1234,
        "peer_parameters": 1234,
    }
    results.write_text("".join(json.dumps(line) + "\n" for line in [*lines, removal]), encoding="utf-8")
    rows = script_tables.importance_table("raw").splitlines()[2:]
    assert len(rows) == len(lines) // 2
    assert rows[0].startswith("| exact | 1 (1 to 1) | 1.00 | 5 | 0.") and rows[0].endswith(" |  |")
    assert script_tables.importance_table("removal").splitlines()[2:] == [
        "| tiny (bert) | 2 3 | 0 | 2e-07 | 0.50 | 1,234 | 1,234 |"
    ]


@pytest.fixture(scope="module")
def transformers_4(parity: Any) -> Path:
    """The Python of transformers 4, where the script has made its environment."""
    environments = sys.modules["competitor_environments"]
    folder = environments_folder() / "transformers-4"
    if not environments.is_complete(folder, environments.SCRIPTS_ONLY["transformers-4"]):
        pytest.skip(f"there is no transformers 4 in {folder}: benchmarks/parity/importance_parity.py makes it")
    return folder / "bin" / "python"


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "roberta"])
def test_transformers_4_removes_heads_as_we_do(parity: Any, transformers_4: Path, family: str) -> None:
    assert sorted(parity.FAMILIES) == ["bert", "distilbert", "electra", "roberta"]
    model, batch = parity.random_model(family, 0)
    found = parity.removal(transformers_4, "tiny", model, batch, parity.UNEVEN)
    assert found["heads_per_layer"] == [5, 7, 1, 8]
    assert found["difference"] < 1e-5 and found["whole_difference"] < 1e-5 and found["change"] > 0.1
    assert found["parameters"] == found["peer_parameters"] < sum(weight.numel() for weight in model.parameters())
