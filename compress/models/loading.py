"""Open networks and tokenizers of transformers from a directory: the only place that calls ``from_pretrained``.

A directory may be of somebody who means harm, or damaged. Nothing is fetched, no code of the directory runs, weights
are read from safetensors alone, nothing outside it is read through it, and nothing but regular files is opened. What
its config and headers say is compared with the bytes that are there before memory is spent: a network is built without
memory first.
"""

import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.data.stored_tokenizer import TOKENIZER_NAME, AnyTokenizer, make_safe
from compress.errors import CompressError, refuse
from compress.files import CONFIG_LIMIT_BYTES, JSON_LIMIT_BYTES, faults_of, read_json_table, regular_file
from compress.models.manifest import MANIFEST_NAME, NATIVE_NAME, PACKED_NAME, WEIGHTS_NAME
from compress.tasks import labels_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
MOST_LABELS = 1_000_000
_SCALED = frozenset({"I8", "F8_E4M3", "F8_E5M2"})
_CORRUPT = "it is corrupt or cut short: copy or make it again"
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})
# What transformers reads whole, whatever its size: by the end of the name, or all of it.
_READ_WHOLE = (".json", ".model", ".jinja", "vocab.txt", "merges.txt")
_SIZES = re.compile(r"size|dim|position|num_|\bn_|\bd_|width|heads|rank|embd|inner|buckets")
# Configs of small models have larger numbers than the model has weights, such as the positions that it could read.
_LARGEST_SMALL = 2**20
_MOST_LAYERS = 1000  # of few tensors: layers may share them
# Keys of config.json by which sentence-transformers says what a score is of a logit; the older one last.
CROSS_ENCODER = ("sentence_transformers", "sbert_ce_default_activation_function")
_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
_TRUSTED = {"trust_remote_code": False, "local_files_only": True}
# What a head of other labels, and weights that are shared by name only, may add to those of the files.
_FRESH_WEIGHTS = 2**26
_SHARED = 2
# Keys of config.json by which transformers would fetch or import something else.
_FOREIGN = {
    "quantization_config": "weights quantized by another library",
    "adapter_config": "an adapter without its model",
}
_ATTENTION = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


