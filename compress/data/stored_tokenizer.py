"""A tokenizer as its files describe it, opened without transformers; and what inference needs of any tokenizer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from compress.errors import CompressError

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

        try:
            self.backend_tokenizer = Tokenizer.from_file(str(directory / TOKENIZER_NAME))
            path = directory / _SETTINGS_NAME
            settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except Exception as error:  # the class that tokenizers raises has no name of its own
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CompressError(f"{directory} has no tokenizer that opens: {reason}") from None
        self.model_input_names = ("input_ids", "attention_mask", *(["token_type_ids"] if segments else []))
        self.model_max_length = settings.get("model_max_length") or int(1e30)
        self.truncation_side = str(settings.get("truncation_side") or "right")
        self.pad_token_id = self._id(settings.get("pad_token"))
        self.unk_token_id = self._id(settings.get("unk_token"))

    def _id(self, token: Any) -> int | None:
        """Return the id of a special token, given as text or as the table that older versions wrote."""
        content = token.get("content") if isinstance(token, dict) else token
        return None if content is None else self.backend_tokenizer.token_to_id(str(content))
