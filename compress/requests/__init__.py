"""A stage is declared once: a class whose fields are typed by what they are.

From the class follow the command (:mod:`compress.cli.commands`), the Python function, validation, the key by which
unfinished work is resumed, and the command that makes a result again::

    @request
    class Distill(Request["ModelDir"], Written, Checks, TextColumns, Trained):
        '''Train a student to match its teacher.'''

        stage = "compress.training.distill:distill"

        teacher: Model = option(help="The teacher: a directory or hub name.", metavar="DIR")
        student: Recipe = option(help="A name from 'compress list students', or a .toml file.", metavar="RECIPE")
        output: Output = OUTPUT
        _: KW_ONLY
        rows: int = option(default=0, ge=0, help="Maximum number of unlabelled rows, sampled evenly; 0 = all.")

    distill = function(Distill)

The stage takes the request: ``def distill(request: Distill) -> ModelDir``. Importing this package imports no torch.
"""

import functools
import importlib
import inspect
import os
import shlex
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, ParamSpec, TypeVar, cast, dataclass_transform

import pydantic
import pydantic.dataclasses
from pydantic.fields import FieldInfo

from compress.data import Example, TextSource, content_sha256
from compress.errors import CompressError, MissingPackage, did_you_mean
from compress.escaping.uris import text_without_secrets
from compress.host import without_home
from compress.models.model_dir import ModelDir
from compress.progress import Progress, calling, silent
from compress.recipes import deciding

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
_CONFIG = pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Holds:
    """What a field holds where its Python type does not tell, such as ``model`` or ``duration``."""

    name: str


@dataclass(frozen=True)
class Declared:
    """What a field is beside its type, default, bounds and help.

    Args:
        metavar: its value in the help, such as ``FILE``.
        flag: its option, where that is not its name.
        flags: options without a value, each with the value of the field that it stands for, and its help.
        decides: whether the result depends on it, so that it is in the key.
        needs: fields without any of which this one has no effect; ``data`` is any text or rows.
        has_option: whether the command line has an option for it.
        argument: whether the command line takes it by position instead.
        required: whether the command line needs it.
    """

    metavar: str = ""
    flag: str = ""
    flags: Mapping[str, tuple[Any, str]] | None = None
    decides: bool = True
    needs: tuple[str, ...] = ()
    has_option: bool = True
    argument: bool = False
    required: bool = False

    def flag_for(self, value: Any) -> str:
        """Return which of the ``flags`` stands for a value."""
        return next(flag for flag, (means, _) in (self.flags or {}).items() if means == value)


def option(*, default: Any = ..., help: str = "", **more: Any) -> Any:
    """Declare a field: its default (none: it is required), its help, fields of :class:`Declared`, and its bounds.

    Bounds are those of ``pydantic.Field``: ``ge``, ``gt``, ``le``, ``lt``.
    """
    declared = {key: more.pop(key) for key in Declared.__dataclass_fields__ if key in more}
    return pydantic.Field(
        default=default,
        description=help,
        json_schema_extra={"declared": cast(Any, Declared(**declared))},
        **more,
    )


def _accept(accepted: Callable[[Any], bool], allowed: str) -> pydantic.BeforeValidator:
    def check(value: Any) -> Any:
        if value is not None and (value == "" if isinstance(value, str) else not accepted(value)):
            raise ValueError(f"is not {allowed}")
        return value

    return pydantic.BeforeValidator(check)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike | ModelDir)


def _progress_of(value: Any) -> Any:
    """Take a callback too; what shows progress itself takes a title and a total."""
    is_callback = callable(value) and len(inspect.signature(value).parameters) == 3
    return calling(value) if is_callback else value


class FileList(tuple[str, ...]):
    """Several files, patterns or URIs that are read as one text; a list of strings is a list of texts."""


# What a field holds. For type checkers what Python may give, at run time what is checked: data is checked where it is
# opened, which says more.
if TYPE_CHECKING:
    Model = ModelDir | str | os.PathLike[str]
    Recipe = Any
    Text = Any  # see compress.data.open_text
    Rows = Any
    File = str | os.PathLike[str]
    Output = str | os.PathLike[str] | None
    Labels = Sequence[Any]
    Shown = Any  # a Progress, or a function of title, steps done and all steps
    Models = Sequence[ModelDir | str | os.PathLike[str]]
