"""Training in two processes, as torchrun starts them, against one: the same steps, weights and files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from compress import plugins
from compress.cli import execute
from compress.errors import CompressError
from compress.inference import compute, processes
from compress.models.batch import Batch
from compress.models.model_dir import Model
from compress.recipes import Choice, Phase
from compress.training.phases import check_batch_sizes
from compress.training.training_data import ProcessBatches, average_gradients, shares
from tests.support.forked import run_in_two
from tests.support.tagging import conllu, sentences, tagger
from tests.support.tiny import classifier, write
from tests.support.training_data import TRAINING, labelled_file, pool_file, state, train_rows, validation_rows

ROOT = Path(__file__).parents[2]
# 129 rows in batches of 16: of the last batch of an epoch one process has none. Projections are trained outside the
# student's forward pass, the first phase reads no head, and the losses are means over texts, tokens, pairs and labels.
STUDENT = """
description = "tiny"
[architecture]
name = "transformer"
depth = 1
hidden_size = 16
[[phases]]
name = "hidden"
losses = [{ name = "hidden-mse" }, { name = "attention-mse" }]
[[phases]]
losses = [{ name = "kl" }, { name = "hard-label", weight = 0.5 }, { name = "relations", relation_heads = 4 }]
[training]
epochs = 3.0
batch_size = 16
evaluations = 3
patience = 3
learning_rate = 5e-3
schedule = "constant"
warmup_share = 0.0
precision = "float32"
"""
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    write(folder / "teacher", classifier("bert", **WITHOUT_DROPOUT))
    labelled_file(folder / "train.csv", train_rows()[:39])
    labelled_file(folder / "validation.csv", validation_rows())
    pool_file(folder / "pool.txt")
    (folder / "student.toml").write_text(STUDENT, encoding="utf-8")
    return folder


def distilling(files: Path, output: Path, *, student: str = "student.toml") -> list[str]:
    given = {"teacher": "teacher", "student": student, "unlabeled": "pool.txt", "train": "train.csv"}
    return ["distill", *typed(files, output, **given, validation="validation.csv")]


def typed(files: Path, output: Path, **given: str) -> list[str]:
    options = [word for name, file in given.items() for word in (f"--{name}", str(files / file))]
    return [*options, "-o", str(output), "--device", "cpu", "--threads", "1"]


def torchrun(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Start a command in two processes, on a free port of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, "-m", "compress", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def metrics(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text("utf-8").splitlines()]


def assert_same(one: Path, other: Path) -> None:
    """Hold two trainings to the same lines of metrics, weights and planned steps, but for rounding."""
    assert len(metrics(one)) == len(metrics(other))
    for ours, theirs in zip(metrics(one), metrics(other), strict=True):
        speeds = ours.pop("rows_per_second", None), theirs.pop("rows_per_second", None)
        assert (speeds[0] is None) == (speeds[1] is None)
        phases = ours.pop("phase", None), theirs.pop("phase", None)
        assert phases[0] == phases[1] and theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)
    expected, found = state(one), state(other)
    for name in expected:
        if name.endswith("key.bias"):  # softmax takes it out: its gradient is rounding, which Adam makes steps of
            continue
        torch.testing.assert_close(found[name], expected[name], atol=2e-4, rtol=1e-3)
    first, second = Model.open(one).manifest, Model.open(other).manifest
    assert first.files.keys() == second.files.keys() and first.metrics == second.metrics
    assert first.parents == second.parents and first.data == second.data and first.recipe == second.recipe


@pytest.fixture(scope="module")
def commands(files: Path) -> dict[str, list[str]]:
    """Commands by the name of their output in the folder ``two``."""
    write(files / "encoder", tagger("bert", **WITHOUT_DROPOUT))
    (files / "train.conllu").write_text(conllu(sentences(70)), encoding="utf-8")
    (files / "held.conllu").write_text(conllu(sentences(21, seed=9)), encoding="utf-8")
    (files / "teacher.toml").write_text(
        f'description = "tiny"\nhub = "{files / "encoder"}"\n[training]\nlearning_rate = 1e-3\n', encoding="utf-8"
    )
    amounts = ["--layers", "1", "--heads", "50%", "--ffn", "50%", "--schedule", "cubic", "--no-measure"]
    two = files / "two"
    return {
        "pruned": [
            *["prune", *typed(files, two / "pruned", model="teacher", train="train.csv", validation="validation.csv")],
            *[*amounts, "--recover", "8", "--recovery", "hidden"],
        ],
        "tagger": [
            *["finetune", "--drop-overlap"],
            *typed(files, two / "tagger", teacher="teacher.toml", train="train.conllu", validation="held.conllu"),
        ],
        "encoder": [
            *["pretrain", *typed(files, two / "encoder", encoder="teacher", unlabeled="pool.txt"), "--epochs", "8"]
        ],
    }


@pytest.fixture(scope="module")
def by_two(files: Path, commands: dict[str, list[str]]) -> Path:
    """What two processes make of the commands."""
    ended = run_in_two("tests.support.several_commands", [json.dumps([*commands.values()])])
    assert ended.returncode == 0, ended.stderr
    return files / "two"


@pytest.mark.parametrize("name", ["pruned", "tagger"])
def test_two_processes_train_what_one_does(
    name: str, files: Path, commands: dict[str, list[str]], by_two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning masks units by gradients of the whole batch and recovers; the tagger's loss is a mean over words."""
    monkeypatch.setattr(compute, "has_bfloat16", lambda: False)
    words = [str(files / "one" / name) if word == str(by_two / name) else word for word in commands[name]]
    assert execute([*words, "-q"]) == 0
    assert_same(files / "one" / name, by_two / name)


