"""What is generated is up to date, and what is written names only what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import numpy as np
import pytest
import torch

from compress import plugins, recipes
from compress.cli import COMMANDS, cli
from compress.errors import CompressError
from compress.models.batch import Batch, Outputs
from compress.models.modeling.families import layers_of
from tests.support import REPOSITORY, module_from
from tests.support.tiny import classifier, onnx_directory

ROOT = REPOSITORY
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "teachers/*.md", "students/*.md", "benchmarks/*.md", "benchmarks/*/*.md")
    for path in ROOT.glob(pattern)
)
WRITTEN = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/design.md",
    "docs/results.md",
    "docs/tutorial.md",
    "docs/labels.md",
    "docs/commands.md",
    "docs/pruning.md",
    "docs/importance.md",
)


def test_the_command_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_reference_holds_every_command() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"## compress {name}\n" not in text] == []


def test_an_outdated_reference_is_reported(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    for page in ("README.md", "benchmarks/results/README.md"):
        (tmp_path / page).write_text("# No tables\n", encoding="utf-8")
    shutil.copy(ROOT / "benchmarks" / "results" / "room.jsonl", tmp_path / "benchmarks" / "results")
    for path in (ROOT / "docs").glob("*.py"):
        shutil.copy(path, tmp_path / "docs")
    script = tmp_path / "docs" / "generate.py"
    (tmp_path / "docs" / "commands.md").write_text("# Commands\n", encoding="utf-8")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "out of date" in done.stderr


def test_a_table_of_one_runtime_uses_the_teacher_there() -> None:
    page = (ROOT / "docs" / "pruning.md").read_text(encoding="utf-8")
    table = page.partition("<!-- results:structure:onnxruntime -->")[2].partition("<!-- /results -->")[0]
    cells = {name: [cell.strip() for cell in rest.split("|")] for name, rest in re.findall(r"\| (\S+) \|(.*)", table)}
    lines = map(json.loads, (ROOT / "benchmarks" / "results" / "structure.jsonl").read_text().splitlines())
    expected = {line["model"]: line for line in lines if (line["runtime"], line["batch_size"]) == ("onnxruntime", 32)}
    assert cells["teacher"][0] == "onnxruntime" and cells["teacher"][5:7] == ["×1", "×1"]
    for name in ("x1.5", "x2", "x3"):
        assert cells[name][6].startswith(f"×{expected[name]['speedup_same_runtime']:.2f} (")
        assert not cells[name][6].startswith(f"×{expected[name]['speedup']:.2f}")


def test_every_page_is_there() -> None:
    assert [name for name in WRITTEN if not (ROOT / name).is_file()] == []


def test_lines_of_commands_go_on_after_one_backslash() -> None:
    ends = {path: re.findall(r".*(?:\\\\|\\[ \t])$", path.read_text(encoding="utf-8"), re.M) for path in PAGES}
    assert {path.name: lines for path, lines in ends.items() if lines} == {}


def test_methods_describe_every_student_and_no_other() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    table = text.partition("## What this project does")[2].partition("\n## ")[0]
    named = [name for row in re.findall(r"^\| (`[^|]*)", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(recipes.recipe_names("students"))


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
        if isinstance(command, click.Group):
            command = command.get_command(context, line.split()[2])
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
    text = "    compress prune --model a \\\n      --heads 60%  # comment --no\n\nand compress is fine\n"
    assert commands_in(text) == ["compress prune --model a  --heads 60%"]


# The examples of CONTRIBUTING.md: complete files that keep the contracts they explain.


def examples() -> dict[str, str]:
    """Return the files that the page shows, by the path it gives each."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^`([\w/.-]+)`:\n\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def example(folder: str, directory: Path) -> tuple[ModuleType, str]:
    """Import the example of a plug-in folder from a directory that is not the package's."""
    start = f"compress/{plugins.KINDS[folder].folder}/"
    ((path, source),) = ((path, text) for path, text in examples().items() if path.startswith(start))
    file = directory / Path(path).name
    file.write_text(source, encoding="utf-8")
    module = module_from(file)
    kind = plugins.KINDS[folder]
    assert module.__doc__ and callable(getattr(module, kind.entry)) and set(kind.also) <= vars(module).keys()
    return module, file.stem.replace("_", "-")


