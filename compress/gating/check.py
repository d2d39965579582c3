"""Gating stage: judge results against budgets and reference results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compress.benchmarking.results.files import Results, grouped, results_of
from compress.benchmarking.results.schema import Measurement
from compress.errors import refuse
from compress.gating.budgets import GateBudget, Tolerance, select
from compress.gating.judgements import (
    JUDGES,
    OF_THE_MODEL,
    ONE_MODEL,
    RELATIVE,
    GateVerdict,
    Judgement,
    Limit,
    baselines_within,
    judge_over_seeds,
    subjects,
)
from compress.gating.reference import ReferenceComparison, read_against, read_reference


def check(
    results: Sequence[str | Path],
    budgets: Sequence[GateBudget] = (),
    *,
    asked: Sequence[GateBudget] = (),
    baseline: str | Path | None = None,
    against: str | None = None,
    tolerances: Sequence[Tolerance] = (Tolerance(),),
) -> GateVerdict:
    """Judge the results of ``compress benchmark`` by budgets, and compare them with older results.

    A limit holds or is broken only when the whole 95% interval lies on one side of it; else it is undecided.

    Args:
        results: ``.jsonl`` files of ``compress benchmark``.
        budgets: limits, each on the lines that its selectors find; messages number them as a file does.
        asked: more of them, which were options and have no number.
        baseline: older results: a file, or a directory with one file for each host. Quality is compared across hosts,
            speed on the same host only.
        against: the same, as it is in git at ``REF:PATH``.
        tolerances: how far the results may fall behind the older ones.

    Raises:
        CompressError: there is nothing to check, or a budget finds no line.
    """
    every = [*budgets, *asked]
    prefixes = [*(f"budget[{index}]: " for index in range(len(budgets))), *("" for _ in asked)]
    faults = [prefix + fault for one, prefix in zip(every, prefixes, strict=True) for fault in one.faults()]
    faults += [f"baseline: {fault}" for tolerance in tolerances for fault in tolerance.faults()]
    refuse(
        (
            not every and baseline is None and against is None,
            "there is no budget to check; give --budgets FILE, a limit such as --max-accuracy-drop, --baseline or "
            "--against",
        ),
        (
            baseline is not None and against is not None,
            "--baseline and --against are both older results to compare with; give one of them",
        ),
        (faults, "; ".join(faults)),
    )
    lines = Results.open(*results)
    rows = results_of(lines)
    judgements: list[Judgement] = []
    for budget, prefix in zip(every, prefixes, strict=True):
        chosen = select(budget, rows, prefix=prefix)
        for name, limit in budget.limits().items():
            made = judge_over_seeds(limit, chosen, lines) if budget.over_seeds else _judge_each(name, limit, chosen)
            nothing = f"{prefix}{name} is relative to the teacher in torch, and it selects nothing else"
            refuse((not made, nothing))
            judgements += made
    verdict = GateVerdict(tuple(dict.fromkeys(judgements)), tuple(baselines_within(rows, every)))
    hosts = [line.host_id for line in lines]
    if baseline is not None:
        compared = ReferenceComparison(lines, read_reference(baseline, hosts), str(baseline))
    elif against is not None:
        compared = ReferenceComparison(lines, read_against(against, hosts), against)
    else:
        return verdict
    for tolerance in tolerances:
        compared.judge(select(tolerance, rows, prefix="the baseline: "), tolerance)
    refuse(
        (
            not compared.judgements,
            f"{compared.name} has none of the models in the results; give older results of the same models, or leave "
            "it out",
        )
    )
    # Patterns may select a line twice.
    changes = {(id(change.then), id(change.now)): change for change in compared.changes}
    return GateVerdict(
        tuple(dict.fromkeys((*verdict.judgements, *compared.judgements))),
        tuple(dict.fromkeys((*verdict.notes, *compared.notes))),
        tuple(changes.values()),
        compared.name,
    )


def _judge_each(name: str, limit: float, chosen: Sequence[Measurement]) -> list[Judgement]:
    named = list(zip(chosen, subjects(chosen), strict=True))
    if name in OF_THE_MODEL:
        named = [same[0] for same in grouped(named, lambda one: ONE_MODEL(one[0])).values()]
    return [
        JUDGES[name](Limit(name, limit, subject), line)
        for line, subject in named
        if not (name in RELATIVE and line.is_reference)
    ]
