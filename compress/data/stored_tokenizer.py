"""What inference needs of a tokenizer, and how its files are opened without transformers."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from compress.errors import CompressError
from compress.files import JSON_LIMIT_BYTES, faults_of, read_json_table, regular_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

TOKENIZER_NAME = "tokenizer.json"
_SETTINGS_NAME = "tokenizer_config.json"

AnyTokenizer: TypeAlias = "PreTrainedTokenizerFast | PlainTokenizer"


@dataclass(frozen=True, eq=False)
class PlainTokenizer:
    """What inference needs of a tokenizer; it can be sent to a process that has not imported transformers."""

    backend_tokenizer: "Tokenizer"
    model_input_names: Sequence[str]
    model_max_length: int
    truncation_side: str
    pad_token_id: Any
    unk_token_id: Any
    name_or_path: str = ""

    @classmethod
    def of(cls, tokenizer: AnyTokenizer) -> Self:
        return cls(**{field.name: getattr(tokenizer, field.name) for field in fields(cls)})

    @classmethod
    def read(cls, directory: Path, *, segments: bool) -> Self:
        """Open the tokenizer of a model directory that transformers or this project wrote.

        Args:
            directory: a directory with ``tokenizer.json`` and, where it sets anything, ``tokenizer_config.json``.
            segments: whether the model reads ``token_type_ids``.

        Raises:
            CompressError: the files are damaged.
        """
        from tokenizers import Tokenizer

        with faults_of(directory, "a directory with a tokenizer"):
            definition = regular_file(directory / TOKENIZER_NAME, JSON_LIMIT_BYTES)
            backend = Tokenizer.from_file(str(definition))
            path = directory / _SETTINGS_NAME
            settings = read_json_table(path) if os.path.lexists(path) else {}
            limit = settings.get("model_max_length") or 1e30  # what transformers writes for none
            if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 1:
                raise CompressError(f"{path} has the model_max_length {limit!r:.40}: give a number of tokens")
            side = settings.get("truncation_side") or "right"
            if side not in ("left", "right"):
                raise CompressError(f"{path} has the truncation_side {side!r:.40}: give left or right")
        names = ("input_ids", "attention_mask", *(["token_type_ids"] if segments else []))
        padding, unknown = (_token_id(backend, settings.get(name)) for name in ("pad_token", "unk_token"))
        return cls(backend, names, int(limit), str(side), padding, unknown, str(directory))


def _token_id(backend: "Tokenizer", token: Any) -> int | None:
    """Return the id of a special token, given as text or as the table that older versions wrote."""
    content = token.get("content") if isinstance(token, dict) else token
    return None if content is None else backend.token_to_id(str(content))
