"""Text in, logits out, in C: small students with their tokenizer, without ONNX Runtime.

``native.h`` is the interface of the library and ``model_file.h`` the container that it reads; ``write.py`` writes one
beside the graph of a student, and ``python.c`` makes the module ``_core`` of the library.
"""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from compress.arrays import np
from compress.data.examples import Example
from compress.data.tokenization import check_one_kind, word_counts
from compress.data.truncation import count_rows
from compress.errors import CompressError, Unavailable, refuse
from compress.files import regular_file
from compress.host import is_installed
from compress.inference.compute import Compute, resolve_device
from compress.models.manifest import NATIVE_NAME
from compress.models.model_dir import Model
from compress.progress import Advance, logger

NOT_FINITE = "the model gave logits that are not finite numbers; its weights are damaged"
_LIMIT_BYTES = 2**32
_ROWS = 4096  # read at a time


def native_core() -> Any:
    """Return the module of the library.

    Raises:
        Unavailable: it was not built where ``compress`` was installed.
    """
    try:
        return importlib.import_module(f"{__name__}._core")
    except ImportError as error:
        said = "the native library is not there, which installing builds with a C compiler"
        raise Unavailable(f"{said} ({error})") from None


class NativeRunner:
    """A :class:`compress.inference.runners.Runner` of a model's container, mapped into memory: ``run`` takes texts.

    ``core`` is the library's model, whose ``predict`` answers texts without NumPy; ``labels`` are those that it knows.

    Args:
        directory: where the container is.
        instructions: of its kernels; by default the best that this processor has.

    Raises:
        Unavailable: the library was not built.
        CompressError: the container is damaged.
    """

    tokenizer_inside = True
    parameters = 0

    def __init__(self, directory: Path, *instructions: str) -> None:
        path, core = directory / NATIVE_NAME, native_core()
        with regular_file(path, _LIMIT_BYTES).open("rb") as file:
            try:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.core = core.Model(content, *instructions)
            except ValueError as error:
                raise CompressError(f"{path}: {error}; export the model again") from None
        self.max_length: int = self.core.max_length
        self.labels: tuple[str, ...] = self.core.labels
        self.by_word: bool = self.core.is_tagger

    def read(self, texts: Sequence[str | tuple[str, str]], answers: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits ``[N, C]`` float32 of texts or pairs, and how many tokens of each were not read, int64
        ``[N]``.

        Of a tagger they are ``[answers, C]``, those of all words, and NaN of a word that has none.

        Raises:
            TypeError: one is neither, or they are mixed.
        """
        logits = np.empty((len(texts) if answers < 0 else answers, len(self.labels)), np.float32)
        unread = np.empty(len(texts), np.int64)
        self.core.logits(texts, logits, unread)
        refuse((not (np.isfinite(logits) | (self.by_word & np.isnan(logits))).all(), NOT_FINITE))
        return logits, unread

    def run(self, texts: Sequence[Any]) -> np.ndarray:
        return self.read(texts, sum(word_counts([*map(Example, texts)])) if self.by_word else -1)[0]

    @staticmethod
    def prepare(examples: Sequence[Example]) -> list[str | tuple[str, str]]:
        return [one.text if one.text_pair is None else (one.text, one.text_pair) for one in examples]

    def lengths(self, examples: Sequence[Example]) -> list[int]:
        """Return the tokens of each row, after cutting."""
        found = [(len(ids), unread) for ids, unread in map(self.core.ids, self.prepare(examples))]
        count_rows(self.max_length, examples, dict(enumerate(unread for _, unread in found)))
        return [length for length, _ in found]

    def logits(self, examples: Sequence[Example], advance: Advance = lambda rows: None) -> np.ndarray:
        """Return logits ``[N, C]``, of a tagger those of all words; advances by the rows."""
        check_one_kind(examples, by_word=self.by_word)
        found = [np.empty((0, len(self.labels)), np.float32)]
        for begin in range(0, len(examples), _ROWS):
            some = examples[begin : begin + _ROWS]
            logits, unread = self.read(self.prepare(some), sum(word_counts(some)) if self.by_word else -1)
            count_rows(self.max_length, some, dict(enumerate(unread.tolist())))
            found.append(logits)
            advance(len(some))
        return np.concatenate(found)

    def logits_of_ids(self, ids: np.ndarray) -> np.ndarray:
        """Return the logits ``[C]`` of token ids ``[T]``; of a tagger ``[T, C]``."""
        logits = np.empty((*[len(ids)] * self.by_word, len(self.labels)), np.float32)
        self.core.logits_of_ids(ids.astype(np.int32), logits)
        return logits


def runs_natively(model: Model) -> bool:
    """Tell whether a model has a container and the library is here to read it."""
    with suppress(Unavailable):
        return (model.path / NATIVE_NAME).is_file() and not model.windows and bool(native_core())
    return False


def native_runner(model: Model, compute: Compute = Compute()) -> NativeRunner | None:
    """Return what runs a model by the library; None where it has no container, reads windows or runs on no CPU.

    Raises:
        CompressError: the container is damaged, or of another model, or the directory holds nothing that could run.
    """
    path, missing = model.path / NATIVE_NAME, f"it has no graph for --device {compute.device}"
    is_there = path.is_file() and not model.windows
    if is_there and resolve_device(compute.device, for_onnx=model.is_onnx or model.is_native) == "cpu":
        try:
            native = NativeRunner(model.path)
        except Unavailable as error:
            missing = str(error)
            advice = "install compress where there is one, or type pip install 'compress[onnx]'"
            refuse((not is_installed("onnxruntime"), f"{model.path}: {missing}; {advice}"))
            logger.debug("%s runs in ONNX Runtime: %s", model.name, missing)
        else:
            other = f"{path} is of another model than config.json; export the model again"
            refuse((native.labels != model.labels, other))
            return native
    refuse((model.is_native, f"{model.path} runs in the native library alone: {missing}; use an ONNX directory"))
    return None
