"""What is installed: the package with its recipes inside, and nothing else. Built once, offline, in a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import SLOW
from tests.support import REPOSITORY

ROOT = REPOSITORY
RECIPE_FOLDERS = ("teachers", "students", "benchmarks")
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "runs", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".*.partial", "*.old"
)
HOOK = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
LIST = """
import sys
from compress import recipes
from compress.cli import main
print(recipes.folder("students"))
try:
    main(["list", "students"])
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


@dataclass(frozen=True)
class Built:
    """The sdist, the wheel that was built from it, and the same wheel unpacked."""

    sdist: Path
    wheel: Path
    unpacked: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    sdist = folder / build("build_sdist", source, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "from-sdist", filter="data")
    (tree,) = (folder / "from-sdist").iterdir()
    wheel = folder / build("build_wheel", tree, folder)
    unpacked = folder / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return Built(sdist, wheel, unpacked)


def build(hook: str, source: Path, output: Path) -> str:
    """Call a hook of the build backend in ``source``, as pip and build do, and return the name of what it made."""
    done = subprocess.run(
        [sys.executable, "-c", HOOK, hook, str(output)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def run_python(script: str, *, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_every_recipe(built: Built) -> None:
    inside = set(names(built.wheel))
    for folder in RECIPE_FOLDERS:
        recipes = [path for pattern in ("*.toml", "*.md") for path in (ROOT / folder).glob(pattern)]
        assert any(path.suffix == ".toml" for path in recipes)
        assert [path.name for path in recipes if f"compress/_recipes/{folder}/{path.name}" not in inside] == []


def test_the_wheel_holds_every_module_and_template(built: Built) -> None:
    inside = set(names(built.wheel))
    files = [
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "*.j2", "*.c", "*.h", "wasm/*.*", "py.typed")
        for path in (ROOT / "compress").rglob(pattern)
    ]
    assert "compress/reporting/templates/report.html.j2" in files
    assert [name for name in files if name not in inside] == []


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_the_wheel_holds_the_native_library_for_all_versions(built: Built) -> None:
    assert "compress/inference/native/_core.abi3.so" in names(built.wheel) and "-cp311-abi3-" in built.wheel.name


def test_the_light_installation_is_click_and_ten_megabytes(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
        size = sum(one.file_size for one in archive.infolist())
    always = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert always == ["Requires-Dist: click<9,>=8.5"]
    assert 'Requires-Dist: ziglang>=0.14; extra == "development"' in lines  # without which tests would be skipped
    assert size < 3.5e6  # pip adds bytecode of one and a half times the size; click has 1 MB


def test_the_wheel_installs_no_other_top_level_package(built: Built) -> None:
    top = {name.split("/")[0] for name in names(built.wheel)}
    assert {name for name in top if not name.endswith(".dist-info")} == {"compress"}


def test_recipe_folders_ship_no_code_and_no_results(built: Built) -> None:
    inside = [name for name in names(built.wheel) if name.startswith("compress/_recipes/")]
    others = [name for name in inside if not name.endswith((".toml", ".md"))]
    assert others == ["compress/_recipes/students/measured.json"]  # what 'compress list students' tells


def test_the_sdist_holds_what_a_packager_needs(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
        "constraints.txt",
        "setup.py",
        "pyproject.toml",
        "tests/support/tiny.py",
        "docs/design.md",
        "docs/generate.py",
        "docs/study_tables.py",
        "students/bilstm.toml",
        "benchmarks/quickstart.toml",
    }
    assert wanted - inside == set()
    assert not any(name.startswith((".venv", "runs/")) for name in inside)


def test_recipes_load_from_the_wheel_away_from_the_checkout(built: Built, tmp_path: Path) -> None:
    done = run_python(LIST, cwd=tmp_path, PYTHONPATH=str(built.unpacked))
    assert done.returncode == 0, done.stderr
    folder, _, *listed = done.stdout.partition("\n\n")[0].splitlines()
    assert Path(folder) == built.unpacked / "compress" / "_recipes" / "students"
    assert {line.split()[0] for line in listed} == {path.stem for path in (ROOT / "students").glob("*.toml")}


def test_a_users_own_folders_are_not_shadowed(built: Built, tmp_path: Path) -> None:
    for name in RECIPE_FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n", encoding="utf-8")
    script = "import compress, teachers, students, benchmarks as b\nassert teachers.MINE and students.MINE and b.MINE"
    done = run_python(script, cwd=tmp_path, PYTHONPATH=os.pathsep.join((str(built.unpacked), str(tmp_path))))
    assert done.returncode == 0, done.stderr


def test_an_editable_install_reads_recipes_of_the_checkout(tmp_path: Path) -> None:
    source, installed = tmp_path / "checkout", tmp_path / "installed"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    with zipfile.ZipFile(tmp_path / build("build_editable", source, tmp_path)) as archive:
        archive.extractall(installed)
    (source / "students" / "mine.toml").write_bytes((source / "students" / "bilstm.toml").read_bytes())
    # Without the environment's own .pth files, which may hold another editable installation of this very package.
    packages = sysconfig.get_paths()["purelib"]
    start = f"import site, sys; site.addsitedir({str(installed)!r}); sys.path.append({packages!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + LIST], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folder, _, *listed = done.stdout.partition("\n\n")[0].splitlines()
    assert Path(folder) == source / "students"
    assert "mine" in {line.split()[0] for line in listed}


def test_every_slow_module_is_there() -> None:
    folder = REPOSITORY / "tests"
    assert [name for name in sorted(SLOW) if not (folder / f"{name}.py").is_file()] == []
