"""A tokenizer as its files describe it, opened without transformers; and what inference needs of any tokenizer."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from compress.errors import CompressError
from compress.files import JSON_LIMIT_BYTES, faults_of, read_json_table, regular_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_NAME = "tokenizer.json"
_SETTINGS_NAME = "tokenizer_config.json"


class AnyTokenizer(Protocol):
    """What inference reads of a tokenizer; ``PreTrainedTokenizerFast`` of transformers has it, too."""

    @property
    def backend_tokenizer(self) -> "Tokenizer": ...
    @property
    def model_input_names(self) -> Sequence[str]: ...
    @property
    def model_max_length(self) -> int: ...
    @property
    def truncation_side(self) -> str: ...
    @property
    def pad_token_id(self) -> Any: ...
    @property
    def unk_token_id(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class PlainTokenizer:
    """What inference needs of a tokenizer, to be sent to a process that has not imported transformers."""

    backend_tokenizer: "Tokenizer"
    model_input_names: Sequence[str]
    model_max_length: int
    truncation_side: str
    pad_token_id: Any
    unk_token_id: Any

    @classmethod
    def of(cls, tokenizer: AnyTokenizer) -> Self:
        return cls(**{field.name: getattr(tokenizer, field.name) for field in fields(cls)})


class StoredTokenizer:
    """The tokenizer of a model directory that transformers or this project wrote.

    Args:
        directory: a directory with ``tokenizer.json`` and, where it sets anything, ``tokenizer_config.json``.
        segments: whether the model reads ``token_type_ids``.

    Raises:
        CompressError: the files are damaged.
    """

    def __init__(self, directory: Path, *, segments: bool) -> None:
        from tokenizers import Tokenizer

        with faults_of(directory, "a directory with a tokenizer"):
            definition = regular_file(directory / TOKENIZER_NAME, JSON_LIMIT_BYTES)
            self.backend_tokenizer = Tokenizer.from_file(str(definition))
            path = directory / _SETTINGS_NAME
            settings = read_json_table(path) if os.path.lexists(path) else {}
            limit = settings.get("model_max_length") or 1e30  # what transformers writes for none
            if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 1:
                raise CompressError(f"{path} has the model_max_length {limit!r:.40}: give a number of tokens")
            side = settings.get("truncation_side") or "right"
            if side not in ("left", "right"):
                raise CompressError(f"{path} has the truncation_side {side!r:.40}: give left or right")
        self.model_input_names = ("input_ids", "attention_mask", *(["token_type_ids"] if segments else []))
        self.model_max_length = int(limit)
        self.truncation_side = str(side)
        self.pad_token_id = self._id(settings.get("pad_token"))
        self.unk_token_id = self._id(settings.get("unk_token"))

    def _id(self, token: Any) -> int | None:
        """Return the id of a special token, given as text or as the table that older versions wrote."""
        content = token.get("content") if isinstance(token, dict) else token
        return None if content is None else self.backend_tokenizer.token_to_id(str(content))
