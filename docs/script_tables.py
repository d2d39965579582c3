"""Tables of what the scripts in benchmarks/ measured, as Markdown. Figures are made elsewhere: nothing is computed here
but sums and shares of what the lines hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compress.benchmarking.results.formatting import points, span, table, times
from compress.escaping import Markdown
from compress.inference.speedup_intervals import Interval
from compress.reporting.pareto import Point, pareto_chart

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
Line = dict[str, Any]
# Ways of the study room in the README's picture, by their names there.
PICTURED = {
    "cnn": "cnn",
    "ngram": "ngram",
    "fasttext": "fastText",
    "fasttext wordNgrams=2": "with pairs",
    "fasttext wordNgrams=2 minn=3 maxn=6": "with subwords",
    "svm words=3": "SVM",
    "svm words=2 characters=5": "SVM, characters",
    "model2vec": "model2vec",
}


def _lines(name: str) -> list[Line]:
    """Return the lines that a script wrote: those of ``benchmarks/results/NAME.jsonl``."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def _with_note(made: Markdown, note: str) -> str:
    return f"{made}\n\n{note}\n"


def _origin(found: Sequence[Line], note: str) -> str:
    """Say where lines were measured and by which commands."""
    commands = dict.fromkeys(line["command"] for line in found)
    made = " and ".join(f"`{command}`" for command in commands)
    return f"{note}; on {found[0]['host']['cores']} cores of {found[0]['host']['cpu']}. Made by {made}."


def _ratio(found: Line) -> str:
    return f"×{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _points(found: Line) -> str:
    return f"{points(found['points'])} ({span(points(found['low']), points(found['high']))})"


def tokenization_table() -> str:
    found = _lines("tokenization-speed")
    head = found[0]
    rows = [
        [line["way"], f"{line['median_us']:.1f}", f"{line['mean_us']:.1f}", _ratio(line["compress_is_faster_by"])]
        for line in found
    ]
    note = (
        f"{head['rows_per_round'] * head['rounds']:,} texts of {head['data']}, {head['mean_tokens']:.1f} tokens on "
        f"average, one at a time; before them {head['rows_before']:,} others; one thread, on {head['host']['cpu']}; "
        f"95% intervals; tokenizers {head['versions']['tokenizers']}. Made by `{head['command']}`."
    )
    return _with_note(table(["", "median, µs a text", "mean", Markdown("`compress` is faster by")], rows), note)


def training_profile_table() -> str:
    """Return what share of a training each of its parts has."""
    found = _lines("training-profile")
    head, parts = found[0], [*found[0]["shares"]]
    rows = [
        [
            line["recipe"],
            line["precision"],
            f"{line['step_ms']:.1f}",
            *(f"{line['shares'][part]:.1%}" for part in parts),
        ]
        for line in found
    ]
    headings = ["student", "arithmetic", "ms a step, without evaluation and checkpoint", *parts]
    note = (
        f"Shares of a training of {head['steps']} steps of {head['batch_size']} rows, an evaluation on "
        f"{head['validation_rows']:,} rows and a checkpoint; CPU time, one thread, torch {head['versions']['torch']}; "
        f"instructions {', '.join(head['host']['cpu_flags'])}"
    )
    return _with_note(table(headings, rows, left=2), _origin(found, note))


def fuzzing_table() -> str:
    """Return how often each command worked, and how often it refused a changed input."""
    found = json.loads((RESULTS / "fuzzing.json").read_text(encoding="utf-8"))
    outcomes = ("worked", "refused", "faults")
    counts = {name: [one.get(outcome, 0) for outcome in outcomes] for name, one in found["commands"].items()}
    counts["all"] = list(map(sum, zip(*counts.values(), strict=True)))
    rows = [[name, *(f"{count:,}" for count in one)] for name, one in counts.items()]
    note = (
        f"{found['seconds'] / 60:.0f} minutes on {found['host']['cpu']}; the longest case took "
        f"{found['slowest_seconds']:.0f} s, the largest {found['largest_memory_mb']} MB, libraries included. Made by "
        f"`{found['command']}`; at the start each use runs once without a change."
    )
    return _with_note(table(["command", "worked", "refused in one sentence", "anything else"], rows), note)


