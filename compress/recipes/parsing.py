"""Read tables of TOML or JSON into classes that pydantic validates; all faults are reported at once."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

import pydantic
from pydantic_core import PydanticCustomError

from compress import plugins
from compress.errors import CompressError
from compress.fields import sentences

Table = TypeVar("Table")
LARGEST_NUMBER = 2**63
LARGEST_FRACTION = 1e100  # of numbers with a decimal point
LARGEST_SEED = 2**32 - 1  # of numpy
_PROSE = frozenset(("description", "paper", "missing", "limits", "published", "survey"))


def require(holds: object, said: str) -> None:
    """Refuse a value of a field that does not hold what it must, by a sentence that names the field."""
    if not holds:
        raise PydanticCustomError("value", "{said}", {"said": said})


def _require_none(faults: Iterable[str]) -> None:
    """Refuse a table that has faults."""
    if found := [*faults]:
        raise PydanticCustomError("table", "{said}", {"said": "; ".join(found), "faults": found})


class Checked:
    """A table whose values must fit together."""

    def faults(self) -> Iterable[str]:
        """Return what is wrong with the values that no field says alone, in the user's words."""
        return ()

    def __post_init__(self) -> None:
        _require_none(self.faults())


def _known_seed(seed: int) -> int:
    require(0 <= seed <= LARGEST_SEED, f"seed {seed} must be from 0 to {LARGEST_SEED}")
    return seed


Seed = Annotated[int, pydantic.AfterValidator(_known_seed)]


@dataclass(frozen=True)
class Choice:
    """A plug-in by name with its options, such as ``{name = "kl", temperature = 2.0}``; only losses have a weight."""

    name: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> dict[str, Any]:
        """The choice as a recipe has it."""
        weight = {} if self.weight == 1.0 else {"weight": self.weight}
        return {"name": self.name, **weight, **self.options}


AS_TABLE = pydantic.PlainSerializer(lambda choice: choice.table)


def of_folder(folder: str) -> pydantic.PlainValidator:
    """Return what reads the choice of a plug-in of a folder."""

    def choice(table: Any) -> Choice:
        if isinstance(table, Choice):
            return table
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            example = table if isinstance(table, str) else "..."
            form = f"a table with a name, such as {{ name = {example!r} }}"
            raise PydanticCustomError("form", "{form}", {"form": form})
        options = dict(table)
        name = options.pop("name")
        weight = options.pop("weight", 1.0) if folder == "losses" else 1.0
        faults = [] if plugins.fits(weight, "float") else [f"weight = {weight!r} is not a number"]
        try:
            faults += plugins.find(folder, name).check(options)
        except CompressError as error:
            faults.append(str(error))
        _require_none(faults)
        return Choice(name, float(weight), options)

    return pydantic.PlainValidator(choice)


def parse(kind: type[Table], table: Mapping[str, Any], *, source: str) -> Table:
    """Read a table of plain values, as TOML and JSON have them.

    Raises:
        CompressError: all faults of the table.
    """
    try:
        faults = [*_unusable_numbers(table, "")]
        if not faults:  # as JSON: from Python, strict pydantic takes no list for a tuple and no table for a class
            return pydantic.TypeAdapter(kind).validate_json(json.dumps(table, default=str))
    except RecursionError:
        raise CompressError(f"{source} is nested too deeply; make it again") from None
    except pydantic.ValidationError as error:
        faults = [*sentences(error, kind)]
    raise CompressError(f"{source} has {len(faults)} fault{'s' * (len(faults) > 1)}: " + "; ".join(faults))


def _unusable_numbers(value: Any, where: str) -> Iterator[str]:
    """Yield the numbers that nothing can be done with: infinite ones, NaN, and those that no library holds."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _unusable_numbers(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _unusable_numbers(item, f"{where}[{number}]")
    elif isinstance(value, int | float):
        limit = LARGEST_NUMBER if isinstance(value, int) else LARGEST_FRACTION
        if not abs(value) < limit:
            yield f"{where} = {value!r:.60} is not a number below {limit:g}"


def resolved(recipe: Any) -> dict[str, Any]:
    """Return a recipe as plain JSON values, for the manifest."""
    return cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(recipe))))


def deciding(recipe: Any) -> dict[str, Any]:
    """Return what of a recipe or a set decides the model: all but what is only there for people to read."""
    return {key: value for key, value in resolved(recipe).items() if key not in _PROSE}
