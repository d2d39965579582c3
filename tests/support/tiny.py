"""Tiny random models of every family, with tokenizers made on the spot: 2 layers, width 32, 4 heads, no download."""

from __future__ import annotations

import copy
import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AlbertTokenizer,
    AutoConfig,
    AutoModelForSequenceClassification,
    BertTokenizer,
    DebertaV2Tokenizer,
    DistilBertTokenizer,
    MPNetTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from compress.data.examples import Example
from compress.models.components import has_units
from compress.models.model_dir import Model
from compress.models.modeling.pruned import to_pruned
from compress.models.networks.bilstm.model import BiLSTMForSequenceClassification
from compress.models.networks.cnn.model import CNNForSequenceClassification
from compress.models.networks.ngram.model import NGramForSequenceClassification
from compress.models.networks.small import SmallModel
from compress.models.saving import save_model
from compress.surgery.remove import remove_heads, remove_neurons
from tests.support import MODELS_FOLDER

FAMILIES = ("albert", "bert", "distilbert", "electra", "mobilebert", "mpnet", "roberta", "xlm-roberta")
# Families that are pruned, exported and measured, but which no student starts from.
PRUNED_ONLY = ("deberta-v2", "modernbert")
PRUNABLE = tuple(sorted((*FAMILIES, *PRUNED_ONLY)))
LABELS = ("negative", "positive")
LAYERS, HEADS, POSITIONS = 2, 4, 64
# Two heads go from the first layer and one from the second.
UNEVEN = {0: [1, 2], 1: [0]}
# Of the 64 neurons, 20 go from the first layer and 7 from the second.
UNEVEN_NEURONS = {0: range(20), 1: range(0, 63, 9)}
FAMILIES_OF_ONE_LAYER = ("albert",)  # which is used LAYERS times

GOOD = ("good", "great", "fine", "warm", "funny", "fresh", "bright", "moving")
BAD = ("bad", "dull", "slow", "cold", "silly", "stale", "bleak", "tired")
PLAIN = ("the", "a", "film", "plot", "story", "actor", "scene", "is", "was", "very", "and", "of", "with", "its", "end")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def physical_layers(family: str) -> int:
    """Return how many layers there are weights of."""
    return 1 if family in FAMILIES_OF_ONE_LAYER else LAYERS


def uneven(family: str) -> dict[int, list[int]]:
    """Return the part of ``UNEVEN`` that the family has layers for."""
    return {layer: heads for layer, heads in UNEVEN.items() if layer < physical_layers(family)}


def heads_after_pruning(family: str) -> list[int]:
    """Return how many heads a layer of :func:`pruned` has."""
    return [HEADS - len(heads) for heads in uneven(family).values()]


