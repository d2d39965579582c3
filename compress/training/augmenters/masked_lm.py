"""Replace words by the predictions of a masked language model.

Jiao et al. 2020, "TinyBERT" (arXiv:1909.10351), section 3.2 and Algorithm 1: a word of one subword token is masked,
and its candidates are the most probable words there; one of several tokens has its nearest neighbours by word vectors.
Each word is replaced with ``probability`` by one of its ``candidates``. Only words of letters that are no
stop words are replaced. As in the authors' program the whole text follows the masked one as a second segment, and each
word is masked by itself.
Unlike there, only words of one subword token are candidates, and never the word itself.
"""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast

from compress.data.examples import Example, batched
from compress.data.tokenization import maximum_length
from compress.errors import refuse
from compress.inference.compute import resolve_device
from compress.models.loading import load_network, unfit
from compress.models.model_dir import Model
from compress.training.augmenters._common import (
    Neighbours,
    Proposals,
    Word,
    check_rewording,
    embedding_neighbours,
    file_neighbours,
    replaceable_words,
    reword,
    vary_sides,
    whole_words,
)
from compress.training.training_data import Variation

BATCH_ROWS = 64
BATCH_LOGITS = 2**27  # half a gigabyte: the model gives one for every row, token and piece of the vocabulary
_REMEMBERED_TEXTS = 8  # the variants of a row are drawn in turn


def augmenter(
    teacher: Model,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Iterable[Example],
    *,
    model: str,
    candidates: int = 15,
    probability: float = 0.4,
    vectors: str = "",
    device: str = "auto",
) -> Variation:
    """Return the function that varies an example; the corpus is not read, and of the teacher nothing is used.

    Args:
        model: a directory, or a name on the hub, with a masked language model, its head and its tokenizer.
        vectors: a file of word vectors in GloVe's text format for words of several subword tokens; by default the
            masked language model's own input embeddings.
        device: where the model runs: ``cpu``, ``cuda``, or ``auto`` for cuda where there is one.

    Raises:
        CompressError: the directory holds no masked language model, or one without its trained head.
    """
    check_rewording(candidates, probability)
    network, own_tokenizer = open_masked_lm(model)
    neighbours = (
        file_neighbours(vectors, count=candidates)
        if vectors
        else embedding_neighbours(network, own_tokenizer, count=candidates)
    )
    network.to(resolve_device(device))  # type: ignore[arg-type]
    expected = expected_words(network, own_tokenizer, neighbours, count=candidates)
    return lambda example, generator: vary_sides(
        example, generator, lambda text: reword(text, generator, probability, expected)
    )


def open_masked_lm(directory: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Open a masked language model and its tokenizer; remote code stays off.

    Raises:
        CompressError: there is none, its head has no weights, or its tokenizer has no mask token.
    """
    opened = Model.open(directory, classifier=False)
    network, found = load_network(AutoModelForMaskedLM, opened.path)
    tokenizer = opened.tokenizer
    missing = unfit(found)  # transformers would go on with random ones
    refuse(
        (
            missing,
            f"augmentation: {directory} has no trained masked-language-model head ({', '.join(missing[:1])} is "
            "missing); give the model as it was pretrained, not one that was fine-tuned for a task, or use the "
            "augmenter neighbours",
        ),
        (
            tokenizer.mask_token_id is None,
            f"augmentation: the tokenizer of {directory} has no mask token; give another model",
        ),
    )
    return network.eval(), tokenizer


class EncodedText:
    """A text followed by itself, as the model reads it.

    ``positions`` are those of words of one subword token, and ``candidates`` those found so far: none for a truncated
    word.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, limit: int, text: str) -> None:
        twice = tokenizer(text, text, truncation=True, max_length=limit, return_offsets_mapping=True)
        spans = twice.pop("offset_mapping")
        first = [position for position, sequence in enumerate(twice.sequence_ids(0)) if sequence == 0]
        end = max((spans[position][1] for position in first), default=0)
        words = replaceable_words(text)
        self.inputs: dict[str, list[int]] = dict(twice)
        self.candidates: dict[Word, tuple[str, ...]] = {word: () for word in words if word.end > end}
        self.positions: dict[Word, int] = {}
        for word in words:
            # A byte-level tokenizer's space belongs to no word; a token that only touches a word makes it one of
            # several.
            at = [
                position
                for position in first
                if (spans[position][0] < word.end and spans[position][1] > word.start)
                or spans[position] == (word.start, word.start)
            ]
            if len(at) == 1 and spans[at[0]] == (word.start, word.end):
                self.positions[word] = at[0]


def expected_words(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, neighbours: Neighbours, *, count: int
) -> Proposals:
    """Return the function that gives candidates for words of a text: predictions, or neighbours by word vectors.

    They are the most probable or nearest first; a truncated word has none.
    """
    vocabulary = whole_words(tokenizer)
    names, tokens = list(vocabulary), list(vocabulary.values())
    ids = torch.tensor(tokens, device=model.device)
    limit = maximum_length(tokenizer, model.config.to_dict())
    remembered = functools.lru_cache(_REMEMBERED_TEXTS)(functools.partial(EncodedText, tokenizer, limit))

    def predict(encoded: EncodedText, words: Sequence[Word]) -> None:
        """Run one batch, a row for each word with that word masked, and keep the candidates."""
        inputs = {
            name: torch.tensor(values, device=model.device).repeat(len(words), 1)
            for name, values in encoded.inputs.items()
        }
        rows = torch.arange(len(words), device=model.device)
        positions = torch.tensor([encoded.positions[word] for word in words], device=model.device)
        own = inputs["input_ids"][rows, positions]
        inputs["input_ids"][rows, positions] = int(tokenizer.mask_token_id)
        with torch.inference_mode():
            logits = model(**inputs).logits[rows, positions][:, ids]
        # A few more than are wanted, because the word itself and other spellings of it are passed over.
        best = logits.topk(min(count + 5, len(names)), dim=1).indices.tolist()
        for word, token, indices in zip(words, own.tolist(), best, strict=True):
            others = [names[index] for index in indices if tokens[index] != token]
            encoded.candidates[word] = tuple([one for one in others if one.casefold() != word.text.casefold()][:count])

    def propose(text: str, words: Sequence[Word]) -> list[tuple[str, ...]]:
        encoded = remembered(text)
        unknown = [word for word in words if word not in encoded.candidates]
        masked = [word for word in unknown if word in encoded.positions]
        logits_of_row = len(encoded.inputs["input_ids"]) * model.config.vocab_size
        for some in batched(masked, max(1, min(BATCH_ROWS, BATCH_LOGITS // logits_of_row))):
            predict(encoded, some)
        encoded.candidates |= {word: neighbours(word.text) for word in unknown if word not in encoded.candidates}
        return [encoded.candidates[word] for word in words]

    return propose