def compositions_table() -> str:
    found = _lines("compositions")
    head = found[0]
    rows = []
    for line in found:
        speeds = [_ratio({**line[size], "value": line[size]["speedup"]}) for size in ("batch_1", "batch_32")]
        quality = [f"{line['flops_share']:.0%}", f"{line['value']:.1%}", _points(line)]
        rows.append([line["composition"], ", ".join(_asked(line)), *quality, *speeds])
    headings = ["", "removed", "operations left", "accuracy", "points to the teacher", "speed-up, batch 1", "batch 32"]
    note = (
        f"{head['rows']:,} held-out rows of {head['data']}, on which the teacher has {head['teacher_value']:.1%}; "
        f"{head['steps']} steps each; ONNX Runtime, 1 thread, on {head['host']['cpu']}; 95% intervals. Made by "
        f"`{head['command']}`."
    )
    return _with_note(table(headings, rows, left=2), note)


def _asked(line: Line) -> Iterator[str]:
    """Yield what a composition removes, and how, where that is not as in the others."""
    if cut := line.get("vocabulary"):
        yield f"{cut['pieces_before'] - cut['pieces_after']:,} of {cut['pieces_before']:,} subword tokens"
    yield from (f"{part} {line[part]}" for part in ("layers", "heads", "ffn", "hidden") if part in line)
    for name in ("max_accuracy_drop", "speedup"):
        if name in line:
            yield f"--{name.replace('_', '-')} {line[name]:g}"
    if "schedule" in line:
        yield "chosen before any training"
    if "recovery" in line:
        yield f"recovery by {line['recovery']} too"
    if line.get("recover") == 0:
        yield "no recovery"


def calibration_table() -> str:
    found = _lines("calibration")

    def interval(value: float, low: float, high: float) -> str:
        return f"{100 * value:.1f}% ({100 * low:.1f} to {100 * high:.1f})"

    rows = [
        [
            line["set"],
            line["model"],
            f"{line['method']}, {line['temperature']:.2f}",
            f"{line['accuracy'][0]:.1%}",
            f"{line['confidence'][0]:.1%}",
            *(interval(*error) for error in line["calibration_error"]),
            *([f"{line['accepted']:.0%}", interval(*line["right"])] if line["acceptance"] else ["none is certain", ""]),
        ]
        for line in found
    ]
    headings = ["set", "model", "scaling, T", "accuracy", "mean confidence", "calibration error before", "after"]
    headings += [f"accepted, {100 * found[0]['asked']:g}% asked", "of these right"]
    sizes = {line["set"]: f"{line['set']}: {line['validation_rows']:,} and {line['test_rows']:,}" for line in found}
    note = f"Validation and test rows: {'; '.join(sizes.values())}. 95% intervals over test rows."
    return _with_note(table(headings, rows, left=3), note)


def searching_table() -> str:
    """Return what each way chose, timed and on test rows."""
    rows = []
    for line in sorted(_lines("searching"), key=lambda line: (line["set"], line["seed"])):
        trials = {row["trial"]: row for row in line["trials"]}
        found = []
        if number := 1 if line["method"] == "cnn" else line["winner"]:
            found.append((line["method"], trials[number]["name"], trials[number]))
        if line["cascade"]:
            members = "; ".join(name.split(",")[0] for name in line["cascade"]["members"])
            found.append((f"{line['method']}, cascade", members, line["cascade"]))
        for way, name, row in found or [(line["method"], "none", None)]:
            figures = [times(row["speedup"]), _points(row), _points(row["test"])] if row else ["", "", ""]
            spent = [f"{line['timed']}", f"{line['trainings']}", f"{line['spent_s'] / 60:.0f}"]
            rows.append([line["set"], way, name, *spent, *figures])
    headings = ["set", "way", "chosen", "shapes timed", "trainings", "minutes", "speed-up"]
    return table([*headings, "points, validation", "points, test"], rows, left=3) + "\n"


