"""What inference needs of a tokenizer, how its files are opened without transformers, and what is refused in them."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from compress.errors import CompressError, refuse
from compress.files import JSON_LIMIT_BYTES, faults_of, read_json_table, regular_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

TOKENIZER_NAME = "tokenizer.json"
_SETTINGS_NAME = "tokenizer_config.json"
# WordPiece tries all parts of a word: its time grows with the square of the characters, 100 in BERT's own.
_WORD_CHARACTERS = 1000
_RULES_BYTES = 2**22  # of what changes a text before it is looked up; SentencePiece's table of characters has 2**19
_GROWTH = 1000  # characters that a normalizer may make of one, by all its replacements together

AnyTokenizer: TypeAlias = "PreTrainedTokenizerFast | PlainTokenizer"


@dataclass(frozen=True, eq=False)
class PlainTokenizer:
    """What inference needs of a tokenizer, without transformers."""

    backend_tokenizer: "Tokenizer"
    model_input_names: Sequence[str]
    model_max_length: int
    truncation_side: str
    pad_token_id: Any
    unk_token_id: Any
    name_or_path: str = ""

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
            backend = Tokenizer.from_file(str(regular_file(directory / TOKENIZER_NAME, JSON_LIMIT_BYTES)))
            make_safe(backend, directory)
            path = directory / _SETTINGS_NAME
            settings = read_json_table(path) if os.path.lexists(path) else {}
            limit = settings.get("model_max_length") or 1e30  # what transformers writes for none
            if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 1:
                raise CompressError(f"{path} has the model_max_length {limit!r:.40}: give a number of tokens")
            side = settings.get("truncation_side") or "right"
            refuse((side not in ("left", "right"), f"{path} has the truncation_side {side!r:.40}: give left or right"))
        names = ("input_ids", "attention_mask", *(["token_type_ids"] if segments else []))
        padding, unknown = (_token_id(backend, settings.get(name)) for name in ("pad_token", "unk_token"))
        return cls(backend, names, int(limit), str(side), padding, unknown, str(directory))


def make_safe(backend: "Tokenizer", directory: Path) -> None:
    """Forget how a tokenizer's file pads and cuts, which nothing asks for, and refuse what makes much of a short text.

    Raises:
        CompressError: its rules are huge, make a long text of a short one, or it looks up very long words.
    """
    backend.no_padding()
    backend.no_truncation()
    place, advice = f"the tokenizer of {directory}", "copy the tokenizer's files again"
    if (longest := getattr(backend.model, "max_input_chars_per_word", 0)) > _WORD_CHARACTERS:
        raise CompressError(
            f"{place} looks up words of {longest:,} characters (max_input_chars_per_word), and at most "
            f"{_WORD_CHARACTERS:,} are allowed; {advice}"
        )
    for what, rules in (("normalizer", backend.normalizer), ("pre_tokenizer", backend.pre_tokenizer)):
        state = b"null" if rules is None else rules.__getstate__()
        if len(state) > _RULES_BYTES:
            raise CompressError(
                f"{place} has a {what} of {len(state):,} bytes, and at most {_RULES_BYTES:,} are read; {advice}"
            )
        if (growth := _growth(json.loads(state) or {})) > _GROWTH:
            raise CompressError(
                f"{place} has a {what} that makes {growth:.3g} characters of one, more than {_GROWTH:,}; {advice}"
            )


def _growth(rules: Mapping[str, Any]) -> float:
    """Return how many characters a normalizer may make of one, by replacing and putting before."""
    if rules.get("type") == "Prepend":
        return 1.0 + len(rules["prepend"])
    if rules.get("type") == "Replace":
        least = len(rules["pattern"].get("String", "")) or 1  # characters that are replaced
        return max(1.0, len(rules["content"]) / least)
    return math.prod(map(_growth, rules.get("normalizers", ())))


def _token_id(backend: "Tokenizer", token: Any) -> int | None:
    """Return the id of a special token, given as text or as the table that older versions wrote."""
    content = token.get("content") if isinstance(token, dict) else token
    return None if content is None else backend.token_to_id(str(content))
