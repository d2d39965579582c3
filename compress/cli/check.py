"""compress check"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compress.cli import Command
from compress.cli.options import keep_inputs
from compress.cli.printing import say
from compress.cli.values import Real, Whole
from compress.errors import CompressError
from compress.models.output_dir import append_summary, check_file, output_path, refuse_other_outputs, unwritable

if TYPE_CHECKING:
    from compress.gating.budgets import GateBudget, Tolerance
    from compress.gating.check import GateVerdict


class LimitValue(click.ParamType[float]):
    """A limit as budgets allow it."""

    name = "limit"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        from compress.gating.budgets import parse_limit

        assert parameter is not None
        try:
            return parse_limit(parameter.name or "", value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


@click.command(cls=Command)
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...")
@click.option("--budgets", metavar="FILE", help="Budgets in a TOML file; limits given as options come on top.")
@click.option("--max-accuracy-drop", type=LimitValue(), metavar="POINTS", help="Points of the metric a model may lose.")
@click.option("--over-seeds", is_flag=True, help="Judge --max-accuracy-drop by the mean over training seeds.")
@click.option("--min-metric", type=LimitValue(), metavar="SHARE", help="The metric itself, at least; 0.88 is 88%.")
@click.option(
    "--max-calibration-error", type=LimitValue(), metavar="SHARE", help="Expected calibration error, at most."
)
@click.option("--min-speedup", type=LimitValue(), metavar="X", help="Times faster than the teacher in torch, at least.")
@click.option(
    "--min-speedup-with-tokenizer", type=LimitValue(), metavar="X", help="The same with tokenisation on both sides."
)
@click.option("--max-p95-ms", type=LimitValue(), metavar="MS", help="95th percentile of latency, at most.")
@click.option("--max-size", type=LimitValue(), metavar="SIZE", help="Weights on disk, at most: bytes, or such as 30MB.")
@click.option(
    "--max-memory", type=LimitValue(), metavar="SIZE", help="Memory of the model above its libraries', at most."
)
@click.option("--model", "models", multiple=True, metavar="NAME", help="Judge only this one; may be repeated.")
@click.option("--runtime", "runtimes", multiple=True, metavar="NAME", help="Judge only this runtime; may be repeated.")
@click.option("--batch-size", type=Whole(min=1), help="Of the speed; default the smallest measured.")
@click.option("--baseline", metavar="PATH", help="Older results: a file, or a directory with a file for each host.")
@click.option("--against", metavar="REF:PATH", help="Older results as they are at a git reference.")
@click.option("--max-baseline-drop", type=Real(0, 100), metavar="POINTS", help="Below the older results; default 1.")
@click.option(
    "--max-baseline-slowdown",
    type=Real(0, 1, max_open=True),
    metavar="SHARE",
    help="Of the older speed-up; default 0.1.",
)
@click.option("--update-baseline", metavar="DIR", help="If all budgets hold, make the results this host's baseline.")
@click.option("--junit", metavar="FILE", help="Write the verdict as JUnit XML.")
@click.option("--json", "json_file", metavar="FILE", help="Write the verdict as JSON.")
@click.pass_context
def command(
    context: click.Context,
    /,
    results: tuple[str, ...],
    budgets: str | None,
    baseline: str | None,
    against: str | None,
    update_baseline: str | None,
    junit: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Judge results against budgets. Exit code 0: they hold, 1: one is broken, 3: an interval straddles a budget."""
    from compress.gating.budgets import read_budgets
    from compress.gating.check import HOLDS, GateVerdict, check
    from compress.gating.reference import store_reference

    _check_outputs(junit, json_file)
    if update_baseline:
        refuse_other_outputs(Path(update_baseline), "--update-baseline a directory of results")
    file = read_budgets(budgets) if budgets else None
    asked, tolerances = _from_options(options, file.baseline if file else None, baseline or against)
    written = file.budget if file else ()
    if written or asked or baseline or against or not update_baseline:
        verdict = check(results, written, asked=asked, baseline=baseline, against=against, tolerances=tolerances)
    else:
        verdict = GateVerdict()
    _write(junit, json_file, verdict)
    _show(verdict)
    if update_baseline and verdict.outcome == HOLDS:
        for path, gone in store_reference(results, update_baseline).items():
            lost = f"; no longer in it, as these results have none of: {', '.join(gone)}" if gone else ""
            say(f"baseline: wrote {path}{lost}")
    elif update_baseline:
        say(f"note: {update_baseline} is left as it is, because the verdict is {verdict.outcome}")
    context.exit(verdict.exit_code)