else:
    Model = Annotated[
        Any, Holds("model"), _accept(_is_path, "a model; give a directory, a hub name or an opened model")
    ]
    Recipe = Annotated[
        Any,
        Holds("recipe"),
        _accept(lambda value: _is_path(value) or is_dataclass(value), "a recipe; give its name or a .toml file"),
    ]
    Text = Annotated[Any, Holds("text")]
    Rows = Annotated[Any, Holds("rows")]
    File = Annotated[Any, Holds("file"), _accept(_is_path, "a path; give that of a file to read")]
    Output = Annotated[Any, Holds("output"), _accept(_is_path, "a path; give that of a directory to write")]
    Labels = Annotated[tuple[Any, ...], Holds("labels"), pydantic.Strict(False)]
    Shown = Annotated[Progress, pydantic.BeforeValidator(_progress_of)]
    Models = Annotated[tuple[Model, ...], Holds("model"), pydantic.Strict(False)]
Duration = Annotated[float, Holds("duration")]  # seconds; 30s, 15m or 2h on the command line
Percent = Annotated[float | None, Holds("percent")]  # a share; 95% or 0.95 on the command line
Numbers = Annotated[tuple[int, ...], Holds("numbers"), pydantic.Strict(False)]

# In Python without one the result lies in the cache.
OUTPUT = option(
    default=None, help="Directory to write; it must not exist.", metavar="DIR", decides=False, required=True
)


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
def request(declared: type[Any]) -> Any:
    """Make a class a request, or a group of fields that requests share: a frozen dataclass that pydantic validates."""
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=_CONFIG)(declared)
    build = made.__init__
    parameters = [*inspect.signature(made).parameters.values()]
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]

    @functools.wraps(build)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        if len(arguments) > len(positional):
            raise CompressError(
                f"{_function_name(made)}() takes {', '.join(positional)} by position, and everything else by name"
            )
        try:
            # By name: pydantic takes the fields of groups by position too.
            build(self, **dict(zip(positional, arguments, strict=False)), **named)
        except pydantic.ValidationError as error:
            raise CompressError("; ".join(_sentences(error, made))) from None

    made.__init__ = __init__
    return made


# What pydantic finds, in the words of this project.
_ALLOWED = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "callable_type": "must be a function of a title, the steps done and all steps",
    "literal_error": "must be one of {expected}",
}


def _sentences(error: pydantic.ValidationError, declared: type[Any]) -> Iterator[str]:
    """Say each fault that pydantic found: what, its value, what is allowed."""
    known = fields_of(declared)
    for fault in error.errors(include_url=False):
        where, value = ".".join(map(str, fault["loc"])), fault["input"]
        match fault["type"]:
            case "missing" | "missing_argument" | "missing_keyword_only_argument":
                yield f"{where} is missing"
            case "unexpected_keyword_argument":
                yield f"{_function_name(declared)}() has no argument {where!r}.{did_you_mean(where, known)}"
            case kind:
                message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
                allowed = _ALLOWED[kind].format(**fault.get("ctx", {})) if kind in _ALLOWED else message
                yield f"{where} = {value!r:.200} {allowed}"


def fields_of(declared: Any) -> dict[str, FieldInfo]:
    """Return the fields of a request, its own before those of its groups."""
    known: dict[str, FieldInfo] = declared.__pydantic_fields__
    owners = [one for one in (declared if isinstance(declared, type) else type(declared)).__mro__]
    names = [name for owner in owners for name in vars(owner).get("__annotations__", {}) if name in known]
    return {name: known[name] for name in dict.fromkeys(names)}


def declared_of(field: FieldInfo) -> Declared:
    extra = cast("dict[str, Any]", field.json_schema_extra or {})
    return cast(Declared, extra.get("declared", Declared()))


def kind_of(field: FieldInfo) -> str:
    """Return what a field holds, by its :class:`Holds`, also where it may be None; empty where its type tells."""
    parts = [getattr(one, "__metadata__", ()) for one in typing.get_args(field.annotation)]
    return next((one.name for part in (field.metadata, *parts) for one in part if isinstance(one, Holds)), "")


def option_of(name: str, field: FieldInfo) -> str:
    """Return the option of a field, such as ``--validation FILE``."""
    declared = declared_of(field)
    if declared.flags:
        return " or ".join(declared.flags)
    return f"{declared.flag or '--' + name.replace('_', '-')} {declared.metavar}".strip()


def is_given(value: Any) -> bool:
    """Tell whether a value says anything: not None, no, nothing and none of something."""
    return value is not None and not (isinstance(value, bool | int | float | str | tuple | list) and not value)


