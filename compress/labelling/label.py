"""Labelling stage: run the teacher once over unlabelled text and store its logits."""

import hashlib
import importlib
import itertools
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from transformers import PreTrainedTokenizerFast

from compress.data import ContentFingerprint, Example, TextSource, among, batched, content_sha256, data_entry, row_key
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.tokenization import check_length, maximum_length, tokenizer_sha256
from compress.data.truncation import count_stream, counting
from compress.data.windows import READS_WHOLE, Windows
from compress.errors import CompressError, first_line, interruptions, refuse, system_fault
from compress.escaping import is_uri
from compress.exporting.export import has_exporter
from compress.files import write_atomically
from compress.inference.batching import BATCH_ROWS, Run, logits_of, open_runtime
from compress.inference.compute import Compute, resolve_device, supports_bfloat16
from compress.inference.speedup_intervals import speedup
from compress.inference.threads import default_threads, using_threads
from compress.labelling.label_dir import (
    ROWS_ASKED,
    SHARD_ROWS,
    UNANSWERED,
    LabelDir,
    answer_notes,
    count_truncated,
    kept_entry,
    shard_is_done,
    shard_number,
    write_shard,
)
from compress.labelling.parts import DRAFT_NAME, close_shards, take_up
from compress.labelling.remote_labels import keep_copy, open_target, upload, work_place
from compress.labelling.selection import ChosenTexts, KeptRows, without_near_copies
from compress.models.manifest import MANIFEST_NAME, Manifest, cached_json, is_whole, keep
from compress.models.model_dir import Model
from compress.models.output_dir import PREPARED
from compress.progress import Advance, Progress, logger, silent
from compress.requests.compression import export
from compress.requests.labelling import Label
from compress.tasks import Task

PLAN_NAME = "plan.json"
TEACHER_ONNX = "teacher-onnx"
COMPARED_ROWS = 512
ROUNDS = 3
LEAST_AGREEMENT = 0.99  # share of rows with the same label
MOST_DIFFERENCE = 0.02  # root mean square of the logits' difference, as a share of the logits' standard deviation


@dataclass(frozen=True)
class Plan:
    """Everything that the bytes of the logits depend on; written at the first start and reused on resume."""

    runtime: str
    device: str
    threads: int
    max_length: int
    precision: str = "float32"
    reason: str = ""  # of a precision that was chosen by measurement
    batch_rows: int = BATCH_ROWS
    shard_rows: int = SHARD_ROWS
    windows: str = ""


@dataclass(frozen=True)
class Job:
    """What an engine needs to run the teacher. What serves the work alone, such as an export, lies in ``scratch``."""

    plan: Plan
    model: Model
    tokenizer: PreTrainedTokenizerFast
    scratch: Path

    def answers(
        self, examples: Sequence[Example], run: Run, advance: Advance = lambda rows: None
    ) -> tuple[np.ndarray, int]:
        """Return the logits of a shard, whose rows share batches: its bytes depend on no other shard.

        The number is that of the rows that were cut.
        """
        with counting() as truncation:
            logits = logits_of(
                examples,
                run,
                self.tokenizer,
                max_length=self.plan.max_length,
                batch_rows=self.plan.batch_rows,
                by_word=self.model.task.by_word,
                windows=self.model.windows,
                advance=advance,
            )
        return logits, truncation.cut_rows(examples)


Shard = tuple[int, list[Example]]  # the number of a shard in the whole text, and its rows
# Shards with their logits, and what else the record of each says.
Labelled = Generator[tuple[int, list[Example], np.ndarray, dict[str, Any]], None, None]


class Engine:
    """Runs the teacher over the shards of a text: in this process, one after the other."""

    elsewhere = False  # whether the teacher runs on other machines than this one
    threads = 0  # how many threads the teacher has where none are asked for; 0 for one a free core

    def run(self, job: Job, shards: Iterator[Shard], advance: Advance) -> Labelled:
        """Yield each shard with its logits and the number of rows that were cut, in any order; ``advance`` by rows."""
        run = start_runtime(job.plan, job.model, job.scratch)
        for number, examples in shards:
            logits, cut = job.answers(examples, run, advance)
            yield number, examples, logits, {"truncated": cut}


