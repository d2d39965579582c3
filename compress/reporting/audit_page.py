"""Page of ``compress audit``: labels that are likely wrong, rows that repeat others, classes that look alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from compress.benchmarking.results.formatting import plural, shown
from compress.data.examples import Example, texts_of
from compress.reporting.pages import EMPTY, Cell, ReportTable, StagePage, integer, number, share

SHOWN_ROWS = 50
SHOWN_CHARACTERS = 300


def audit_page(found: Mapping[str, Any], rows: Sequence[Example] = ()) -> StagePage:
    """Return the page; ``rows`` are those of all roles in order, whose texts are shown on the page alone."""
    begin, begins = 0, {}
    for role, count in found["rows"].items():
        begins[role], begin = begin, begin + count

    def text(one: Mapping[str, Any], key: str = "") -> str:
        said = " / ".join(texts_of(rows[(at := begins[one[f"{key}role"]] + one[f"{key}row"]) - 1 : at]))
        return said if len(said) <= SHOWN_CHARACTERS else f"{said[:SHOWN_CHARACTERS]}..."

    labels, copied = found["labels"], found["copied_rows"][:SHOWN_ROWS]
    contents = [_suspects(labels, [text(one) for one in labels["suspects"][:SHOWN_ROWS]])] if labels else []
    contents += [_copies(found), _copied(found, [f"{text(one)} ⟷ {text(one, 'copy_')}" for one in copied])]
    contents += [_pairs(labels)] if labels else []
    roles = " and ".join(f"{role} ({plural(count, 'row')})" for role, count in found["rows"].items())
    return StagePage(f"Audit of {roles}", "compress audit", audit_verdict(found), contents)


def audit_verdict(found: Mapping[str, Any]) -> list[str]:
    """Return what an audit found, in sentences."""
    labels, sentences = found["labels"], []
    if labels is None:
        sentences.append(f"Labels are not judged: the task is {found['task']}, and only classes of whole texts are.")
    else:
        metric = labels["metric"]
        sentences = [
            f"{len(labels['suspects']):,} of {plural(labels['decisions'], 'label')} "
            f"{'is' if len(labels['suspects']) == 1 else 'are'} suspect: a classifier that did not see the row is as "
            "sure of another class as it usually is of that class's own rows. The first are the surest. Scaled to all "
            f"rows, its counts say that about {labels['estimated']:,.0f} labels are wrong.",
            f"That classifier is a logistic regression of {found['features']}; in cross-validation its {metric} is "
            f"{shown(labels['value'], metric)} ({shown(labels['low'], metric)} to {shown(labels['high'], metric)}). "
            "The weaker it is, the more of the suspect labels are right after all.",
        ]
    for one in found["copies"]:
        if one["exact"] or one["near"]:
            where = f"earlier rows of {one['role']}" if one["role"] == one["within"] else f"rows of {one['within']}"
            other = f", and {one['other_label']:,} of all these have another label there" if one["other_label"] else ""
            sentences.append(
                f"{one['exact']:,} of the {found['rows'][one['role']]:,} rows of {one['role']} repeat {where}, and "
                f"{one['near']:,} nearly do{other}."
            )
    if not found["copied_rows"]:
        sentences.append("No row repeats another, or nearly so.")
    if labels:
        few = f"; {labels['pairs_of_few_rows']:,} more have too few rows" * bool(labels["pairs_of_few_rows"])
        alike, pairs = len(labels["pairs"]), plural(labels["pairs_judged"], "pair")
        sentences.append(f"{alike or 'None'} of {pairs} of classes look{'s' * (alike == 1)} alike{few}.")
    return sentences


def _place(one: Mapping[str, Any], key: str = "") -> Cell:
    return Cell(f"{one[f'{key}role']} {one[f'{key}row']:,}", one[f"{key}where"])


def _first(count: int, file: str) -> str:
    return f" The first {SHOWN_ROWS} of {count:,}; all are in {file}." if count > SHOWN_ROWS else ""


def _suspects(labels: Mapping[str, Any], texts: Sequence[str]) -> ReportTable:
    chance = [(one, one["given_probability"], one["suggested_probability"]) for one in labels["suspects"][:SHOWN_ROWS]]
    return ReportTable(
        title="Labels that are likely wrong",
        caption="By confident learning, the surest first: rows are counted from 1, without those of no text. "
        "Probabilities are those of a classifier that was fitted on other rows."
        + _first(len(labels["suspects"]), "labels.csv"),
        name="labels",
        headings=["Row", "Label", "Suggested", "Probability of the label", "Of the suggested"],
        rows=[
            [_place(one), Cell(one["given"]), Cell(one["suggested"]), share(given), share(suggested)]
            for one, given, suggested in chance
        ],
        texts=texts,
    )


def _copies(found: Mapping[str, Any]) -> ReportTable:
    rows = found["rows"]
    return ReportTable(
        title="Rows that repeat others",
        caption="Rows of a role whose words are also in another role, or earlier in their own: all of them, or nearly, "
        f"with at least {found['similarity']:.0%} of the sets of five characters in common. Other label: of all these, "
        "those whose copy has another label.",
        name="repeats",
        headings=["Rows of", "Repeat rows of", "Rows", "The same", "Nearly", "Share", "Other label"],
        rows=[
            [
                Cell(one["role"]),
                Cell(one["within"]),
                integer(rows[one["role"]]),
                integer(one["exact"]),
                integer(one["near"]),
                share((one["exact"] + one["near"]) / max(1, rows[one["role"]])),
                integer(one["other_label"]),
            ]
            for one in found["copies"]
        ],
    )


def _copied(found: Mapping[str, Any], texts: Sequence[str]) -> ReportTable:
    return ReportTable(
        title="Which rows",
        caption="Each row with the one that is most like it." + _first(len(found["copied_rows"]), "copies.csv"),
        name="copies",
        headings=["Row", "Repeats", "Similarity", "Label", "Label there"],
        rows=[
            [
                _place(one),
                _place(one, "copy_"),
                number(one["similarity"], "{:.0%}".format, scale=100),
                Cell(one["label"]) if one["label"] else EMPTY,
                Cell(one["copy_label"]) if one["copy_label"] else EMPTY,
            ]
            for one in found["copied_rows"][:SHOWN_ROWS]
        ],
        texts=texts,
    )


def _pairs(labels: Mapping[str, Any]) -> ReportTable:
    return ReportTable(
        title="Classes that look alike",
        caption="Rows of either class that are taken for the other where only these two are there: certainly more than "
        f"10% of them, or so many that it may be chance. Intervals hold for all {labels['pairs_judged']:,} pairs "
        "together with 95% certainty.",
        name="pairs",
        headings=["Class", "And", "Rows", "Taken for the other", "Share", "Told apart"],
        rows=[
            [
                Cell(one["first"]),
                Cell(one["second"]),
                integer(one["rows"]),
                integer(one["confused"]),
                share(one["confused"] / one["rows"], interval=(one["low"], one["high"])),
                Cell("poorly" if one["apart"] else "perhaps not at all"),
            ]
            for one in labels["pairs"]
        ],
    )
