"""What a model does in Python: it predicts, makes other models of itself, is uploaded, and says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

import compress
from compress.errors import CompressError
from compress.models.model_dir import Model
from tests.support.tiny import torch_directory


def test_a_model_predicts_one_text_or_many_and_is_loaded_once() -> None:
    model = Model.open(torch_directory("bert").path)
    one, (same, other) = model.predict("good film"), model.predict(["good film", "bad film"])
    assert one == same and other["label"] in model.labels
    found = model.predict_proba(["good film", "bad film"])
    assert found.shape == (2, len(model.labels)) and np.allclose(found.sum(axis=1), 1)
    assert model.runner is model.runner and model.tokenizer is model.tokenizer and model.max_length == 64


@pytest.mark.parametrize("name", ["quantize", "prune", "calibrate", "export"])
def test_a_model_makes_another_by_the_function_of_that_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(compress, name, lambda *given, **named: asked.append((given, named)))
    model = torch_directory("bert")
    getattr(model, name)("new", force=True)
    assert asked == [((model, "new"), {"force": True})]


def test_a_model_is_exported_and_predicts_the_same(tmp_path: Path) -> None:
    model = torch_directory("bert")
    exported = model.export(tmp_path / "onnx")
    assert np.allclose(exported.predict_proba("good film"), model.predict_proba("good film"), atol=1e-4)


def test_a_model_says_what_it_is_in_a_line_and_in_a_notebook() -> None:
    model = torch_directory("bert")
    assert repr(model).startswith(f"Model({model.name}; classification: ") and str(model.path) in repr(model)
    assert "million" in repr(model) and "torch" in repr(model) and "manifest" not in repr(model).lower()
    assert model._repr_html_().count("<tr>") >= 4


def test_markup_in_names_stays_text(tmp_path: Path) -> None:
    (tmp_path / "<b>").symlink_to(torch_directory("bert").path)
    assert "<b>" not in Model.open(tmp_path / "<b>")._repr_html_()


class FakeHub:
    """Notes what is uploaded; nothing is sent."""

    said: list[Any]

    def __init__(self, fault: Exception | None = None) -> None:
        self.said, self.fault = [], fault

    def create_repo(self, name: str, **named: Any) -> Any:
        self.said.append((name, named))
        return HubAddress(f"https://huggingface.co/{name}")

    def upload_folder(self, **named: Any) -> None:
        if self.fault:
            raise self.fault
        self.said.append(named)


class HubAddress(str):
    """The address of a repository, as huggingface_hub returns it."""

    @property
    def repo_id(self) -> str:
        return self.removeprefix("https://huggingface.co/")


def test_a_model_is_uploaded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, model = FakeHub(), torch_directory("bert")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    assert model.push_to_hub("me/film", private=True) == "https://huggingface.co/me/film"
    (repository, settings), uploaded = hub.said
    assert repository == "me/film" and settings == {"private": True, "exist_ok": True}
    assert uploaded["repo_id"] == "me/film" and uploaded["folder_path"] == model.path


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: FakeHub(ConnectionError("no route")))
    with pytest.raises(CompressError, match="could not be uploaded as me/film .ConnectionError.; check the name"):
        torch_directory("bert").push_to_hub("me/film")