class LocalTeacher:
    """A model directory that an engine runs.

    Attributes:
        models: parents of the labels, by role.
        described: fields of the manifest that no parent gives.
        opened: what else decides the result.
        identity: what the record of every shard says of the teacher.
        ended: whether it stopped before the text did.
    """

    plan_type = Plan
    ended = False

    def __init__(self, request: Label) -> None:
        engine = request.engine
        if engine == "local":
            engine = Engine()
        elif engine == "ray":
            module = importlib.import_module("compress.labelling.ray_engine")  # which imports this one
            engine = module.RayEngine(request.ray_address or "", request.workers or 0)
        refuse(
            (
                request.precision == "auto" and engine.elsewhere,
                "precision auto compares on this machine, and the teacher runs on others; use float32 or bfloat16",
            )
        )
        self.request, self.engine = request, engine
        self.model = Model.open(request.teacher).with_windows(request.windows)
        check_length(request.max_length, self.model.tokenizer, self.model.config, self.model.name)
        self.task, self.models = self.model.task, {"teacher": self.model}
        self.described, self.opened = dict[str, Any](), {"device": request.device, "threads": request.threads}
        self.identity = {
            "teacher_sha256": self.model.sha256,
            "tokenizer_sha256": tokenizer_sha256(self.model.tokenizer),
        }

    def judge(self) -> None:
        """A model that is here is judged by other commands."""

    def make_plan(self, unlabeled: TextSource, scratch: Path) -> Plan:
        request, model, tokenizer = self.request, self.model, self.model.tokenizer
        plan = plan_for(
            model,
            tokenizer,
            replace(request.compute, threads=request.threads or self.engine.threads),
            max_length=request.max_length or 0,
            precision=request.precision.replace("auto", "float32"),
            elsewhere=self.engine.elsewhere,
        )
        rows = list(unlabeled.sample(COMPARED_ROWS)) if request.precision == "auto" else []
        if not rows:
            return plan
        with request.progress("Comparing float32 and bfloat16", None):
            return _faster_plan(plan, model, tokenizer, rows, scratch)

    def run(self, plan: Plan, scratch: Path, shards: Iterator[Shard], advance: Advance) -> Labelled:
        """Yield each shard as :meth:`Engine.run` does."""
        with using_threads(plan.threads):
            yield from self.engine.run(Job(plan, self.model, self.model.tokenizer, scratch), shards, advance)