def test_pretrain(by_two: Path) -> None:
    """Masks are drawn by each process, so that only the rows are the same."""
    losses = [line["loss"] for line in metrics(by_two / "encoder")]
    assert len(losses) == 22 and losses[-1] < losses[0]
    assert [m["name"] for m in Model.open(by_two / "encoder", classifier=False).manifest.metrics] == [
        "masked-token accuracy",
        "masked-token loss",
    ]


def test_a_killed_training_resumes_in_as_many_processes_or_in_one(files: Path, tmp_path: Path) -> None:
    assert execute([*distilling(files, tmp_path / "one"), "-q"]) == 0
    killed = run_in_two("tests.support.disturbed", ["kill", "1", "7", *distilling(files, tmp_path / "two")])
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "two").exists()
    shutil.copytree(tmp_path / ".two.partial", tmp_path / ".alone.partial")
    checkpoints = {path.name for path in (tmp_path / ".two.partial").rglob("checkpoint-*")}
    assert checkpoints  # of the first phase
    ended = torchrun(distilling(files, tmp_path / "two"))
    assert ended.returncode == 0 and ended.stderr.count("resuming after checkpoint-") == 1, ended.stderr
    assert ended.stdout.count("parameters") == 1 and ended.stderr.count("Distilling, phase-1-hidden ...") == 1
    assert_same(tmp_path / "one", tmp_path / "two")
    assert execute([*distilling(files, tmp_path / "alone"), "-q"]) == 0
    assert_same(tmp_path / "one", tmp_path / "alone")
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "alone"}


def test_an_error_of_any_process_is_said_once(files: Path, tmp_path: Path) -> None:
    failed = run_in_two("tests.support.disturbed", ["fail", "1", "3", *distilling(files, tmp_path / "two")])
    assert failed.returncode == 2 and failed.stderr.count("ValueError: disturbed") == 1, failed.stderr
    (files / "odd.toml").write_text(STUDENT.replace("batch_size = 16", "batch_size = 15"), encoding="utf-8")
    undivided = run_in_two("compress", distilling(files, tmp_path / "odd", student="odd.toml"))
    assert undivided.returncode == 2 and undivided.stderr.count("a batch of 15 rows does not divide") == 1
    assert not list(tmp_path.glob("*odd*"))


# One process at a time


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process 1 of two that compute together; what they exchange is doubled, as if both had the same."""
    given = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(processes._state, "together", True)
    monkeypatch.setattr(processes, "total", lambda values: values.mul_(2))


def test_a_command_that_trains_nothing_runs_in_one_process(
    of_two: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert execute(["predict", "--model", "teacher", "good"]) == 2
    assert "compress predict runs in one process: leave torchrun out" in capsys.readouterr().err


def test_a_batch_that_does_not_divide_is_refused(of_two: None) -> None:
    other = Phase((Choice("kl"),), training={"batch_size": 3})
    check_batch_sizes(TRAINING)
    with pytest.raises(CompressError, match="a batch of 3 rows does not divide among 2 processes; .*one of 1, 3"):
        check_batch_sizes(TRAINING, [Phase((Choice("kl"),)), other])


def test_a_fault_before_a_block_is_that_of_process_0(of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = object.__new__(processes._Messages)
    messages.own, messages.number, messages.call = torch.distributed.HashStore(), 0, 0
    messages.own.set("1", json.dumps([processes.FAULT]))
    monkeypatch.setattr(processes, "_messages", lambda: messages)
    with pytest.raises(RuntimeError, match="process 0 failed"), processes.main_first():
        pass
    assert messages.hears_fault()


def test_a_script_of_several_processes_is_refused(of_two: None) -> None:
    with pytest.raises(CompressError, match="from the command line only"):
        processes.together(print, "cpu")


def test_batches_of_two_processes_are_those_of_one(monkeypatch: pytest.MonkeyPatch, of_two: None) -> None:
    def batches(rank: str) -> list[list[int]]:
        monkeypatch.setenv("RANK", rank)
        return list(ProcessBatches(range(9), 4, drop_last=False))

    assert batches("0") == [[0, 2], [4, 6], [8]]
    assert batches("1") == [[1, 3], [5, 7], [8]]  # the last one has no weight


def test_shares_count_what_a_loss_is_a_mean_over(of_two: None) -> None:
    batch = Batch(torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 1, 1], [1, 0, 0]]), labels=torch.tensor([1, 0]))
    expected = {"answers": 1.0, "texts": 1.0, "tokens": 1.0, "pairs": 1.0, "labels": 1.0, "targets": 0.0}
    assert shares(batch, step=4, batch_size=4, rows=10) == expected
    last = shares(batch, step=5, batch_size=4, rows=9)  # of one row, which is process 0's
    assert set(map(float, last.values())) == {0.0}


def test_every_loss_says_what_it_is_a_mean_over() -> None:
    batch = Batch(torch.ones(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.long))
    counts = shares(batch, step=0, batch_size=1, rows=1)
    for name in plugins.names("losses"):
        assert getattr(plugins.find("losses", name).load(), "MEAN_OVER", "answers") in counts


def test_gradients_are_means_and_missing_ones_stay_missing(of_two: None) -> None:
    matrix, number, row, without, frozen = (
        torch.nn.Parameter(torch.ones(shape), requires_grad=on)
        for shape, on in (((2, 3), True), ((), True), ((2,), True), ((2,), True), ((2,), False))
    )
    given = [torch.arange(6.0).view(2, 3), torch.tensor(7.0), torch.tensor([8.0, 9.0])]
    for parameter, gradient in zip((matrix, number, row), given, strict=True):
        parameter.grad = gradient.clone()
    average_gradients([matrix, without, number, frozen, row])
    for parameter, gradient in zip((matrix, number, row), given, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert without.grad is None and frozen.grad is None
