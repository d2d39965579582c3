"""compress check"""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...")
@click.option("--max-accuracy-drop", type=float, metavar="POINTS", help="Points of the metric a model may lose.")
@click.option("--min-speedup", type=float, metavar="X", help="Times faster than the teacher in torch, at least.")
@click.option("--max-size", "max_size_bytes", type=int, metavar="BYTES", help="Size of the weights on disk, at most.")
@click.option("--baseline", metavar="FILE", help="Older results that the new ones must not fall behind.")
@click.option("--max-baseline-drop", type=float, default=1.0, show_default=True, help="Points below the baseline.")
@click.option("--max-baseline-slowdown", type=float, default=0.1, show_default=True, help="Share of its speed-up.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Judge only this model; may be repeated.")
@click.option("--runtime", "runtimes", multiple=True, metavar="NAME", help="Judge only this runtime; may be repeated.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Of the speed-up; default the smallest measured.")
@click.pass_context
def command(context: click.Context, results: tuple[str, ...], **budgets: object) -> None:
    """Judge results against budgets. Exit code 0: holds, 1: broken, 3: the interval straddles a budget."""
    from compress.gate import check

    verdict = check(results, **budgets)  # type: ignore[arg-type]
    for judgement in verdict.judgements:
        click.echo(f"{judgement.outcome}: {judgement.sentence}")
    for note in verdict.notes:
        click.echo(f"note: {note}")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(verdict.markdown() + "\n")
    context.exit(verdict.exit_code)
