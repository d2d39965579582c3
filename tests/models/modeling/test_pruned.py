"""Models with uneven heads reload: with compress, and without it through the code in their directory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from compress.exporting.export import padded_example
from compress.models.components import ffn_widths, heads_per_layer
from compress.models.modeling.pruned import MODEL_CLASSES, kept_heads, to_pruned
from compress.models.saving import save_model
from compress.surgery.remove import remove_heads, remove_neurons
from tests.support.tiny import PRUNABLE, classifier, load, physical_layers, pruned, tokenizer, uneven, write


@pytest.mark.parametrize("family", PRUNABLE)
def test_logits_are_bit_equal_after_conversion_and_reload(family: str, tmp_path: Path) -> None:
    sliced = classifier(family, labels=("a", "b", "c"))
    remove_heads(sliced, uneven(family))
    layers = physical_layers(family)
    inputs = padded_example(sliced, 3, 11)
    with torch.no_grad():
        expected = sliced(**inputs).logits
        converted = to_pruned(sliced)
        assert torch.equal(converted(**inputs).logits, expected)
        reloaded, _ = load(write(tmp_path / "model", converted, family))
        assert type(reloaded) is MODEL_CLASSES[family]
        assert torch.equal(reloaded(**inputs).logits, expected)
        assert reloaded.config.id2label == {0: "a", 1: "b", 2: "c"}
        assert kept_heads(reloaded) == [[0, 3], [1, 2, 3]][:layers]
        # Once more: what was reloaded can be pruned, saved and loaded again.
        remove_heads(reloaded, {1: [2]} if layers > 1 else {0: [1]})
        if family != "mobilebert":
            remove_neurons(reloaded, {0: [0, 5, 63]})
        again, _ = load(write(tmp_path / "again", to_pruned(reloaded), family))
        assert kept_heads(again) == ([[0, 3], [1, 2]] if layers > 1 else [[0]])
        assert ffn_widths(again)[0] == (64 if family == "mobilebert" else 61)
        assert heads_per_layer(again) == [len(heads) for heads in kept_heads(again)]
        assert torch.equal(again(**inputs).logits, reloaded(**inputs).logits)


def test_stock_models_load_as_before(tmp_path: Path) -> None:
    write(tmp_path / "stock", classifier("bert"))
    assert type(AutoModelForSequenceClassification.from_pretrained(tmp_path / "stock")) is BertForSequenceClassification
    assert sorted(p.name for p in (tmp_path / "stock").iterdir() if p.suffix == ".py") == []


def test_a_whole_model_keeps_all_its_heads() -> None:
    assert kept_heads(to_pruned(classifier("bert"))) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("heads", [[[0, 1]], [[0], []], [[0], [4]], [[1, 0], [0]], [[0, 0], [0]]])
def test_head_maps_that_do_not_fit_are_refused(heads: list[list[int]]) -> None:
    model = classifier("bert")
    model.config.kept_heads = heads
    with pytest.raises(ValueError, match="does not fit 2 layers of 4 heads"):
        to_pruned(model)


@pytest.mark.parametrize("widths", [[64], [64, 0]])
def test_widths_that_do_not_fit_are_refused(widths: list[int]) -> None:
    model = classifier("bert")
    model.config.ffn_per_layer = widths
    with pytest.raises(ValueError, match="does not fit 2 layers; each needs at least one neuron"):
        to_pruned(model)


OPEN_WITHOUT_COMPRESS = """
import json, sys
sys.modules["compress"] = None  # any import of it fails
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
for directory in sys.argv[1:]:
    model = AutoModelForSequenceClassification.from_pretrained(directory, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
    with torch.no_grad():
        logits = model(**tokenizer(["the film is good", "dull"], padding=True, return_tensors="pt")).logits
    print(json.dumps(logits.tolist()))
"""


def logits_without_compress(folder: Path, names: Iterable[str]) -> list[list[list[float]]]:
    """Return the logits of two texts from directories below a folder, opened where ``compress`` is not installed."""
    run = subprocess.run(
        [sys.executable, "-c", OPEN_WITHOUT_COMPRESS, *(str(folder / name) for name in names)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_directories_open_without_compress(tmp_path: Path) -> None:
    families = ("albert", "bert", "deberta-v2", "mobilebert", "modernbert", "mpnet", "xlm-roberta")
    expected = []
    for family in families:
        model = pruned(family)
        save_model(model, tokenizer(family), tmp_path / family)
        encoded = tokenizer(family)(["the film is good", "dull"], padding=True, return_tensors="pt")
        with torch.no_grad():
            expected.append(model(**encoded).logits.tolist())
    found = logits_without_compress(tmp_path, families)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-6, rtol=1e-5)
