"""The command line: one file per command, which parses options, calls one stage and prints.

Nothing here imports torch, so that ``compress --help`` is quick.
"""

import errno
import importlib
import os
import signal
import sys
from pathlib import Path

import click

import compress
from compress.errors import CompressError, MissingPackage, did_you_mean

# Their one-line help stands here, so that ``compress --help`` imports none of them.
COMMANDS = {
    "finetune": "Fine-tune a teacher from a pretrained encoder and labelled text.",
    "label": "Run the teacher once over unlabelled text and keep its logits.",
    "pretrain": "Pre-train a student on unlabelled text, once for many tasks.",
    "distill": "Train a student to match its teacher.",
    "heads": "Study the importance of a model's attention heads.",
    "prune": "Remove layers, heads, neurons, hidden width and vocabulary.",
    "quantize": "Quantize weights to int8, accepted only if accurate and faster.",
    "export": "Write a fused fp32 ONNX directory that other ONNX clients open.",
    "benchmark": "Measure models against their teacher, in one run.",
    "report": "Write results as an HTML page, Markdown and JSON.",
    "check": "Judge results against budgets.",
    "replay": "Run a benchmark again from its lock and compare every figure.",
    "run": "Run a whole study, from data to report.",
    "predict": "Classify texts, one JSON line each.",
    "list": "List recipes and plug-ins.",
    "show": "Explain a recipe or plug-in.",
}

FAILED, INTERRUPTED = 2, 130


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
        command: click.Command = importlib.import_module(f"compress.cli.{name}").command
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise CompressError(f"unknown command {args[0]!r}; see 'compress --help'.{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(context, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(compress.__version__, prog_name="compress")
def cli() -> None:
    """Distil, prune and quantize text classifiers, and measure accuracy, speed and size against the teacher.

    Every stage reads a model directory and writes a new one: label, distill, prune, quantize, export.
    'compress benchmark', 'report' and 'check' measure and judge. 'compress run STUDY' runs a whole study.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is one sentence and exit code 2, an interruption exit code 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what CI sends a job that it cancels ends like Ctrl-C
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    # Not named run: importing the command of this name binds it in this module.
    try:
        result = cli.main(arguments, prog_name="compress", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except CompressError as error:
        return _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx else error.format_message(), file=sys.stderr)
        return FAILED
    except click.UsageError as error:
        hint = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        return _fail(error.format_message().rstrip(".") + hint)
    except (KeyboardInterrupt, click.Abort):
        print(f"\nInterrupted. {_resumable(arguments)}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it; print nothing more, not even at interpreter shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno in _EXPLAINED:
            where = f" {error.filename}" if error.filename else ""
            return _fail(f"{_EXPLAINED[error.errno]}{where}; what was finished before stays. {_resumable(arguments)}")
        raise
    except ModuleNotFoundError as error:
        return _fail(str(MissingPackage(error)))
    except Exception as error:
        if not _disk_is_full(error):
            raise
        return _fail(f"{_EXPLAINED[errno.ENOSPC]}; what was finished before stays. {_resumable(arguments)}")


def _disk_is_full(error: BaseException | None) -> bool:
    """Recognize a full disk in errors that libraries raise instead of an OSError.

    safetensors repeats the system's words; torch's writer of checkpoints only says where it failed.
    """
    words = (os.strerror(errno.ENOSPC), "enforce fail at inline_container.cc")
    while error is not None:
        if any(word in str(error) for word in words):
            return True
        error = error.__cause__ or error.__context__
    return False


_EXPLAINED = {
    errno.ENOSPC: "the disk is full while writing",
    errno.EDQUOT: "the disk quota is used up while writing",
    errno.EACCES: "no permission to write or read",
    errno.EPERM: "no permission to write or read",
    errno.EROFS: "the file system is read-only:",
    errno.ENOTDIR: "a part of the path is a file, not a directory:",
    errno.EISDIR: "a file is needed, and this is a directory:",
    errno.ENAMETOOLONG: "the name is too long:",
}


def _fail(message: str) -> int:
    print(f"Error: {' '.join(message.split())}", file=sys.stderr)
    return FAILED


def _resumable(arguments: list[str]) -> str:
    """Tell whether the same command would resume."""
    for flag, following in zip(arguments, [*arguments[1:], ""], strict=True):
        value = following if flag in {"-o", "--output"} else ""
        if flag.startswith("--output="):
            value = flag.removeprefix("--output=")
        elif flag.startswith("-o") and len(flag) > 2:
            value = flag[2:]
        if value:
            target = Path(value)
            if target.with_name(f".{target.name}.partial").is_dir() or (target / "study.json").is_file():
                return f"The same command goes on from what is finished of {target}."
    return "Nothing was written."
