"""Each folder of ``models/networks`` gives a student in every form: built, reopened, exported, in int8."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress import plugins, recipes
from compress.data.examples import Example
from compress.errors import CompressError
from compress.exporting.export import padded_example
from compress.models import networks
from compress.models.model_dir import Model
from compress.models.saving import save_model
from compress.requests.compression import export
from tests.models.modeling.test_pruned import logits_without_compress
from tests.support.tagging import sentences, tagger
from tests.support.tiny import classifier, examples, load, tokenizer

FORMS = ("joined", "siamese", "tagger")


def build(name: str, form: str) -> Any:
    """Return a network in one form from a tiny teacher, with weights that a training could have given it."""
    torch.manual_seed(0)
    rows = sentences() if form == "tagger" else examples()
    if form == "siamese":
        rows = [replace(row, text_pair=other.text) for row, other in zip(rows, reversed(rows), strict=True)]
    options = {"pairs": form} if form != "tagger" else {}
    plugin = plugins.find("architectures", name)
    model = plugin.function(tagger() if form == "tagger" else classifier(), tokenizer(), rows, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def forms_of(name: str) -> list[str]:
    return [*FORMS[:2], *(FORMS[2:] if any(one.tags for one in networks.model_classes(name)) else ())]


CASES = [(name, form) for name in networks.NAMES for form in forms_of(name)]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_logits_stay_in_larger_batches_and_other_directories(name: str, form: str, tmp_path: Path) -> None:
    model = build(name, form)
    inputs = dict(padded_example(model, 4, 12))
    with torch.no_grad():
        expected = model(**inputs).logits
        row = {key: values[1:2, :6] for key, values in inputs.items()}  # the others are padding
        torch.testing.assert_close(model(**row).logits[0], expected[1][:6] if form == "tagger" else expected[1])
    save_model(model, tokenizer(), tmp_path / "made")
    reopened, _ = load(tmp_path / "made")
    with torch.no_grad():
        torch.testing.assert_close(reopened(**inputs).logits, expected)
    exported = export(Model.open(tmp_path / "made"), tmp_path / "onnx")
    mask = inputs["attention_mask"].bool()
    rounded = tmp_path / "int8.onnx"
    plugins.find("quantizers", "onnx-dynamic").function(exported.path / "model.onnx", rounded)
    found = run(exported.path, inputs)
    whole = expected.numpy()
    if form == "tagger":  # nobody reads the logits of padding
        found, whole = found[mask], whole[mask]
    np.testing.assert_allclose(found, whole, atol=1e-5, rtol=1e-5)
    rounded.replace(exported.path / "model.onnx")
    coarse = run(exported.path, inputs)
    coarse = coarse[mask] if form == "tagger" else coarse
    assert 0 < np.abs(coarse - whole).max() < 0.1 * np.abs(whole).max()


def run(directory: Path, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    start = plugins.find("runtimes", "onnxruntime").function(directory, threads=1, device="cpu")
    logits: np.ndarray = start({name: values.numpy() for name, values in inputs.items()})
    return logits


def test_networks_open_without_compress(tmp_path: Path) -> None:
    texts, expected = ["the film is good", "dull"], []
    for name in networks.NAMES:
        model = build(name, "joined")
        save_model(model, tokenizer(), tmp_path / name)
        assert {f"{name}.py", "small.py"} <= {path.name for path in (tmp_path / name).iterdir()}
        with torch.no_grad():
            expected.append(model(**tokenizer()(texts, padding=True, return_tensors="pt")).logits.tolist())
    found = logits_without_compress(tmp_path, networks.NAMES)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", networks.NAMES)
def test_a_search_tries_what_can_be_built(name: str) -> None:
    space, parameters = networks.part(name).SPACE, plugins.find("architectures", name).parameters
    for option, values in space.items():
        assert len(set(values)) == len(values)
        assert all(plugins.fits(value, parameters[option].annotation) for value in values)
    assert recipes.load_recipe("students", name).architecture.name == name
    assert len({networks.part(one).RANK for one in networks.NAMES} | {1}) == len(networks.NAMES) + 1


@pytest.mark.parametrize("name", networks.NAMES)
def test_a_network_needs_no_other_and_travels_alone(name: str) -> None:
    folder = Path(networks.__file__).parent
    for path in (folder / name).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            others = [other for other in networks.NAMES if other != name]
            assert not [one for one in modules for other in others if f"networks.{other}" in one]
            if path.name == "model.py" and isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] in {"torch", "small", "collections", "typing"}


@pytest.mark.parametrize("name", networks.NAMES)
def test_config_keys_are_the_options(name: str) -> None:
    config = build(name, "joined").config.to_dict()
    assert config["model_type"] == f"compress-{name}"
    assert set(plugins.find("architectures", name).parameters) - {"minimum_count"} <= set(config)


def test_single_texts_make_no_siamese_student() -> None:
    for name in networks.NAMES:
        with pytest.raises(CompressError, match="compares two texts"):
            plugins.find("architectures", name).function(classifier(), tokenizer(), [Example("a")], pairs="siamese")


def test_a_folder_is_all_that_a_network_is() -> None:
    assert set(networks.NAMES) < set(plugins.names("architectures"))
    assert all(networks.is_network({"model_type": f"compress-{name}"}) for name in networks.NAMES)
    assert not networks.is_network({"model_type": "compress-pruned-bert"}) and not networks.is_network({})
