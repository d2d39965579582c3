"""What fine-tuning, pre-training and distillation are asked for."""

from collections.abc import Iterator
from dataclasses import KW_ONLY
from typing import Annotated, Literal

import pydantic

from compress.fields import is_given, option, validated
from compress.models.model_dir import Model
from compress.recipes import Training as Hyperparameters
from compress.requests import (
    MAX_LENGTH,
    OUTPUT,
    AnyModel,
    Checks,
    LabelColumns,
    Labels,
    Output,
    Recipe,
    Rows,
    Text,
    TextColumns,
    Trained,
    Written,
    function,
)


@validated
class Finetune(Written[Model], LabelColumns, Checks, Trained):
    """Fine-tune a teacher from a pretrained encoder and labelled text.

    Labelled words give a token classifier (a tagger), other labels a classifier of whole texts.
    """

    stage = "compress.training.finetune:finetune"

    teacher: Recipe = option(help="A recipe, an encoder's directory or hub name.", metavar="RECIPE|MODEL")
    output: Output = OUTPUT
    _: KW_ONLY
    train: Rows = option(help="Labelled text to train on.", metavar="FILE")
    validation: Rows = option(help="Labelled text that selects the best checkpoint.", metavar="FILE")
    max_length: int | None = MAX_LENGTH
    training: Hyperparameters | None = option(default=None, has_option=False, help="In place of the recipe's.")


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
class Distill(Written[Model], LabelColumns, Checks, Trained):
    """Train a student to match its teacher.

    Without --validation the best checkpoint is selected by agreement with the teacher on held-out unlabelled text.
    With imported labels the teacher gives tokenizer, start and hidden states, and no logits: any of the same classes
    will do, or a pretrained encoder.
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
    max_length: int | None = MAX_LENGTH

    def faults(self) -> Iterator[str]:
        if is_given(self.unlabeled) and self.labels:
            yield "--unlabeled FILE, which is labelled first, and --labels DIR exclude each other; give one"
        if self.variants and not self.labels:
            yield "variants are label directories of varied text of labels, and there are none; give labels"
        if self.control and not is_given(self.train):
            yield "--control trains on gold labels alone, and there are none; give them with --train FILE"


finetune = function(Finetune)
pretrain = function(Pretrain)
distill = function(Distill)
