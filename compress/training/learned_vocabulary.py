"""Learn a small vocabulary from the corpus, give the teacher embeddings for it, and mix it with the teacher's.

Zhao et al. 2019, "Extreme Language Model Compression with Optimal Subwords and Shared Projections" (arXiv:1909.11687),
and its later form "Extremely Small BERT Models from Mixed-Vocabulary Training" (EACL 2021).
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

import torch
from tokenizers import Tokenizer, models, trainers
from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from compress.data.examples import Example, row_key, texts_of
from compress.errors import refuse
from compress.models.components import input_embeddings

SPECIALS = ("pad", "unk", "cls", "sep", "mask")
PLAIN = {"add_special_tokens": False}
ALPHABET = 1000  # letters; rarer ones are unknown


def learn_vocabulary(
    tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example], size: int
) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer of ``size`` tokens learned from the texts, which finds words as the teacher's does.

    Raises:
        CompressError: the teacher's tokenizer is not of BERT's kind, whose special tokens the student needs.
    """
    theirs: Any = tokenizer.backend_tokenizer
    kind = json.loads(theirs.to_str())["model"]["type"]
    refuse(
        (
            kind != "WordPiece" or any(getattr(tokenizer, f"{name}_token") is None for name in SPECIALS),
            "[vocabulary] learns subword tokens for teachers with a WordPiece tokenizer, and the tokenizer of this one "
            f"is of the kind {kind}; use a BERT-like teacher, or a student without [vocabulary]",
        )
    )
    # In the teacher's order: MPNet's embeddings take the id 1 for padding, whatever their config says.
    named = {f"{name}_token": getattr(tokenizer, f"{name}_token") for name in SPECIALS}
    specials = sorted(named.values(), key=tokenizer.convert_tokens_to_ids)
    made = Tokenizer(models.WordPiece(unk_token=tokenizer.unk_token))
    made.normalizer, made.pre_tokenizer = theirs.normalizer, theirs.pre_tokenizer
    texts = list(texts_of(examples))
    letters, inner = _letters(texts, made)
    # The trainer numbers letters inside words as it meets them in a hash table, and equally frequent pairs by these
    # numbers: named beforehand, and in order, they make the same text give the same vocabulary.
    made.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=[*specials, *inner],
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=False,
        ),
    )
    learned: Any = BertTokenizer(
        made.get_vocab(),
        do_lower_case=_normal(theirs, "A") == "a",
        strip_accents=_normal(theirs, "é") == "e",
        tokenize_chinese_chars=_normal(theirs, "中") != "中",
        **named,
    )
    learned.model_max_length = tokenizer.model_max_length
    return cast(PreTrainedTokenizerFast, learned)


def _normal(tokenizer: Any, text: str) -> str:
    return str(tokenizer.normalizer.normalize_str(text)) if tokenizer.normalizer else text


def _letters(texts: Iterable[str], tokenizer: Any) -> tuple[list[str], list[str]]:
    """Return the most frequent letters of words, and the tokens of one letter that continue a word, both in order."""
    found: Counter[str] = Counter()
    inside: set[str] = set()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(_normal(tokenizer, text)):
            found.update(word)
            inside.update(word[1:])
    kept = sorted(found, key=lambda letter: (-found[letter], letter))[:ALPHABET]
    return sorted(kept), [f"##{letter}" for letter in sorted(inside & set(kept))]


@torch.no_grad()
def re_embed(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, learned: PreTrainedTokenizerFast
) -> PreTrainedModel:
    """Return a copy of the teacher that reads the learned vocabulary.

    A token that the teacher has too keeps its vector; another gets the mean of the teacher's tokens for its letters.
    """
    copied = copy.deepcopy(teacher)
    vectors = input_embeddings(teacher).weight.detach()
    theirs, rows = tokenizer.get_vocab(), torch.empty(len(learned), vectors.shape[1])
    for piece, index in learned.get_vocab().items():
        letters = [theirs[piece]] if piece in theirs else tokenizer(piece.removeprefix("##"), **PLAIN)["input_ids"]
        rows[index] = vectors[letters or [tokenizer.unk_token_id]].mean(dim=0)
    embedding = torch.nn.Embedding(len(learned), vectors.shape[1], padding_idx=learned.pad_token_id)
    embedding.weight.copy_(rows)
    copied.set_input_embeddings(embedding)
    copied.config.vocab_size, copied.config.pad_token_id = len(learned), learned.pad_token_id
    return copied


class Mixer:
    """Writes a text in a mixture of two vocabularies: each word in the learned one with probability one half.

    Ids of learned tokens follow after the teacher's: ``teacher's vocabulary size + id``. The same text always gives the
    same mixture.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, learned: PreTrainedTokenizerFast, teacher_size: int, seed: int
    ) -> None:
        self.tokenizer, self.learned, self.teacher_size, self.seed = tokenizer, learned, teacher_size, seed
        self._splitter: Any = tokenizer.backend_tokenizer
        self.known: dict[str, tuple[list[int], list[int]]] = {}

    def ids(self, example: Example, max_length: int) -> list[int]:
        """Return the ids of a mixture, with the teacher's special tokens around it.

        Raises:
            CompressError: the example is a pair, whose segments a mixture does not carry.
        """
        pairs = "the loss mixed-vocabulary reads single texts, and this data has pairs; leave it out"
        refuse((example.text_pair is not None, pairs))
        generator = random.Random(row_key(example) + self.seed.to_bytes(8, "big"))
        normal = _normal(self._splitter, example.text)
        words = (word for word, _ in self._splitter.pre_tokenizer.pre_tokenize_str(normal))
        ids = [index for word in words for index in self._word(word)[generator.random() < 0.5]]
        return [self.tokenizer.cls_token_id, *ids[: max_length - 2], self.tokenizer.sep_token_id]

    def _word(self, word: str) -> tuple[list[int], list[int]]:
        if word not in self.known:
            theirs, ours = (tokenizer(word, **PLAIN)["input_ids"] for tokenizer in (self.tokenizer, self.learned))
            self.known[word] = (theirs, [self.teacher_size + piece for piece in ours])
        return self.known[word]