def few_rows_table() -> str:
    found = _lines("few-rows")
    by_key = {(line["set"], line["model"], line["plan"]): line for line in found}
    rows = []
    for (set_name, model, plan), line in by_key.items():
        if plan == "floor":
            passes = by_key[set_name, model, "passes"]
            about = [set_name.rpartition("-")[0], model, f"{line['train']:,}"]
            figures = [
                text for one in (passes, line) for text in (f"{one['planned_steps']:,}", f"{one['accuracy']:.1%}")
            ]
            rows.append([*about, *figures, _points(line["to_passes"])])
    headings = ["set", "model", "labelled rows", "steps by passes", "accuracy", "steps with the floor", "accuracy"]
    tested = {line["set"].rpartition("-")[0]: f"{line['rows']:,}" for line in found}
    note = (
        f"Test rows: {', '.join(f'{count} of {name}' for name, count in tested.items())}; 95% intervals of the paired "
        f"difference; one seed, on {found[0]['host']['cpu']}. Made by `{found[0]['command']}`."
    )
    return _with_note(table([*headings, "gain, points"], rows, left=2), note)


def label_noise_table() -> str:
    """Return what share of flipped labels each way finds, and how many of its suspects are flipped."""
    found = _lines("label-noise")
    shares = ("recall", "precision", "recall_first")
    rows = [
        [
            line["set"],
            line["noise"],
            line["way"],
            *("{value:.0%} ({low:.0%} to {high:.0%})".format(**line[name]) for name in shares),
        ]
        for line in found
    ]
    headings = ["set", "flipped to", "way", "found among the suspects", "suspects that were flipped", "found first"]
    sets = dict.fromkeys(f"{line['rows']:,} of {line['set']} ({line['classes']} classes)" for line in found)
    note = (
        f"{found[0]['share']:.0%} of the labels flipped, {found[0]['seeds']} seeds; rows: {', '.join(sets)}; Wilson "
        "intervals (95%). Found first: among as many first rows as were flipped, which only self-confidence has to be "
        "told. A label that was wrong before counts as false"
    )
    return _with_note(table(headings, rows, left=3), _origin(found, note))


def pair_baselines_table() -> str:
    found = _lines("pair-baselines")
    rows = [
        [
            line["baseline"],
            *("{value:.3f} ({low:.3f} to {high:.3f})".format(**line[metric]) for metric in ("pearson", "spearman")),
        ]
        for line in found
    ]
    note = f"{found[0]['set']} dev, n = {found[0]['rows']:,}; 95% intervals over pairs"
    return _with_note(table(["baseline", "Pearson", "Spearman"], rows), _origin(found, note))


def imbalance_table() -> str:
    """Return what each way of training does for a class that is rare."""
    found = _lines("imbalance")

    def percent(figure: Line) -> str:
        return f"{figure['value']:.1%} ({span(*(f'{100 * figure[end]:.1f}' for end in ('low', 'high')))})"

    def change(figure: Line) -> str:
        value, low, high = (points(100 * one) for one in figure["to_plain"])
        return f"{value} ({span(low, high)})"

    rows = [
        [
            line["spam"],
            line["model"],
            line["way"],
            f"{line['accuracy']['value']:.1%}",
            *(percent(line[name]) for name in ("recall", "precision", "f1")),
            "" if line["way"] == "plain" else change(line["f1"]),
            percent(line["average_precision"]),
        ]
        for line in found
    ]
    head = found[0]
    headings = ["spam", "model", "way", "accuracy", "recall", "precision", "F1", "F1 to plain, points"]
    note = (
        f"{head['rows']:,} messages, {head['rows_spam']} of them spam, in {head['folds']} folds; 95% intervals over "
        "messages, of differences paired"
    )
    return _with_note(table([*headings, "average precision"], rows, left=3), _origin(found, note))


