"""Run a study from data to report; a second run resumes it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from compress import recipes
from compress.benchmarking.benchmark import BenchmarkOutput, benchmark
from compress.data import ExampleSource, LabelledData, TextSource, describe_rows, join_sources
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import METRICS_NAME, file_sha256
from compress.models.model_dir import ModelDir, removals_of
from compress.progress import Progress, logger, silent
from compress.pruning.prune import RECOVERY, PruningData, prune
from compress.quantization.candidates import Quantization, default_method, needs_training_rows
from compress.quantization.quantize import quantize
from compress.recipes import (
    StudentRecipe,
    StudyPrune,
    StudyRecipe,
    deciding,
    replace_training,
    resolved,
)
from compress.recipes.student import control_key
from compress.reporting.curves import CURVE_NAME
from compress.requests.labelling import label
from compress.requests.reporting import report
from compress.requests.training import Distill, Finetune
from compress.studies.data import StudyRows, open_study_rows
from compress.studies.journal import Stages
from compress.studies.plan import (
    PlannedStudent,
    StudySettings,
    announcement,
    check_only,
    choose_budget,
    command,
    control_names,
    planned_students,
    pruned_name,
    within_budget,
)
from compress.training.distill import CONTROL_PHASES, distill
from compress.training.encoders import encoder_of
from compress.training.finetune import finetune
from compress.training.training_data import augmented, one_of

RESULTS_NAME = "results.jsonl"
REPORT_NAME = "report"


class FailedRows(CompressError):
    """Some models of a study could not be made; the others are measured and reported."""


def run(
    study: StudyRecipe | str,
    output: str | Path,
    *,
    settings: StudySettings = StudySettings(),
    compute: Compute = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> Path:
    """Run a study: teacher, labels, students and their controls, pruning, int8, benchmark, report.

    A student that cannot be trained does not keep the others from being trained, measured and reported.

    Args:
        study: a recipe, or its name or file.
        settings: directories of data and models, and what part of the study to run.
        compute: where and how; the seed is the study's own.

    Returns:
        the study's directory, with ``results.jsonl`` and ``report/``.

    Raises:
        FailedRows: after everything else is done.
        CompressError: for anything about the request that the user can put right.
    """
    whole = recipes.load_recipe("benchmarks", study) if isinstance(study, str) else study
    budget = choose_budget(whole, settings.budget)
    recipe = within_budget(whole, budget)
    students = planned_students(recipe)  # a fault in any recipe shows before the first hour
    check_only(settings.only, recipe, students)
    for pruning in recipe.prune:
        replace_training(RECOVERY, pruning.training, source=f"{recipe.name}: prune {pruned_name(pruning)}")
    settings = replace(settings, budget=budget)
    with Stages.open(output, force) as stages:
        typed = f"compress run {Path(study).name if isinstance(study, str) else study.name}"
        _make(typed, recipe, students, stages, settings, replace(compute, seed=recipe.seed), progress)
    return stages.directory


def _make(
    typed: str,
    recipe: StudyRecipe,
    students: Sequence[PlannedStudent],
    stages: Stages,
    settings: StudySettings,
    compute: Compute,
    progress: Progress,
) -> None:
    """Make what a study names, measure it with what was made before, and write the report."""
    logger.info("%s", announcement(recipe, students, settings))
    with stages.making():
        rows = open_study_rows(recipe, stages, Path(settings.data_root) if settings.data_root else None)
        work = Study(recipe, stages, rows, settings, compute, progress, control_names(students))
        opened, models = work.teacher()
        labels = [work.labels(opened)]
        if recipe.teacher.quantize:
            models.append(work.quantized(opened, "teacher"))

        def plan(stages: Stages) -> dict[str, Iterator[Callable[[], Path]]]:
            return replace(work, stages=stages).students(opened, labels, students)

        failed = stages.make_all(plan, settings.only)
    causes = ExceptionGroup("what failed", [*failed.values()]) if failed else None
    with stages.measuring():
        found = stages.found(plan)
        if not found:
            raise CompressError(_failures(failed, "nothing was measured")) from causes
        models += dict.fromkeys(chain.from_iterable(found.values()))  # students share controls
        said = command(typed, recipe, settings, found)
        results = work.measured(opened, [ModelDir.open(path) for path in models], said)
        drawn = [path / name for path in (opened.path, *models) for name in (METRICS_NAME, CURVE_NAME)]
        curves = [file for file in drawn if file.is_file()]
        stages.make(
            REPORT_NAME,
            {"results": file_sha256(results)},
            lambda path: report([results], path, curves=curves, title=recipe.title, force=True),
            gathers=True,
        )
    if failed:
        raise FailedRows(_failures(failed, f"the others are in {stages.directory / REPORT_NAME}")) from causes


@dataclass(frozen=True)
class Study:
    """A study under way. Each method makes one kind of stage, or finds it made before.

    ``recipe`` is within the budget of ``settings``, which results name; ``controls`` are the names of controls by key.
    """

    recipe: StudyRecipe
    stages: Stages
    rows: StudyRows
    settings: StudySettings
    compute: Compute
    progress: Progress
    controls: Mapping[str, str] = field(default_factory=dict)

    @property
    def labelled(self) -> LabelledData:
        return LabelledData(self.rows.train, self.rows.validation, self.recipe.benchmark.metric or None)

    def _training(self, data: PruningData, seed: int) -> dict[str, Any]:
        return {"data": data, "compute": replace(self.compute, seed=seed), "progress": self.progress}

    def _asked(self, seed: int) -> dict[str, Any]:
        """Return the fields that all trainings of the study share."""
        rows = {"train": self.rows.train, "validation": self.rows.validation, "metric": self.labelled.metric}
        return {**rows, **vars(self.compute), "seed": seed, "progress": self.progress}

    @property
    def spent(self) -> dict[str, str]:
        """What the budget and the precision add to the inputs of a stage."""
        return self.compute.asked | ({"budget": self.settings.budget} if self.settings.budget else {})

    def teacher(self) -> tuple[ModelDir, list[Path]]:
        """Return the teacher, and models that are only measured beside it."""
        wanted = self.recipe.teacher
        given = self.settings.teacher
        if wanted.model and not given:
            if self.settings.model_root is None:
                raise CompressError(
                    f"the study's teacher is the model {wanted.model!r}, but not where models lie: give --model-root "
                    "or set COMPRESS_MODELS, or another teacher with --teacher DIR"
                )
            given = Path(self.settings.model_root) / wanted.model
        if given and not (wanted.recipe and wanted.model):
            return ModelDir.open(given), []
        base = recipes.load_recipe("teachers", wanted.recipe)
        done = self.stages.done()
        if "labels" in done and not {"teacher", "finetuned"} & set(done) and not self.stages.force:
            raise CompressError(
                f"{self.stages.directory} was begun with another teacher, --teacher DIR: give it again, or choose "
                "another -o"
            )
        source = f"{self.recipe.name}: teacher {wanted.recipe}"
        training = replace_training(base.training, wanted.training, source=source)
        made = self.stages.make(
            "finetuned" if wanted.model else "teacher",
            {
                "recipe": deciding(base),
                "training": asdict(training),
                "data": self.rows.described(),
                "seed": self.recipe.seed,
                **self.compute.asked,
            },
            lambda path: finetune(Finetune(base, path, training=training, **self._asked(self.recipe.seed))),
        )
        return (ModelDir.open(given), [made]) if given else (ModelDir.open(made), [])

    def _pool_inputs(self, teacher: ModelDir) -> dict[str, Any]:
        """Return what labels of the pool are made from. What was dropped from it depends on the held-out sets."""
        pool = {
            "sets": [deciding(part) for part in self.recipe.data.unlabeled],
            "dropped_for": describe_rows({"test": self.rows.test}),
            "content": self.rows.unlabeled_sha256,
        }
        precision = self.recipe.teacher.precision
        other = {"precision": precision} if precision != "float32" else {}
        return {"teacher": teacher.sha256, "pool": pool, "validation": self.rows.described(), **other}

    def _label(self, teacher: ModelDir, rows: TextSource, path: Path) -> LabelDir:
        placed: dict[str, Any] = {"device": self.compute.device, "threads": self.compute.threads}
        precision: Any = self.recipe.teacher.precision
        labels: LabelDir = label(teacher, rows, path, precision=precision, progress=self.progress, **placed)
        return labels

    def labels(self, teacher: ModelDir) -> LabelDir:
        """Label the pool and the gold rows once for all students."""
        make = partial(self._label, teacher, self._text())
        return LabelDir.open(self.stages.make("labels", {**self._pool_inputs(teacher), "gold": True}, make))

    def _text(self) -> TextSource:
        """Return the pool, where there is one, and the gold rows."""
        train = ExampleSource(self.rows.train, "train")
        return join_sources([self.rows.unlabeled, train] if self.recipe.data.unlabeled else [train])

    def variant_labels(self, teacher: ModelDir, student: StudentRecipe) -> tuple[LabelDir, ...]:
        """Label the variants of the pool that a student's recipe asks for; nothing where it asks for none."""
        augmentation = student.augmentation
        if not augmentation:
            return ()
        inputs = {**self._pool_inputs(teacher), "augmentation": asdict(augmentation), "seed": self.recipe.seed}

        def make(path: Path) -> LabelDir:
            if any(phase.teacher == "encoder" for phase in student.phases):
                encoder_of(teacher)  # where it is not there, the student cannot be made, and needs no labels
            variants = augmented(
                self.rows.unlabeled,
                augmentation,
                teacher,
                teacher.tokenizer,
                seed=self.recipe.seed,
                held_out=one_of(chain(self.rows.validation, self.rows.test)),
                originals=False,
            )
            return self._label(teacher, variants, path)

        return (LabelDir.open(self.stages.make(f"{student.name}-variants-labels", inputs, make)),)

    def students(
        self, teacher: ModelDir, labels: Sequence[LabelDir], students: Sequence[PlannedStudent]
    ) -> dict[str, Iterator[Callable[[], Path]]]:
        """Return for each student and pruned model what makes its directories, in their order."""
        planned = {student.name: self.student(teacher, labels, student) for student in students}
        return planned | {pruned_name(plan): self.pruned(teacher, labels, plan) for plan in self.recipe.prune}

    def student(
        self, teacher: ModelDir, labels: Sequence[LabelDir], student: PlannedStudent
    ) -> Iterator[Callable[[], Path]]:
        """Train a student and its control, once for each seed, and make the first one int8.

        A control that another student has too is trained once.
        """
        plan = student.plan
        variants = self.variant_labels(teacher, student.recipe)
        train = partial(self._trained, teacher, labels, variants, student.recipe)
        for name, seed in student.trainings:
            yield partial(train, name, seed=seed, rows=plan.rows)
            if plan.control:
                yield partial(train, self.controls[student.control_key(seed)], seed=seed, control=True)
        if plan.quantize:
            method = plan.quantize if isinstance(plan.quantize, str) else None
            yield lambda: self.quantized(self.stages.made(student.name), student.name, method, plan.keep_fp32)

    def _trained(
        self,
        teacher: ModelDir,
        labels: Sequence[LabelDir],
        variants: Sequence[LabelDir],
        student: StudentRecipe,
        name: str,
        *,
        seed: int,
        control: bool = False,
        rows: int = 0,
    ) -> Path:
        if control:  # what only the student's own training reads must not tell one control from another
            student = replace(student, phases=CONTROL_PHASES, missing=(), published=(), survey=())
        inputs = {
            "teacher": teacher.sha256,
            "recipe": control_key(resolved(student), seed) if control else deciding(student),
            "data": self.rows.described(),
            "labels": [directory.manifest.files for directory in (*labels, *variants)],
            "control": control,
            "seed": seed,
            **({"rows": rows} if rows else {}),
            **self.spent,
        }

        def make(path: Path) -> None:
            asked = self._asked(seed)
            distill(
                Distill(teacher, student, path, labels=labels, variants=variants, rows=rows, control=control, **asked)
            )

        return self.stages.make(name, inputs, make)

    def pruned(self, teacher: ModelDir, labels: Sequence[LabelDir], plan: StudyPrune) -> Iterator[Callable[[], Path]]:
        """Prune the teacher as planned, recover, and quantize."""
        name = pruned_name(plan)
        training = replace_training(RECOVERY, plan.training, source=f"{self.recipe.name}: prune {name}")
        inputs = {
            "teacher": teacher.sha256,
            "plan": asdict(plan),
            "training": asdict(training),
            "labels": [directory.manifest.files for directory in labels],
            "data": self.rows.described(),
            "seed": self.recipe.seed,
            **self.spent,
        }
        data = PruningData(
            self.rows.train,
            self.rows.validation,
            self.labelled.metric,
            vocabulary=self._text() if plan.vocabulary else None,
            labels=labels if plan.recover else (),
            training=training,
        )
        # The benchmark measures.
        make = partial(prune, teacher, plan.pruning, measure=False, **self._training(data, self.recipe.seed))
        yield partial(self.stages.make, name, inputs, make)
        if plan.quantize:
            yield lambda: self.quantized(self.stages.made(name), name)

    def quantized(self, model: ModelDir, name: str, method: str | None = None, keep_fp32: int = 0) -> Path:
        """Quantize a model as it was trained to be, or by another method."""
        chosen = method or default_method(model)
        # Timed as the benchmark will time it: int8 that wins on all cores may lose on one.
        threads = self.recipe.benchmark.thread_counts[0]
        train = self.rows.train if needs_training_rows(model, method, keep_fp32) else ()
        inputs = {
            "model": model.sha256,
            "validation": describe_rows({"validation": self.rows.validation}),
            **({"train": describe_rows({"train": train})} if train else {}),
            "metric": self.labelled.metric,
            "threads": threads,
            **({"method": method, "keep_fp32": keep_fp32} if method or keep_fp32 else {}),
        }
        make = partial(
            quantize,
            model,
            quantization=Quantization(method, keep_fp32=keep_fp32),
            data=replace(self.labelled, train=train),
            compute=Compute(threads=threads),
            progress=self.progress,
        )
        return self.stages.make(f"{name}-{'packed' if chosen == 'packed' else 'int8'}", inputs, make)

    def measured(self, teacher: ModelDir, models: Sequence[ModelDir], command: str) -> Path:
        """Measure everything in one run and return the results file, which says the command."""
        settings = self.recipe.benchmark
        pruning_steps = settings.pruning_steps and any(len(removals_of(model)) > 1 for model in models)
        if settings.pruning_steps and not pruning_steps:  # with --only, or where a target took no more
            logger.warning("no removals are taken apart: none of these models had two")
        inputs = {
            "teacher": teacher.sha256,
            "models": [model.sha256 for model in models],
            "benchmark": asdict(settings),
            "device": self.compute.device,
            "test": describe_rows({"test": self.rows.test}),
            "train": describe_rows({"train": self.rows.train}),
            **self.spent,
        }
        device = "cpu" if self.compute.device == "auto" else self.compute.device

        def make(path: Path) -> None:
            benchmark(
                teacher,
                models,
                self.rows.test,
                replace(settings, pruning_steps=pruning_steps),
                train=self.rows.train,
                compute=Compute(device, seed=self.recipe.seed),
                output=BenchmarkOutput(
                    path,
                    force=True,
                    study=self.recipe.name,
                    budget=self.settings.budget,
                    data_name=self.rows.data_name,
                    command=command,
                    progress=self.progress,
                ),
            )

        return self.stages.make(RESULTS_NAME, inputs, make, gathers=True)


def _failures(failed: Mapping[str, Exception], otherwise: str) -> str:
    """Say what failed and why."""
    said = "; ".join(f"{name} ({str(error).strip() or type(error).__name__})" for name, error in failed.items())
    return f"failed: {said}; {otherwise}, and the same command tries again what failed"
