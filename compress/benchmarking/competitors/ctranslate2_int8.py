"""CTranslate2 int8: its own engine for the encoder, and the classification head in NumPy.

``TransformersConverter(...).convert(quantization="int8")``: weights per channel, activations per token as they come.
CTranslate2 has no sequence classifiers; its documentation says to run the encoder there and the head outside.

Source: https://opennmt.net/CTranslate2/guides/transformers.html (BERT)
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from compress.benchmarking.competitors import TOKENIZERS, link_model, token_runner
from compress.errors import Unavailable
from compress.inference.runners import LoadedModel
from compress.models.model_dir import Model

REQUIRES = {"ctranslate2": "ctranslate2>=4.8", **TOKENIZERS}
DEVICES = ("cpu",)
HEAD_NAME = "head.safetensors"

# Model type -> the layers of its head over the first token's state, or over the pooled one that the engine computes for
# BERT, and what is between them.
HEADS: Mapping[str, tuple[Sequence[str], Callable[[np.ndarray], np.ndarray]]] = {
    "bert": (("classifier",), np.asarray),
    "distilbert": (("pre_classifier", "classifier"), lambda hidden: np.maximum(hidden, 0)),
    **dict.fromkeys(("roberta", "xlm-roberta"), (("classifier.dense", "classifier.out_proj"), np.tanh)),
}


def build(directory: Path, model: Model) -> None:
    from ctranslate2.converters import TransformersConverter

    model_type = str(model.config["model_type"])
    if model_type not in HEADS:
        raise Unavailable(f"CTranslate2 has no encoder for the model type {model_type}; it has {', '.join(HEADS)}")
    link_model(directory, model, weights=False)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        link_model(source, model, weights=True)
        # The converter asserts a key that configs of transformers 5 no longer have.
        config = {**model.config, "position_embedding_type": "absolute"}
        (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
        converted = Path(scratch) / "converted"
        TransformersConverter(str(source)).convert(str(converted), quantization="int8")
        shutil.move(converted, directory / "encoder")
    weights = model.load().state_dict()
    save_file({name: value.numpy() for name, value in weights.items() if "classifier" in name}, directory / HEAD_NAME)


def start(directory: Path, *, threads: int, device: str) -> LoadedModel:
    import ctranslate2

    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (*inner, last), activation = HEADS[config["model_type"]]
    has_segments = config.get("type_vocab_size", 0) > 0
    head = load_file(directory / HEAD_NAME)
    encoder = ctranslate2.Encoder(
        str(directory / "encoder"), device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads
    )

    def view(array: np.ndarray) -> ctranslate2.StorageView:
        return ctranslate2.StorageView.from_array(np.ascontiguousarray(array, dtype=np.int32))

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        lengths = view(inputs["attention_mask"].sum(axis=1))
        # Segments are given as lists: the engine takes no array of them.
        segments = inputs["token_type_ids"].tolist() if has_segments else None
        found = encoder.forward_batch(view(inputs["input_ids"]), lengths, token_type_ids=segments)
        is_pooled = config["model_type"] == "bert"
        state = np.array(found.pooler_output) if is_pooled else np.array(found.last_hidden_state)[:, 0]
        for layer in inner:
            state = activation(state @ head[f"{layer}.weight"].T + head[f"{layer}.bias"])
        return np.asarray(state @ head[f"{last}.weight"].T + head[f"{last}.bias"])

    return token_runner(directory, run, ("input_ids", "attention_mask", "token_type_ids"))
