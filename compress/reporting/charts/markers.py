"""Marker shape and colour of each kind of result; shapes differ, because colour alone is not accessible."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Marker:
    """``path`` is the outline of its mark around 0, 0 in pixels; ``colour`` a variable of :mod:`plot`'s style."""

    title: str
    meaning: str
    path: str
    colour: str
    hollow: bool = False


MARKERS: Mapping[str, Marker] = {
    "teacher": Marker("teacher", "what the models are compared with", "M0-8 8 0 0 8-8 0z", "--c1"),
    "model": Marker("model", "made from the teacher", "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z", "--c0"),
    "control": Marker(
        "control", "the same student without distillation", "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z", "--c3", hollow=True
    ),
    "baseline": Marker("baseline", "a cheap classifier fitted on gold labels only", "M0-7 7 6-7 6z", "--c2"),
    "competitor": Marker("competitor", "the same model in another tool", "M-5.5-5.5h11v11h-11z", "--c4"),
    "reference-model": Marker(
        "reference-model", "a published size with random weights: speed only", "M-2-8h4v16h-4z", "--faint"
    ),
    "published": Marker(
        "published",
        "the authors’ figure for the method, without a speed",
        "M0-8 2-2.5 8-2.5 3.2 1.2 5 7 0 3.4-5 7-3.2 1.2-8-2.5-2-2.5z",
        "--c0",
        hollow=True,
    ),
}
# In legends and where the shape needs no words.
ORDER = {name: index for index, name in enumerate(MARKERS)}


def style() -> str:
    """Return the style rules that give every kind its colour, and hollow ones their outline."""
    rules = [f".chart .point.{name}{{--own:var({kind.colour})}}" for name, kind in MARKERS.items()]
    rules += [
        f".chart .point.{name} .mark{{fill:var(--paper);stroke:var(--own);stroke-width:2}}"
        for name, kind in MARKERS.items()
        if kind.hollow
    ]
    return "\n".join(rules)


def symbol(name: str) -> str:
    """Return a kind's mark as a small picture for a legend; it says nothing to a screen reader, its label does."""
    return (
        '<svg class="chart symbol" viewBox="-10 -10 20 20" width="16" height="16" aria-hidden="true" focusable="false">'
        f'<g class="point {name}"><path class="mark" d="{MARKERS[name].path}"/></g></svg>'
    )
