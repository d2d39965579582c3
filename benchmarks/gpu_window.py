"""Run a study row by row on a GPU machine that is reached for minutes at a time and has no network.

    python benchmarks/gpu_window.py pack STUDY --data-root DATA --teacher DIR -o FOLDER [--budget NAME] [--python 3.12]
    python benchmarks/gpu_window.py run STUDY --packed FOLDER --out RESULTS --minutes 9

``pack`` writes what travels with this repository: the rows that the study reads as Parquet, the teacher in float16, and
with ``--python`` the packages that a machine with torch and transformers may lack, as wheels for that Python; others
may be put beside them.

``run`` checks the machine, then makes and measures row after row, or with ``--at-once`` several at a time: a student
of one seed with its control, or a pruned model, each in a process that ends with the window at the latest. RESULTS gets
two small files: ``results.jsonl`` with the lines of ``compress run``, and ``rows.jsonl`` with how each row went. The
same command goes on with what RESULTS holds then. Students train and are measured on the GPU, in torch alone, for 10
seconds: on the processor the test rows would take longer than the training. What a study measures beside its rows is
left out: int8 models, baselines, other tools and runtimes, reference models.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import logging
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "speed"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# Nothing here imports torch or datasets: a window first installs what is missing.
from compress import recipes
from compress.errors import CompressError
from compress.files import write_json_lines
from compress.models.output_dir import in_turn
from compress.progress import for_terminal, quiet_libraries
from compress.recipes import DataSet, StudyRecipe
from compress.studies.plan import (
    PlannedStudent,
    check_only,
    choose_budget,
    planned_students,
    pruned_name,
    within_budget,
)

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ("datasets", "dill", "multiprocess", "torch-pruning")  # all in Python alone
TEACHER_FILES = ("*.json", "*.txt", "*.model")  # beside the weights
COMPARED_ROWS = 256
CHECK_S, MEASURE_S = 120.0, 10.0  # at most, of the machine, and of each row's speed
RUNNING: set[int] = set()  # the processes of rows under way, each with those that it started as a group
PACKED_NAME, RESULTS_NAME, ROWS_NAME = "packed.json", "results.jsonl", "rows.jsonl"
SAME_LINE = ("created", "host_id", "model", "runtime", "device", "threads", "length", "padding", "batch_size")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="pack|run")
    packing, running = commands.add_parser("pack"), commands.add_parser("run")
    packing.set_defaults(call=pack)
    packing.add_argument("study")
    packing.add_argument("--data-root", required=True, type=Path)
    packing.add_argument("--teacher", required=True, type=Path)
    packing.add_argument("--budget", default="", help="one of the study's; default its first")
    packing.add_argument("--python", metavar="VERSION", help=f"bring {', '.join(WHEELS)} for this Python, such as 3.12")
    packing.add_argument("--limit-mib", type=float, default=64, help="refuse to write more; default 64")
    packing.add_argument("-o", "--output", required=True, type=Path)
    running.set_defaults(call=run_window)
    running.add_argument("study")
    running.add_argument("--packed", required=True, type=Path)
    running.add_argument("--out", required=True, type=Path, help="results so far, and those to come")
    running.add_argument("--minutes", type=float, default=9, help="for everything; default 9")
    running.add_argument("--only", action="append", default=[], metavar="NAME", help="even if it failed before")
    running.add_argument(
        "--at-once", type=int, default=1, metavar="ROWS", help="where one leaves the GPU idle; default 1"
    )
    running.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries it without a GPU")
    running.add_argument("--work", type=Path, default=ROOT / "runs" / "gpu-window", help="for models, while they last")
    running.add_argument("--row", help=argparse.SUPPRESS)  # what a window starts for each
    options = parser.parse_args(arguments)
    options.typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        make_row(options) if getattr(options, "row", None) else options.call(options)
    except CompressError as error:
        print(f"Error: {error}", flush=True)
        return 2
    return 0


def pack(options: argparse.Namespace) -> None:
    """Write the folder that travels, whole or not at all."""
    if options.output.exists():
        raise CompressError(f"{options.output} exists; delete it or choose another -o")
    budget = choose_budget(recipes.load_recipe("benchmarks", options.study), options.budget)
    recipe = planned(options.study, budget)
    if recipe.data.corpus:
        raise CompressError(f"{recipe.name} builds its text from installed packages; pack a study that reads files")
    quiet_libraries()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=options.output.parent) as scratch:
        folder = Path(scratch) / "packed"
        sets = pack_sets(recipe, options.data_root, folder / "data")
        name = options.teacher.resolve().name
        teacher = pack_teacher(options.teacher, folder / "teacher" / name, test_rows(recipe, folder))
        if options.python:
            download = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", options.python]
            pip(*download, "--constraint", str(ROOT / "constraints.txt"), "--dest", str(folder / "wheels"), *WHEELS)
        packed = {"study": recipe.name, "budget": budget, "teacher": {"name": name, "sha256": teacher}, "sets": sets}
        (folder / PACKED_NAME).write_text(json.dumps(packed, indent=1) + "\n", encoding="utf-8")
        sizes = {part.name: mebibytes(part) for part in sorted(folder.iterdir())}
        whole = sum(sizes.values())
        print(", ".join(f"{name} {size:.2f} MiB" for name, size in sizes.items()), f"= {whole:.2f} MiB")
        if whole > options.limit_mib:
            raise CompressError(
                f"{whole:.1f} MiB are more than --limit-mib {options.limit_mib:g}; give a budget of fewer rows, or a "
                "smaller teacher"
            )
        folder.rename(options.output)


def planned(study: str, budget: str) -> StudyRecipe:
    return within_budget(recipes.load_recipe("benchmarks", study), budget)


def roles(recipe: StudyRecipe) -> list[tuple[str, DataSet]]:
    """Return every set that a study reads with its role."""
    data, found = recipe.data, []
    for role in ("train", "validation", "test", "unlabeled"):
        parts = getattr(data, role) or ()
        found += [(role, part) for part in (parts if isinstance(parts, tuple) else (parts,))]
    return found


def test_rows(recipe: StudyRecipe, packed: Path) -> list[Any]:
    from compress.studies.data import open_set

    part = next(part for role, part in roles(recipe) if role == "test")
    return list(open_set(part, packed / "data", "test").sample(COMPARED_ROWS))


def pack_sets(recipe: StudyRecipe, root: Path, target: Path) -> dict[str, str]:
    """Write the rows that a study reads of each set; return the hashes of the files.

    Raises:
        CompressError: the study would not read the same rows in the same order there.
    """
    from compress.models.manifest import file_sha256
    from compress.studies.data import open_set

    uses: dict[Path, list[tuple[str, DataSet]]] = {}
    for role, part in roles(recipe):
        uses.setdefault(target / part.set / f"{part.split or role}.parquet", []).append((role, part))
    for path, using in uses.items():
        role, part = using[0]  # unlabelled roles come last, so that labels are kept where any role needs them
        takes = {(part.rows, part.beyond) for _, part in using}
        rows = part.rows if takes == {(part.rows, 0)} else 0
        write_rows(list(open_set(replace(part, rows=rows, beyond=0), root, role)), part, path)
        for role, part in using:
            both = zip_longest(open_set(part, root, role), open_set(part, target, role))
            if any(here != there for here, there in both):
                raise CompressError(
                    f"{part.set} cannot be packed: its {role} rows do not come back from Parquet as they are"
                )
    return {path.relative_to(target).as_posix(): file_sha256(path) for path in uses}


def write_rows(rows: Sequence[Any], part: DataSet, path: Path) -> None:
    """Write examples under the names by which the study, or anybody, finds the columns."""
    import pyarrow
    from pyarrow import parquet

    if rows[0].tags is not None:
        raise CompressError(f"{part.set} cannot be packed: its rows are words with tags")
    text = part.text_column or ("text" if rows[0].text_pair is None else "sentence1")
    names = (text, part.text_pair_column or "sentence2", part.label_column or "label")
    columns = zip(names, zip(*((row.text, row.text_pair, row.label) for row in rows), strict=True), strict=True)
    table = pyarrow.table({name: values for name, values in columns if values[0] is not None})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, compression="zstd", compression_level=19)


def pack_teacher(teacher: Path, target: Path, rows: Sequence[Any]) -> str:
    """Write a model directory with weights in float16, say what that changes in float32, and return its hash."""
    import numpy as np

    from compress.data.tokenization import maximum_length
    from compress.inference.batching import logits_of
    from compress.inference.torch_run import TorchRun
    from compress.models.model_dir import Model

    source, packed = Model.open(teacher), Model.open(convert(teacher, target, "float16"))
    tokenizer = source.tokenizer
    limit = maximum_length(tokenizer, source.config)
    before, after = (logits_of(rows, TorchRun(one.load()), tokenizer, max_length=limit) for one in (source, packed))
    change, same = float(np.abs(after - before).max()), (after.argmax(1) == before.argmax(1)).mean()
    print(f"teacher in float16: logits change by {change:.2g} at most, {same:.1%} of {len(rows)} answers are the same")
    return packed.sha256


def convert(model: Path, target: Path, precision: str) -> Path:
    """Write a model directory with its weights in another precision, and nothing that it can be used without."""
    import torch
    from safetensors.torch import load_file, save_file

    from compress.models.loading import weight_files
    from compress.models.manifest import MANIFEST_NAME, describe_files
    from compress.models.model_dir import Model

    source, kind = Model.open(model), getattr(torch, precision)
    target.mkdir(parents=True)
    for file in (file for pattern in TEACHER_FILES for file in source.path.glob(pattern)):
        shutil.copyfile(file, target / file.name)
    for file in weight_files(source.path):
        weights = {name: one.to(kind) if one.is_floating_point() else one for name, one in load_file(file).items()}
        save_file(weights, target / file.name, metadata={"format": "pt"})
    (target / MANIFEST_NAME).unlink(missing_ok=True)
    if source.manifest.stage:
        manifest = replace(source.manifest, files=describe_files(target))
        (target / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return target


def run_window(options: argparse.Namespace) -> None:
    """Check the machine and make rows until none is left or the time is up."""
    end = time.monotonic() + 60 * options.minutes
    if options.at_once < 1:
        raise CompressError(f"--at-once {options.at_once} must be at least 1")
    packed = read_packed(options.packed)
    recipe = planned(options.study, packed["budget"])
    students = planned_students(recipe)
    every = row_names(recipe, students)
    check_only([name for name in options.only if name not in every], recipe, students)
    names = row_names(recipe, students, options.only)
    options.out.mkdir(parents=True, exist_ok=True)
    known = read_rows(options.out)
    if any(row["packed"] != packed["identity"] for row in known.values()):
        raise CompressError(f"{options.out} holds results of other data or another teacher; choose another --out")
    to_make = in_order(names, known, options, packed)
    site = install(options.packed / "wheels", options.work / "site")
    if to_make:
        check_machine(options, recipe, packed)
    path = os.pathsep.join(filter(None, (str(ROOT), str(site), os.environ.get("PYTHONPATH"))))
    queue = iter(to_make)

    def make() -> None:
        for number, name in enumerate(queue):
            left, rows = end - time.monotonic(), read_rows(options.out)
            made = [row["seconds"] for row in rows.values() if row["status"] == "done"]
            # A row that was stopped needs longer than it had then; the first of a window may have all of it.
            needs = max(rows.get(name, {}).get("seconds", 0.0), statistics.median(made) if made else 0.0)
            if left <= 0 or number and left < needs:
                continue
            print(f"== {name}: {left:.0f} s left", flush=True)
            command = [sys.executable, __file__, *options.typed, "--row", name]
            begun = time.monotonic()
            problem = run_until(end, command, {**os.environ, "PYTHONPATH": path})
            row = read_rows(options.out).get(name, {})
            if problem and row.get("status") != "done":  # it may have ended with the window
                status = "stopped" if time.monotonic() >= end else "failed"
                row = record(options, name, packed, status, time.monotonic() - begun, error=problem)
            print(f"== {name}: {row['status']} after {row['seconds']:.0f} s", flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        workers = [pool.submit(make) for _ in range(options.at_once)]
        try:
            for worker in workers:
                worker.result()
        except KeyboardInterrupt:
            end = time.monotonic()  # the rows under way are stopped, and no other is begun
            for group in list(RUNNING):
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            raise
    summarize(names, read_rows(options.out), options)


def row_names(recipe: StudyRecipe, students: Sequence[PlannedStudent], only: Collection[str] = ()) -> list[str]:
    """Return a name for every training of a student and every pruned model, the first seeds of all students first.

    Args:
        only: names of rows, or of students for all of their rows; by default everything.
    """
    trained = [
        (number, name)
        for student in students
        for number, (name, _) in enumerate(student.trainings)
        if not only or {student.name, name} & set(only)
    ]
    pruned = [name for name in map(pruned_name, recipe.prune) if not only or name in only]
    return [*(name for _, name in sorted(trained, key=itemgetter(0))), *pruned]


def of_one_row(recipe: StudyRecipe, row: str) -> tuple[StudyRecipe, str]:
    """Return a study that makes a row without int8, its student by the row's name, and the student's own name."""
    plans = list(recipe.students)
    for number, student in enumerate(planned_students(recipe)):
        for name, seed in student.trainings:
            if name == row:
                plans[number] = replace(plans[number], name=row, seeds=(seed,), quantize=False, keep_fp32=0)
                return replace(recipe, students=tuple(plans)), student.name
    return replace(recipe, prune=tuple(replace(plan, quantize=False) for plan in recipe.prune)), row


def read_packed(folder: Path) -> dict[str, Any]:
    """Return what was packed, and a name for it that other data or another teacher would change."""
    if not (folder / PACKED_NAME).is_file():
        raise CompressError(f"{folder} has no {PACKED_NAME}; make it with 'gpu_window.py pack'")
    content = (folder / PACKED_NAME).read_bytes()
    return {**json.loads(content), "identity": hashlib.sha256(content).hexdigest()[:12]}


def install(wheels: Path, site: Path) -> Path:
    """Unpack the wheels of packages that this Python lacks into a folder of their own, and find them there."""
    sys.path.insert(1, str(site))
    there = {package.name.lower().replace("-", "_") for package in importlib.metadata.distributions()}
    missing = [file for file in sorted(wheels.glob("*.whl")) if file.name.partition("-")[0].lower() not in there]
    print(f"to install: {', '.join(file.name for file in missing) or 'nothing'}", flush=True)
    if missing:
        pip("install", "--quiet", "--no-index", "--no-deps", "--target", str(site), *map(str, missing))
        importlib.invalidate_caches()
    return site


def pip(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    if done.returncode:
        raise CompressError(f"pip {words[0]} failed: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")


def check_machine(options: argparse.Namespace, recipe: StudyRecipe, packed: dict[str, Any]) -> None:
    """Say what this machine is, multiply matrices, unpack the teacher and hold it in bfloat16 here against float32.

    Raises:
        CompressError: it has no GPU, lacks a package, or computes wrongly.
    """
    try:
        import gpu

        importlib.import_module("compress.studies.run")
    except ImportError as error:
        raise CompressError(f"{error}; put the wheel of what is missing into {options.packed / 'wheels'}") from None
    quiet_libraries()
    gpu.check_setup(options.device)
    gpu.measure_peaks(options.device, 1)
    kinds = argparse.Namespace(runtime=["torch", "torch-bfloat16"], device=options.device, threads=1, seconds=CHECK_S)
    teacher = teachers(options, packed) / packed["teacher"]["name"]
    if not teacher.is_dir():  # in float32, so that a student's size is compared with that of the teacher in files
        working = teacher.with_name(".unpacking")
        shutil.rmtree(working, ignore_errors=True)  # of a window that ended meanwhile
        convert(options.packed / "teacher" / teacher.name, working, "float32").rename(teacher)
    rows = test_rows(recipe, options.packed)
    checks = gpu.check_model(teacher, rows, (1, 32), kinds, gpu.Clock(CHECK_S), options.work)
    if wrong := [f"{check.runtime}: {check.problem}" for check in checks if check.problem]:
        raise CompressError(f"this machine computes the teacher wrongly: {'; '.join(wrong)}")


def teachers(options: argparse.Namespace, packed: dict[str, Any]) -> Path:
    return Path(options.work) / f"{packed['identity']}-teacher"


def in_order(
    names: Sequence[str], known: dict[str, Any], options: argparse.Namespace, packed: dict[str, Any]
) -> list[str]:
    """Return the rows to make: begun ones whose work is still here, then new ones, then those that were stopped."""

    def turn(name: str) -> int:
        work = options.work / packed["identity"]
        return -1 if (work / name).exists() else name in known

    over = ("done",) if options.only else ("done", "failed")
    return sorted((name for name in names if known.get(name, {}).get("status") not in over), key=turn)


def run_until(end: float, command: Sequence[str], environment: dict[str, str]) -> str:
    """Run a command and everything that it starts until a time at most; return what went wrong."""
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    RUNNING.add(process.pid)
    try:
        code = process.wait(max(0.0, end - time.monotonic()))
        return f"its process ended with code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return "the window ended"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its benchmark has processes of its own
        process.wait()
        RUNNING.remove(process.pid)


def make_row(options: argparse.Namespace) -> None:
    """Make and measure one row, and write what came of it beside the results so far."""
    from compress.cli.printing import set_up_messages
    from compress.host import without_home
    from compress.inference.threads import available_cores
    from compress.requests.training import run

    set_up_messages(logging.INFO)
    begun = time.monotonic()
    packed = read_packed(options.packed)
    folders = {"data_root": options.packed / "data", "model_root": teachers(options, packed)}
    how: dict[str, Any] = {"status": "done"}
    try:
        recipe, student = of_one_row(planned(options.study, packed["budget"]), options.row)
        teacher = replace(recipe.teacher, recipe="", model=packed["teacher"]["name"], quantize=False)
        beside = {
            "baselines": False,
            "competitors": (),
            "reference_models": (),
            "padded_teacher": False,
            "runtimes": ("torch",),
        }
        measuring = replace(recipe.benchmark, time_limit=min(MEASURE_S, recipe.benchmark.time_limit), **beside)
        study = run(
            replace(recipe, teacher=teacher, benchmark=measuring),
            options.work / packed["identity"] / options.row,
            **folders,
            budget=packed["budget"],
            only=(options.row,),
            device=options.device,
            threads=max(1, len(available_cores()) // options.at_once),
            progress=for_terminal(),
        )
        how |= keep_results(study, options.out / RESULTS_NAME, {options.row: student})
    except Exception as error:  # whatever it is, the next row is still worth making
        traceback.print_exc()
        how |= {"status": "failed", "error": without_home(f"{type(error).__name__}: {error}")[:1000]}
    record(options, options.row, packed, seconds=time.monotonic() - begun, **how)


def keep_results(study: Path, target: Path, recipes_of: Mapping[str, str]) -> dict[str, Any]:
    """Add the lines of a study that are new, and return how its models' trainings went and what its stages took.

    Args:
        recipes_of: what recipes are called in the whole study.
    """
    from compress.benchmarking.results.files import Results, write_results
    from compress.models.manifest import METRICS_NAME
    from compress.requests.training import RESULTS_NAME as MADE_NAME
    from compress.studies.journal import JOURNAL_NAME

    same, made = attrgetter(*SAME_LINE), Results.open(study / MADE_NAME)
    made = [replace(line, recipe=recipes_of.get(line.recipe, line.recipe)) for line in made]
    with in_turn(target):
        lines = Results.open(target) if target.is_file() else []
        there = set(map(same, lines))
        write_results(target, [*lines, *(line for line in made if same(line) not in there)])
    stages = json.loads((study / JOURNAL_NAME).read_text(encoding="utf-8"))
    files = {line.model: study / line.model / METRICS_NAME for line in made}
    return {
        "stages": {name: stages[name]["seconds"] for name in ("labels", *files) if name in stages},
        "metrics": {name: json_lines(file) for name, file in files.items() if file.is_file()},
    }


def json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def read_rows(out: Path) -> dict[str, Any]:
    """Return how each row went; of several tries the last."""
    return {row["row"]: row for row in json_lines(out / ROWS_NAME)}


def record(
    options: argparse.Namespace, name: str, packed: dict[str, Any], status: str, seconds: float, **more: Any
) -> dict[str, Any]:
    row = {"row": name, "packed": packed["identity"], "status": status, "seconds": round(seconds, 1), **more}
    with in_turn(options.out / ROWS_NAME):
        rows = {**read_rows(options.out), name: row}
        write_json_lines(options.out / ROWS_NAME, rows.values())
    return row


def summarize(names: Sequence[str], known: dict[str, Any], options: argparse.Namespace) -> None:
    """Say what is done, what failed, what is left, and how to go on."""
    by_status: dict[str, list[str]] = {}
    for name in names:
        by_status.setdefault(known.get(name, {}).get("status", "not begun"), []).append(name)
    for status, those in by_status.items():
        print(f"{status}: {', '.join(those)}")
    for name in by_status.get("failed", ()):
        print(f"{name}: {known[name]['error']}; --only {name} tries it again")
    if by_status.keys() - {"done", "failed"}:
        print(f"go on: python benchmarks/gpu_window.py {shlex.join(options.typed)}")


def mebibytes(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 2**20


if __name__ == "__main__":
    sys.exit(main())