def label(request: Label) -> Any:
    """Label every row of a text with the teacher's logits and return the label directory.

    Killed anywhere and started again with the same request, it goes on after the last whole shard and ends with the
    bytes of an undisturbed run, also after a time limit. Neither parts nor engines change the bytes of a shard. What
    goes to a URI is made in the cache and copied at the end.
    """
    begun, progress = time.monotonic(), request.progress
    teacher: Any = LocalTeacher
    if request.language_model:
        teacher = importlib.import_module("compress.labelling.language_model").LanguageModelTeacher
    teacher = teacher(request)
    part, parts = request.shard or (1, 1)
    unlabeled = cast(TextSource, request.open_text(rows=request.rows, read=teacher.task.row))
    choice: ChosenTexts | None = None
    if request.select or request.deduplicate:
        refuse((request.select and teacher.task.no_selection, teacher.task.no_selection))
        with progress("Looking for near copies", None):
            pool = unlabeled = without_near_copies(unlabeled)
        if request.select:
            choice = ChosenTexts(pool, request.select, request.rounds, request.seed or 0)
            unlabeled = choice.drawn(request.select)
    if request.dry_run:
        return teacher.estimate(unlabeled)
    teacher.judge()
    uri = str(request.output) if is_uri(str(request.output)) else ""
    local = replace(request, output=work_place(uri)) if uri else request
    with local.begin(teacher.models, unlabeled=unlabeled, **teacher.opened) as stage:
        target = open_target(uri, force=request.force) if uri else None
        prepared = stage.scratch / PREPARED
        if (stage.working / MANIFEST_NAME).is_file():  # of labels that ended early
            earlier = Manifest.read(stage.working / MANIFEST_NAME)
            keep(
                prepared / PLAN_NAME, {name: earlier.notes.get(name) for name in teacher.plan_type.__dataclass_fields__}
            )
            take_up(stage.working)
        asked_first = choice.drawn(choice.least_round) if choice else unlabeled
        planned = cached_json(prepared / PLAN_NAME, lambda: asdict(teacher.make_plan(asked_first, prepared)))
        plan = teacher.plan_type(**planned)
        if choice:  # a round is whole shards, as few as it needs
            shards_of_round = -(-choice.least_round // plan.shard_rows)
            plan = replace(plan, shard_rows=-(-choice.least_round // shards_of_round))
        # The timings in the reason differ each time.
        record = {**teacher.identity, "plan": asdict(replace(plan, reason=""))}
        fingerprint, order = ContentFingerprint(), hashlib.sha256()
        handed = dict[int, dict[str, Any]]()  # what the record of each shard says of what it is made from
        late, numbers = False, itertools.count()

        def missing(rows: TextSource) -> Iterator[Shard]:
            """Read rows, all of them for their fingerprint unless time is over, and yield the shards to be labelled."""
            nonlocal late
            for examples, number in zip(batched(fingerprint.watch(rows), plan.shard_rows), numbers, strict=False):
                made = {**record, "texts_sha256": content_sha256(examples)}
                order.update(bytes.fromhex(made["texts_sha256"]))
                if number % parts == part - 1 and not shard_is_done(stage.working, number, made):
                    late = (
                        bool(handed)
                        and request.time_limit is not None
                        and time.monotonic() - begun > request.time_limit
                    )
                    if late:
                        return
                    handed[number] = made
                    yield number, examples

        notes = asdict(plan) | (unlabeled.notes if isinstance(unlabeled, KeptRows) else {})
        classes = len(teacher.described.get("labels", stage.manifest.labels))
        rounds = choice.rounds_of(stage.working, plan.shard_rows, teacher.task, classes) if choice else [unlabeled]
        for texts in rounds:
            before, shards = fingerprint.rows, missing(texts)
            if first := next(shards, None):
                there = texts.count()  # what was labelled before this start is no part of this progress
                left = there and (before + there - first[0] * plan.shard_rows) // parts
                total = request.select or there or 0
                starts = range((part - 1) * plan.shard_rows, total, parts * plan.shard_rows)
                asked = sum(min(plan.shard_rows, total - start) for start in starts)
                entry = {"role": "unlabeled", "name": unlabeled.name, "rows": asked}
                described = {**teacher.described, "notes": {**notes, ROWS_ASKED: asked or None}}
                draft = replace(stage.manifest, kind="labels", data=(entry,), **described)
                write_atomically(prepared / DRAFT_NAME, draft.to_json())
                with (
                    progress("Labelling", left) as advance,
                    closing(teacher.run(plan, prepared, itertools.chain([first], shards), advance)) as labelled,
                ):
                    for number, examples, logits, about in labelled:
                        write_shard(stage.working, number, examples, logits, handed[number] | about, teacher.task)
                late = late or teacher.ended
            if late:
                break
        refuse((not fingerprint.rows, f"{unlabeled.name} holds no text; give a file with one text a line"))
        if (
            request.shard
        ):  # what tells that parts belong together; the fingerprint says nothing of the order of the rows
            own = {"tokenizer_sha256": teacher.identity["tokenizer_sha256"], "shards_sha256": order.hexdigest()}
            notes |= {"part": part, "parts": parts, **own}
        if late:
            close_shards(stage.working)
        else:
            for stale in stage.working.glob("shard-*"):  # of a longer text, where the file shrank between two starts
                if shard_number(stale) * plan.shard_rows >= fingerprint.rows:
                    stale.unlink()
            count_truncated(stage.truncation, stage.working.glob("shard-*.json"), plan.max_length)
            entry, left_out = data_entry("unlabeled", unlabeled.name, fingerprint), answer_notes(stage.working)
            if UNANSWERED in left_out and not request.shard:
                entry = kept_entry(stage.working, replace(stage.manifest, **teacher.described), unlabeled.name)
            stage.finish(kind="labels", data=(entry,), notes=notes | left_out, **teacher.described)
        if target:
            with progress("Copying the labels", None):
                upload(stage.working, target, force=request.force)
    logger.info("read: %s", unlabeled.describe())  # with the rows that were left out, which is known by now
    if target:
        keep_copy(stage.output)
    return LabelDir.open(uri or stage.output, part=bool(request.shard) and not late)


def teacher_logits(
    model: Model,
    examples: Sequence[Example],
    *,
    labels: Sequence[LabelDir] = (),
    compute: Compute = Compute(),
    max_length: int = 0,
    complete: bool = False,
    progress: Progress = silent,
) -> np.ndarray | list[np.ndarray]:
    """Return logits ``[N, C]`` in the order of the examples; the teacher runs for rows that ``labels`` lacks.

    Those of a tagger are one array ``[W, C]`` for each sentence.

    Args:
        complete: refuse rows that ``labels`` lacks, because these are not the teacher's and two sources would mix.
    """
    rows = [Example(example.text, example.text_pair) for example in examples]  # as label directories hold them
    keys = list(map(row_key, set(rows)))
    known: dict[Example, np.ndarray] = {}
    for directory in labels:
        known |= directory.shards.rows_at(np.flatnonzero(among(directory.keys, keys)))
    missing = [row for row in rows if row not in known]
    refuse(
        (
            missing and complete,
            f"{len(missing):,} of {len(rows):,} rows of train are not in the labels, and the logits of {model.name}, "
            "which did not make these labels, would mix with them; give labels of text that holds these rows too, or "
            "leave --train out",
        )
    )
    if missing:
        tokenizer = model.tokenizer
        plan = plan_for(model, tokenizer, compute, max_length=max_length)
        with (
            tempfile.TemporaryDirectory() as scratch,
            using_threads(plan.threads),
            progress("Labelling", len(missing)) as advance,
        ):
            job = Job(plan, model, tokenizer, Path(scratch))
            parts = [*Engine().run(job, enumerate(batched(missing, SHARD_ROWS)), advance)]
        count_stream(plan.max_length, len(missing), sum(about["truncated"] for *_, about in parts))
        logits = np.concatenate([logits for _, _, logits, _ in parts])
        known |= zip(missing, model.task.by_row(logits, missing), strict=True)
    return model.task.stacked([known[row] for row in rows])


def choose_runtime(model: Model, device: str, *, elsewhere: bool = False) -> tuple[str, str]:
    """Return ``(runtime, device)`` by a fixed rule, so that a resumed run computes what the first one did.

    torch on a GPU; on a CPU ONNX Runtime with fused attention where the model exports, else torch. A GPU that was asked
    for need not be on this machine where the model runs ``elsewhere``.
    """
    found = device if elsewhere and device == "cuda" else resolve_device(device)
    if model.is_onnx:
        return "onnxruntime", "cuda" if device == "cuda" else "cpu"
    if found == "cuda":
        return "torch", "cuda"
    return ("onnxruntime" if has_exporter(model) else "torch"), "cpu"


def plan_for(
    model: Model,
    tokenizer: PreTrainedTokenizerFast,
    compute: Compute = Compute(),
    *,
    max_length: int = 0,
    precision: str = "float32",
    elsewhere: bool = False,
) -> Plan:
    """Return the plan that the fixed rule gives on this host, or for others like it."""
    runtime, device = choose_runtime(model, compute.device, elsewhere=elsewhere)
    if precision == "bfloat16":
        refuse((model.is_onnx, f"--precision bfloat16 needs a torch teacher, and {model.name} is ONNX; use float32"))
        runtime = "torch"
    limit, windows = maximum_length(tokenizer, model.config), str(model.windows or "")
    refuse((windows and max_length, READS_WHOLE.format(model.name, windows)))
    limit = 0 if windows else min(max_length or limit, limit)
    return Plan(runtime, device, compute.threads or default_threads(), limit, precision, windows=windows)


def _faster_plan(
    plan: Plan, model: Model, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Example], scratch: Path
) -> Plan:
    """Return the plan in bfloat16 where that is faster here and close enough, else as it is; with the reason."""
    if model.is_onnx:
        return replace(plan, reason="an ONNX teacher has one precision")
    if not supports_bfloat16(plan.device):
        return replace(plan, reason="this hardware does not compute in bfloat16")
    half = replace(plan, runtime="torch", precision="bfloat16")
    with using_threads(plan.threads):
        runs = {one.precision: start_runtime(one, model, scratch) for one in (plan, half)}
        try:
            better, reason = compare_precisions(runs, rows, tokenizer, plan.max_length, model.task, model.windows)
        except (CompressError, RuntimeError) as error:  # in bfloat16, if not in both, which labelling says
            if interruptions or system_fault(error):
                raise
            better, reason = False, f"it fails in bfloat16 ({first_line(error)})"
    return replace(half if better else plan, reason=reason)


def start_runtime(plan: Plan, model: Model, scratch: Path) -> Run:
    """Load the model into the plan's runtime; an export that this needs lies in ``scratch`` and is reused."""
    options: dict[str, Any] = {"precision": plan.precision} if plan.runtime == "torch" else {}
    directory = runtime_directory(plan, model, scratch)
    return open_runtime(directory, plan.runtime, threads=plan.threads, device=plan.device, **options)


def runtime_directory(plan: Plan, model: Model, scratch: Path) -> Path:
    """Return the directory that the plan's runtime opens: the model's own, or an export in ``scratch``."""
    if plan.runtime != "onnxruntime" or model.is_onnx:
        return model.path
    directory = scratch / TEACHER_ONNX
    if not is_whole(directory):
        export(model, directory)
    return directory


def compare_precisions(
    runs: Mapping[str, Run],
    rows: Sequence[Example],
    tokenizer: AnyTokenizer,
    max_length: int,
    task: Task,
    windows: Windows | None = None,
) -> tuple[bool, str]:
    """Return whether the second run is to be used instead of the first, and why.

    Args:
        runs: two, by the names of their precisions.
        rows: labelled in turns by both, once to compare and to warm up and ``ROUNDS`` times to compare their speed.
        max_length: tokens a text is cut to.
    """

    def label(name: str) -> np.ndarray:
        return logits_of(rows, runs[name], tokenizer, max_length=max_length, by_word=task.by_word, windows=windows)

    exact, rounded = runs
    reference = label(exact)
    try:
        close, found = is_close(reference, label(rounded))
    except CompressError as error:
        return False, f"{rounded} fails: {error}"
    if not close:
        return False, f"{rounded} {found}"
    samples: dict[str, list[list[float]]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name in runs:
            started = time.perf_counter()
            label(name)
            samples[name].append([1000 * (time.perf_counter() - started)])
    ratio = speedup(samples[exact], samples[rounded])
    return ratio.low > 1, f"{rounded} is x{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) as fast and {found}"


def is_close(exact: np.ndarray, rounded: np.ndarray) -> tuple[bool, str]:
    """Return whether logits ``[N, C]`` are near enough to exact ones, and how near they are, for a sentence."""
    answered = np.isfinite(exact).all(axis=1)  # words that were cut off have no logits
    exact, rounded = exact[answered], rounded[answered]
    spread = max(float(exact.std()), float(np.finfo(np.float32).tiny))
    difference = float(np.sqrt(np.square(exact - rounded).mean())) / spread
    found = f"logits that differ by {difference:.2%}"
    if exact.shape[1] == 1:
        return difference <= MOST_DIFFERENCE, f"gives {found}"
    same = float((exact.argmax(axis=1) == rounded.argmax(axis=1)).mean())
    found = f"gives the same label in {same:.1%} of {len(exact):,}, with {found}"
    return same >= LEAST_AGREEMENT and difference <= MOST_DIFFERENCE, found
