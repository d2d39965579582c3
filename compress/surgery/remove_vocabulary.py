"""Remove the subword tokens that a corpus does not use: a smaller embedding, and the same predictions.

Abdaoui et al. 2020, "Load What You Need: Smaller Versions of Multilingual BERT" (arXiv:2010.05609), and the vocabulary
pruning of Yang et al. 2022, "TextPruner" (arXiv:2203.15996).

A text is *covered* when the old tokenizer knows all of it and makes only tokens of it that are kept. The new tokenizer
then makes the same tokens, and the model gives the same logits to the bit:

* WordPiece takes the longest token that matches. A kept token still matches, and no longer one was added.
* BPE joins the pair of lowest rank first. All joins that lead to a kept token can still be made, in the same order.
* Unigram takes the path of the best score, which is still the best one among fewer paths.

Unknown words stay unknown too where every character of a vocabulary is a token by itself, as in BERT's.
"""

import itertools
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.data.tokenization import OFFSET_POSITIONS, text_batches, token_counts
from compress.errors import refuse
from compress.models.modeling.families import PRUNABLE, stock_type
from compress.models.networks import NAMES, model_classes
from compress.models.networks.small import SmallConfig
from compress.tasks import of_network

# Kind of tokenizer -> settings with which it is not known that covered text keeps its pieces.
TOKENIZER_KINDS: Mapping[str, tuple[str, ...]] = {
    "WordPiece": (),
    "BPE": ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"),
    "Unigram": ("byte_fallback",),
}

_CUT_NETWORKS = [name for name in NAMES if not model_classes(name)[0].fixed_vocabulary]


@dataclass(frozen=True)
class VocabularyCut:
    """What was removed: ``corpus_pieces`` of the kept tokens occur in the corpus; ``parameters`` were removed."""

    pieces_before: int
    pieces_after: int
    corpus_pieces: int
    parameters: int


@torch.no_grad()
def cut_vocabulary(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, corpus: Iterable[Example]
) -> tuple[PreTrainedTokenizerFast, VocabularyCut]:
    """Remove from a model, in place, the tokens that do not occur in a corpus; return the tokenizer of the others.

    The embedding keeps the rows of the kept tokens, in their order, and the config is adapted.

    Args:
        model: a classifier of a known family, pruned before or not, or a small student.
        tokenizer: the model's.
        corpus: rows such as the model will read, labelled or not; they are read once.

    Raises:
        CompressError: a model or tokenizer of a kind whose vocabulary cannot be cut, or a corpus without text.
    """
    family, fixed = stock_type(model.config), getattr(model, "fixed_vocabulary", "")
    refuse(
        (
            family not in PRUNABLE and not isinstance(model.config, SmallConfig),
            f"it is not known where a {family!r} model keeps its vocabulary; it can be cut from "
            f"{', '.join(sorted(PRUNABLE))} and the students {' and '.join(_CUT_NETWORKS)}",
        ),
        (fixed, fixed),
    )
    check_tokenizer(tokenizer)
    # A tagger's tokenizer reads words one by one: one of bytes may give them other pieces than within a text.
    read = (Example(word) for row in corpus for word in row.words) if of_network(model).by_word else corpus
    occurring = set(token_counts(tokenizer, read))
    refuse((not occurring, "the corpus has no text that the tokenizer knows; give text such as the model will read"))
    fixed = set(_special_ids(model).values())
    if family in OFFSET_POSITIONS:  # positions are counted from the id of the padding, which must stay what it is
        fixed.update(range(model.get_input_embeddings().padding_idx + 1))  # type: ignore[operator]
    smaller, kept = cut_tokenizer(tokenizer, occurring | fixed)
    cut = VocabularyCut(len(tokenizer), len(kept), len(occurring), parameters=_select_rows(model, kept))
    return smaller, cut