def room_table() -> str:
    """Return of each way its points to the teacher by set, its distance to the best baseline, and its time a text."""
    every = _lines("room")
    found = [line for line in every if line["study"] == "room"]
    told = ("way", "learns_from", "seed", "pool_rows")
    speeds = {tuple(line[name] for name in told): line for line in every if line["study"] != "room"}
    sets = {"sst": "SST", "cr": "CR", "yelp": "Yelp"}
    rows = []
    for line in sorted(found, key=lambda line: -line["validation"]):
        timed = speeds.get(tuple(line[name] for name in told))
        time = [f"{timed['median_us']:.1f}", times(timed["faster_than_teacher"]["value"])] if timed else ["–", "–"]
        judged = [_points(line["sets"][name]["to_teacher"]) for name in sets]
        pool = f"{line['pool_rows']:,} sentences" if line["pool_rows"] else "no pool"
        about = [line["way"], f"{line['learns_from']}, {pool}", line["seed"], f"{line['validation']:.1%}"]
        rows.append([*about, *judged, *time])
    head = found[0]
    teacher = ", ".join(
        f"{head['sets'][name]['teacher']:.1%} of {head['sets'][name]['rows']:,} rows of {shown}"
        for name, shown in sets.items()
    )
    note = f"The teacher has {teacher}; 95% intervals of paired differences; on {head['host']['cpu']}"
    if speeds:
        timed = next(iter(speeds.values()))
        note += f"; times are CPU time of one thread, one text at a time, in {timed['rounds']} interleaved rounds"
    headings = [
        "way",
        "labels of",
        "seed",
        "validation",
        *(f"{shown}: points to the teacher" for shown in sets.values()),
    ]
    return _with_note(table([*headings, "µs a text", "times the teacher's speed"], rows, left=2), f"{note}.")


def room_picture() -> str:
    """Return accuracy on SST against speed, text to label, of what learned the teacher's labels, as SVG."""
    lines = sorted(_lines("room"), key=lambda line: (line["pool_rows"], -line["seed"]))  # the last one is taken
    lines = [line for line in lines if line["learns_from"] == "teacher"]
    found = {line["way"]: line["sets"]["sst"] for line in lines if line["study"] == "room"}
    speeds = {line["way"]: Interval(**line["faster_than_teacher"]) for line in lines if line["study"] != "room"}
    accuracy, one = 100 * found["fasttext"]["teacher"], Interval(1.0, 1.0, 1.0)
    drawn = [Point("teacher", "teacher", one, Interval(accuracy, accuracy, accuracy), f"teacher: {accuracy:.1f}%")]
    for way, name in PICTURED.items():
        metric, speed = Interval(*(100 * found[way][key] for key in ("accuracy", "low", "high"))), speeds[way]
        facts = f"{name}: {metric.value:.1f}% ({metric.low:.1f} to {metric.high:.1f}), {times(speed.value)}"
        drawn.append(Point(name, "model" if name in {"cnn", "ngram"} else "baseline", speed, metric, facts))
    title = f"SST, n = {found['fasttext']['rows']:,}: accuracy and speed from text to label, 95% intervals"
    return pareto_chart(drawn, title=title, y_label="accuracy, %").wide + "\n"


def batch_parts_table() -> str:
    found = _lines("batch-parts")
    tokens = ("tokens_per_row", "padded_tokens_per_row", "padded_tokens_per_row_in_parts", "parts_per_batch")
    rows = [
        [
            line["data"],
            f"{line['rows']:,}",
            line["batch_size"],
            *(f"{line[name]:.1f}" for name in tokens),
            _ratio(line["parts_are_faster_by"]),
        ]
        for line in found
    ]
    headings = ["texts", "rows", "batch", "tokens a row", "with padding", "in parts", "parts a batch", "faster by"]
    head = found[0]
    note = f"{head['model']} in {head['precision']}, {head['threads']} thread; 95% intervals over passes"
    return _with_note(table(headings, rows), _origin(found, note))


def large_pools_table() -> str:
    found = _lines("large-pools")
    rows = []
    for line in sorted(found, key=lambda line: line["rows"]):
        label, distill = line["label"], line["distill"]
        figures = (
            line["rows"],
            label["seconds"],
            label["processor_seconds"],
            label["peak_resident_mib"],
            distill["seconds"],
            distill["processor_seconds"],
            line["before_training_s"],
            distill["peak_anonymous_mib"],
            distill["peak_resident_mib"],
        )
        rows.append([f"{figure:,.0f}" for figure in figures])
    label, distill = (Markdown(f"`{command}`, seconds") for command in ("label", "distill"))
    headings = ["rows", label, "on the CPU", "memory, MiB", distill, "on the CPU", "to the first step", "memory, MiB"]
    made = table([*headings, "with mapped files"], rows, left=0)
    return _with_note(made, _origin(found, "One run each"))


