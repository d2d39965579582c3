"""Disturb every stage and whole studies at random moments, type the same command again, and compare with the rest.

    python benchmarks/reliability.py --tokenizer DIR --work DIR -o benchmarks/results/reliability.jsonl
        [--moments 100] [--only STAGE ...] [--seed 0]

A disturbance is a kill (SIGKILL), an ending (SIGTERM), a full disk (a file system in memory of a random size; needs
root, elsewhere a limit on the size of files), or a limit on memory between what the command begins with and what it
needs. Then the same command, undisturbed, must end well and give what a command gives that was never disturbed: the
same bytes of labels and of exported and quantized models, the same metrics and weights of trainings but for rounding,
the same models of a study. Nothing else may lie beside the output, and a disturbed command that could say something
must have said one sentence. At last two commands start on one output: one does the work, the other is refused.

Models are tiny, so that a command takes seconds: the moments that matter lie between two writes, and are as many. A
process that has imported everything forks for each command, so that moments fall into its work and not into imports.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import pkgutil
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # no threads before a fork
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from safetensors.numpy import load_file
from script import provenance, read_options, replace_line
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

import compress
from compress.cli import main as compress_main

UNCAUGHT = 99  # the exit code of an error that the command did not catch
DISTURBANCES = ("kill", "end", "disk", "memory")
FEW_STEPS = "max_steps = 24\nbatch_size = 16\nevaluations = 6\nprecision = 'float32'\n"
STUDENT = f"""
description = "tiny"
[architecture]
name = "transformer"
depth = 1
[[phases]]
losses = [{{ name = "hidden-mse" }}]
[[phases]]
losses = [{{ name = "kl" }}]
[training]
{FEW_STEPS}
"""
TEACHER = f'description = "tiny"\nhub = "{{encoder}}"\n[training]\n{FEW_STEPS}'
STUDY = """
title = "tiny"
description = "tiny"
[data]
train = { set = "films", split = "train" }
validation = { set = "films", split = "validation" }
test = { set = "films", split = "test" }
unlabeled = [{ set = "films", split = "unlabeled" }]
[teacher]
recipe = "FOLDER/teacher.toml"
quantize = false
[[students]]
recipe = "FOLDER/student.toml"
quantize = false
[benchmark]
baselines = false
batch_sizes = [1]
time_limit = 1
threads = 1
runtimes = []
"""
# Of a manifest, what may differ between two runs of a command.
MAY_DIFFER = ("host", "versions", "files")
TIMES = ("seconds", "rows_per_second", "created")
# What a command says whose output another one has made, or makes.
REFUSED = ("already exists", "another command is writing")


@dataclass(frozen=True)
class Stage:
    """A command without its output, whether it gives the same bytes again, and whether threads can be named."""

    name: str
    words: tuple[str, ...]
    has_same_bytes: bool = False
    takes_threads: bool = True

    def arguments(self, output: Path) -> list[str]:
        return [*self.words, "-o", str(output), *(("--threads", "1") if self.takes_threads else ())]


@dataclass(frozen=True)
class Undisturbed:
    """What a command made, and what it took."""

    output: Path
    seconds: float
    bytes_on_disk: int
    memory: tuple[int, int]  # data in bytes: of the process that forks, and the most of the command


def main() -> int:
    options = read_options(__doc__, tokenizer=Path, work=Path, moments=100, only=[], seed=0)
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    inputs = written_inputs(options.work / "inputs", options.tokenizer)
    import_everything()
    disk = Disk(options.work / "disk")
    failed = 0
    for stage in stages(inputs):
        if options.only and stage.name not in options.only:
            continue
        chance = random.Random(f"{options.seed} {stage.name}")
        line: dict[str, Any] = {
            "study": "reliability",
            "stage": stage.name,
            **disturbed_stage(stage, disk, options.work, options.moments, chance),
            "seed": options.seed,
            "full_disk_by": "file system" if disk.is_mounted else "limit on files",
            **provenance(),
        }
        replace_line(options.output, line, "stage")
        shown = ("stage", "seconds", "moments", "disturbed", "faults")
        print(json.dumps({name: line[name] for name in shown}), flush=True)
        failed += len(line["faults"])
    disk.close()
    return 1 if failed else 0


def written_inputs(folder: Path, tokenizer: Path) -> Path:
    """Write an encoder, its fine-tuned teacher's text, and a study of them."""
    if folder.is_dir():
        return folder
    made = folder.with_name(f".{folder.name}")
    shutil.rmtree(made, ignore_errors=True)
    films = made / "data" / "films"
    films.mkdir(parents=True)
    torch.manual_seed(0)
    read = AutoTokenizer.from_pretrained(tokenizer)
    read.model_max_length = 64
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(read), max_position_embeddings=64, id2label={0: "bad", 1: "good"}, **sizes)
    config.label2id = {"bad": 0, "good": 1}
    for name in ("encoder", "teacher"):
        BertForSequenceClassification(config).save_pretrained(made / name)
        read.save_pretrained(made / name)
    chance = random.Random(0)
    nouns, verbs = "film plot actor scene ending song dialogue".split(), "is was seems feels stays".split()

    def sentence(word: str, number: int) -> str:
        return (
            f"the {chance.choice(nouns)} {chance.choice(verbs)} {word} in scene {number} of {chance.randrange(10**6)}"
        )

    for split, rows in (("train", 200), ("validation", 80), ("test", 80)):
        labels = [("bad", "good")[number % 2] for number in range(rows)]
        lines = [f"{sentence(label, number)},{label}\n" for number, label in enumerate(labels)]
        (films / f"{split}.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    pool = [f"{sentence(chance.choice(('bad', 'good')), number)}\n" for number in range(20_000)]
    (films / "unlabeled.txt").write_text("".join(pool), encoding="utf-8")
    (made / "few.txt").write_text("".join(pool[:800]), encoding="utf-8")
    (made / "student.toml").write_text(STUDENT, encoding="utf-8")
    (made / "teacher.toml").write_text(TEACHER.format(encoder=folder / "encoder"), encoding="utf-8")
    (made / "study.toml").write_text(STUDY.replace("FOLDER", str(folder)), encoding="utf-8")
    made.rename(folder)
    return folder


def stages(inputs: Path) -> list[Stage]:
    films = inputs / "data" / "films"
    train = ("--train", f"{films}/train.csv", "--validation", f"{films}/validation.csv")
    teacher, model = ("--teacher", f"{inputs}/teacher"), ("--model", f"{inputs}/teacher")
    student = ("--student", f"{inputs}/student.toml")
    return [
        Stage("label", ("label", *teacher, "--unlabeled", f"{films}/unlabeled.txt"), has_same_bytes=True),
        Stage("finetune", ("finetune", "--teacher", f"{inputs}/teacher.toml", *train)),
        Stage("distill", ("distill", *teacher, *student, "--unlabeled", f"{inputs}/few.txt", *train)),
        Stage("pretrain", ("pretrain", "--encoder", f"{inputs}/encoder", "--unlabeled", f"{inputs}/few.txt")),
        Stage("prune", ("prune", *model, *train, "--heads", "50%", "--recover", "20", "--no-measure")),
        Stage("quantize", ("quantize", *model), has_same_bytes=True),
        Stage("export", ("export", *model), has_same_bytes=True, takes_threads=False),
        Stage("run", ("run", f"{inputs}/study.toml", "--data-root", f"{inputs}/data")),
    ]


def import_everything() -> None:
    """Import what commands import when they are used, so that the moments of a disturbance fall into their work."""
    for module in pkgutil.walk_packages(compress.__path__, "compress."):
        if "__main__" not in module.name and "._" not in module.name:
            try:
                importlib.import_module(module.name)
            except Exception:  # an optional package is missing
                continue


def disturbed_stage(stage: Stage, disk: Disk, work: Path, moments: int, chance: random.Random) -> dict[str, Any]:
    """Disturb a command so many times, and return how often it was, and all faults."""
    reference = undisturbed(stage, work / f"undisturbed-{stage.name}" / "made")  # pages hold the name
    faults: list[str] = []
    counts = dict.fromkeys(DISTURBANCES, 0)
    other_reasons = 0  # given where a limit on memory ended a command
    for moment in range(moments):
        kind = DISTURBANCES[moment % len(DISTURBANCES)]
        disk.empty()
        output = disk.folder / "made"
        log = work / "log.txt"
        share = chance.random()
        code = disturbed(kind, share, stage, output, log, disk, reference)
        if code != 0:
            counts[kind] += 1
        where = f"{kind} at {share:.3f}"
        other_reasons += kind == "memory" and code > 0 and "not enough memory" not in log.read_text(errors="replace")
        faults += [f"{where}: {fault}" for fault in faults_of_end(kind, code, log)]
        if code != 0 and (output / "compress.json").exists() and stage.name != "run":
            faults += [f"{where}: it failed, and its output is there"] if kind != "end" else []
        disk.grow()
        if code != 0 and (code := finished(started(stage, output, log))) != 0:
            faults.append(f"{where}: the same command ended with {code}: {log.read_text()[-300:]}")
            continue
        faults += [f"{where}: {fault}" for fault in differences(stage, reference.output, output)]
        stray = {path.name for path in disk.folder.iterdir()} - {"made", "lost+found"}
        faults += [f"{where}: {', '.join(sorted(stray))} lies beside the output"] if stray else []
    disk.empty()
    faults += together(stage, disk.folder / "made", work, reference)
    return {
        "seconds": round(reference.seconds, 2),
        "moments": moments,
        "disturbed": counts,
        "other_reasons_than_memory": other_reasons,
        "faults": faults,
        "same": "bytes" if stage.has_same_bytes else "figures",
    }


def undisturbed(stage: Stage, output: Path) -> Undisturbed:
    shutil.rmtree(output.parent, ignore_errors=True)
    output.parent.mkdir()
    log = output.with_suffix(".log")
    begun, most, on_disk, child = time.perf_counter(), 0, 0, started(stage, output, log)
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        most = max(most, data_bytes(child))
        on_disk = max(on_disk, size_of(output.parent, output.name))
        time.sleep(0.02)
    seconds = time.perf_counter() - begun
    if code := os.waitstatus_to_exitcode(ended[1]):
        raise SystemExit(f"{stage.name}, undisturbed, ended with {code}: {log.read_text()}")
    return Undisturbed(output, seconds, on_disk, (data_bytes(os.getpid()), most))


def started(stage: Stage, output: Path, log: Path, limit: Callable[[], None] | None = None) -> int:
    """Fork a process that runs the command, and return its number."""
    child = os.fork()
    if child:
        return child
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if limit:
            limit()
        compress_main(stage.arguments(output))
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        os._exit(UNCAUGHT)
    os._exit(98)


def finished(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def disturbed(
    kind: str, share: float, stage: Stage, output: Path, log: Path, disk: Disk, reference: Undisturbed
) -> int:
    """Run the command and disturb it; return its exit code, the negative signal if one ended it."""
    if kind == "disk":
        limit = disk.shrink(int(share * reference.bytes_on_disk))
        return finished(started(stage, output, log, limit))
    if kind == "memory":
        least, most = reference.memory
        allowed = int(least + share * (most - least))
        return finished(started(stage, output, log, lambda: resource.setrlimit(resource.RLIMIT_DATA, (allowed, -1))))
    child = started(stage, output, log)
    time.sleep(share * reference.seconds)
    os.kill(child, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
    return finished(child)


def faults_of_end(kind: str, code: int, log: Path) -> list[str]:
    """Return what is wrong with how a disturbed command ended: what it said, and its exit code."""
    said = log.read_text(encoding="utf-8", errors="replace")
    # Where there is no memory, the interpreter itself prints what it could not do while it ended.
    faults = ["a traceback"] if "Traceback (most recent call last)" in said and kind != "memory" else []
    allowed = {"kill": (0, -signal.SIGKILL), "end": (0, 130, -signal.SIGTERM), "disk": (0, 2)}
    # A library may be ended by the system, or end itself, where it finds no memory; and there may be too little left to
    # say so.
    allowed["memory"] = (0, 2, UNCAUGHT, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)
    if code not in allowed[kind]:
        faults.append(f"exit code {code}: {said[-300:]}")
    if code == 2 and sum(line.startswith("Error: ") for line in said.splitlines()) != 1:
        faults.append(f"not one sentence: {said[-300:]}")
    # Libraries that get no memory raise many kinds of errors.
    if "a fault of compress" in said and kind != "memory":
        faults.append(f"taken for a fault of compress: {said[-300:]}")
    return faults


def differences(stage: Stage, expected: Path, found: Path) -> list[str]:
    """Return in what two outputs of a command differ."""
    if stage.name == "run":
        models = [path.parent.name for path in expected.glob("*/compress.json")]
        return [
            f"{model}: {fault}"
            for model in models
            for fault in differences(
                Stage(model, (), (expected / model / "shard-00000.json").exists()), expected / model, found / model
            )
        ]
    if not (found / "compress.json").is_file():
        return [f"{found.name} has no manifest"]
    faults = []
    names = [{str(path.relative_to(folder)) for path in folder.rglob("*")} for folder in (expected, found)]
    if names[0] != names[1]:
        faults.append(f"other files: {sorted(names[0] ^ names[1])}")
    for name in sorted(names[0] & names[1]):
        one, other = expected / name, found / name
        if one.is_dir() or name in {"compress.json", "README.md"}:
            continue
        if stage.name == "labels" and name.endswith(".json"):  # of a study, whose teacher's log holds times
            ours, theirs = (json.loads(path.read_text(encoding="utf-8")) for path in (one, other))
            same = {**ours, "teacher_sha256": ""} == {**theirs, "teacher_sha256": ""}
        elif name == "metrics.jsonl":
            if fault := difference_of_metrics(one, other):
                faults.append(f"{name}: {fault}")
            continue
        elif name.endswith(".safetensors") and not stage.has_same_bytes:
            ours, theirs = load_file(one), load_file(other)
            same = ours.keys() == theirs.keys() and all(
                np.allclose(ours[key], theirs[key], rtol=1e-4, atol=1e-5) for key in ours
            )
        else:
            same = one.read_bytes() == other.read_bytes()
        if not same:
            faults.append(f"{name} differs")
    manifests = [json.loads((folder / "compress.json").read_text(encoding="utf-8")) for folder in (expected, found)]
    for key in sorted(manifests[0].keys() - {*MAY_DIFFER, "notes", "metrics", "parents", "recipe"}):
        if manifests[0][key] != manifests[1].get(key):
            faults.append(f"{key} of the manifest differs")
    for key in ("steps", "planned_steps", "best_step"):
        if manifests[0]["notes"].get(key) != manifests[1]["notes"].get(key):
            faults.append(f"{key}: {manifests[1]['notes'].get(key)} instead of {manifests[0]['notes'].get(key)}")
    return faults


def difference_of_metrics(one: Path, other: Path) -> str:
    lines = [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in (one, other)]
    if len(lines[0]) != len(lines[1]):
        return f"{len(lines[1])} lines instead of {len(lines[0])}"
    for number, (ours, theirs) in enumerate(zip(*lines, strict=True)):
        for key in sorted((ours.keys() | theirs.keys()) - {*TIMES}):
            a, b = ours.get(key), theirs.get(key)
            is_number = isinstance(a, float) and isinstance(b, float)
            if not (math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5) if is_number else a == b):
                return f"{key} of line {number + 1} is {b} instead of {a}"
    return ""


def together(stage: Stage, output: Path, work: Path, reference: Undisturbed) -> list[str]:
    """Start two commands on one output, five times: one does the work, the other is refused."""
    faults = []
    for number in range(5):
        shutil.rmtree(output, ignore_errors=True)
        logs = [work / "one.txt", work / "other.txt"]
        children = [started(stage, output, logs[0])]
        time.sleep(number / 5 * reference.seconds * 0.8)
        children.append(started(stage, output, logs[1]))
        codes = [finished(child) for child in children]
        said = logs[codes.index(2)].read_text() if 2 in codes else ""
        if sorted(codes) != [0, 2] or not any(words in said for words in REFUSED):
            faults.append(f"two commands ended with {codes}: {[log.read_text()[-200:] for log in logs]}")
        faults += [f"two commands: {fault}" for fault in differences(stage, reference.output, output)]
    return faults


class Disk:
    """A folder whose space can be made small: a file system in memory, or where that is not allowed a limit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.close()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(folder)], capture_output=True)
        self.is_mounted = made.returncode == 0

    def _resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], check=True)

    def empty(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def shrink(self, size: int) -> Callable[[], None] | None:
        """Leave so many bytes; return what a process is to do for it, if anything."""
        if self.is_mounted:
            self._resize(max(size, 4096))
            return None
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (max(size, 1), -1))

    def grow(self) -> None:
        if self.is_mounted:
            self._resize(2**30)

    def close(self) -> None:
        subprocess.run(["umount", str(self.folder)], capture_output=True)


def size_of(folder: Path, name: str) -> int:
    """Return the bytes that what belongs to an output takes: itself, and what is not finished of it."""
    total = 0
    for place in folder.glob(f"*{name}*"):
        for parent, _, files in os.walk(place):  # goes on where a folder vanishes; rglob raises
            for file in files:
                with contextlib.suppress(OSError):
                    total += Path(parent, file).stat().st_size
    return total


def data_bytes(process: int) -> int:
    """Return what counts against a limit on the data of a process."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData")), 0)


if __name__ == "__main__":
    sys.exit(main())
