"""What fine-tuning, pre-training, distillation, searches and studies are asked for."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from compress.errors import refuse
from compress.fields import Holds, group, is_given, option, validated
from compress.models.compute import PRECISIONS, TRACKERS
from compress.models.model_dir import Model, open_model
from compress.recipes import ClassWeights
from compress.recipes import Training as Hyperparameters
from compress.requests import (
    FORCE,
    MAX_LENGTH,
    OUTPUT,
    PRECISION,
    REPORT_TO,
    WINDOWS,
    AnyModel,
    Checks,
    Duration,
    File,
    Labels,
    Names,
    Output,
    Placing,
    QueryColumns,
    Recipe,
    Request,
    Rows,
    Searching,
    Text,
    TextColumns,
    Trained,
    WindowsGiven,
    Written,
    function,
)

WINDOWS_OR_LENGTH = "--windows reads documents whole, and --max-length cuts them; leave one out"


@group
class Adjusted:
    """What replaces values of a recipe's training."""

    max_length: int | None = MAX_LENGTH
    windows: WindowsGiven | None = WINDOWS
    class_weights: Annotated[ClassWeights | None, Holds("class-weights")] = option(
        default=None,
        metavar="WEIGHTS",
        needs=("train",),
        help="Weights of classes in the loss on gold labels: balanced, so that all count the same, or by name, such as "
        "spam=5,ham=1.",
    )
    logit_adjustment: float | None = option(
        default=None,
        ge=0,
        metavar="TAU",
        needs=("train",),
        help="Add TAU times the logarithm of each class's share of the gold labels to the logits, in training only: 1 "
        "is for all classes alike, 0 for rows as they come.",
    )

    def adjusted(self, training: Hyperparameters) -> Hyperparameters:
        """Return a training with the values that are given."""
        given = {name: getattr(self, name) for name in ("max_length", "class_weights", "logit_adjustment")}
        return replace(training, **{name: value for name, value in given.items() if value is not None})


@validated
class Finetune(Written[Model], Adjusted, QueryColumns, Checks, Trained):
    """Fine-tune a teacher from a pretrained encoder and labelled text.

    Labelled words give a token classifier (a tagger), other labels a classifier of whole texts.
    """

    stage = "compress.training.finetune:finetune"
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "overlap": ("validation",),
        "metric": ("validation", "few_shot"),
    }

    teacher: Recipe = option(help="A recipe, an encoder's directory or hub name.", metavar="RECIPE|MODEL")
    output: Output = OUTPUT
    _: KW_ONLY
    train: Rows = option(help="Labelled text to train on.", metavar="FILE")
    validation: Rows = option(
        default=None, help="Labelled text that selects the best checkpoint; not with --few-shot.", metavar="FILE"
    )
    few_shot: Literal["chosen", "frozen", "contrastive"] | None = option(
        default=None,
        flags={
            "--few-shot": (
                "chosen",
                "For 4 to 50 rows a class: a linear head on the mean token of a sentence encoder, frozen or after "
                "contrastive fine-tuning, as cross-validation on --train chooses.",
            ),
            "--few-shot-frozen": ("frozen", "The same, frozen."),
            "--few-shot-contrastive": ("contrastive", "The same, contrastive."),
        },
        help="For a few rows a class: a linear head on the mean of all tokens of a sentence encoder, which is frozen, "
        "or changed by contrastive fine-tuning first, or chosen of these by cross-validation on train.",
    )
    training: Hyperparameters | None = option(
        default=None, has_option=False, help="In place of the recipe's, or with few_shot of the contrastive one."
    )

    def faults(self) -> Iterator[str]:
        if self.windows and self.max_length:
            yield WINDOWS_OR_LENGTH
        if self.few_shot is None and self.validation is None:
            yield "--validation FILE is missing: it selects the best checkpoint; or give --few-shot"
        given = {
            "--validation": is_given(self.validation),
            "--windows": self.windows,
            "--class-weights": self.class_weights,
            "--logit-adjustment": self.logit_adjustment is not None,
        }
        if self.few_shot and (without := [name for name, value in given.items() if value]):
            yield f"--few-shot chooses by --train alone; leave out {', '.join(without)}"