def _from_options(
    options: dict[str, Any], default: Tolerance | None, older: str | None
) -> tuple[list[GateBudget], list[Tolerance]]:
    """Return budgets and tolerances of options: one for each pair of a chosen model and runtime."""
    from compress.gating.budgets import LIMITS, OVER_SEEDS, GateBudget, Tolerance

    selectors: list[dict[str, Any]] = [
        {"model": model, "runtime": runtime, "batch_size": options["batch_size"]}
        for model in options["models"] or ("*",)
        for runtime in options["runtimes"] or ("*",)
    ]
    limits = {name: options[name] for name in LIMITS if options[name] is not None}
    selecting = any(options[name] for name in ("models", "runtimes", "batch_size"))
    if selecting and not limits and not older:
        raise CompressError(
            "--model, --runtime and --batch-size are for limits that are options too, such as --max-accuracy-drop; "
            "in a file of budgets they are keys of a [[budget]]"
        )
    if options["over_seeds"] and {*limits} != {*OVER_SEEDS}:
        raise CompressError(
            "--over-seeds is for --max-accuracy-drop alone: give that, and other limits in another command; in a file "
            "of budgets it is a key of a [[budget]]"
        )
    budgets = [GateBudget(**selector, **limits, over_seeds=options["over_seeds"]) for selector in selectors if limits]
    changes = {"max_drop": options["max_baseline_drop"], "max_slowdown": options["max_baseline_slowdown"]}
    if not older and any(value is not None for value in changes.values()):
        raise CompressError("--max-baseline-drop and --max-baseline-slowdown need --baseline or --against")
    tolerance = replace(default or Tolerance(), **{key: value for key, value in changes.items() if value is not None})
    # What is not chosen stays as the file's [baseline] has it.
    chosen = [{key: value for key, value in selector.items() if value not in ("*", None)} for selector in selectors]
    tolerances = [replace(tolerance, **one) for one in chosen] if selecting else [tolerance]
    return budgets, tolerances


def _show(verdict: GateVerdict) -> None:
    """Print the verdict; on GitHub annotate the job and add to its summary."""
    from compress.gating.outputs import github_annotations, to_markdown, to_text

    if not verdict.judgements:
        return
    say(to_text(verdict))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for annotation in github_annotations(verdict):
            print(annotation)  # a command of the workflow, which saying would make text
    append_summary(to_markdown(verdict))


def _check_outputs(junit: str | None, json_file: str | None) -> None:
    """Refuse, before the work, files that cannot be written, or that are there and not verdicts of earlier checks."""
    from compress.gating.outputs import read_junit, read_verdict

    for option, path, read in (("--junit", junit, read_junit), ("--json", json_file, read_verdict)):
        if path is not None:
            keep_inputs([output_path(path, option)], option)
            check_file(path, option)
            if Path(path).is_file() and Path(path).stat().st_size:
                try:
                    read(Path(path))
                except CompressError:
                    raise CompressError(
                        f"{option} {path} exists and is not a verdict of compress, so that it is not replaced; choose "
                        "another"
                    ) from None
    if junit and json_file and os.path.realpath(junit) == os.path.realpath(json_file):
        raise CompressError(f"--junit and --json are both {json_file}; name two files")


def _write(junit: str | None, json_file: str | None, verdict: GateVerdict) -> None:
    from compress.files import write_atomically
    from compress.gating.outputs import to_json, to_junit

    _check_outputs(junit, json_file)
    for option, path, form in (("--junit", junit, to_junit), ("--json", json_file, to_json)):
        if path:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(Path(path), form(verdict))
            except OSError as error:
                raise unwritable(path, error, option) from None
