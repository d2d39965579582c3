"""What options take beside texts: numbers that libraries can count with, shares, parts and times."""

import json
import math
import re
from contextlib import suppress
from typing import Any

import click

LARGEST = 2**31 - 1  # that libraries count with
LARGEST_REAL = 1e100  # whose sums and products are finite
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_LONGEST_S = 30 * 24 * 3600.0


def _allowed(what: str, numbers: click.IntRange | click.FloatRange, parameter: click.Parameter | None) -> str:
    """Say in words what a number may be, with the default as an example: ``a number above 0, such as 0.1``."""
    low, high = f"{numbers.min:g}", f"{numbers.max:g}" if numbers.max is not None else ""
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


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers above 0, separated by commas; ``0`` alone where that stands for something."""

    name = "numbers"

    def __init__(self, zero: bool = False) -> None:
        self.zero = zero

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if isinstance(value, tuple) or (self.zero and value == "0"):
            return value if isinstance(value, tuple) else (0,)
        parts = [part.strip() for part in value.split(",")]
        for part in parts:
            if not (part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0):
                self.fail(f"{part!r} is not a whole number above 0, such as 1 or 32", parameter, context)
        return tuple(map(int, parts))


class ColumnNames(click.ParamType[tuple[str, ...]]):
    """Names separated by commas."""

    name = "columns"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


class Assignment(click.ParamType[tuple[str, Any]]):
    """``NAME=VALUE``: numbers, true and false as such, anything else as text."""

    name = "assignment"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        name, _, text = value.partition("=") if isinstance(value, str) else value
        if not (name and "=" in str(value)):
            self.fail(f"{value!r} is not NAME=VALUE, such as embeddings=float16", parameter, context)
        with suppress(ValueError):
            text = json.loads(text)
        return name, text


class Duration(click.ParamType[float]):
    """A time such as ``30s``, ``15m`` or ``2h``, as seconds."""

    name = "duration"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)([smh])", value)
        seconds = float(found[1]) * _SECONDS[found[2]] if found else math.nan
        if not 0 < seconds <= _LONGEST_S:
            self.fail(f"{value!r} is no time of at most 720h; give one such as 30s, 15m or 2h", parameter, context)
        return seconds


class Percent(click.ParamType[float]):
    """A share between 0 and 1, both excluded: ``95%`` or ``0.95``."""

    name = "share"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        found = re.fullmatch("([0-9.]{1,20})(%?)", str(value))
        try:
            share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            self.fail(f"{value!r} is no share between 0% and 100%, such as 95%", parameter, context)
        return share