@validated
class Pretrain(Written[Model], TextColumns, Trained):
    """Pre-train a student on unlabelled text, once for many tasks.

    Runs the task-independent phases of the student's recipe: masked language modelling, or general distillation from
    the encoder. Give the result to 'compress distill --start', or use it as any other encoder.

    Without --student the encoder itself is trained by masked language modelling, with a new head.
    """

    stage = "compress.training.pretrain:pretrain"

    encoder: Recipe = option(help="A teacher's recipe, or a pretrained encoder.", metavar="RECIPE|DIR")
    output: Output = OUTPUT
    _: KW_ONLY
    student: Recipe | None = option(
        default=None,
        metavar="RECIPE",
        help="A name from 'compress list students', or a .toml file. Default: the encoder.",
    )
    head_only: bool = option(default=False, help="Freeze the encoder; train only a head for masked tokens.")
    unlabeled: Text = option(help="Text to train on; may be repeated.", metavar="FILE")
    rows: int | None = option(default=None, ge=1, help="Use only so many rows, spread evenly over the text.")
    epochs: float | None = option(
        default=None, gt=0, help="Passes over the text. Default: the part of the recipe's for these phases."
    )

    def faults(self) -> Iterator[str]:
        if self.student and self.head_only:
            yield "--head-only keeps the encoder as it is, so that there is no --student; leave one out"


@validated
class Distill(Written[Model], Adjusted, QueryColumns, Checks, Trained):
    """Train a student to match its teacher.

    Without --validation the best checkpoint is selected by agreement with the teacher on held-out unlabelled text.
    With imported labels the teacher gives tokenizer, start and hidden states, and no logits: any of the same classes
    will do, or a pretrained encoder, or its recipe.
    """

    stage = "compress.training.distill:distill"

    teacher: AnyModel = option(help="The teacher: a directory or hub name.", metavar="DIR")
    student: Recipe = option(help="A name from 'compress list students', or a .toml file.", metavar="RECIPE")
    output: Output = OUTPUT
    _: KW_ONLY
    unlabeled: Text = option(default=None, help="Text that the teacher labels first; may be repeated.", metavar="FILE")
    rows: int | None = option(default=None, ge=0, help="Use only so many unlabelled rows, spread evenly; 0 is all.")
    labels: Labels = option(
        default=(),
        metavar="DIR",
        help="Instead: an output of 'compress label' or 'compress labels import', or its URI; may be repeated.",
    )
    variants: Labels = option(
        default=(), has_option=False, help="Labels of the variants that the recipe's augmentation makes of the text."
    )
    combine: Literal["mean"] | None = option(
        default=None,
        help="Average the probabilities of several teachers: --labels of the same texts in the same order. Otherwise "
        "they add up.",
    )
    weights: Annotated[tuple[Annotated[float, pydantic.Field(gt=0)], ...], pydantic.Strict(False)] = option(
        default=(),
        flag="--weight",
        needs=("combine",),
        help="With --combine: the weight of each --labels, in order; by default the same.",
    )
    train: Rows = option(default=None, help="Labelled rows to train on, with the teacher's logits.", metavar="FILE")
    validation: Rows = option(default=None, help="Labelled rows to select the best checkpoint.", metavar="FILE")
    encoder: Recipe | None = option(
        default=None,
        metavar="DIR|RECIPE",
        help="The pretrained encoder of the teacher, for students that learn from it.",
    )
    start: AnyModel | None = option(default=None, metavar="DIR", help="Start from this output of 'compress pretrain'.")
    control: bool = option(default=False, help="Train the control instead: same student and plan, gold labels only.")

    def faults(self) -> Iterator[str]:
        if is_given(self.unlabeled) and self.labels:
            yield "--unlabeled FILE, which is labelled first, and --labels DIR exclude each other; give one"
        if self.variants and not self.labels:
            yield "variants are label directories of varied text of labels, and there are none; give labels"
        if self.control and not is_given(self.train):
            yield "--control trains on gold labels alone, and there are none; give them with --train FILE"
        if self.windows and self.max_length:
            yield WINDOWS_OR_LENGTH


DEFAULT_TIME_LIMIT_S = 7200.0
BEST, CONTENT_NAME = "best", "search.json"