def check_files(directory: Path) -> None:
    """Check that a directory holds regular files only, no link that leaves it, and no huge file but weights.

    The files of the Hugging Face cache are links to a folder beside it; these may be followed.

    Raises:
        CompressError: a pipe, a socket, a device, a link that leaves the directory or leads nowhere, or a file of a
            tokenizer that is larger than any.
    """
    root = directory.resolve()
    roots = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in (*names, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                with faults_of(path, "a link", "take it out of the model directory"):
                    target = path.resolve(strict=True)
                refuse(
                    (
                        not any(target.is_relative_to(root) for root in roots),
                        f"{path} is a link to a file outside the model directory; copy the file there instead",
                    ),
                    (
                        not target.is_file() and not target.is_dir(),
                        f"{path} is a link to a pipe, a socket or a device; take it out of the model directory",
                    ),
                )
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise CompressError(f"{path} is a pipe, a socket or a device; take it out of the model directory")
            if Path(folder) == root and name.endswith(_READ_WHOLE) and path.is_file():
                regular_file(path, JSON_LIMIT_BYTES)


def copy_client_files(source: Path, target: Path) -> None:
    """Copy config and tokenizer of an ONNX directory: all its files but graph, container, manifest and card."""
    left_out = (MANIFEST_NAME, NATIVE_NAME, "README", ".")
    for file in source.iterdir():
        if file.is_file() and ".onnx" not in file.name and not file.name.startswith(left_out):
            shutil.copyfile(file, target / file.name)


def read_config(directory: Path) -> dict[str, Any]:
    """Return the ``config.json`` of a model directory, with the values that this project reads checked.

    Raises:
        CompressError: it is no valid JSON, or a value has another form than transformers writes.
    """
    path = directory / CONFIG_NAME
    config = read_json_table(path, CONFIG_LIMIT_BYTES)
    for key, (allowed, fits) in _FORMS.items():
        value = config.get(key)
        if value is not None and not fits(value):
            raise CompressError(f"{path}: {key} = {str(value)[:80]!r} is not {allowed}; copy or make it again")
    return config


def sigmoid_of(config: Mapping[str, Any]) -> bool:
    """Tell whether the score of a model is the sigmoid of its logit, as of a CrossEncoder of sentence-transformers.

    Its config names a class of Python as the function, which is not imported: two names are known. Of several logits
    the function is left out, because classes are compared.

    Raises:
        CompressError: the function is another one.
    """
    noted, older = (config.get(key) for key in CROSS_ENCODER)
    if (noted is None and older is None) or len(labels_of(config)) > 1:
        return False
    name = noted.get("activation_fn") if isinstance(noted, dict) else older
    kind = "Sigmoid" if name is None else str(name).rpartition(".")[2]  # sentence-transformers' own default
    if kind not in {"Sigmoid", "Identity"}:
        raise CompressError(
            f"the function of this cross-encoder's score is {str(name)[:80]!r}, and Sigmoid and Identity are known: "
            "correct sentence_transformers.activation_fn in its config.json"
        )
    return kind == "Sigmoid"


def _is_labels(value: Any) -> bool:
    """Tell whether labels are numbered from 0 without gaps, as logits are, and differ, so that gold names one."""
    if not isinstance(value, dict) or not all(isinstance(label, str | int | float) for label in value.values()):
        return False
    if len(set(map(str, value.values()))) < len(value):
        return False
    return 0 < len(value) <= MOST_LABELS and value.keys() == {str(number) for number in range(len(value))}


def _is_number(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


# Key of config.json -> what it must be, and whether a value is that.
_FORMS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "model_type": ("a name", lambda value: isinstance(value, str)),
    "architectures": ("a list of names", lambda value: isinstance(value, list) and {*map(type, value)} <= {str}),
    "id2label": (
        f"a table of at most {MOST_LABELS:,} labels, numbered from 0, each with a name of its own",
        _is_labels,
    ),
    "num_labels": (f"a number from 1 to {MOST_LABELS:,}", _is_number(1, MOST_LABELS)),
    "problem_type": (f"one of {', '.join(_PROBLEM_TYPES)}", lambda value: value in _PROBLEM_TYPES),
    "type_vocab_size": ("a number from 0", _is_number(0, 2**31)),
    "vocab_size": ("a number from 0", _is_number(0, 2**31)),
    "tokenizer_size": ("a number from 0", _is_number(0, 2**31)),
    "pad_token_id": ("a number", lambda value: type(value) is int),
}


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files that hold a directory's weights, those of its index where it has one.

    Raises:
        CompressError: the index names something else than safetensors files of the directory.
    """
    index, single = directory / INDEX_NAME, directory / WEIGHTS_NAME
    if single.is_file():
        return [single]  # transformers opens this one alone, and no variant such as model.fp16.safetensors
    if not index.is_file():
        return sorted(directory.glob("*.safetensors"))
    names = read_json_table(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise CompressError(f"{index} names no files of weights; copy or make it again")
    files = [directory / name for name in sorted(set(names.values()))]
    for file in files:
        refuse(
            (
                file.parent != directory or file.suffix != ".safetensors",
                f"{index} names {file.name!r}, which is no safetensors file of the directory; copy or make it again",
            ),
            (
                not file.is_file(),
                f"{directory} lacks {file.name}, which its {INDEX_NAME} names; copy or make it again",
            ),
        )
    return files


def count_weights(files: list[Path]) -> tuple[int, int]:
    """Return the numbers of tensors and of weights that the headers of safetensors files name.

    Raises:
        CompressError: a file is corrupt or cut short, or holds numbers that mean nothing without their scales.
    """
    from safetensors import safe_open

    tensors = weights = 0
    for file in files:
        with faults_of(file, "weights", _CORRUPT), safe_open(file, framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            sizes = [math.prod(found.get_shape()) for found in slices.values()]
            scaled = next((name for name, found in slices.items() if found.get_dtype() in _SCALED), None)
        if scaled is not None:  # transformers would take them for weights
            raise CompressError(
                f"{file} holds weights quantized by another library ({scaled}), which are not read; save the model in "
                "float32 or bfloat16"
            )
        tensors, weights = tensors + len(sizes), weights + sum(sizes)
    return tensors, weights


def check_config_size(config: Mapping[str, Any], path: Path, tensors: int, weights: int) -> None:
    """Check that a config asks for no larger model than the weights are of, before one is built.

    Raises:
        CompressError: it has more layers than there are tensors, or a size larger than there are weights.
    """
    for key, value in config.items():
        if isinstance(value, dict):
            check_config_size(value, path, tensors, weights)
        if type(value) is not int or not ("layer" in key or _SIZES.search(key)):
            continue
        most = max(tensors, _MOST_LAYERS) if "layer" in key else max(weights, _LARGEST_SMALL)
        if value > most:
            raise CompressError(
                f"{path / CONFIG_NAME}: {key} = {str(value)[:40]} does not fit the weights ({tensors:,} tensors of "
                f"{weights:,} numbers); copy or make it again"
            )


def check_foreign(directory: Path) -> None:
    """Refuse a model directory that cannot be opened without what it does not hold itself.

    Raises:
        CompressError: it needs code that transformers does not have, another library, a base model, or the network.
    """
    raw = read_config(directory)
    refuse(
        (
            raw.get("auto_map") and not _knows(raw),
            f"{directory} needs Python code of its own (auto_map in its config.json), which is never run; use a model "
            "type that transformers has, or an ONNX export",
        ),
        *(
            (raw.get(key), f"{directory} holds {what} ({key}), which is not read; save it in float32 or bfloat16")
            for key, what in _FOREIGN.items()
        ),
        (
            (directory / "adapter_config.json").exists(),
            f"{directory} holds an adapter (adapter_config.json); merge it into its model and save it",
        ),
        (
            any("/" in str(raw.get(key)) for key in _ATTENTION),
            f"{directory / CONFIG_NAME} names kernels to fetch for its attention; delete that entry",
        ),
    )


def _knows(raw: Mapping[str, Any]) -> bool:
    from compress.models.modeling.registration import is_known

    return is_known(raw.get("model_type"))


def load_config(directory: Path, **changes: Any) -> "PretrainedConfig":
    """Return the config of a model directory as transformers reads it.

    Args:
        changes: fields to replace.

    Raises:
        CompressError: it is damaged, or needs what :func:`check_foreign` refuses.
    """
    from transformers import AutoConfig

    check_files(directory)
    check_foreign(directory)
    _knows(read_config(directory))
    with faults_of(directory, "a model"):
        config: PretrainedConfig = AutoConfig.from_pretrained(directory, **changes, **_TRUSTED)
    # How a network answers and saves memory, and not what it answers: others are read by position, and need texts of
    # certain lengths.
    config.return_dict = True
    config.output_attentions = config.output_hidden_states = False
    if getattr(config, "chunk_size_feed_forward", 0):
        config.chunk_size_feed_forward = 0
    return config


def load_network(
    opener: Any, directory: Path, config: "PretrainedConfig | None" = None
) -> tuple["PreTrainedModel", Mapping[str, Any]]:
    """Return the network of a model directory in float32, and what transformers says of keys that did not fit.

    Args:
        opener: an Auto class of transformers.
        config: what to build, if it is not the config of the directory.

    Raises:
        CompressError: files are damaged, the config asks for more than they hold, weights are not finite, or the
            network does not run.
    """
    import torch

    from compress.models.components import example_inputs
    from compress.models.integer_rounding import read_packed

    packed = read_packed(directory) if (directory / PACKED_NAME).is_file() else {}
    tensors, weights = len(packed), sum(weight.numel() for weight in packed.values())
    if not packed:
        tensors, weights = count_weights(weight_files(directory))
    check_config_size(read_config(directory), directory, tensors, weights)
    config = load_config(directory) if config is None else config
    with faults_of(directory, "a model"), torch.device("meta"):
        asked = sum(parameter.numel() for parameter in opener.from_config(config).parameters())
    refuse(
        (
            asked > _SHARED * weights + _FRESH_WEIGHTS,
            f"{directory / CONFIG_NAME} asks for {asked:,} weights, and the files hold {weights:,}; copy or make it "
            "again",
        )
    )
    with faults_of(directory, "a model"):
        if packed:
            model, found = opener.from_config(config).float().eval(), dict[str, Any]()
            model.load_state_dict(packed)
        else:
            model, found = opener.from_pretrained(
                directory,
                config=config,
                dtype="float32",
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # unfit() names them
                output_loading_info=True,
                **_TRUSTED,
            )
    odd = [name for name, one in model.state_dict().items() if one.is_floating_point() and not one.isfinite().all()]
    refuse((odd, f"{directory} has weights that are not finite numbers ({''.join(odd[:1])}); copy or make it again"))
    # transformers refuses much that it has built when it runs.
    advice = f"correct its {CONFIG_NAME}, or copy the model again"
    with faults_of(directory, "a model", advice, verb="run as", own=False), torch.no_grad():
        model(**example_inputs(model, 1, 4))
    return model, found


def unfit(found: Mapping[str, Any]) -> list[str]:
    """Return the names of a network's weights that its files lack or have in another shape; these are random."""
    mismatched = [entry if isinstance(entry, str) else entry[0] for entry in found.get("mismatched_keys", ())]
    return sorted({*found.get("missing_keys", ()), *mismatched})


def load_tokenizer(directory: Path, **options: Any) -> Any:
    """Return the tokenizer of a model directory as transformers reads it.

    Raises:
        CompressError: it is damaged.
    """
    from transformers import AutoTokenizer

    definition = directory / TOKENIZER_NAME
    model = read_json_table(definition).get("model") if definition.is_file() else None
    refuse(
        (
            isinstance(model, dict) and any(isinstance(model.get(key), str) for key in ("vocab", "merges")),
            f"{definition} names a file in place of its vocabulary, which is not read; copy it again",
        )
    )
    with faults_of(directory, "a tokenizer", "copy the tokenizer's files again"):
        tokenizer = AutoTokenizer.from_pretrained(directory, **options, **_TRUSTED)
        if hasattr(tokenizer, "backend_tokenizer"):
            make_safe(tokenizer.backend_tokenizer, directory)
    return tokenizer


def check_opened_tokenizer(tokenizer: AnyTokenizer, directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse a tokenizer that batches cannot be made with, or whose ids the model has no embeddings for."""
    from compress.data.tokenization import maximum_length

    of, longest = f"the tokenizer of {directory}", tokenizer.model_max_length
    refuse(
        (
            not hasattr(tokenizer, "backend_tokenizer"),
            f"{directory} has a tokenizer in Python alone ({type(tokenizer).__name__}); save it as tokenizer.json, "
            "which the package tokenizers reads",
        ),
        (
            tokenizer.pad_token_id is None,
            f"{of} has no padding token, so that texts of several lengths make no batch; set pad_token in its "
            "tokenizer_config.json and pad_token_id in its config.json",
        ),
        (
            not isinstance(longest, int | float) or not 1 <= longest < math.inf,
            f"{of} has model_max_length = {str(longest)[:40]!r}; give a number of tokens in its tokenizer_config.json",
        ),
    )
    with faults_of(directory, "a tokenizer", "copy the tokenizer's files again"):
        tokenizer.backend_tokenizer.encode("a word \N{CUNEIFORM SIGN A}")  # which hardly any vocabulary has
        added = tokenizer.backend_tokenizer.num_special_tokens_to_add(False)
    read, embeddings = maximum_length(tokenizer, config), config.get("tokenizer_size", config.get("vocab_size"))
    largest = max(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    refuse(
        (
            read <= added,
            f"{directory} reads {read} tokens (model_max_length in its tokenizer_config.json), and {added} are "
            "special ones, so that none is left for a text; correct that",
        ),
        (
            embeddings is not None and largest >= embeddings,
            f"{of} knows the id {largest}, and the model has {embeddings} embeddings; copy the tokenizer that belongs "
            "to these weights",
        ),
    )
