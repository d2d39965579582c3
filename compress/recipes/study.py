"""Study recipe: data, teacher, students, pruning, quantization, benchmark settings and budgets."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any, Literal

from compress import plugins
from compress.data.examples import Overlap
from compress.errors import CompressError
from compress.recipes.benchmark_settings import BenchmarkSettings
from compress.recipes.parsing import LARGEST_SEED, listed
from compress.recipes.pruning import Pruning
from compress.recipes.student import Phase
from compress.recipes.training import training_faults

# Folders and files of a study.
OWN_NAMES = frozenset(
    ("corpora", "finetuned", "labels", "report", "results.jsonl", "results.lock.json", "study.json", "teacher")
)


@dataclass(frozen=True)
class DataSet:
    """Rows of a study by set and split, such as ``{set = "glue/SST-2", split = "dev"}``; ``rows`` 0 means all.

    ``beyond`` N leaves out the rows that ``rows = N`` takes, for another role.
    """

    set: str
    split: str = ""
    rows: int = 0
    beyond: int = 0
    text_column: str = ""
    text_pair_column: str = ""
    label_column: str = ""

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        counts = {"rows": self.rows, "beyond": self.beyond}
        return [f"{name} = {count} must be at least 0" for name, count in counts.items() if count < 0]


@dataclass(frozen=True)
class Slice:
    """Validation cut from train in whole groups, so that a sentence and its fragments stay together."""

    share_of_train: float

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        if 0 < self.share_of_train < 1:
            return []
        return [f"share_of_train = {self.share_of_train} must be above 0 and below 1"]


@dataclass(frozen=True)
class StudyData:
    """Which rows play which role.

    ``corpus`` names a corpus that is built first and serves as the data root: ``docstrings`` reads those of installed
    packages. Validation is a set of its own, or a slice of train. A list of sets is read as one. A study that only
    prunes needs no ``unlabeled`` text: what is left recovers on the texts of train, and on other text if given.
    """

    train: DataSet | tuple[DataSet, ...]
    test: DataSet | tuple[DataSet, ...]
    unlabeled: tuple[DataSet, ...] = ()
    validation: DataSet | None = None
    validation_slice: Slice | None = None
    overlap: Overlap = "few"
    corpus: Literal["", "docstrings"] = ""

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        if (self.validation is None) == (self.validation_slice is None):
            return ["needs either validation or validation_slice"]
        return []


@dataclass(frozen=True)
class StudyTeacher:
    """A fine-tuned ``model`` below the model root, or a ``recipe`` to fine-tune.

    With both, ``model`` is the teacher and what ``recipe`` gives is measured beside it. It labels in ``precision``, as
    ``compress label --precision`` does.
    """

    recipe: str = ""
    model: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)
    quantize: bool = True
    precision: Literal["float32", "bfloat16", "auto"] = "float32"

    @listed
    def faults(self) -> Iterator[str]:
        """Return what is wrong with the values, in the user's words."""
        if not (self.recipe or self.model):
            yield "needs a recipe or a model"
        path = PurePosixPath(self.model)
        if path.is_absolute() or ".." in path.parts or any(mark in self.model for mark in "\\:\0"):
            yield f"model = {self.model!r} is not a name below the model root"


def faults_of_name(name: str) -> list[str]:
    """Return what is wrong with the name of a model of a study, if it has one: it names a folder."""
    if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})?", name):
        return [f"name = {name!r} is no name of a folder; use at most 100 letters, digits, '.', '_' and '-'"]
    return [f"name = {name!r} is what a study calls a part of its own; choose another"] if name in OWN_NAMES else []


def faults_of_seeds(seeds: Iterable[int]) -> list[str]:
    """Return which seeds no random generator takes."""
    return [f"seed {seed} must be from 0 to {LARGEST_SEED}" for seed in seeds if not 0 <= seed <= LARGEST_SEED]


