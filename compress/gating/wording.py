"""The words of a judgement: who is judged, and figures with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compress.measuring.results import Measurement
from compress.reporting.units import points

# Settings that tell two lines of one model and runtime apart, in words.
_SETTINGS = {
    "device": "on {}",
    "threads": "threads {}",
    "length": "length {}",
    "padding": "padding {}",
    "data": "on {}",
    "training_seed": "seed {}",
    "host_id": "host {}",
}


def subjects(lines: Sequence[Measurement]) -> dict[int, str]:
    """Name each line, by its ``id()``: model and runtime, and of the settings those that differ between the lines."""
    vary = [key for key in _SETTINGS if len({line[key] for line in lines}) > 1]
    return {id(line): _subject(line, vary) for line in lines}


def _subject(line: Measurement, vary: Sequence[str]) -> str:
    keys = [key for key in _SETTINGS if key in vary or (key == "device" and line[key] != "cpu")]
    settings = [_SETTINGS[key].format(line[key]) for key in keys if line[key] is not None]
    return ", ".join([f"{line['model']} in {line['runtime']}", *settings])


def interval(form: Callable[[float], str], low: float, high: float) -> str:
    """Return ``95% interval 0.10 lost to 0.90 lost``, each bound in its form."""
    return f"95% interval {form(low)} to {form(high)}"


def lost(drop: float) -> str:
    """Return a loss in points with its direction: ``0.50 lost``, ``0.20 won``."""
    return f"{points(drop).lstrip('+−')} {'lost' if drop >= 0 else 'won'}"


def printable(text: str) -> str:
    """Return text on one line without control characters: names come from files and must not steer a terminal or CI."""
    return "".join(char if char.isprintable() else "�" for char in " ".join(text.split()))
