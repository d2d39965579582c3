"""Run a study from data to report; a second run resumes it. A study is requests whose inputs are other requests."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

from compress import recipes
from compress.benchmarking.benchmark import BenchmarkOutput, benchmark
from compress.benchmarking.lockfile import lock_path
from compress.data import ExampleSource, TextSource, content_sha256, join_sources
from compress.errors import CompressError, PartlyMade, refuse
from compress.fields import fields_of
from compress.inference.compute import Compute
from compress.labelling.label_dir import LabelDir
from compress.models.encoders import encoder_of
from compress.models.manifest import METRICS_NAME, file_sha256
from compress.models.model_dir import Model, removals_of
from compress.progress import logger
from compress.pruning.prune import RECOVERY
from compress.quantization.quantize import default_method, needs_training_rows
from compress.recipes import UNPUBLISHED, Pruning, StudentRecipe, StudyPrune, StudyRecipe, deciding, replace_training
from compress.reporting.curves import CURVE_NAME
from compress.reporting.report import PAGES
from compress.requests.compression import Prune, Quantize
from compress.requests.labelling import Label
from compress.requests.measuring import report
from compress.requests.training import REPORT_NAME, RESULTS_NAME, Distill, Finetune, Run
from compress.studies.data import StudyRows, open_study_rows
from compress.studies.journal import Stages
from compress.studies.plan import (
    PlannedStudent,
    announcement,
    check_only,
    choose_budget,
    command,
    control_names,
    planned_students,
    pruned_name,
    within_budget,
)
from compress.training.distill import CONTROL_PHASES
from compress.training.training_data import augmented, one_of


def run(request: Run) -> Path:
    """Run a study: teacher, labels, students and their controls, pruning, int8, benchmark, report.

    A student that cannot be trained does not keep the others from being trained, measured and reported.

    Returns:
        the study's directory, with ``results.jsonl`` and ``report/``.

    Raises:
        PartlyMade: some models could not be made; after everything else is done.
        CompressError: for anything about the request that the user can put right.
    """
    compute = request.compute  # a tracker that is not installed shows first
    whole = recipes.load_recipe("benchmarks", request.study) if isinstance(request.study, str) else request.study
    request = replace(request, budget=choose_budget(whole, request.budget))
    recipe = within_budget(whole, request.budget)
    students = planned_students(recipe)  # a fault in any recipe shows before the first hour
    check_only(request.only, recipe, students)
    with Stages.open(str(request.output), request.force) as stages:
        logger.info("%s", announcement(recipe, students, request))
        study = Study(request, recipe, stages, compute)
        with stages.making():
            teacher, models = study.teacher()
            labels = study.opened(study.labels(teacher), stages)
            if recipe.teacher.quantize:
                models.append(study.path(study.quantized(teacher, "teacher"), stages))
            rows = study.parts(teacher, labels, students)
            failed = stages.make_all(rows, request.only)
        causes = ExceptionGroup("what failed", [*failed.values()]) if failed else None
        with stages.measuring():
            found = stages.found(rows)
            if not found:
                raise CompressError(_failures(failed, "nothing was measured")) from causes
            models += dict.fromkeys(chain.from_iterable(found.values()))  # students share controls
            results = study.measured(teacher, [Model.open(path) for path in models], command(request, recipe, found))
            drawn = [path / name for path in (teacher.path, *models) for name in (METRICS_NAME, CURVE_NAME)]
            curves = [file for file in drawn if file.is_file()]

            def write(path: Path) -> None:
                for page in PAGES:  # of an earlier run; what else lies there is somebody's own
                    (path / page).unlink(missing_ok=True)
                report([results], path, curves=curves, title=recipe.title)

            stages.make(REPORT_NAME, {"results": file_sha256(results)}, write, gathers=True)
        if failed:
            raise PartlyMade(
                _failures(failed, f"the others are in {stages.directory / REPORT_NAME}"), stages.directory
            ) from causes
    return stages.directory


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a study: a request whose inputs may be other parts.

    Args:
        name: of its directory; where only the request tells it, what returns it.
        inputs: parts, and what is open already, which ``request`` takes opened.
        request: returns the request, but for its output.
        decides: what decides the result beside the fields of the request, or in place of them.
        complete: adds to the request what is not needed to know whether it was made before.
    """

    name: str | Callable[[Any], str]
    inputs: Sequence[Any]
    request: Callable[..., Any]
    decides: Mapping[str, Any] = field(default_factory=dict)
    complete: Callable[[Any], Any] = lambda request: request


