"""What is generated is up to date, and what is written names only what exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from compress.cli import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "teachers/*.md", "students/*.md", "benchmarks/*.md", "benchmarks/*/*.md")
    for path in ROOT.glob(pattern)
)
WRITTEN = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/design.md", "docs/tutorial.md", "docs/commands.md")


def test_the_command_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_reference_holds_every_command() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"## compress {name}\n" not in text] == []


def test_an_outdated_reference_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "generate.py"
    script.write_text((ROOT / "docs" / "generate.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "commands.md").write_text("# Commands\n", encoding="utf-8")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "out of date" in done.stderr


def test_every_page_is_there() -> None:
    assert [name for name in WRITTEN if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_pages_take_the_options_they_are_shown_with(page: Path) -> None:
    faults = []
    for line in commands_in(page.read_text(encoding="utf-8")):
        name = line.split()[1]
        context = cli.make_context("compress", [], resilient_parsing=True)
        command = cli.get_command(context, name)
        if command is None:
            faults.append(f"no command {name}: {line}")
            continue
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", line))
        faults += [f"compress {name} has no {option}: {line}" for option in used - known - {"--help", "-h"}]
    assert faults == []


def commands_in(text: str) -> list[str]:
    """Return the ``compress ...`` lines of indented and fenced blocks, continuation lines joined, without comments."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = (re.sub(r"\s#\s.*", "", line).strip().removeprefix("$ ") for line in joined.splitlines())
    names = "|".join(COMMANDS)
    return [line for line in lines if re.match(rf"compress ({names})\s+-|compress ({names})\s+\S+.*\s-", line)]


def test_commands_are_found_in_a_page() -> None:
    text = "    compress prune --model a \\\n      --heads 60%  # comment --no\n\nand compress is fine\n\n    compress list losses\n"
    assert commands_in(text) == ["compress prune --model a  --heads 60%"]
