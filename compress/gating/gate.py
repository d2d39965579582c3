"""What a request asks to be judged: its budgets, its verdict's files, and the baseline that it renews."""

import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from compress.errors import CompressError, PartlyMade
from compress.files import write_atomically
from compress.gating.budgets import BudgetFile, GateBudget, read_budgets
from compress.gating.check import HOLDS, GateVerdict, check
from compress.gating.outputs import read_junit, read_verdict, to_json, to_junit
from compress.gating.reference import store_reference
from compress.models.output_dir import check_file, keep_apart, output_path, refuse_other_outputs, unwritable
from compress.requests import local_inputs
from compress.requests.measuring import Check


def gate(request: Check) -> GateVerdict:
    """Judge results as asked, and write the verdict's files.

    Raises:
        PartlyMade: the budgets hold, and the baseline cannot be renewed.
        CompressError: for anything about the request that the user can put right.
    """
    outputs = {"--junit": request.junit, "--json": request.json_file}
    renewed = Path(request.update_baseline) if request.update_baseline else None
    _check_outputs(request, outputs)
    if renewed:
        refuse_other_outputs(renewed, "--update-baseline a directory of results")
    file = read_budgets(Path(request.budgets)) if request.budgets else BudgetFile()
    # Budgets and tolerances of options: one for each pair of a chosen model and runtime.
    pairs = product(request.models or (None,), request.runtimes or (None,))
    selectors = [{"model": model, "runtime": runtime, "batch_size": request.batch_size} for model, runtime in pairs]
    chosen: list[Any] = [_given(one) for one in selectors]
    limits: dict[str, Any] = request.limits()
    asked = [GateBudget(**one, **limits, over_seeds=request.over_seeds) for one in chosen if limits]
    changes = {"max_drop": request.max_baseline_drop, "max_slowdown": request.max_baseline_slowdown}
    # What is not chosen stays as the file's [baseline] has it.
    tolerances = [replace(file.baseline, **_given(changes), **one) for one in chosen]
    older: dict[str, Any] = {"baseline": request.baseline, "against": request.against}
    verdict = GateVerdict()
    if file.budget or asked or any(older.values()) or not renewed:
        verdict = check(request.results, file.budget, asked=asked, tolerances=tolerances, **older)
    _check_outputs(request, outputs)
    for (option, path), form in zip(outputs.items(), (to_junit, to_json), strict=True):
        if path:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(Path(path), form(verdict))
            except OSError as error:
                raise unwritable(Path(path), error, option) from None
    if renewed and verdict.outcome == HOLDS:
        try:
            return replace(verdict, stored=store_reference(request.results, renewed))
        except CompressError as error:
            raise PartlyMade(str(error), verdict) from error
    return verdict


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_outputs(request: Check, outputs: dict[str, Any]) -> None:
    """Refuse, before the work, files that cannot be written, or that are there and not verdicts of earlier checks."""
    for (option, path), read in zip(outputs.items(), (read_junit, read_verdict), strict=True):
        if path is None:
            continue
        keep_apart([output_path(path, option)], local_inputs(request), option)
        check_file(path, option)
        if Path(path).is_file() and Path(path).stat().st_size:
            try:
                read(Path(path))
            except CompressError:
                raise CompressError(
                    f"{option} {path} exists and is not a verdict of compress, so that it is not replaced; choose "
                    "another"
                ) from None
    if all(outputs.values()) and len({*map(os.path.realpath, outputs.values())}) == 1:
        raise CompressError(f"--junit and --json are both {request.json_file}; name two files")