@dataclass(frozen=True)
class Study:
    """A study under way, within the budget of its request."""

    request: Run
    recipe: StudyRecipe
    stages: Stages
    compute: Compute = Compute()

    @cached_property
    def rows(self) -> StudyRows:
        root = self.request.data_root or os.environ.get("COMPRESS_DATA")
        return open_study_rows(self.recipe, self.stages, Path(root) if root else None)

    @cached_property
    def text(self) -> TextSource:
        """The pool, where there is one, and the gold rows."""
        train = ExampleSource(self.rows.train, "train")
        return join_sources([self.rows.unlabeled, train] if self.recipe.data.unlabeled else [train])

    @cached_property
    def text_sha256(self) -> list[str]:
        return [content_sha256(self.rows.unlabeled), content_sha256(self.rows.train)]  # takes seconds of a large pool

    @property
    def budget(self) -> dict[str, str]:
        return {"budget": self.request.budget} if self.request.budget else {}

    def path(self, part: Part, stages: Stages) -> Path:
        """Make a part, or find it made before."""
        return self._made(part, stages)[1]

    def opened(self, part: Any, stages: Stages) -> Any:
        """Make a part and open it; what is no part is open."""
        if not isinstance(part, Part):
            return part
        request, path = self._made(part, stages)
        return request.open_made(path)

    def _made(self, part: Part, stages: Stages) -> tuple[Any, Path]:
        request = part.request(*(self.opened(one, stages) for one in part.inputs))
        name = part.name if isinstance(part.name, str) else part.name(request)
        key = request.key(**part.decides)
        return request, stages.make(name, key, lambda path: part.complete(replace(request, output=path)).run())

    def trained(self, seed: int) -> dict[str, Any]:
        """Return the fields that all trainings of the study share: rows, and where and how they compute."""
        return {
            "train": self.rows.train,
            "validation": self.rows.validation,
            "metric": self.recipe.benchmark.metric,
            **vars(replace(self.compute, seed=seed)),
            "progress": self.request.progress,
        }

    def teacher(self) -> tuple[Model, list[Path]]:
        """Return the teacher, and models that are only measured beside it."""
        wanted, given = self.recipe.teacher, self.request.teacher
        if wanted.model and not given:
            root = self.request.model_root or os.environ.get("COMPRESS_MODELS")
            if root is None:
                raise CompressError(
                    f"the study's teacher is the model {wanted.model!r}, but not where models lie: give --model-root "
                    "or set COMPRESS_MODELS, or another teacher with --teacher DIR"
                )
            given = Path(root) / wanted.model
        if given and not (wanted.recipe and wanted.model):
            return Model.open(given), []
        base = recipes.load_recipe("teachers", wanted.recipe)
        done = self.stages.done()
        refuse(
            (
                "labels" in done and not {"teacher", "finetuned"} & set(done) and not self.stages.force,
                f"{self.stages.directory} was begun with another teacher, --teacher DIR: give it again, or choose "
                "another -o",
            )
        )
        source = f"{self.recipe.name}: teacher {wanted.recipe}"
        training = replace_training(base.training, wanted.training, source=source)
        ask = partial(Finetune, base, training=training, **self.trained(self.recipe.seed))
        path = self.path(Part("finetuned" if wanted.model else "teacher", (), ask), self.stages)
        return (Model.open(given), [path]) if given else (Model.open(path), [])

    def labels(self, teacher: Model) -> Part:
        """Return the labels of the pool and the gold rows, for all students."""
        return Part("labels", (), partial(self._label, teacher, self.text), {"unlabeled": self.text_sha256})

    def _label(self, teacher: Model, text: TextSource) -> Label:
        fields = {name: getattr(self.request, name) for name in ("device", "threads", "progress")}
        return Label(teacher, text, Path(), precision=self.recipe.teacher.precision, **fields)

    def variants(self, teacher: Model, student: StudentRecipe) -> list[Part]:
        """Return the labels of the variants of the pool that a student's recipe asks for, if it does."""
        augmentation, seed = student.augmentation, self.recipe.seed
        if not augmentation:
            return []
        held_out = [*self.rows.validation, *self.rows.test]

        def vary(request: Label) -> Label:
            if any(phase.teacher == "encoder" for phase in student.phases):
                encoder_of(teacher)  # where it is not there, the student cannot be made, and needs no labels
            text = augmented(
                self.rows.unlabeled,
                augmentation,
                teacher,
                teacher.tokenizer,
                seed=seed,
                held_out=one_of(held_out),
                originals=False,
            )
            return replace(request, unlabeled=text)

        content = [*self.text_sha256, deciding(augmentation), seed, content_sha256(held_out)]
        ask = partial(self._label, teacher, self.rows.unlabeled)
        return [Part(f"{student.name}-variants-labels", (), ask, {"unlabeled": content}, vary)]

    def parts(
        self, teacher: Model, labels: LabelDir, students: Sequence[PlannedStudent]
    ) -> dict[str, list[Callable[[Stages], Path]]]:
        """Return for each student and pruned model what makes its directories, in their order."""
        controls = control_names(students)
        rows = {student.name: self.student(teacher, labels, student, controls) for student in students}
        rows |= {pruned_name(plan): self.pruned(teacher, labels, plan) for plan in self.recipe.prune}
        return {name: [partial(self.path, part) for part in parts] for name, parts in rows.items()}

    def student(
        self, teacher: Model, labels: LabelDir, student: PlannedStudent, controls: Mapping[str, str]
    ) -> Iterator[Part]:
        """Yield a student and its control, once for each seed, and the first one in int8.

        A control that another student has too is trained once.
        """
        plan, recipe, variants = student.plan, student.recipe, self.variants(teacher, student.recipe)
        # What only the student's own training reads must not tell one control from another.
        control = replace(recipe, phases=CONTROL_PHASES, **UNPUBLISHED)

        def ask(*variants: LabelDir, recipe: StudentRecipe, seed: int, **named: Any) -> Distill:
            return Distill(teacher, recipe, labels=(labels,), variants=variants, **named, **self.trained(seed))

        trained = [
            Part(name, variants, partial(ask, recipe=recipe, seed=seed, rows=plan.rows), self.budget)
            for name, seed in student.trainings
        ]
        for part, (_, seed) in zip(trained, student.trainings, strict=True):
            yield part
            if plan.control:
                key = student.control_key(seed)
                decides = {"student": key, **self.budget}
                yield Part(controls[key], variants, partial(ask, recipe=control, seed=seed, control=True), decides)
        if plan.quantize:
            method = plan.quantize if isinstance(plan.quantize, str) else None
            yield self.quantized(trained[0], student.name, method, plan.keep_fp32)

    def pruned(self, teacher: Model, labels: LabelDir, plan: StudyPrune) -> Iterator[Part]:
        """Yield the teacher pruned as planned, recovered, and in int8."""
        name = pruned_name(plan)
        training = replace_training(RECOVERY, plan.training, source=f"{self.recipe.name}: prune {name}")
        asked = {name: getattr(plan, name) for name in fields_of(Pruning)} | self.trained(self.recipe.seed)
        asked |= {"training": training, "labels": (labels,) if plan.recover else ()}
        asked |= {"vocabulary": self.text if plan.vocabulary else None}
        decides = {"vocabulary": self.text_sha256 if plan.vocabulary else None, **self.budget}
        pruned = Part(name, (), partial(Prune, teacher, measure=False, **asked), decides)  # the benchmark measures
        yield pruned
        if plan.quantize:
            yield self.quantized(pruned, name)

    def quantized(self, model: Any, name: str, method: str | None = None, keep_fp32: int = 0) -> Part:
        """Return a model quantized as it was trained to be, or by another method."""

        # Timed as the benchmark will time it: int8 that wins on all cores may lose on one.
        threads = self.recipe.benchmark.thread_counts[0]

        def ask(model: Model) -> Quantize:
            return Quantize(
                model,
                method=method,
                keep_fp32=keep_fp32,
                train=self.rows.train if needs_training_rows(model, method, keep_fp32) else None,
                validation=self.rows.validation,
                metric=self.recipe.benchmark.metric,
                threads=threads,
                progress=self.request.progress,
            )

        def called(request: Quantize) -> str:
            packs = (request.method or default_method(cast(Model, request.model))) == "packed"
            return f"{name}-{'packed' if packs else 'int8'}"

        return Part(called, (model,), ask, {"threads": threads})

    def measured(self, teacher: Model, models: Sequence[Model], command: str) -> Path:
        """Measure everything in one run and return the results file, which says the command."""
        settings = self.recipe.benchmark
        pruning_steps = settings.pruning_steps and any(len(removals_of(model)) > 1 for model in models)
        if settings.pruning_steps and not pruning_steps:  # with --only, or where a target took no more
            logger.warning("no removals are taken apart: none of these models had two")
        asked = self.request.device

        def make(path: Path) -> None:
            for file in (path, lock_path(path)):  # what was measured before stays, for once
                old = file.with_name(f"{file.name}.old")
                if file.exists():
                    file.replace(old)
            benchmark(
                teacher,
                models,
                self.rows.test,
                replace(settings, pruning_steps=pruning_steps),
                train=self.rows.train,
                compute=Compute("cpu" if asked == "auto" else asked, seed=self.recipe.seed),
                output=BenchmarkOutput(
                    path,
                    study=self.recipe.name,
                    budget=self.request.budget,
                    data_name=self.rows.data_name,
                    command=command,
                    progress=self.request.progress,
                ),
            )

        inputs = {
            "teacher": teacher.sha256,
            "models": [model.sha256 for model in models],
            "benchmark": asdict(settings),
            "device": asked,
            "test": content_sha256(self.rows.test),
            "train": content_sha256(self.rows.train),
            **self.budget,
        }
        return self.stages.make(RESULTS_NAME, inputs, make, gathers=True)


def _failures(failed: Mapping[str, Exception], otherwise: str) -> str:
    said = "; ".join(f"{name} ({str(error).strip() or type(error).__name__})" for name, error in failed.items())
    return f"failed: {said}; {otherwise}, and the same command tries again what failed"
