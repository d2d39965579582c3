"""Study recipe: data, teacher, students, pruning, quantization, benchmark settings and budgets."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import PurePosixPath
from typing import Annotated, Literal

import pydantic
from pydantic import NonNegativeInt

from compress import plugins
from compress.data.examples import Overlap
from compress.errors import CompressError
from compress.fields import validated, without_effect
from compress.recipes.benchmark_settings import BenchmarkSettings
from compress.recipes.parsing import Checked, Seed, require
from compress.recipes.pruning import Pruning
from compress.recipes.student import Phase
from compress.recipes.training import TrainingChanges

# Folders and files of a study.
OWN_NAMES = frozenset(
    ("corpora", "finetuned", "labels", "report", "results.jsonl", "results.lock.json", "study.json", "teacher")
)


@validated
class DataSet:
    """Rows of a study by set and split, such as ``{set = "glue/SST-2", split = "dev"}``; ``rows`` 0 means all.

    ``beyond`` N leaves out the rows that ``rows = N`` takes, for another role. ``label_map`` is a file in the folder of
    the set.
    """

    set: str
    split: str = ""
    rows: NonNegativeInt = 0
    beyond: NonNegativeInt = 0
    text_column: str = ""
    text_pair_column: str = ""
    label_column: str = ""
    label_separator: str = ""
    label_map: str = ""

    def faults(self) -> Iterator[str]:
        if self.label_map != PurePosixPath(self.label_map).name:
            yield f"label_map = {self.label_map!r} is no name of a file in the folder of the set"


@validated
class Slice(Checked):
    """Validation cut from train in whole groups, so that a sentence and its fragments stay together."""

    share_of_train: float

    def faults(self) -> Iterator[str]:
        if not 0 < self.share_of_train < 1:
            yield f"share_of_train = {self.share_of_train} must be above 0 and below 1"


@validated
class StudyData(Checked):
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

    def faults(self) -> Iterator[str]:
        if (self.validation is None) == (self.validation_slice is None):
            yield "needs either validation or validation_slice"


@validated
class StudyTeacher(Checked):
    """A fine-tuned ``model`` below the model root, or a ``recipe`` to fine-tune.

    With both, ``model`` is the teacher and what ``recipe`` gives is measured beside it. It labels in ``precision``, as
    ``compress label --precision`` does.
    """

    recipe: str = ""
    model: str = ""
    training: TrainingChanges = field(default_factory=dict)
    quantize: bool = True
    precision: Literal["float32", "bfloat16", "auto"] = "float32"

    def faults(self) -> Iterator[str]:
        if not (self.recipe or self.model):
            yield "needs a recipe or a model"
        path = PurePosixPath(self.model)
        if path.is_absolute() or ".." in path.parts or any(mark in self.model for mark in "\\:\0"):
            yield f"model = {self.model!r} is not a name below the model root"


def model_name(name: str) -> str:
    """Return the name of a model of a study, if it has one: it names a folder.

    Raises:
        PydanticCustomError: it cannot.
    """
    require(
        re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})?", name),
        f"name = {name!r} is no name of a folder; use at most 100 letters, digits, '.', '_' and '-'",
    )
    require(name not in OWN_NAMES, f"name = {name!r} is what a study calls a part of its own; choose another")
    return name


Name = Annotated[str, pydantic.AfterValidator(model_name)]


@validated
class StudyStudent(Checked):
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
    keep_fp32: NonNegativeInt = 0
    training: TrainingChanges = field(default_factory=dict)
    seeds: tuple[Seed, ...] = ()
    name: Name = ""
    phases: tuple[Phase, ...] = ()
    rows: NonNegativeInt = 0

    def faults(self) -> Iterator[str]:
        if self.keep_fp32 and not self.quantize:
            yield f"keep_fp32 = {self.keep_fp32} is of no use without quantize"
        if self.phases and not self.name:
            yield f"other phases make of {self.recipe} another student: give it a name"
        if self.rows and self.control:
            yield f"rows = {self.rows} changes nothing for the control, which reads gold rows only: set control = false"
        if len(set(self.seeds)) < len(self.seeds):
            yield f"student {self.recipe}: seeds names one twice"
        if isinstance(self.quantize, str):
            try:
                plugins.find("quantizers", self.quantize)
            except CompressError as error:
                yield str(error)


@validated
class StudyPrune(Pruning, Checked):
    """Remove structure of the teacher, and recover on the pool and train.

    ``name`` is what the model is called, by default after its heads. With ``vocabulary`` only the subword tokens of the
    pool and train stay.
    """

    name: Name = ""
    vocabulary: bool = False
    quantize: bool = True
    training: TrainingChanges = field(default_factory=dict)

    def faults(self) -> Iterator[str]:
        yield from without_effect(self)
        yield from super().faults()
        if not (self.removes_units or self.layers or self.hidden or self.vocabulary):
            yield "prune removes nothing; give heads, ffn, layers, hidden, vocabulary or a target"
        if not (self.name or self.heads):
            yield "prune needs a name, or heads after which it is called"

    @property
    def removes_several(self) -> bool:
        """Whether things of two or more kinds go; a target without amounts may take heads and neurons."""
        units = (self.heads, self.ffn) if self.heads or self.ffn else (self.has_target, self.has_target)
        return sum(map(bool, (self.vocabulary, self.layers, self.hidden, *units))) > 1


@validated
class StudyBenchmark(BenchmarkSettings):
    """How the models of a study are measured: by default in torch and ONNX Runtime; int8 is judged at the first of
    ``threads``, and baselines are fitted on the study's training rows.
    """

    runtimes: tuple[str, ...] = ("torch", "onnxruntime")


@validated
class Budget:
    """What a study may spend: values in place of those that its parts would have; see :mod:`compress.studies.plan`.

    Args:
        training: in place of every student's, unless the study's plan for that student says otherwise; of a pruned
            model's recovery likewise.
        teacher: in place of the teacher's training.
        rows: of every unlabelled set; 0 leaves what the study says.
    """

    training: TrainingChanges = field(default_factory=dict)
    teacher: TrainingChanges = field(default_factory=dict)
    rows: NonNegativeInt = 0


@validated
class StudyRecipe(Checked):
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
    seed: Seed = 0
    name: str = ""

    def faults(self) -> Iterator[str]:
        if not (self.students or self.prune):
            yield "a study needs at least one of students and prune"
        if self.students and not self.data.unlabeled:
            yield "a study with students needs text without labels; give data.unlabeled"
        for name, budget in self.budgets.items():
            if budget.rows and not self.data.unlabeled:
                yield f"budgets.{name}.rows is of unlabelled sets, and there is none; leave it out"
        if self.benchmark.pruning_steps and not any(prune.removes_several for prune in self.prune):
            yield "benchmark.pruning_steps takes removals apart, and no prune has two kinds of them; leave it out"
