"""Model card: the manifest as Markdown, the README.md of a model directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from compress.models.manifest import ONNX_NAME, PACKED_NAME
from compress.models.modeling import AUTO_CLASSES, CLASSIFIER

if TYPE_CHECKING:
    from compress.models.manifest import Manifest


# What the hub calls a task; all others are text-classification.
PIPELINES = {"tagging": "token-classification", "fill-mask": "fill-mask", "feature-extraction": "feature-extraction"}


def model_card(manifest: Manifest) -> str:
    """Return the card as Markdown with the front matter that the Hugging Face hub reads."""
    architecture = manifest.architecture
    opened = AUTO_CLASSES.get(manifest.task, CLASSIFIER)
    lines = [
        "---",
        "library_name: " + ("onnx" if ONNX_NAME in manifest.files else "transformers"),
        f"pipeline_tag: {PIPELINES.get(manifest.task, 'text-classification')}",
        "tags: [compress, " + manifest.stage + "]",
        "---",
        "",
        f"# {manifest.name or manifest.stage}",
        "",
        f"Made by `compress {manifest.stage}`. Task: {manifest.task}.",
        "",
    ]
    if manifest.labels:
        lines.append(f"* Labels: {', '.join(manifest.labels[:20])}" + (" …" if len(manifest.labels) > 20 else ""))
    if "parameters" in architecture:
        lines.append(f"* Parameters: {architecture['parameters']:,}")
    if architecture.get("kept_layers"):
        lines.append(f"* Layers kept, counted from 1: {[layer + 1 for layer in architecture['kept_layers']]}")
    if architecture.get("heads_per_layer"):
        lines.append(f"* Attention heads per layer: {architecture['heads_per_layer']}")
    if architecture.get("ffn_per_layer"):
        lines.append(f"* FFN width per layer: {architecture['ffn_per_layer']}")
    lines += [f"* {note}: {value}" for note, value in manifest.notes.items() if isinstance(value, str | int | float)]
    if manifest.parents:
        lines += ["", "## Made from", ""]
        lines += [f"* {p['role']}: {p['name']} (sha256 `{p['sha256'][:12]}`)" for p in manifest.parents]
    if manifest.metrics:
        lines += ["", "## Metrics", "", "| metric | value | split | rows |", "|---|---|---|---|"]
        lines += [f"| {m['name']} | {m['value']:.4f} | {m['split']} | {m['rows']} |" for m in manifest.metrics]
    if manifest.data:
        lines += ["", "## Data", ""]
        lines += [f"* {d['role']}: {d['name']}, {d['rows']:,} rows" for d in manifest.data]
    if manifest.recipe:
        recipe = json.dumps(manifest.recipe, indent=2, sort_keys=True, ensure_ascii=False)
        lines += ["", "## Recipe, as it was resolved", "", "```json", recipe, "```"]
    if PACKED_NAME in manifest.files:
        use = ["import compress", "model, tokenizer = compress.load(DIRECTORY)  # unpacks to float32"]
    else:
        use = [
            f"from transformers import {opened}, AutoTokenizer",
            "import compress",
            "compress.register_models()  # only needed for model types of compress",
            *(["# or open model.onnx with onnxruntime"] if ONNX_NAME in manifest.files else []),
        ]
    return "\n".join([*lines, "", "## Use", "", "```python", *use, "```", ""])
