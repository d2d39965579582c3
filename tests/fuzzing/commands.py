"""Commands on files of which one was changed at random: one sentence or the right work, in bounded time and memory.

    python -m tests.fuzzing --cases 10000 --seed 1 -o benchmarks/results/fuzzing.json
    python -m tests.fuzzing --case 1234 --seed 1

Each case is a process of its own, forked from this one, in a folder of its own with copies of all inputs.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import json
import math
import os
import re
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn

import click
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from compress.benchmarking import worker
from compress.cli import COMMANDS, cli, execute
from compress.cli.printing import close_streams, open_streams
from compress.inference.compute import Compute
from compress.labelling import label as label_module
from compress.models.manifest import Manifest
from compress.models.output_dir import finish
from compress.requests.compression import export
from compress.searching import space
from compress.searching.space import Family
from tests.fuzzing.kinds import Use, kinds
from tests.fuzzing.mutations import change_file, replace_file
from tests.fuzzing.work_folders import RESUMED, damaged_work
from tests.support import keep_collector_off_what_stays, torch_as_it_is
from tests.support.exports import exporting_once
from tests.support.forked import start_worker, train_in_few_steps
from tests.support.labelling import LabelOptions, label
from tests.support.tiny import bilstm, classifier, write
from tests.support.training_data import (
    STUDY_HEAD,
    TINY_STUDENT,
    labelled_file,
    pool_file,
    pool_rows,
    train_rows,
    validation_rows,
    write_study_data,
)

TIME_LIMIT_SECONDS = 60
MEMORY_LIMIT_BYTES = 2**30  # above what the libraries take when they are imported
TEACHER = 'description = "tiny"\nhub = "somebody/tiny"\npackage = "tiny"\n[training]\nepochs = 1.0\nbatch_size = 32\n'
BUDGETS = '[[budget]]\nmodel = "s*"\nmax_accuracy_drop = 99.0\nmax_size = "30MB"\n[baseline]\nmax_drop = 1.0\n'
STUDY = f"""
title = "A tiny study"
description = "of nothing"
{STUDY_HEAD}
[[students]]
recipe = "student.toml"
quantize = false
[benchmark]
batch_sizes = [1]
rounds = 3
time_limit = 1
runtimes = ["torch"]
"""
MEASURED = (
    "--teacher model --model small --data validation.jsonl --time-limit 1 --rounds 3 --batch-size 1 --no-baselines"
)
LABELLED = "--train train.csv --validation validation.jsonl --device cpu --threads 1"


MODEL = (
    *("model/config.json", "model/model.safetensors", "model/tokenizer.json", "model/tokenizer_config.json"),
    "model/compress.json",
)
GRAPH = (
    *("onnx/config.json", "onnx/model.onnx", "onnx/tokenizer.json", "onnx/tokenizer_config.json"),
    "onnx/compress.json",
)
SMALL = ("small/config.json", "small/model.safetensors")
LABELS = ("labels/compress.json", "labels/shard-00000.parquet")
PARTS = ("part-1/compress.json", "part-1/shard-00000.parquet", "part-1/shard-00000.json", "part-2/compress.json")
USES: tuple[Use, ...] = (
    Use("predict --model model --data pool.txt.gz", (*MODEL, "pool.txt.gz"), 4),
    Use("predict --model onnx --data validation.jsonl", (*GRAPH, "validation.jsonl"), 4),
    Use("predict --model small --data train.csv", (*SMALL, "train.csv"), 2),
    Use("label --teacher model --unlabeled pool.parquet -o out --device cpu", (*MODEL, "pool.parquet"), 3),
    Use("label --teacher onnx --unlabeled pool.txt.gz -o out --device cpu", (*GRAPH, "pool.txt.gz"), 3),
    Use("labels merge part-1 part-2 -o out", PARTS, 2),
    Use("labels import train.csv --label-column label -o out", ("train.csv",), 2),
    Use(
        f"distill --teacher model --student student.toml --labels labels {LABELLED} -o out",
        (*LABELS, *LABELS, *MODEL, "student.toml", "train.csv", "validation.jsonl"),
        3,
    ),
    Use(f"finetune --teacher model {LABELLED} -o out", (*MODEL, "train.csv", "validation.jsonl"), 0.4),
    Use(
        "pretrain --encoder model --unlabeled pool.parquet --epochs 1 -o out --device cpu --threads 1",
        (*MODEL, "pool.parquet"),
        0.4,
    ),
    Use(
        f"heads --model model {LABELLED} --examples 8 --step 0.5 --criterion gradient -o out",
        (*MODEL, "train.csv", "validation.jsonl"),
        0.4,
    ),
    Use(
        f"prune --model model {LABELLED} --heads 2 --examples 8 --no-measure -o out",
        (*MODEL, "train.csv", "validation.jsonl"),
        1.5,
    ),
    Use(f"prune --model model {LABELLED} --vocabulary pool.txt.gz --no-measure -o out", (*MODEL, "pool.txt.gz"), 1.5),
    Use(
        "quantize --model onnx --validation validation.jsonl --device cpu --threads 1 -o out",
        (*GRAPH, "validation.jsonl"),
        1.5,
    ),
    Use("export --model model -o out", MODEL, 0.4),
    Use(
        "cascade --model small --model model --validation train.csv --max-accuracy-drop 24 --device cpu --threads 1 "
        "-o out",
        (*MODEL, *SMALL, "train.csv"),
        0.4,
    ),
    Use(
        "calibrate --model onnx --validation train.csv --accept-at 15% --device cpu --threads 1 -o out",
        (*GRAPH, "train.csv"),
        1.5,
    ),
    Use(f"benchmark {MEASURED} -o out", (*MODEL, *SMALL, "validation.jsonl"), 0.15),
    Use(
        "report results.jsonl --texts validation.jsonl -o out",
        ("results.jsonl", "results.jsonl", "validation.jsonl"),
        3,
    ),
    Use(
        "check results.jsonl --budgets budgets.toml --baseline older.jsonl --json out --junit out.xml",
        ("results.jsonl", "budgets.toml", "older.jsonl"),
        4,
    ),
    Use(
        "replay results.lock.json --data validation.jsonl -o out",
        ("results.lock.json", "results.jsonl", "validation.jsonl"),
        0.2,
    ),
    Use(
        "run study.toml --data-root data --model-root models --device cpu --threads 1 -o out",
        (
            "study.toml",
            "student.toml",
            "data/tiny/train.csv",
            "data/tiny/unlabeled.txt",
            "models/tiny-bert/config.json",
        ),
        0.2,
    ),
    Use(
        f"search --teacher model --unlabeled pool.txt.gz {LABELLED} --trials 1 --min-speedup 0.1 -o out",
        (*MODEL, "pool.txt.gz", "train.csv", "validation.jsonl"),
        0.05,
    ),
    *(use for kind in kinds() for use in getattr(kind, "USES", ())),
)
# What may lie at an output and beside it.
AT_OUTPUT = ("out", ".out.partial", "out.old", ".out.lock")
ODD_WORDS = (
    *("", " ", "x", "-1", "0", "1", "9" * 30, "9" * 5000, "1e308", "nan", "-inf", "0.5", "60%", "1e-9", "a,b", "1,1"),
    *(
        ".",
        "/",
        "..",
        "out",
        "model",
        "model/config.json",
        "missing",
        "/dev/zero",
        "/dev/full",
        "~",
        "*",
        "[",
        "x" * 250,
    ),
    *(
        "\udcff",
        "\x1b[31m",
        "##[x]",
        "::error::",
        "a\nb",
        "\u202e",
        "{}",
        "auto",
        "text",
        "label",
        "accuracy",
        "pearson",
    ),
    *("csv", "jsonl", "kl", "http://localhost", "s3://bucket/x", "somebody/model", "../inputs"),
)
TORCH_EXPORT = torch.onnx.export  # as it is, before load_everything
CONTROLS = {*map(chr, range(32)), "\x7f", "\u202e"} - {"\n", "\r", "\t"}
PRELOADED = (
    *("torch", "onnxruntime", "safetensors.torch", "pyarrow.parquet", "torch.onnx"),
    *("transformers.models.bert.modeling_bert", "transformers.models.auto.tokenization_auto", "transformers.trainer"),
    *("compress.models.modeling.registration", "compress.inference.runners", "compress.training.distill"),
    *("compress.searching.search", "optuna.storages._rdb.storage"),
)


def write_inputs(folder: Path) -> None:
    """Write valid inputs of every use."""
    write_study_data(folder / "data", folder / "models")
    write(folder / "model", classifier("bert"))
    finish(folder / "model", Manifest(stage="finetune", labels=("negative", "positive")))
    write(folder / "small", bilstm())
    labelled_file(folder / "train.csv", train_rows())
    rows = [{"text": row.text, "label": row.label} for row in validation_rows()]
    (folder / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = pool_file(folder / "pool.txt")
    label(folder / "model", source, folder / "labels", compute=Compute("cpu", 1))
    for number in (1, 2):
        part = LabelOptions(part=(number, 2))
        label(folder / "model", source, folder / f"part-{number}", compute=Compute("cpu", 1), options=part)
    export(folder / "model", folder / "onnx")
    rows = [row.text for row in pool_rows()]
    (folder / "pool.txt.gz").write_bytes(gzip.compress((folder / "pool.txt").read_bytes()))
    pq.write_table(pa.table({"text": rows}), folder / "pool.parquet")
    for name, content in (("student", TINY_STUDENT), ("teacher", TEACHER), ("budgets", BUDGETS), ("study", STUDY)):
        (folder / f"{name}.toml").write_text(content)
    with contextlib.chdir(folder):
        assert execute(["benchmark", *MEASURED.split(), "-o", "results.jsonl"]) == 0
    shutil.copy(folder / "results.jsonl", folder / "older.jsonl")
    for kind in kinds():
        if write_more := getattr(kind, "write_inputs", None):
            write_more(folder)


@dataclass(frozen=True)
class Case:
    """One use with one change, which follow from the two numbers; numbers below 0 are the uses without a change."""

    seed: int
    number: int

    def prepare(self, inputs: Path, folder: Path) -> tuple[list[str], str]:
        """Copy the inputs into ``folder`` and change one, or an option; return what is typed, and the change."""
        if self.number < 0:
            shutil.copytree(inputs, folder)
            return USES[self.number].words.split(), "nothing"
        draw = Random(f"{self.seed} {self.number}")
        (use,) = draw.choices(USES, [use.weight for use in USES])
        words = use.words.split()
        shutil.copytree(inputs, folder)
        kinds = ("input", "output", "option", "work")
        kind = draw.choices(kinds, (8, 1 if "out" in words else 0, 1, 2 * (use.command in RESUMED)))[0]
        if kind == "work":
            return words, damaged_work(words, folder, draw)
        if kind == "option":
            option, value = odd_option(words[0], draw)
            return [*words, f"{option}={value}"], f"{option}: value"
        name = draw.choice(use.reads if kind == "input" else AT_OUTPUT)
        way = change_file(folder / name, draw) if kind == "input" else replace_file(folder / name, draw)
        return words + ["--force"] * (kind == "output" and "--force" in options(words[0])), f"{name}: {way}"


def options(command: str) -> dict[str, click.Option]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    return {one.opts[-1]: one for one in found.params if isinstance(one, click.Option)}


def odd_option(command: str, draw: Random) -> tuple[str, str]:
    """Draw an option of a command that takes a value, and a value that is hardly one."""
    name = draw.choice([name for name, option in options(command).items() if not option.is_flag] or ["--unknown"])
    return name, draw.choice(ODD_WORDS)


def snapshot(folder: Path) -> dict[str, str]:
    """Return what lies in a folder: kind and content of all of it that holds anything."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = path.lstat()
        if stat.S_ISREG(kind.st_mode) and kind.st_size:
            small = kind.st_size < 10**9
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest() if small else "large"
        elif stat.S_ISLNK(kind.st_mode):
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif not stat.S_ISREG(kind.st_mode):
            found[str(path.relative_to(folder))] = str(stat.S_IFMT(kind.st_mode))
    return found


