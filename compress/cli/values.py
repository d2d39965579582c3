"""What options take beside texts: numbers that libraries can count with, shares, times, names and assignments."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

LARGEST = 2**31 - 1  # that libraries count with
LARGEST_REAL = 1e100  # whose sums and products are finite
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_LONGEST_S = 30 * 24 * 3600.0


def _allowed(what: str, numbers: Any, parameter: click.Parameter | None) -> str:
    """Say in words what a number may be, with the default as an example: ``a number above 0, such as 0.1``."""
    low, high = (f"{end}" if isinstance(end, int) else f"{end or 0:g}" for end in (numbers.min, numbers.max))
    high = "" if numbers.max is None else high
    if not high:
        bounds = f" above {low}" if numbers.min_open else f", {low} or more"
    elif numbers.min_open:
        bounds = f" above {low} and {'below' if numbers.max_open else 'at most'} {high}"
    else:
        bounds = f" from {low} to {'below ' if numbers.max_open else ''}{high}"
    default = parameter and parameter.default
    return f"{what}{bounds}" + (f", such as {default:g}" if default and isinstance(default, int | float) else "")


class Whole(click.IntRange):
    """A whole number that libraries can count with."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            number = super().convert(value, parameter, context)
        except click.BadParameter:
            self.fail(f"{value!r} is not {_allowed('a whole number', self, parameter)}", parameter, context)
        if number > LARGEST:
            self.fail(f"it is larger than {LARGEST:,}", parameter, context)
        return number


class Real(click.FloatRange):
    """A finite number."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            number = super().convert(value, parameter, context)
        except click.BadParameter:
            self.fail(f"{value!r} is not {_allowed('a number', self, parameter)}", parameter, context)
        if not abs(number) <= LARGEST_REAL:
            self.fail(f"{value!r} is not a finite number of at most {LARGEST_REAL:g}", parameter, context)
        return number


class Read(click.ParamType[Any]):
    """What a function reads of a word, or says is wrong with it."""

    name = "value"

    def __init__(self, read: Callable[[str], Any]) -> None:
        self.read = read

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self.read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, context)


def numbers(text: str) -> tuple[int, ...]:
    """Return whole numbers above 0, separated by commas."""
    parts = columns(text)
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0):
            raise ValueError(f"{part!r} is not a whole number above 0, such as 1 or 32")
    return tuple(map(int, parts))


def numbers_or_zero(text: str) -> tuple[int, ...]:
    return (0,) if text == "0" else numbers(text)


def columns(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name.strip() for name in text.split(","))


def assignment(text: str) -> tuple[str, Any]:
    """Return name and value of ``NAME=VALUE``: numbers, true and false as such, anything else as text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"{text!r} is not NAME=VALUE, such as embeddings=float16")
    with suppress(ValueError):
        return name, json.loads(value)
    return name, value


def class_weights(text: str) -> Any:
    """Return ``balanced``, or weights by class of ``NAME=VALUE,NAME=VALUE``."""
    if text == "balanced":
        return text
    found = [one.rpartition("=") for one in columns(text)]
    said = f"{text!r} is neither balanced nor a weight for each of some classes, such as spam=5,ham=1"
    with suppress(ValueError):
        if all(name for name, _, _ in found) and len({name for name, _, _ in found}) == len(found):
            weights = {name: float(weight) for name, _, weight in found}
            wrong = next((f"{name} = {weight}" for name, weight in weights.items() if not weight > 0), None)
            if not wrong:
                return weights
            said = f"{wrong} must be above 0, such as 0.1"
    raise ValueError(said)


def time_in_seconds(text: str) -> float:
    """Return the seconds of a time such as ``30s``, ``15m`` or ``2h``."""
    found = re.fullmatch(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)([smh])", text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError(f"{text!r} is no time of at most 720h; give one such as 30s, 15m or 2h")
    return seconds


def time_or_seconds(text: str) -> float:
    """Return the seconds of a time, or of a number of them."""
    return time_in_seconds(f"{text}s" if text[-1:].isdecimal() else text)


def percent(text: str) -> float:
    """Return a share between 0 and 1, both excluded: ``95%`` or ``0.95``."""
    found = re.fullmatch(r"([0-9]{0,10}\.?[0-9]{0,10})(%?)", text)
    share = float(found[1] if found and found[1].strip(".") else 0) / (100 if found and found[2] else 1)
    if not 0 < share < 1:
        raise ValueError(f"{text!r} is no share between 0% and 100%, such as 95%")
    return share


def us_dollars(text: str) -> float:
    """Return an amount such as ``5USD`` or ``0.25``."""
    found = re.fullmatch(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)(?: ?USD)?", text)
    if not found or not float(found[1]):
        raise ValueError(f"{text!r} is no amount above 0, such as 5USD")
    return float(found[1])