@dataclass(frozen=True)
class StudyStudent:
    """A student of a study; ``training`` replaces values of its recipe's, ``phases`` all that it learns from.

    ``name`` tells it from another student of the same recipe; with other phases it is no longer the published system.
    It and its control are trained once for each of ``seeds``, by default once with the study's; the first one is also
    quantized, as it was trained to be or by the method that ``quantize`` names, with ``keep_fp32`` layers left out.
    ``rows`` is how many rows of the text without labels it reads, spread evenly; 0 for all. A report joins those of a
    recipe whose names are it and their rows, such as ``cnn-10000``.
    """

    recipe: str
    control: bool = True
    quantize: bool | str = True
    keep_fp32: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    name: str = ""
    phases: tuple[Phase, ...] = ()
    rows: int = 0

    @listed
    def faults(self) -> Iterator[str]:
        """Return what is wrong with the values, in the user's words."""
        if self.keep_fp32 < 0:
            yield f"keep_fp32 = {self.keep_fp32} must be at least 0"
        if self.keep_fp32 and not self.quantize:
            yield f"keep_fp32 = {self.keep_fp32} is of no use without quantize"
        if self.phases and not self.name:
            yield f"other phases make of {self.recipe} another student: give it a name"
        if self.rows < 0:
            yield f"rows = {self.rows} must be at least 0"
        if self.rows and self.control:
            yield f"rows = {self.rows} changes nothing for the control, which reads gold rows only: set control = false"
        yield from faults_of_name(self.name)
        yield from faults_of_seeds(self.seeds)
        if len(set(self.seeds)) < len(self.seeds):
            yield f"student {self.recipe}: seeds names one twice"
        if isinstance(self.quantize, str):
            try:
                plugins.find("quantizers", self.quantize)
            except CompressError as error:
                yield str(error)


@dataclass(frozen=True)
class StudyPrune(Pruning):
    """Remove structure of the teacher, and recover on the pool and train.

    ``name`` is what the model is called, by default after its heads. With ``vocabulary`` only the subword tokens of the
    pool and train stay.
    """

    name: str = ""
    vocabulary: bool = False
    quantize: bool = True
    training: Mapping[str, Any] = field(default_factory=dict)

    @listed
    def faults(self) -> Iterator[str]:
        """Return what is wrong with the values, in the user's words."""
        yield from super().faults()
        if not (self.removes_units or self.layers or self.hidden or self.vocabulary):
            yield "prune removes nothing; give heads, ffn, layers, hidden, vocabulary or a target"
        if not (self.name or self.heads):
            yield "prune needs a name, or heads after which it is called"
        yield from faults_of_name(self.name)

    @property
    def removes_several(self) -> bool:
        """Whether things of two or more kinds go; a target without amounts may take heads and neurons."""
        units = (self.heads, self.ffn) if self.heads or self.ffn else (self.has_target, self.has_target)
        return sum(map(bool, (self.vocabulary, self.layers, self.hidden, *units))) > 1

    @property
    def pruning(self) -> Pruning:
        """What is removed, without what only a study knows."""
        return Pruning(**{field.name: getattr(self, field.name) for field in fields(Pruning)})


@dataclass(frozen=True)
class StudyBenchmark(BenchmarkSettings):
    """How the models of a study are measured: by default in torch and ONNX Runtime; int8 is judged at the first of
    ``threads``, and baselines are fitted on the study's training rows.
    """

    runtimes: tuple[str, ...] = ("torch", "onnxruntime")


@dataclass(frozen=True)
class Budget:
    """What a study may spend: values in place of those that its parts would have; see :mod:`compress.studies.plan`.

    Args:
        training: in place of every student's, unless the study's plan for that student says otherwise; of a pruned
            model's recovery likewise.
        teacher: in place of the teacher's training.
        rows: of every unlabelled set; 0 leaves what the study says.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    teacher: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        found = [] if self.rows >= 0 else [f"rows = {self.rows} must be at least 0"]
        found += training_faults(self.training, source="training")
        return found + training_faults(self.teacher, source="teacher")


@dataclass(frozen=True)
class StudyRecipe:
    """A whole study: data, teacher, students, pruning, int8 and how they are measured.

    It may be run at any one of its ``budgets``, by default at the first. ``duration`` is how long it takes, and on
    which machine; it is said at the start.
    """

    title: str
    description: str
    data: StudyData
    teacher: StudyTeacher
    students: tuple[StudyStudent, ...] = ()
    prune: tuple[StudyPrune, ...] = ()
    benchmark: StudyBenchmark = StudyBenchmark()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    duration: str = ""
    seed: int = 0
    name: str = ""

    @listed
    def faults(self) -> Iterator[str]:
        """Return what is wrong with the values, in the user's words."""
        if not (self.students or self.prune):
            yield "a study needs at least one of students and prune"
        if self.students and not self.data.unlabeled:
            yield "a study with students needs text without labels; give data.unlabeled"
        for name, budget in self.budgets.items():
            if budget.rows and not self.data.unlabeled:
                yield f"budgets.{name}.rows is of unlabelled sets, and there is none; leave it out"
        if self.benchmark.pruning_steps and not any(prune.removes_several for prune in self.prune):
            yield "benchmark.pruning_steps takes removals apart, and no prune has two kinds of them; leave it out"
        yield from faults_of_seeds([self.seed])
