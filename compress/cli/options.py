"""Options shared by commands, and opening of the text that they name."""

import functools
import glob
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
from compress.data import TextSource, open_text
from compress.data.formats.text_files import FORMATS
from compress.errors import CompressError
from compress.escaping.uris import is_uri, local_path
from compress.models.compute import PRECISIONS, TRACKERS, Compute
from compress.models.model_dir import ModelDir
from compress.models.output_dir import keep_apart
from compress.progress import for_terminal, logger

Function = TypeVar("Function", bound=Callable[..., Any])
MOST_THREADS = 1024  # more than any machine has cores; libraries end without a word when they get no more


force = click.option(
    "--force", is_flag=True, help="Move an existing output aside, to NAME.old, or discard unfinished work for it."
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


def pool_columns(function: Function) -> Function:
    """Name the columns of files whose labels, if any, are not read; passes them on as ``columns``."""
    return _gathered(function, "columns", dict, (*_TEXTS, _LABELS[0], _FORMAT))


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


def open_pool(paths: Sequence[str], columns: Names, **options: Any) -> TextSource:
    return open_text(*paths, **options, **columns)


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
