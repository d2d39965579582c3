"""A runtime, which takes token ids, as a runner, which takes texts; and rows of a length that nobody wrote.

Fixed lengths say how speed depends on length, for comparison with figures of others. Each row is the text's own tokens,
repeated between the special tokens and cut, so that what the model reads is spread over the vocabulary as text is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compress.data.examples import Example
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.text_encoder import TokenRows, shared_encoder
from compress.data.tokenization import at_words, encode, maximum_length, pad, word_counts
from compress.errors import CompressError
from compress.models.model_dir import ModelDir

TokenArrays = dict[str, np.ndarray]
Function = Callable[[TokenArrays], np.ndarray]

_ROOM_FOR_SPECIAL_TOKENS = 16  # tokenizers refuse to cut to fewer tokens than they add


@dataclass
class TokenRunner:
    """A :class:`compress.inference.runner.Runner` of a function of token arrays and the model's own tokenizer.

    The function of a tagger answers tokens, ``[B, T, C]``; ``run`` then gives what words are answered, ``[W, C]``.
    ``max_length`` is what rows are cut to. ``model`` is there where :meth:`open` made it, and ``function`` after
    :meth:`start`.
    """

    tokenizer: AnyTokenizer
    max_length: int
    function: Function | None = None
    parameters: int = 0
    tokenizer_inside: bool = False
    task: str = "classification"
    model: ModelDir | None = None

    @classmethod
    def open(cls, model: ModelDir, max_length: int, lengths: Sequence[int]) -> TokenRunner:
        """Load the tokenizer of a model directory.

        Args:
            model: of any runtime.
            max_length: tokens a row is cut to; 0 for as many as the model can read.
            lengths: fixed lengths that will be asked for.

        Raises:
            CompressError: the model cannot read a row of such a length.
        """
        tokenizer = model.open_tokenizer()
        longest = maximum_length(tokenizer, model.config)
        if max(lengths, default=0) > longest:
            raise CompressError(f"--length {max(lengths)} is more than the {longest} tokens that it can read")
        return cls(tokenizer, min(max_length or longest, longest), task=model.task, model=model)

    def start(self, open_one: Callable[[ModelDir], Function]) -> None:
        """Open the model."""
        assert self.model is not None
        self.function = open_one(self.model)

    def lengths(self, examples: Sequence[Example]) -> list[int]:
        """Return the tokens of each row, after cutting."""
        return [len(ids) for ids in encode(self.tokenizer, examples, self.max_length, task=self.task)["input_ids"]]

    def prepare(self, examples: Sequence[Example], *, length: int | None = None, width: int = 0) -> TokenArrays:
        """Tokenise and pad to the longest row.

        Args:
            examples: B texts or pairs.
            length: make every row exactly so many tokens.
            width: pad to so many tokens at least.
        """
        if length is None:
            tokens = encode(self.tokenizer, examples, self.max_length, task=self.task)
        else:
            tokens = _encode_fixed(self.tokenizer, examples, length)
        rows = [{key: ids[row] for key, ids in tokens.items()} for row in range(len(examples))]
        padding_id = int(self.tokenizer.pad_token_id or 0)
        arrays = widen(pad(rows, padding_id), width, padding_id)
        if "words" in arrays:
            arrays["counts"] = np.array(word_counts(examples), dtype=np.int64)
        return arrays

    def run(self, inputs: TokenArrays) -> np.ndarray:
        assert self.function is not None
        logits = self.function(inputs)
        return at_words(logits, inputs["words"], inputs["counts"].tolist()) if "words" in inputs else logits

    def prepare_shapes(self, rows: int, length: int) -> None:
        """Let a runtime that prepares for shapes, such as one of CUDA graphs, do so for batches up to ``[B, T]``."""
        prepare = getattr(self.function, "prepare_shapes", None)
        if prepare is not None:
            prepare(rows, length)

    @property
    def device_ms(self) -> float | None:
        """Time of the last run on the GPU alone, in milliseconds, if the runtime takes it."""
        return getattr(self.function, "device_ms", None)


def widen(arrays: TokenArrays, width: int, padding_id: int) -> TokenArrays:
    """Pad arrays ``[B, T]`` on the right to ``[B, width]``; wider ones stay as they are."""
    missing = width - arrays["input_ids"].shape[1]
    if missing <= 0:  # np.pad takes longer than a tokenizer, also where it adds nothing
        return arrays
    return {
        key: np.pad(values, ((0, 0), (0, missing)), constant_values=padding_id if key == "input_ids" else 0)
        for key, values in arrays.items()
    }


def resize(tokens: Sequence[int], special: Sequence[int], length: int, empty: int) -> list[int]:
    """Return a row of exactly ``length`` tokens.

    Args:
        tokens: a row with its special tokens.
        special: 1 for each special token, 0 for others; those at either end keep their places.
        length: tokens wanted.
        empty: what is repeated where the row has nothing but special tokens.
    """
    before = len(list(itertools.takewhile(bool, special)))
    after = 0 if before == len(special) else len(list(itertools.takewhile(bool, reversed(special))))
    end = len(tokens) - after
    inner = itertools.cycle(tokens[before:end] or [empty])
    repeated = itertools.islice(inner, max(length - before - after, 0))
    return [*tokens[:before], *repeated, *tokens[end:]][:length]


def _encode_fixed(tokenizer: AnyTokenizer, examples: Sequence[Example], length: int) -> TokenRows:
    read = [e.text if e.text_pair is None else (e.text, e.text_pair) for e in examples]
    tokens, encodings = shared_encoder(tokenizer).encode(read, max(length, _ROOM_FOR_SPECIAL_TOKENS))
    empty = {"input_ids": int(tokenizer.unk_token_id or 0), "token_type_ids": 0}
    return TokenRows(
        (
            key,
            [
                np.array(resize(ids.tolist(), found.special_tokens_mask, length, empty[key]))
                for ids, found in zip(rows, encodings, strict=True)
            ],
        )
        for key, rows in tokens.items()
    )
