"""The command line: parse options into a request, run it and print what it made.

Nothing here imports torch, so that ``compress --help`` is quick.
"""

import copy
import errno
import importlib
import os
import re
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

import compress
from compress.cli.printing import close_streams, complain, open_streams
from compress.errors import (
    CompressError,
    ExitCode,
    MissingPackage,
    did_you_mean,
    interrupt_on_signals,
    interruptions,
    system_fault,
)
from compress.escaping import is_uri, without_secrets
from compress.inference import processes

# Their one-line help stands here, so that ``compress --help`` imports none of them.
COMMANDS = {
    "audit": "Check labelled rows before training: wrong labels, copies, and classes that look alike.",
    "finetune": "Fine-tune a teacher from a pretrained encoder and labelled text.",
    "label": "Run the teacher once over unlabelled text and keep its logits.",
    "labels": "Make labels from a table, join those of several commands, or finish those of one that was stopped.",
    "pretrain": "Pre-train a student on unlabelled text, once for many tasks.",
    "distill": "Train a student to match its teacher.",
    "heads": "Study the importance of a model's attention heads.",
    "prune": "Remove layers, heads, neurons, hidden width and vocabulary.",
    "quantize": "Quantize weights to int8, accepted only if accurate and faster.",
    "calibrate": "Make probabilities right, and find when to accept them.",
    "cascade": "Join models: the fast answer what they are sure of, the accurate the rest.",
    "export": "Write a fused fp32 ONNX directory that other ONNX clients open.",
    "benchmark": "Measure models against their teacher, in one run.",
    "report": "Write results as an HTML page, Markdown and JSON.",
    "check": "Judge results against budgets.",
    "replay": "Run a benchmark again from its lock and compare every figure.",
    "search": "Find the student that meets a budget of accuracy, speed and size.",
    "run": "Run a whole study, from data to report.",
    "predict": "Classify texts, one JSON line each.",
    "list": "List recipes and plug-ins.",
    "show": "Explain a recipe, a plug-in, a model directory or a study.",
}

# The request that a command makes; the others are modules of this package.
REQUESTS = {
    "audit": "compress.requests.measuring:Audit",
    "label": "compress.requests.labelling:Label",
    "labels import": "compress.requests.labelling:ImportLabels",
    "labels merge": "compress.requests.labelling:MergeLabels",
    "labels close": "compress.requests.labelling:CloseLabels",
    "finetune": "compress.requests.training:Finetune",
    "pretrain": "compress.requests.training:Pretrain",
    "distill": "compress.requests.training:Distill",
    "benchmark": "compress.requests.measuring:Benchmark",
    "replay": "compress.requests.measuring:Replay",
    "report": "compress.requests.measuring:Report",
    "check": "compress.requests.measuring:Check",
    "heads": "compress.requests.compression:HeadStudy",
    "prune": "compress.requests.compression:Prune",
    "quantize": "compress.requests.compression:Quantize",
    "calibrate": "compress.requests.compression:Calibrate",
    "cascade": "compress.requests.compression:Cascade",
    "export": "compress.requests.compression:Export",
    "search": "compress.requests.training:Search",
    "run": "compress.requests.training:Run",
}

_UTF8 = sys.getfilesystemencoding() == "utf-8"
_OTHER_LOCALE = (
    f"Python reads and writes {sys.getfilesystemencoding()} with these settings of locale (LC_ALL, LANG, PYTHONUTF8); "
    "type PYTHONUTF8=1 before the command"
)
# Those that several processes share: they train.
TRAINING = frozenset({"finetune", "pretrain", "distill", "prune", "run"})
# Options of models, which are directories unless the metavar is NAME: those of "compress check" stand in results.
_MODELS = frozenset({"--teacher", "--model", "--encoder", "--start", "--control"})


class _Given(click.types.StringParamType):
    """Text that says something: an empty path is none, nor is an empty name."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty: give a value or leave it out", parameter, context)
        return super().convert(value, parameter, context)


class Command(click.Command):
    """A command whose options of one value are given once, and whose models are safe to open."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = self._typed(ctx, args)
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            for option, values in typed:
                _check_given_once(option, values, ctx)
            for option, values in typed:  # takes seconds; but before any work, and before other inputs are read
                _check_models(option, values)
        return rest

    def _typed(self, ctx: click.Context, args: list[str]) -> list[tuple[click.Option, list[Any]]]:
        """Return the options that were typed with all values of each, also those that a later one would replace."""
        keeping = copy.copy(self)
        keeping.params = [copy.copy(one) for one in self.params]
        for parameter in keeping.params:
            parameter.multiple = isinstance(parameter, click.Option)
        values = keeping.make_parser(ctx).parse_args([*args])[0]
        options = [one for one in self.params if isinstance(one, click.Option)]
        return [(one, values[one.name]) for one in options if one.name in values]


