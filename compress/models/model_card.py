"""Model card: the manifest as Markdown, the README.md of a model directory."""

import json

from jinja2 import Environment, PackageLoader

from compress.escaping.characters import visible
from compress.escaping.markdown import Markdown, markdown_text
from compress.models.manifest import ONNX_NAME, PACKED_NAME, Manifest
from compress.models.modeling import ENCODERS, auto_class
from compress.tasks import default, everything


def model_card(manifest: Manifest) -> str:
    """Return the card as Markdown with the front matter that the Hugging Face hub reads."""
    environment = Environment(
        loader=PackageLoader("compress.models"),
        finalize=markdown_text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("model_card.md.j2").render(
        manifest=manifest,
        architecture=manifest.architecture,
        recipe=Markdown(visible(json.dumps(manifest.recipe, indent=2, sort_keys=True, ensure_ascii=False))),
        pipeline=manifest.task if manifest.task in ENCODERS else everything().get(manifest.task, default()).pipeline,
        auto_class=auto_class(manifest.task),
        is_onnx=ONNX_NAME in manifest.files,
        is_packed=PACKED_NAME in manifest.files,
    )