@request
class Request(Generic[Result]):
    """What a stage is asked for."""

    stage: ClassVar[str] = ""  # module:function, which takes the request
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # in place of what a group declares

    _: KW_ONLY
    progress: Shown = option(
        default=silent,
        decides=False,
        has_option=False,
        help="A function of a phase's title, the steps done and all steps (None: unknown).",
    )

    def __post_init__(self) -> None:
        if faults := [*self._idle(), *self.faults()]:
            raise CompressError("; ".join(faults))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the values that no field says alone, in the user's words."""
        yield from ()

    def _idle(self) -> Iterator[str]:
        """Yield which options have no effect for want of others."""
        known = fields_of(self)
        data = [name for name, field in known.items() if kind_of(field) in {"text", "rows"}]
        for name, field in known.items():
            needs = self.NEEDS.get(name, declared_of(field).needs)
            others = [one for need in needs for one in (data if need == "data" else [need]) if one in known]
            if (
                others
                and getattr(self, name) != field.default
                and not any(is_given(getattr(self, one)) for one in others)
            ):
                about = declared_of(field)
                option = about.flag_for(getattr(self, name)) if about.flags else option_of(name, field).split(" ")[0]
                missing = " or ".join(option_of(one, known[one]) for one in others)
                yield f"{option} changes nothing without {missing}; add it, or leave {option} out"

    def key(self, **opened: Any) -> dict[str, Any]:
        """Return what decides the result, as JSON values.

        Args:
            opened: inputs that are open, by their fields: their content decides, and not where it lies; and what else
                decides.
        """
        deciding = [name for name, field in fields_of(self).items() if declared_of(field).decides]
        asked = {name: getattr(self, name) for name in deciding}
        return {name: _key_of(value) for name, value in sorted({**asked, **opened}.items())}

    @property
    def command(self) -> str:
        """The command line of this request, without home directories and secrets of URIs."""
        words = [word for name, value in self.options().items() for word in self._words(name, value)]
        return without_home(shlex.join(["compress", _function_name(type(self)), *words]))

    def options(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the fields that have an option and are not at their default, or those of some names."""
        known = {name: (field.default, declared_of(field)) for name, field in fields_of(self).items()}
        there = [name for name, (_, about) in known.items() if about.has_option or about.argument]
        chosen = [name for name in names if name in there] if names is not None else there
        # What is taken by position comes first.
        chosen = sorted(chosen, key=lambda name: not known[name][1].argument)
        return {name: value for name in chosen if (value := getattr(self, name)) != known[name][0]}

    def _words(self, name: str, value: Any) -> Iterator[str]:
        """Yield the option of a field with its value; data in memory is called by its metavar."""
        field = fields_of(self)[name]
        declared, flag = declared_of(field), option_of(name, field).split(" ")[0]
        if declared.flags:
            yield declared.flag_for(value)
        elif isinstance(value, bool):
            yield flag if value else f"--no-{flag.removeprefix('--')}"
        else:
            for one in value if isinstance(value, tuple) else [value]:
                named = isinstance(one, str | int | float | os.PathLike | ModelDir)
                shown = f"{one:.6g}" if isinstance(one, float) else str(getattr(one, "path", one))
                said = text_without_secrets(shown) if named else declared.metavar
                yield from [said] if declared.argument else [flag, said]

    def run(self) -> Result:
        """Run the stage.

        Raises:
            CompressError: for anything about the request that the user can put right.
        """
        module, _, name = self.stage.partition(":")
        try:
            stage = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            raise MissingPackage(error) from None
        return cast(Result, stage(self))


def _key_of(value: Any) -> Any:
    if isinstance(value, TextSource):
        return sorted(map(str, value.identity))
    if isinstance(value, ModelDir):
        return value.sha256
    if hasattr(value, "manifest"):  # of labels
        return value.manifest.files
    if is_dataclass(value):
        return deciding(value)
    if isinstance(value, Mapping):
        return {str(key): _key_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, Example) for item in value):
            return content_sha256(value)
        return [_key_of(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _function_name(declared: type[Any]) -> str:
    return declared.__name__.lower()


def function(declared: Callable[Parameters, Request[Result]]) -> Callable[Parameters, Result]:
    """Return the Python function of a request: it takes the fields, runs the stage and returns what that makes."""
    made = cast(Any, declared)

    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        return declared(*arguments, **named).run()

    call.__name__ = call.__qualname__ = _function_name(made)
    call.__module__ = made.__module__
    described = "\n".join(f"    {name}: {field.description}" for name, field in fields_of(made).items())
    call.__doc__ = f"{inspect.getdoc(made)}\n\nArgs:\n{described}"
    known, own = fields_of(made), inspect.signature(made)
    # Model, Text and so on by their names: what checks them is no annotation to read.
    shown = [
        one.replace(annotation=kind_of(known[one.name]).capitalize() or one.annotation)
        for one in own.parameters.values()
    ]
    call.__signature__ = own.replace(parameters=shown, return_annotation=own.empty)  # type: ignore[attr-defined]
    return call