def cut_tokenizer(
    tokenizer: PreTrainedTokenizerFast, wanted: Iterable[int]
) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """Return a tokenizer of the wanted tokens and of those that it needs, and their old ids in the order of the new.

    It needs all added tokens, at which text is split first; all tokens of one character, so that a word that the corpus
    lacks can still be spelled; and those without which covered text would get other tokens.
    """
    definition = check_tokenizer(tokenizer)
    vocabulary = tokenizer.get_vocab()
    kept = sorted(_with_needed(definition, vocabulary, set(wanted) & set(vocabulary.values())))
    new_ids = {old: new for new, old in enumerate(kept)}
    expected = {piece: new_ids[old] for piece, old in vocabulary.items() if old in new_ids}
    _renumber(definition, new_ids)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)  # its class and settings
        Path(folder, "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
        # DeBERTa's names an id in its settings too.
        unknown = {"unk_id": definition["model"]["unk_id"]} if "unk_id" in tokenizer.init_kwargs else {}
        smaller = type(tokenizer).from_pretrained(folder, **unknown)
    smaller.name_or_path = tokenizer.name_or_path
    made = json.loads(smaller.backend_tokenizer.to_str())
    refuse(
        (
            smaller.get_vocab() != expected or made["model"] != definition["model"],
            f"a tokenizer of the class {type(tokenizer).__name__} makes something else of a smaller vocabulary than "
            "was written, so that its ids would not be the model's; keep the vocabulary of this model",
        )
    )
    return smaller, kept


def fallbacks(
    before: PreTrainedTokenizerFast, after: PreTrainedTokenizerFast, examples: Iterable[Example]
) -> dict[str, float]:
    """Count the texts, and words as the tokenizer tells them apart, to which a cut tokenizer gives other pieces.

    ``words_unknown`` of ``words_changed`` were known before. Rows of pairs have two texts.
    """
    counts = Counter(texts=0, texts_changed=0, words=0, words_changed=0, words_unknown=0)
    for batch in text_batches(examples):
        olds, news = (reader(batch, add_special_tokens=False, verbose=False).encodings for reader in (before, after))
        for old, new in zip(olds, news, strict=True):
            words = list(zip(_words(old), _words(new), strict=True))
            counts.update(
                texts=1,
                texts_changed=int(old.tokens != new.tokens),
                words=len(words),
                words_changed=sum(ours != theirs for ours, theirs in words),
                words_unknown=sum(after.unk_token in theirs and after.unk_token not in ours for ours, theirs in words),
            )
    shares = {f"{one}_share": counts[f"{one}s_changed"] / max(1, counts[f"{one}s"]) for one in ("text", "word")}
    return {**counts, **shares}


def _words(encoding: Any) -> list[list[str]]:
    tokens = iter(encoding.tokens)
    return [list(itertools.islice(tokens, len(list(word)))) for _, word in itertools.groupby(encoding.word_ids)]


def check_tokenizer(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return what ``tokenizer.json`` says of a tokenizer.

    Raises:
        CompressError: it is not known how pieces may be taken from it.
    """
    definition: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    model, kind, keep = definition["model"], definition["model"]["type"], "keep the vocabulary of this model"
    settings = [f"{name} = {model[name]!r}" for name in TOKENIZER_KINDS.get(kind, ()) if model.get(name)]
    refuse(
        (
            kind not in TOKENIZER_KINDS,
            f"pieces can be taken from tokenizers of the kinds {', '.join(TOKENIZER_KINDS)}; this one is of the kind "
            f"{kind}; {keep}",
        ),
        (
            settings,
            f"this {kind} tokenizer has {''.join(settings[:1])}, with which it is not known that text keeps its "
            f"pieces; {keep}",
        ),
    )
    return definition


def _with_needed(definition: Mapping[str, Any], vocabulary: Mapping[str, int], wanted: set[int]) -> set[int]:
    """Return the ids of tokens with those of the tokens that they need."""
    model = definition["model"]
    kept = wanted | {token["id"] for token in definition["added_tokens"]}
    prefix = model.get("continuing_subword_prefix") or ""  # WordPiece's ##
    # Those of other scripts too: they are few (1,994 of BERT's 30,522), and so no word of theirs becomes unknown.
    kept |= {index for piece, index in vocabulary.items() if len(piece.removeprefix(prefix)) == 1}
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"]]
        kept.add(scores.index(min(scores)))  # an unknown character costs a fixed amount more than the rarest piece
        return kept | ({model["unk_id"]} - {None})
    if model.get("unk_token") in vocabulary:
        kept.add(vocabulary[model["unk_token"]])
    parts: defaultdict[int, set[int]] = defaultdict(set)  # of BPE: all that a token can be joined from
    for left, right in model.get("merges", ()):
        parts[vocabulary[left + right]] |= {vocabulary[left], vocabulary[right]}
    found, complete = kept, set[int]()
    while found:
        complete |= found
        found = set().union(*(parts[token] for token in found)) - complete
    return complete


def _renumber(definition: dict[str, Any], new_ids: Mapping[int, int]) -> None:
    """Remove tokens from the content of ``tokenizer.json``, in place, and write the new ids wherever there is one."""
    model = definition["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [entry for index, entry in enumerate(model["vocab"]) if index in new_ids]
        model["unk_id"] = new_ids.get(model["unk_id"])
    else:
        model["vocab"] = {piece: new_ids[old] for piece, old in model["vocab"].items() if old in new_ids}
    if model["type"] == "BPE":
        model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= model["vocab"].keys()]
    for token in definition["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    if definition["padding"]:
        definition["padding"]["pad_id"] = new_ids[definition["padding"]["pad_id"]]
    if definition["post_processor"]:
        _renumber_specials(definition["post_processor"], new_ids)


def _renumber_specials(processor: dict[str, Any], new_ids: Mapping[int, int]) -> None:
    for inner in processor.get("processors", ()):  # a sequence of them
        _renumber_specials(inner, new_ids)
    for token in processor.get("special_tokens", {}).values():  # a template
        token["ids"] = [new_ids[old] for old in token["ids"]]
    for name in ("cls", "sep"):  # BERT's and RoBERTa's own
        if name in processor:
            token, old = processor[name]
            processor[name] = [token, new_ids[old]]


def _special_ids(model: PreTrainedModel) -> dict[str, int]:
    return {
        name: value
        for name, value in model.config.to_dict().items()
        if name.endswith("_token_id") and isinstance(value, int)
    }


def _select_rows(model: PreTrainedModel, kept: list[int]) -> int:
    """Keep the embeddings of some pieces, in place; return how many parameters went."""
    config, embedding = model.config, cast(torch.nn.Embedding, model.get_input_embeddings())
    new_ids = {old: new for new, old in enumerate(kept)}
    before = embedding.weight.numel()
    rows = torch.tensor(kept, device=embedding.weight.device)
    if isinstance(config, SmallConfig):  # many of its pieces share a row
        rows, model.remap = model.remap[rows].unique(return_inverse=True)  # type: ignore[index]
        config.tokenizer_size = len(kept)
    embedding.weight = torch.nn.Parameter(embedding.weight[rows], requires_grad=embedding.weight.requires_grad)
    embedding.num_embeddings = config.vocab_size = len(rows)
    if embedding.padding_idx is not None:
        embedding.padding_idx = new_ids.get(embedding.padding_idx)
    for name, old in _special_ids(model).items():
        setattr(config, name, new_ids.get(old))  # an id beyond the vocabulary was no piece's
    return before - embedding.weight.numel()
