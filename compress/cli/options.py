"""Options shared by commands, and opening of the text that they name."""

import functools
import glob
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from compress.cli.printing import MessageFormatter, tell
from compress.cli.values import Duration as Duration
from compress.cli.values import Percent as Percent
from compress.cli.values import Real as Real
from compress.cli.values import Whole as Whole
from compress.data import LabelledData, TextSource, load_labelled_data, open_text
from compress.data.formats.text_files import FORMATS
from compress.errors import CompressError
from compress.escaping.uris import is_uri, local_path
from compress.models.compute import PRECISIONS, TRACKERS, Compute
from compress.models.model_dir import ModelDir
from compress.models.output_dir import check_free, ended_early, keep_apart, places_of
from compress.progress import for_terminal, logger

Function = TypeVar("Function", bound=Callable[..., Any])
MOST_THREADS = 1024  # more than any machine has cores; libraries end without a word when they get no more


force = click.option(
    "--force", is_flag=True, help="Move an existing output aside, to NAME.old, or discard unfinished work for it."
)
seed = click.option("--seed", type=Whole(min=0), default=0, show_default=True, help="Seed of everything random.")
metric = click.option("--metric", metavar="NAME", help="Default: accuracy; for regression pearson.")
OVERLAP = ("drop_overlap", "refuse_overlap")
_overlap = (
    click.option(
        "--drop-overlap",
        is_flag=True,
        help="Leave all rows that occur in two roles out of the earlier one; by default a few are left out, and more "
        "than 1% of either are refused.",
    ),
    click.option("--refuse-overlap", is_flag=True, help="Refuse any row that occurs in two roles."),
)
_device = functools.partial(
    click.option,
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    show_default=True,
    help="Where to compute; auto is cuda where there is one.",
)
device = _device(default="auto")
threads = click.option(
    "--threads",
    type=Whole(min=0, max=MOST_THREADS),
    default=0,
    show_default=True,
    help="CPU threads; 0 is one for each core that no other program keeps busy.",
)
precision = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="auto",
    metavar="NAME",
    help="Of trainings: float32, bfloat16, or auto, the recipe's: bfloat16 where it is faster and the model allows it.",
)
report_to = click.option(
    "--report-to",
    type=click.Choice(TRACKERS),
    help="Report the training here too, by this package and its own variables (WANDB_MODE, MLFLOW_TRACKING_URI, "
    "TRACKIO_DIR); tensorboard writes to $TENSORBOARD_LOGGING_DIR or ./runs.",
)


# What stands for a path in the help, and options of such that are written, or only searched.
_PATHS = {"FILE", "DIR", "PATH", "LOCK", "RESULTS"}
_NOT_READ = {"output", "json_file", "junit", "update_baseline", "roots"}

Names = dict[str, Any]  # the columns and the format of data files, as open_source takes them
COLUMNS = ("text_column", "text_pair_column", "label_column", "label_map", "format")  # their parameters


_TEXTS = (
    click.option("--text-column", metavar="NAME", help="Column of the text; from 0 without a header; or data.text."),
    click.option("--text-pair-column", metavar="NAME", help="Column of the second text of a pair."),
)
_LABELS = (
    click.option("--label-column", metavar="NAME", help="Column of the label or score."),
    click.option("--label-map", metavar="FILE", help='What labels of data mean: {"0": "bad", ...} in JSON or TOML.'),
)
_FORMAT = click.option(
    "--format", type=click.Choice(FORMATS), metavar="FORMAT", help="csv, tsv, tsv-unquoted, jsonl, text, ..."
)


def columns(function: Function) -> Function:
    """Name the columns of the data files, where they cannot be guessed; passes them on as ``columns``."""
    return _gathered(function, "columns", dict, (*_TEXTS, *_LABELS, _FORMAT))


def pool_columns(function: Function) -> Function:
    """Name the columns of files whose labels, if any, are not read; passes them on as ``columns``."""
    return _gathered(function, "columns", dict, (*_TEXTS, _LABELS[0], _FORMAT))


def checks(function: Function) -> Function:
    """What becomes of overlap, and ``--metric``, which :func:`labelled_data` takes; passes them on as ``checks``."""
    return _gathered(function, "checks", _checks, (*_overlap, metric))


def _checks(*, drop_overlap: bool, refuse_overlap: bool, metric: str | None) -> dict[str, Any]:
    if drop_overlap and refuse_overlap:
        raise CompressError("--drop-overlap leaves out what --refuse-overlap refuses; give one of them")
    return {"overlap": "drop" if drop_overlap else "refuse" if refuse_overlap else "few", "metric": metric}


def text_columns(function: Function) -> Function:
    """Name the columns of texts alone; passes them on as ``columns``."""
    return _gathered(function, "columns", dict, (*_TEXTS, _FORMAT))


