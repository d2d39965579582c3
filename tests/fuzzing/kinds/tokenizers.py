"""Fields of ``tokenizer.json`` that take all of a machine, or fail at some text."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.fuzzing.mutations import change_json

FILES = "tokenizer.json"
_PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
_DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
_SLOW = {"type": "Split", "pattern": {"Regex": r"(a+)+b(?<=c)|(.*)*\1x"}, "behavior": "Isolated", "invert": False}
# What a tokenizer's file may ask for: by the path of a field, values that take all of a machine, or fail at some text.
_FIELDS: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("padding",): (_PADDING | {"strategy": {"Fixed": 10**9}}, _PADDING | {"pad_to_multiple_of": 10**9}),
    ("truncation",): ({"direction": "Left", "max_length": 1, "strategy": "OnlySecond", "stride": 0},),
    ("normalizer",): (
        {"type": "Prepend", "prepend": "x" * 5_000_000},
        {"type": "Prepend", "prepend": "x" * 5000},
        {"type": "Sequence", "normalizers": [_DOUBLING] * 40},
        None,
    ),
    ("pre_tokenizer",): (_SLOW, None),
    ("post_processor",): (None,),
    ("model", "max_input_chars_per_word"): (10**12, 0),
    ("model", "vocab", "[UNK]"): (10**6,),
    ("model", "unk_token"): ("[NONE]", ""),
    ("model", "continuing_subword_prefix"): ("#" * 10**6, ""),
}


def change(content: bytes, draw: Random) -> bytes:
    """Change one field of a tokenizer's file to what takes much or fails, or any field to anything."""
    if draw.random() < 0.3:
        return change_json(content, draw)
    definition = json.loads(content)
    *outer, name = draw.choice([*_FIELDS])
    place = definition
    for key in outer:
        place = place[key]
    place[name] = draw.choice(_FIELDS[(*outer, name)])
    return json.dumps(definition).encode()