class Run:
    """A case at work in a process of its own."""

    def __init__(self, case: Case, inputs: Path, folder: Path, verbose: bool = False) -> None:
        self.case, self.folder = case, folder
        (folder / "temporary").mkdir(parents=True)
        self.words, self.change = case.prepare(inputs, folder / "work")
        self.before = snapshot(folder / "work")
        if self.change.startswith("work "):  # which is gone on with, or made again
            self.before = {name: kind for name, kind in self.before.items() if not name.startswith(("out", ".out"))}
        self.begin = time.monotonic()
        self.process = os.fork()
        if self.process == 0:
            self._work(["-v", *self.words] if verbose else self.words)
        self.ended = os.pidfd_open(self.process)

    def _work(self, words: list[str]) -> NoReturn:
        code = 70
        try:
            os.setsid()
            os.chdir(self.folder / "work")
            tempfile.tempdir = os.environ["TMPDIR"] = str(self.folder / "temporary")
            for number, name in enumerate(("/dev/null", "../stdout", "../stderr")):
                opened = os.open(name, os.O_RDWR | os.O_CREAT)
                os.dup2(opened, number)
                os.close(opened)
            sys.stdin, sys.stdout, sys.stderr = (open(n, "r" if n == 0 else "w", closefd=False) for n in range(3))  # noqa: SIM115
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES + data_bytes(), -1))
            open_streams()
            if self.words[0] == "export":
                torch.onnx.export = TORCH_EXPORT
            code = execute(words)
            close_streams()
        finally:
            os._exit(code)

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self.ended], [], [], seconds)[0])

    def faults(self) -> list[str]:
        """Wait for the end and return what is wrong: nothing, if it was one sentence or the right work."""
        in_time = self.wait(max(0.0, self.begin + TIME_LIMIT_SECONDS - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)  # with the workers of a benchmark
        _, status, usage = os.wait4(self.process, 0)
        os.close(self.ended)
        self.seconds, self.memory_mb = time.monotonic() - self.begin, usage.ru_maxrss / 1e3
        self.code = os.waitstatus_to_exitcode(status)
        if not in_time:
            return [f"it takes longer than {TIME_LIMIT_SECONDS} s"]
        return [*self._faults_of_the_end(), *self._faults_of_files()]

    def _faults_of_the_end(self) -> Iterator[str]:
        said = (self.folder / "stderr").read_text(errors="replace")
        printed = (self.folder / "stdout").read_text(errors="replace")
        last = said.strip().rsplit("\n", 1)[-1]
        judged = self.words[0] in {"check", "replay", "search"}  # whose verdict on measured speeds may be any
        if self.case.number < 0 and self.code not in ((0, 1, 3) if judged else (0,)):
            yield f"it does not work unchanged: exit code {self.code}: {last}"
        if self.code not in ((0, 1, 2, 3) if judged else (0, 2)):
            yield f"exit code {self.code}: {last}"
        elif self.code == 2 and not last.startswith("Error: ") and self.words[0] != "run":
            yield f"no sentence: {last!r}"
        faults = ("Traceback", "fault of compress", "not enough memory", "Exception ignored")
        chosen = self.change.startswith(("student.toml", "study.toml"))  # sizes that the user has chosen
        for word in faults:
            if word in said and not (chosen and word == "not enough memory"):
                yield f"{word!r}: {last}"
        if set(said + printed) & CONTROLS:
            yield f"control characters: {last!r}"
        if len(last) > 6000:
            yield f"a sentence of {len(last)} characters"
        if self.words[0] == "predict" and self.code == 0:
            for row in printed.splitlines():
                if not math.isfinite(json.loads(row)["probability"]):
                    yield f"no probability: {row}"

    def _faults_of_files(self) -> Iterator[str]:
        after = snapshot(self.folder / "work")
        for name, content in self.before.items():
            # With --force what lay at the output is moved aside, whatever it is.
            moved = f"out.old{name.removeprefix('out')}" if name.startswith("out") and "--force" in self.words else name
            if content not in (after.get(name), after.get(moved)):
                yield f"{name} was {'changed' if name in after else 'deleted'}"
        new = after.keys() - self.before.keys()
        strays = [name for name in new if not name.startswith(("out", ".out"))]
        if strays and not self.change.startswith("--"):  # whose value may be another output
            yield f"written beside the output: {', '.join(strays[:5])}"
        if self.code == 2 and "out" in new and self.words[0] != "run":
            yield "an output in spite of the error"
        if any((self.folder / "temporary").iterdir()):
            yield f"left among temporary files: {next((self.folder / 'temporary').iterdir()).name}"


def data_bytes() -> int:
    """Return what counts against the limit of memory already."""
    (kilobytes,) = re.findall(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


def load_everything(inputs: Path) -> None:
    """Import what commands and the workers of benchmarks import, so that forked processes need not.

    They label with torch models as these are; ``export`` has cases of its own, which trace every model anew. They train
    teachers in few steps, and search among students like the one of the inputs: how good these become decides nothing.
    """
    for name in COMMANDS:
        cli.get_command(click.Context(cli), name)
    for name in PRELOADED:
        importlib.import_module(name)
    # Cases are forked: threads of tokenizers would be missing in them, and waited for.
    os.environ |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "200", "TOKENIZERS_PARALLELISM": "false"}
    forked: Any = SimpleNamespace(Popen=partial(start_worker, method="fork"), PIPE=subprocess.PIPE)
    worker.subprocess = forked
    label_module.choose_runtime = torch_as_it_is
    torch.onnx.export = exporting_once(torch.onnx.export)
    train_in_few_steps()
    space.FAMILIES = {"bilstm": Family(str(inputs / "student.toml"), {"hidden_size": (4, 8)})}
    keep_collector_off_what_stays()


def run_cases(cases: Iterable[Case], folder: Path, jobs: int) -> Iterator[tuple[Run, list[str]]]:
    """Run cases, ``jobs`` at a time; yield each that has ended and its faults. Their folders are deleted."""
    inputs = folder / "inputs"
    load_everything(inputs)
    write_inputs(inputs)
    waiting, running = iter(cases), deque[Run]()
    while True:
        while len(running) < jobs and (case := next(waiting, None)) is not None:
            running.append(Run(case, inputs, folder / str(case.number)))
        if not running:
            return
        run = running.popleft()  # the oldest: the others work on meanwhile
        yield run, run.faults()
        shutil.rmtree(run.folder)