def check_idle(missing: str, given: Any, *names: str) -> None:
    """Refuse typed options that change nothing without another one, ``missing``, which was ``given`` or not."""
    context = click.get_current_context()
    for parameter in () if given else context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not ParameterSource.DEFAULT:
            option = parameter.opts[-1]
            raise CompressError(f"{option} changes nothing without {missing}; add it, or leave {option} out")


def _gathered(
    function: Function, name: str, make: Callable[..., Any], options: Sequence[Callable[[Any], Any]]
) -> Function:
    """Add options to a command, which gets them as one argument that ``make`` makes of them."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        own = {key: named.pop(key) for key in keys}
        return function(*arguments, **{name: make(**own)}, **named)

    before = len(getattr(function, "__click_params__", ()))
    for option in reversed(options):
        option(wrapped)
    keys = [parameter.name for parameter in wrapped.__click_params__[before:]]  # type: ignore[attr-defined]
    return wrapped  # type: ignore[return-value]


def _compute(*given: Any, also: Any = lambda function: function) -> Callable[[Function], Function]:
    """Return a decorator that adds these options, which it passes on as ``compute``, and applies ``also``."""
    return lambda function: _gathered(also(function), "compute", Compute, given)


computing = _compute(seed, device, threads, also=force)
training = _compute(seed, device, threads, precision, report_to, also=force)
placing = _compute(device, threads)


def verbosity(function: Function) -> Function:
    """``-v`` and ``-q``; sets up messages and passes ``progress`` on."""

    @click.option("-v", "--verbose", is_flag=True, help="Print more.")
    @click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
    @functools.wraps(function)
    def wrapped(*arguments: Any, verbose: bool, quiet: bool, **named: Any) -> Any:
        set_up_messages(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        return function(*arguments, progress=for_terminal(quiet), **named)

    return wrapped  # type: ignore[return-value]


def set_up_messages(level: int) -> None:
    """Send the messages of this package to standard error, and keep other libraries' notices off it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MessageFormatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def labelled_data(train: str | None, validation: str | None, columns: Names, **checks: Any) -> LabelledData:
    return load_labelled_data(train, validation, columns, **checks)


def open_pool(paths: Sequence[str], columns: Names, **options: Any) -> TextSource:
    return open_text(*paths, **options, **columns)


def output(function: Function) -> Function:
    """``-o DIR`` of a stage, which overlaps nothing that the command reads, and exists only with ``--force``."""

    @click.option("-o", "--output", required=True, metavar="DIR", help="Directory to write; it must not exist.")
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        _check_output(named["output"], named["force"])
        return function(*arguments, **named)

    return wrapped  # type: ignore[return-value]


def _check_output(output: str, force: bool) -> None:
    keep_inputs(places_of(output))
    check_free(output, force or bool(ended_early(output)))


def keep_inputs(outputs: Sequence[str | Path], option: str = "-o") -> None:
    """Refuse, before the work, outputs that overlap a file or directory that the running command is given to read."""
    local = [name for name in map(local_path, _inputs()) if not is_uri(name)]
    keep_apart(outputs, [path for name in local for path in glob.glob(name) or [name]], option)


def _inputs() -> list[str]:
    """Return the files and directories that the running command is given to read, as they were typed."""
    context = click.get_current_context()
    given: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name not in _NOT_READ and (parameter.metavar or "").strip(".") in _PATHS and value:
            given += [value] if isinstance(value, str) else value
    return given


def show_result(model: ModelDir) -> None:
    """Say what was made, unless messages are off."""
    facts = [f"{model.parameters:,} parameters", f"{model.size_bytes / 1e6:.1f} MB"]
    facts += [f"{m['name']} {m['value']:.4f} on {m['split']} (n = {m['rows']:,})" for m in model.manifest.metrics]
    tell(f"{model.path}: {', '.join(facts)}")


def numbers(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> tuple[int, ...]:
    """Read whole numbers above 0, repeated or separated by commas."""
    read: list[int] = []
    for part in (part.strip() for value in values for part in value.split(",")):
        if not (part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0):
            raise click.BadParameter(f"{part!r} is not a whole number above 0, such as 1 or 32", context, parameter)
        read.append(int(part))
    return tuple(read)


def batch_sizes(meaning: str) -> Callable[[Function], Function]:
    """Return the option ``--batch-size`` of a command that measures, 1 and 32 by default."""
    return click.option(
        "--batch-size",
        "batch_sizes",
        multiple=True,
        default=("1", "32"),
        show_default=True,
        callback=numbers,
        metavar="N",
        help=meaning,
    )


def assignments(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE: numbers, true and false as such, anything else as text."""
    read: dict[str, Any] = {}
    for given in values:
        name, equals, value = given.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{given!r} is not NAME=VALUE, such as embeddings=float16", context, parameter)
        if name in read:
            raise click.BadParameter(f"{name} is given twice", context, parameter)
        try:
            read[name] = json.loads(value)
        except ValueError:
            read[name] = value
    return read