def reliability_table() -> str:
    found = _lines("reliability")
    kinds = ("kill", "end", "disk", "memory")
    counts = [[line["moments"], *map(line["disturbed"].get, kinds), len(line["faults"])] for line in found]
    rows = [[line["stage"], f"{line['seconds']:.1f}", *own] for line, own in zip(found, counts, strict=True)]
    rows.append(["all", "", *map(sum, zip(*counts, strict=True))])
    headings = ["command", "seconds undisturbed", "moments", "SIGKILL", "SIGTERM", "full disk", "no memory", "faults"]
    other = sum(line["other_reasons_than_memory"] for line in found)
    ended = sum(line["disturbed"]["memory"] for line in found)
    note = (
        f"Moments after the end of a command disturb nothing. Of the {ended} that a limit on memory ended, {other} "
        "gave another reason"
    )
    return _with_note(table(headings, rows), _origin(found, note))


def select_texts_table() -> str:
    found = _lines("select-texts")
    lines = {(line["set"], line["budget"], line["model"], line["way"]): line for line in found}
    rows = []
    for name, budget in dict.fromkeys((line["set"], line["budget"]) for line in found):
        row = [name, f"{budget:,}"]
        for model in ("tfidf", "frozen"):
            random, ours = (lines[name, budget, model, way] for way in ("random", "uncertainty"))
            change = {key: 100 * value for key, value in ours["to_random"].items()}
            row += [f"{random['accuracy']['value']:.1%}", _points({**change, "points": change["value"]})]
        rows.append(row)
    headings = ["set", "labels", "tf-idf, random", "chosen", "frozen MiniLM, random", "chosen"]
    sizes = {line["set"]: f"{line['set']} {line['pool']:,} texts, {line['classes']} classes" for line in found}
    note = (
        f"Points to random texts, with 95% intervals over three draws and test rows. Pools: {'; '.join(sizes.values())}"
    )
    each = [{**line, "command": line["command"].partition(" --only ")[0]} for line in found]
    return _with_note(table(headings, rows, left=1), _origin(each, note))


def distillation_speed_tables() -> str:
    """Return ours, TextBrewer's, and what was measured."""
    found = _lines("distillation-speed")
    head = found[0]
    ours, theirs, gains = [], [], []
    for line in found:
        losses, rate = " + ".join(line["losses"]), f"{line['steps_per_second']:.1f}"
        for opponent, ratio in line.get("ours_is_faster_by", {}).items():
            theirs.append([losses, opponent, rate, _ratio(ratio)])
        if line["library"] == "compress":
            ours.append([losses, line["teacher"], line["arithmetic"], rate, _ratio(line["speed_to_cached_logits"])])
        if "faster_than_unchanged" in line:
            gains.append(
                f"* {line['name']} in {line['arithmetic']}: {_ratio(line['faster_than_unchanged'])} as fast as in "
                "float32 as PyTorch multiplies it."
            )
        if "faster_than_a_pass_for_each" in line:
            gains.append(
                f"* {losses} on one pass of the teacher: {_ratio(line['faster_than_a_pass_for_each'])} as fast as "
                f"with a pass for each, {_ratio(line['faster_than_one_by_one'])} as fast as one after the other."
            )
    host, versions = head["host"], head["peer_versions"]
    note = (
        f"{head['teacher_model']} teaches three layers on {head['data']}; batches of {head['batch_size']}, "
        f"median {head['tokens_median']:.0f} tokens, {head['precision']}, {head['threads']} threads of {host['cpu']} "
        f"(family/model {host['cpu_family_model']}), {head['rounds']} rounds of {head['steps']} steps; 95% intervals. "
        f"TextBrewer {versions['textbrewer']}, torch {versions['torch']}, transformers {versions['transformers']} on "
        f"both sides. Made by `{head['command']}`."
    )
    headings = ["losses", "teacher", "arithmetic", "steps per second", "to kl with cached logits"]
    competitor = table(["losses", "ours", "TextBrewer, steps per second", "is as fast"], theirs, left=2)
    return _with_note(table(headings, ours, left=3), "\n".join([*gains, "", competitor, "", note]))