def _check_given_once(option: click.Option, values: list[Any], context: click.Context) -> None:
    """Refuse a second value of an option that takes one; a flag may be repeated, but not contradicted."""
    if option.is_flag and len({*values}) > 1:
        alike = [one for one in context.command.params if one.name == option.name]
        flags = [flags[0] for one in alike for flags in (one.opts, one.secondary_opts) if flags]
        raise click.UsageError(f"{' and '.join(flags)} contradict each other; leave one out", context)
    if not option.is_flag and not option.multiple and len(values) > 1:
        kept = " or ".join(dict.fromkeys(values))
        raise click.UsageError(f"{option.opts[0]} is given twice; it takes one value, so keep {kept}", context)


def _check_models(option: click.Option, values: list[Any]) -> None:
    """Refuse models that need foreign code, or lead out of their directory."""
    if _MODELS.isdisjoint(option.opts) or option.metavar == "NAME" or option.is_flag:
        return
    for value in values:
        if os.path.isfile(os.path.join(value, "config.json")):
            from compress.models.graph_files import graph_file

            if not graph_file(Path(value)).is_file():
                from compress.models.loading import check_foreign

                check_foreign(Path(value))


class Commands(click.Group):
    """The commands in the order of the pipeline; each is imported when it is used."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*COMMANDS]

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])  # importing its command rebinds the name list here

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        parts = {key.removeprefix(f"{name} "): place for key, place in REQUESTS.items() if key.startswith(f"{name} ")}
        command: click.Command
        if parts or name in REQUESTS:
            commands: Any = importlib.import_module("compress.cli.commands")
        if parts:
            command = click.Group(name, help=COMMANDS[name])
            for part, place in parts.items():
                command.add_command(commands.command_of(part, place))
        elif name in REQUESTS:
            command = commands.command_of(name, REQUESTS[name])
        else:
            command = importlib.import_module(f"compress.cli.{name}").command
        within = command.commands.values() if isinstance(command, click.Group) else ()
        for parameter in (one for part in (command, *within) for one in part.params):
            if parameter.type is click.STRING and parameter.default != "":
                parameter.type = _Given()
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise CompressError(f"unknown command {args[0]!r}; see 'compress --help'.{did_you_mean(args[0], COMMANDS)}")
        if processes.world_size() > 1 and args and args[0] in COMMANDS.keys() - TRAINING:
            raise CompressError(f"compress {args[0]} runs in one process: leave torchrun out")
        return super().resolve_command(context, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Print the traceback of an error too.")
@click.version_option(compress.__version__, prog_name="compress")
def cli() -> None:
    """Distil, prune and quantize text classifiers, and measure accuracy, speed and size against the teacher.

    Every stage reads a model directory and writes a new one: label, distill, prune, quantize, export.
    'compress benchmark', 'report' and 'check' measure and judge. 'compress run STUDY' runs a whole study.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is one sentence and exit code 2, an interruption exit code 130."""
    interrupt_on_signals()
    open_streams()
    code = processes.run_command(partial(execute, sys.argv[1:] if arguments is None else arguments))
    close_streams()
    sys.exit(code)


def execute(arguments: list[str]) -> int:
    """Run a command and return its exit code; whatever goes wrong is one sentence."""
    # Not named run: importing the command of this name binds it in this module.
    try:
        return _invoke(arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        complain(error.ctx.get_help() if error.ctx else error.format_message())
        return ExitCode.MISTAKE
    except BrokenPipeError:
        return ExitCode.UNREAD
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # of libraries in Rust, whose panics are no Exception
        if isinstance(error, KeyboardInterrupt) or interruptions:
            complain(f"\nInterrupted. {_resumable(arguments)}")
            return ExitCode.INTERRUPTED
        cause: BaseException | None = error
        while isinstance(cause, CompressError | click.UsageError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None and not {"-v", "--verbose"}.isdisjoint(arguments):
            complain("".join(traceback.format_exception(cause)).rstrip("\n"))
        complain(f"Error: {' '.join(_sentence(error, arguments).split())}")
        return ExitCode.MISTAKE


def _invoke(arguments: list[str]) -> int:
    # Not cli.main, which exits itself where nobody reads, and takes the end of a damaged file for an interruption.
    if zero := next((word for word in arguments if "\0" in word), None):
        raise CompressError(f"the argument {zero!r} has a zero byte; leave it out")
    if not _UTF8 and (odd := next((word for word in arguments if re.search(r"[\ud800-\udfff]", word)), None)):
        raise CompressError(f"the argument {ascii(odd)} is not understood: {_OTHER_LOCALE}")
    try:
        with cli.make_context("compress", [*arguments]) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as end:
        code = end.exit_code
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def _sentence(error: BaseException, arguments: list[str]) -> str:
    if isinstance(error, CompressError):
        return str(error)
    if isinstance(error, click.UsageError):
        return error.format_message().rstrip(".") + (f" (see '{error.ctx.command_path} --help')" if error.ctx else "")
    if isinstance(error, ModuleNotFoundError):
        return str(MissingPackage(error))
    if isinstance(error, UnicodeEncodeError) and not _UTF8:
        return f"a name has letters that this system cannot write: {_OTHER_LOCALE}"
    number = system_fault(error) or (error.errno if isinstance(error, OSError) else None)
    if number == errno.ENOMEM:
        return f"there is not enough memory: give fewer rows, or end other programs. {_resumable(arguments)}"
    if number is not None:
        reason = _EXPLAINED.get(number) or f"the system says {os.strerror(number)!r}:"
        where = f" {os.fsdecode(name)}" if isinstance(name := getattr(error, "filename", None), str | bytes) else ""
        return f"{(reason + where).rstrip(':')}; what was finished before stays. {_resumable(arguments)}"
    says = next(iter(str(error).split("\n")), "")
    plugin = _plugin_at_fault(error)
    return (
        f"{type(error).__name__}{': ' if says else ''}{says} (a fault of {plugin or 'compress'}, not "
        f"{'of compress' if plugin else 'yours'}: type 'compress -v' and the rest of the command to see where"
        f"{'' if plugin else ', and report it'})"
    )


def _plugin_at_fault(error: BaseException) -> str:
    """Name the plug-in of another package in which an error was raised, by it or by what it called."""
    from compress import plugins

    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        found = plugins.of_another_package(module) or ("" if module.partition(".")[0] == "compress" else found)
    return found


_EXPLAINED = {
    errno.ENOSPC: "the disk is full while writing",
    errno.EFBIG: "a file became larger than this shell allows (ulimit -f) or the disk can hold:",
    errno.EDQUOT: "the disk quota is used up while writing",
    errno.EACCES: "no permission to write or read",
    errno.EPERM: "no permission to write or read",
    errno.EROFS: "the file system is read-only:",
    errno.ENOTDIR: "a part of the path is a file, not a directory:",
    errno.EISDIR: "a file is needed, and this is a directory:",
    errno.ENAMETOOLONG: "the name is too long:",
    errno.ENOENT: "a file is gone that was there a moment ago:",
    errno.ESTALE: "a file is gone that was there a moment ago:",
    errno.EIO: "the disk failed (I/O error):",
    errno.EMFILE: "too many files are open: allow more with 'ulimit -n 4096':",
    errno.ENFILE: "the whole machine has too many files open: end other programs:",
}


def _resumable(arguments: list[str]) -> str:
    """Tell whether the same command would resume."""
    for flag, following in zip(arguments, [*arguments[1:], ""], strict=True):
        value = following if flag in {"-o", "--output"} else ""
        if flag.startswith("--output="):
            value = flag.removeprefix("--output=")
        elif flag.startswith("-o") and len(flag) > 2:
            value = flag[2:]
        with suppress(OSError, ValueError, CompressError):  # a path that cannot be
            target = Path(value)
            if is_uri(value):
                from compress.labelling.remote_labels import work_place

                target = work_place(value)
            if value and ((target / "study.json").is_file() or target.with_name(f".{target.name}.partial").is_dir()):
                return f"The same command goes on from what is finished of {without_secrets(value)}."
    return "Nothing was written."