def tokenizer(family: str = "bert") -> PreTrainedTokenizerFast:
    """Return a tokenizer of the family's own class, of some hundred pieces."""
    words = [*GOOD, *BAD, *PLAIN]
    # "a" is a word and a letter; an id must not be left out, or the last one lies beyond the vocabulary.
    pieces = list(dict.fromkeys([*words, *".,!?", *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]))
    if family in {"bert", "electra", "distilbert", "mobilebert"}:
        vocabulary = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])}
        made: Any = (DistilBertTokenizer if family == "distilbert" else BertTokenizer)(vocabulary)
    elif family == "albert":
        scored = [(piece, 0.0) for piece in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
        scored += [(f"▁{word}", -3.0) for word in words] + [(piece, -6.0) for piece in ("▁", *".,!?", *_LETTERS)]
        made = AlbertTokenizer(scored)
    elif family == "mpnet":
        specials = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
        made = MPNetTokenizer({piece: i for i, piece in enumerate([*specials, *pieces])})
    elif family == "roberta":
        from tokenizers.pre_tokenizers import ByteLevel

        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        symbols = sorted(ByteLevel.alphabet())
        made = RobertaTokenizer({piece: i for i, piece in enumerate([*specials, *symbols])}, [])
    elif family == "xlm-roberta":
        scored = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        scored += [(f"▁{word}", -3.0) for word in words] + [(piece, -6.0) for piece in ("▁", *".,!?", *_LETTERS)]
        made = XLMRobertaTokenizer(scored)
    elif family == "deberta-v2":
        scored = [(piece, 0.0) for piece in ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")]
        scored += [(f"▁{word}", -3.0) for word in words] + [(piece, -6.0) for piece in ("▁", *".,!?", *_LETTERS)]
        made = DebertaV2Tokenizer(scored, unk_id=3)
    elif family == "modernbert":
        made = _modernbert_tokenizer()
    else:
        raise ValueError(family)
    made.model_max_length = POSITIONS
    tokens: PreTrainedTokenizerFast = made
    return tokens


def _modernbert_tokenizer() -> PreTrainedTokenizerFast:
    """Return byte-level pieces, as ModernBERT's, whose own class is the general one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    specials = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    symbols = [*specials.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=["input_ids", "attention_mask"], **specials)


def classifier(
    family: str = "bert",
    *,
    labels: tuple[str, ...] = LABELS,
    problem_type: str | None = None,
    layers: int = LAYERS,
    seed: int = 0,
    **changes: Any,
) -> PreTrainedModel:
    """Return a random classifier whose logits differ visibly from text to text; one label makes a regression.

    ``changes`` are settings of the config that this one shall have otherwise.
    """
    tokens = tokenizer(family)
    offset = 2 if family in {"roberta", "xlm-roberta", "mpnet"} else 0
    settings: dict[str, Any] = {
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "intermediate_size": 64,
        "max_position_embeddings": POSITIONS + offset,
        "pad_token_id": tokens.pad_token_id,
        "initializer_range": 0.3,
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
        "problem_type": problem_type or ("regression" if len(labels) == 1 else "single_label_classification"),
    }
    if family == "distilbert":
        settings["hidden_dim"] = settings.pop("intermediate_size")
    if family in {"roberta", "xlm-roberta"}:
        settings["type_vocab_size"] = 1
    if family in {"electra", "albert"}:
        settings["embedding_size"] = 16
    if family == "deberta-v2":  # as DeBERTa-v3 has it
        settings |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
        settings |= {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
    if family == "modernbert":  # its second layer attends to neighbours only
        settings |= {"local_attention": 8, "global_attn_every_n_layers": 2, "initializer_cutoff_factor": 2.0}
    if family == "mobilebert":
        settings |= {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2}
        settings["initializer_range"] = 0.2  # nothing inside normalises
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **settings | changes)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    return model.eval()


def pruned(family: str = "bert", *, neurons: bool = False, **options: Any) -> PreTrainedModel:
    """Return a classifier with uneven heads, 2 and 3 of 4 (of ALBERT's layer 2), as one of our own types.

    With ``neurons`` its feed-forward networks are uneven too, 44 and 57 of 64, where the family's can be (not
    MobileBERT's).
    """
    model = classifier(family, **options)
    layers = min(physical_layers(family), model.config.num_hidden_layers)
    remove_heads(model, {layer: cut for layer, cut in uneven(family).items() if layer < layers})
    if neurons and has_units(model, "neurons"):
        remove_neurons(model, {layer: cut for layer, cut in UNEVEN_NEURONS.items() if layer < layers})
    return to_pruned(model).eval()


def small(
    model_class: Any, *, labels: tuple[str, ...] = LABELS, seed: int = 0, factor: float = 1, **layers: Any
) -> Any:
    """Return a random small student over the BERT tokenizer, whose rarer half of pieces shares one vector.

    All parameters are multiplied by ``factor``, where torch's own start gives logits that hardly depend on the text.
    """
    tokens = tokenizer("bert")
    size = len(tokens)
    torch.manual_seed(seed)
    config = model_class.config_class(
        tokenizer_size=size,
        vocab_size=size // 2,
        embedding_size=48,
        dense_size=24,
        separator_token_id=tokens.sep_token_id,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
        **{"problem_type": "single_label_classification", **layers},
    )
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model.eval()


def bilstm(**options: Any) -> BiLSTMForSequenceClassification:
    model: BiLSTMForSequenceClassification = small(
        BiLSTMForSequenceClassification, **{"hidden_size": 32, "factor": 3, **options}
    )
    return model


def cnn(model_class: Any = CNNForSequenceClassification, **options: Any) -> CNNForSequenceClassification:
    model: CNNForSequenceClassification = small(model_class, **{"filters": 24, **options})
    with torch.no_grad():
        model.first_bias.normal_()  # zeros, as it starts, would not show where it is forgotten
    return model


def ngram(**options: Any) -> NGramForSequenceClassification:
    model: NGramForSequenceClassification = small(
        NGramForSequenceClassification, **{"buckets": 50, "factor": 2, **options}
    )
    with torch.no_grad():
        model.ngrams.weight.normal_(std=0.2)  # zeros, as it starts, would not show where it is forgotten
    return model


# Kind -> a small student of it.
SMALL: dict[str, Callable[[], SmallModel]] = {
    "bilstm": bilstm,
    "bilstm-siamese": lambda: bilstm(pairs="siamese"),
    "cnn": cnn,
    "cnn-siamese": lambda: cnn(pairs="siamese", pooling="max-mean"),
    "ngram": lambda: ngram(longest=2, pooling="sum", factor=1),
    "ngram-siamese": lambda: ngram(pairs="siamese"),
    "cnn-deep": lambda: cnn(widths=(1, 4), second_filters=20, pooling="max-mean"),
}


def family_of(kind: str) -> str:
    """Return the family whose tokenizer a kind of :func:`torch_directory` reads with."""
    return "bert" if kind in SMALL else kind.removeprefix("pruned-")


def assert_reloaded(written: PreTrainedModel, read: PreTrainedModel) -> None:
    """Hold the weights of a model that was written and read to the same bits.

    Its outputs may differ in the last one: how some processors add up depends on where in memory the weights lie.
    """
    expected, found = written.state_dict(), read.state_dict()
    assert expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)


def examples(count: int = 40) -> list[Example]:
    """Return short labelled reviews of different lengths; half are positive."""
    rows = []
    for index in range(count):
        word = (GOOD if index % 2 else BAD)[index // 2 % 8]
        filler = " ".join(PLAIN[(index * 3 + step) % len(PLAIN)] for step in range(1 + index % 9))
        rows.append(Example(f"{filler} is {word} {PLAIN[index % 7]}", None, LABELS[index % 2]))
    return rows


def write(directory: Path, model: PreTrainedModel, family: str = "bert") -> Path:
    """Write a model with the family's tokenizer as an ordinary Hugging Face directory and return it."""
    save_model(model, tokenizer(family), directory)
    return directory


def load(directory: Model | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Open a torch model directory with its tokenizer."""
    opened = Model.open(directory)
    return opened.load(), copy.deepcopy(opened.tokenizer)


@functools.cache
def torch_directory(kind: str) -> Model:
    """Return a model, made once in a run of tests: a family, ``pruned-`` and a family (uneven heads and neurons), or
    one of ``SMALL``.
    """
    family = family_of(kind)

    def make(directory: Path) -> None:
        if kind in SMALL:
            model: PreTrainedModel = SMALL[kind]()
        else:
            model = pruned(family, neurons=True) if kind != family else classifier(family)
        write(directory, model, family)

    return _made_once(kind, make)


@functools.cache
def onnx_directory(kind: str) -> Model:
    """Return the export of :func:`torch_directory`, made once in a run of tests."""
    from compress.requests.compression import export

    return _made_once(f"{kind}-onnx", lambda directory: export(torch_directory(kind), directory))


def _made_once(name: str, make: Callable[[Path], object]) -> Model:
    """Return a directory that the first of the processes that need it makes."""
    directory = Path(os.environ[MODELS_FOLDER]) / name
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            make(directory)
    return Model.open(directory)