def test_examples_are_of_files_that_are_not_there_yet() -> None:
    shown = list(examples())
    assert [path.rsplit("/", 1)[0] for path in shown] == [
        "compress/training/losses",
        "compress/training/modifiers",
        "students",
        "compress/quantization/quantizers",
    ]
    assert [path for path in shown if (ROOT / path).exists()] == []


def test_the_example_of_a_loss(tmp_path: Path) -> None:
    module, _ = example("losses", tmp_path)
    batch = Batch(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long))
    teacher = Outputs(torch.tensor([[1.0, -1.0], [0.0, 2.0]]))
    student = Outputs(torch.zeros(2, 2, requires_grad=True))
    value = module.loss(student, teacher, batch, temperature=1.0)
    # Half each against p and q, whose logits differ by 2: log(1 / 4pq) / 2, and 1 / pq is 2 + 2 cosh 2.
    assert value.item() == pytest.approx(np.log((2 + 2 * np.cosh(2.0)) / 4) / 2)
    assert module.loss(teacher, teacher, batch).item() == pytest.approx(0, abs=1e-7)
    value.backward()
    assert student.logits.grad is not None and module.NEEDS == {"logits", "classes"}


def test_the_example_of_a_student(tmp_path: Path) -> None:
    ((path, source),) = ((path, source) for path, source in examples().items() if path.startswith("students/"))
    file = tmp_path / Path(path).name
    file.write_text(source, encoding="utf-8")
    recipe = recipes.load_recipe("students", str(file))
    assert recipe.name == file.stem
    assert [[loss.name for loss in phase.losses] for phase in recipe.phases] == [["relations"], ["logit-mse", "kl"]]


def test_the_example_of_a_modifier(tmp_path: Path) -> None:
    module, _ = example("modifiers", tmp_path)
    model = classifier("bert")
    inputs = {"input_ids": torch.arange(6).reshape(1, 6), "attention_mask": torch.ones(1, 6, dtype=torch.long)}

    def embeddings_and_last() -> tuple[torch.Tensor, torch.Tensor]:
        hidden = model(**inputs, output_hidden_states=True).hidden_states
        return hidden[0], hidden[-1]

    before = model(**inputs).logits
    attached = module.attach(model, None, rate=0.999999)
    attached.step(1.0)
    assert torch.equal(model(**inputs).logits, before)  # it is evaluated as it is
    for layer in layers_of(model):
        layer.training = True  # its parts go on without dropout
    first, last = embeddings_and_last()
    assert torch.equal(first, last)  # every layer is left out
    attached.step(0.0)
    first, last = embeddings_and_last()
    assert not torch.equal(first, last)
    attached.step(1.0)
    attached.detach()
    assert torch.equal(model(**inputs).logits, before)
    with pytest.raises(CompressError, match="rate = 1.0 must be above 0 and below 1"):
        module.attach(model, None, rate=1.0)


def test_the_example_of_a_quantizer(tmp_path: Path) -> None:
    module, _ = example("quantizers", tmp_path)
    source, target = onnx_directory("bert").path / "model.onnx", tmp_path / "model.onnx"
    module.quantize(source, target)
    assert target.stat().st_size < source.stat().st_size
    start = plugins.find("runtimes", "onnxruntime").function
    ids = np.arange(2 * 7, dtype=np.int64).reshape(2, 7)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    fp32 = start(source.parent, threads=1, device="cpu")(inputs)
    int8 = start(tmp_path, threads=1, device="cpu")(inputs)
    assert 0 < np.abs(int8 - fp32).max() < 0.2 * np.abs(fp32).max()