@dataclass(frozen=True)
class SearchResult:
    """What a search has found, in its directory ``path``; ``report.html`` there says how."""

    path: Path

    @cached_property
    def content(self) -> dict[str, Any]:
        """The figures of ``search.json``: ``met`` says whether a student meets the budget."""
        found: dict[str, Any] = json.loads((self.path / CONTENT_NAME).read_text(encoding="utf-8"))
        return found

    @cached_property
    def best(self) -> Model:
        """The winner, a model or a cascade.

        Raises:
            CompressError: there is none.
        """
        refuse(
            (
                not (self.path / BEST).is_dir(),
                f"no student met the budget; {self.path / 'report.html'} says what was tried",
            )
        )
        return open_model(self.path / BEST)


@group
class SearchLimits:
    """Search budget (accuracy, latency, speed, size) and when a search ends; what is None is not asked for."""

    max_accuracy_drop: float | None = option(
        default=None,
        ge=0,
        metavar="POINTS",
        help="Allow so many points of the metric less than the teacher's: the fastest student wins.",
    )
    max_latency_ms: float | None = option(default=None, gt=0, metavar="MS", help="Median time of one row, at most.")
    min_speedup: float | None = option(
        default=None,
        gt=0,
        metavar="TIMES",
        help="At least so many times as fast as the teacher in torch, one row at a time.",
    )
    max_size_mb: float | None = option(default=None, gt=0, metavar="MB", help="Size of the weights on disk, at most.")
    time_limit: Duration | None = option(
        default=None,
        gt=0,
        metavar="TIME",
        help="Timing and training end after this time, such as 30m or 2h. [default: 2h, or none with --trials]",
    )
    trials: int | None = option(default=None, ge=1, metavar="N", help="Train so many shapes at most.")


@validated
class Search(Written[SearchResult], QueryColumns, SearchLimits, Checks, Searching):
    """Find the student that meets a budget of accuracy, speed and size.

    Shapes of n-gram models, CNNs, BiLSTMs, small transformers and the pruned teacher are timed before they are
    trained, in float32 and int8; those that meet the limits are trained by successive halving. DIR/best is the winner,
    DIR/report.html says how it was found. Without any limit it is the knee of the front. Exit code 1: no student met
    the budget, or --test refutes it.
    """

    stage = "compress.searching.search:search"

    teacher: AnyModel = option(help="The teacher: a directory or hub name.", metavar="DIR")
    output: Output = OUTPUT
    _: KW_ONLY
    unlabeled: Text = option(
        help="Text that the teacher labels once, for all students; may be repeated.", metavar="FILE"
    )
    train: Rows = option(help="Labelled rows that students learn from too.", metavar="FILE")
    validation: Rows = option(help="Labelled rows that select checkpoints and the winner.", metavar="FILE")
    test: Rows = option(
        default=None, help="Labelled rows that take no part, and that the winner is measured on.", metavar="FILE"
    )

    def open_made(self, path: Path) -> SearchResult:
        return SearchResult(path)


RESULTS_NAME = "results.jsonl"
REPORT_NAME = "report"


@validated
class Run(Request[Path], Placing):
    """Run a whole study, from data to report.

    STUDY is a name from 'compress list studies', or a .toml file. Teacher, labels, students and controls,
    pruning, int8, benchmark, report. Resumable; started again while it runs, it shares the work.
    """

    stage = "compress.studies.run:run"

    study: Recipe = option(
        argument=True, has_option=False, metavar="STUDY", help="A name from 'compress list studies', or a .toml file."
    )
    output: Output = option(
        help="Directory of the study; the same command resumes it.", metavar="DIR", decides=False, required=True
    )
    _: KW_ONLY
    data_root: File | None = option(default=None, metavar="DIR", help="Folder of the data sets. [env: COMPRESS_DATA]")
    model_root: File | None = option(default=None, metavar="DIR", help="Folder of the teachers. [env: COMPRESS_MODELS]")
    teacher: AnyModel | None = option(
        default=None, metavar="DIR", help="A fine-tuned teacher to use instead of the study's."
    )
    budget: str = option(default="", metavar="NAME", help="One of the study's budgets; default its first.")
    only: Names = option(default=(), metavar="NAME", help="Make this student or pruned model only.")
    precision: Literal[PRECISIONS] = PRECISION  # type: ignore[valid-type]
    report_to: Literal[TRACKERS] | None = REPORT_TO  # type: ignore[valid-type]
    force: bool = FORCE


finetune = function(Finetune)
pretrain = function(Pretrain)
distill = function(Distill)
search = function(Search)
run = function(Run)
