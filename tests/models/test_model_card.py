"""The model card: what the manifest says, as text, whatever it holds."""

from __future__ import annotations

import json
import re

from hypothesis import given
from markdown_it import MarkdownIt

from compress.models.manifest import ONNX_NAME, Manifest
from compress.models.output_dir import model_card
from tests.support.foreign import texts


def card(text: str) -> str:
    name = f"n{text}"
    return model_card(
        Manifest(
            stage="prune",
            name=name,
            task=name,
            labels=(name, "b"),
            architecture={"parameters": 5, "kept_layers": [0, 2], "heads_per_layer": [2, 3], "ffn_per_layer": [4]},
            parents=({"role": name, "name": name, "sha256": name},),
            recipe={name: name},
            data=({"role": name, "name": name, "rows": 3},),
            metrics=({"name": name, "value": 0.5, "split": name, "rows": 3},),
            notes={name: name},
        )
    )


def parts(page: str) -> list[str]:
    body = page.split("---\n", 2)[2]
    found = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body):
        found += [token.type, *(child.type for child in token.children or [])]
    return [one for one in found if one not in ("text", "softbreak")]


@given(texts)
def test_a_card_has_no_further_part(text: str) -> None:
    made = card(text)
    assert parts(made) == parts(card("ame")) and made.splitlines()[:5] == card("ame").splitlines()[:5]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", made)
    made.encode()
    recipe = made.partition("```json\n")[2].partition("\n```\n")[0]
    assert json.loads(recipe) == {f"n{text}": f"n{text}"}


def test_an_ordinary_card() -> None:
    made = card("ame")
    assert "# name\n" in made and "* Labels: name, b\n* Parameters: 5\n" in made
    assert "* Layers kept, counted from 1: [1, 3]\n* Attention heads per layer: [2, 3]\n" in made
    assert "* name: name (sha256 <code>name</code>)\n" in made and "| name | 0.5000 | name | 3 |\n" in made


def test_card_of_an_onnx_directory_turns_telemetry_off_for_other_clients() -> None:
    made = model_card(Manifest(stage="export", name="small", labels=("a", "b"), files={ONNX_NAME: {}}))
    before, _, after = made.partition("import onnxruntime")
    assert 'os.environ["ORT_DISABLE_TELEMETRY"] = "1"' in before and "InferenceSession" in after
    assert "onnxruntime" not in card("ame")
