"""Values of ``config.json`` that transformers takes, and of which no network is built, or none that runs."""

from __future__ import annotations

import json
from random import Random
from typing import Any

FILES = "config.json"
ODD: dict[str, tuple[Any, ...]] = {
    "return_dict": (False,),
    "num_attention_heads": (-2, 0, 3, 10**6),
    "num_hidden_layers": (-1, 0, 1),
    "hidden_size": (-8, 0, 7),
    "intermediate_size": (-1, 0),
    "chunk_size_feed_forward": (1, 3, -1, 10**9),
    "hidden_act": ("no_such", "silu", ""),
    "hidden_dropout_prob": (-1.0, 2.0, "x"),
    "layer_norm_eps": (-1.0, 0.0, 1e308, "x"),
    "initializer_range": (-1.0, 1e308),
    "pad_token_id": (None, -1, 10**6),
    "model_type": ("bart", "t5", "canine", "gpt2", "xlnet", "clip"),
    "is_decoder": (True,),
    "add_cross_attention": (True,),
    "is_encoder_decoder": (True,),
    "num_labels": (1, 3),
    "problem_type": ("regression", "multi_label_classification"),
    "torch_dtype": ("float16", "bfloat16", "int8", "x"),
    "output_attentions": (True,),
    "output_hidden_states": (True,),
    "max_position_embeddings": (0, 1, 10**9),
    "_attn_implementation": ("eager", "flash_attention_2", "no_such"),
    "vocab_size": (1, 10**9),
    "id2label": ({"0": "a"}, {"0": "a", "1": "b", "2": "c"}),
    "sentence_transformers": ({"activation_fn": "os.system"},),
}


def change(content: bytes, draw: Random) -> bytes:
    """Give one field a value that is odd, and of its type or nearly so."""
    name = draw.choice([*ODD])
    config: dict[str, Any] = json.loads(content)
    return json.dumps({**config, name: draw.choice(ODD[name])}).encode()