def importance_table(kind: str) -> str:
    """Return one table of importance_parity.py; ``command``: how they were made."""
    found = _lines("importance-parity")
    if kind == "command":
        head = found[0]
        whole, competitor = (
            next(line[key] for line in found if key in line) for key in ("accuracy_whole", "peer_versions")
        )
        return (
            f"{head['model']} on {head['data']}: {head['train_rows']:,} rows of train score, {head['dev_rows']:,} of "
            f"dev judge, on which the whole model has {whole:.3f}; torch {head['versions']['torch']}, transformers "
            f"{head['versions']['transformers']}, theirs {competitor['transformers']}. Made by `{head['command']}`.\n"
        )
    headings, row = IMPORTANCE_TABLES[kind]
    return table(headings, [row(line) for line in found if _table_of(line) == kind]) + "\n"


def _table_of(line: Line) -> str:
    kind: str = line["kind"]
    return kind if kind != "variant" else "by-layer" if line["normalised_by_layer"] else "raw"


def _importance_row(line: Line) -> list[object]:
    apart = [f"{line[key]:.0e}" for key in ("difference", "absolute_difference")]
    return [line["compared"], line["precision"], f"{line['examples']:,}", line["heads"], *apart]


def _variant_row(line: Line) -> list[object]:
    batch = "" if line["batch_size"] is None else f", batches of {line['batch_size']}"
    against = f"{line['points']:+.1f} ({line['points_low']:+.1f} to {line['points_high']:+.1f})"
    return [
        line["variant"] + batch,
        f"{line['ratio']:.3g} ({line['ratio_lowest']:.3g} to {line['ratio_highest']:.3g})",
        _of_orders(line, "rank_correlation", ".2f"),
        _of_orders(line, "heads_shared", "d"),
        _of_orders(line, "accuracy", ".3f"),
        "" if line["variant"] == "exact" else against,
    ]


def _removal_row(line: Line) -> list[object]:
    left = " ".join(map(str, line["heads_per_layer"]))
    apart = [f"{line[key]:.0e}" if line[key] else "0" for key in ("whole_difference", "difference")]
    parameters = [f"{line[key]:,}" for key in ("parameters", "peer_parameters")]
    return [f"{line['of']} ({line['family']})", left, *apart, f"{line['change']:.2f}", *parameters]


def _of_orders(line: Line, name: str, form: str) -> str:
    """Return the value of the first order of the rows, and the range over all where it depends on them."""
    value, low, high = (f"{line[name + part]:{form}}" for part in ("", "_lowest", "_highest"))
    return value if low == high else f"{value} ({low} to {high})"


IMPORTANCE_TABLES: dict[str, tuple[list[str], Callable[[Line], list[object]]]] = {
    "importance": (
        ["compared", "precision", "examples", "heads", "largest relative difference", "largest difference"],
        _importance_row,
    ),
    "raw": (
        ["scores", "to the exact ones", "rank correlation", "same heads", "accuracy", "to exact, points"],
        _variant_row,
    ),
    "removal": (
        ["model", "heads left", "logits before", "logits after", "changed by", "our parameters", "theirs"],
        _removal_row,
    ),
}

TABLES: dict[str, Callable[..., str]] = {
    "batch-parts": batch_parts_table,
    "calibration": calibration_table,
    "compositions": compositions_table,
    "distillation-speed": distillation_speed_tables,
    "few-rows": few_rows_table,
    "label-noise": label_noise_table,
    "pair-baselines": pair_baselines_table,
    "imbalance": imbalance_table,
    "fuzzing": fuzzing_table,
    "importance": importance_table,
    "large-pools": large_pools_table,
    "reliability": reliability_table,
    "room": room_table,
    "searching": searching_table,
    "select-texts": select_texts_table,
    "tokenization-speed": tokenization_table,
    "training-profile": training_profile_table,
}
