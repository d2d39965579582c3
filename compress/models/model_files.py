"""Checks of a model directory's files before anything opens them.

A directory may be of somebody who means harm, or damaged. Nothing outside it is read through it, nothing but regular
files is opened, and what its config and headers say is compared with the bytes that are there before memory is spent.
"""

import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compress.errors import CompressError, refuse
from compress.files import CONFIG_LIMIT_BYTES, JSON_LIMIT_BYTES, faults_of, read_json_table, regular_file
from compress.models.manifest import MANIFEST_NAME, WEIGHTS_NAME
from compress.tasks import labels_of

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
                _check_link(path, roots)
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise CompressError(f"{path} is a pipe, a socket or a device; take it out of the model directory")
            if Path(folder) == root and name.endswith(_READ_WHOLE) and path.is_file():
                regular_file(path, JSON_LIMIT_BYTES)


def copy_client_files(source: Path, target: Path) -> None:
    """Copy config and tokenizer of an ONNX directory: all its files but graph, manifest and card."""
    for file in source.iterdir():
        if file.is_file() and ".onnx" not in file.name and not file.name.startswith((MANIFEST_NAME, "README", ".")):
            shutil.copyfile(file, target / file.name)


def _check_link(path: Path, roots: list[Path]) -> None:
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


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


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
    "architectures": ("a list of names", _is_names),
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
