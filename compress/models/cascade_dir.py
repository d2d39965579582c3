"""A cascade on disk: models of which the first answers what it is sure of, and the next what is left.

The folder ``members`` holds copies of the model directories, ``1`` the first. ``cascade.json`` has their names and the
confidence from which each but the last answers. The manifest has the hash of every file, those of the members too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from compress.errors import CompressError, refuse
from compress.files import read_json_table
from compress.models.loading import check_files
from compress.models.manifest import MANIFEST_NAME, Manifest, verify_files
from compress.models.model_dir import Model, cascade_refusal

KIND = "cascade"
CASCADE_NAME, MEMBERS = "cascade.json", "members"
MOST_MEMBERS = 5


@dataclass(frozen=True)
class CascadeDir(Model):
    """A cascade as the models that it is compared with see it; made by :func:`open_model`."""

    @cached_property
    def members(self) -> tuple[Model, ...]:
        """The models in the order in which they are asked; their hashes are those of this manifest."""
        places = [self.path / MEMBERS / str(number + 1) for number in range(len(self.member_names))]
        return tuple(Model.open(place, verify=False) for place in places)

    @property
    def member_names(self) -> tuple[str, ...]:
        return tuple(self._choice["members"])

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The confidence from which each member but the last answers."""
        return tuple(map(float, self._choice["thresholds"]))

    @cached_property
    def _choice(self) -> dict[str, Any]:
        """Return the names and thresholds.

        Raises:
            CompressError: the file holds none, or others.
        """
        path = self.path / CASCADE_NAME
        found = read_json_table(path)
        names, thresholds = found.get("members"), found.get("thresholds")
        if (
            not (isinstance(names, list) and isinstance(thresholds, list) and len(names) == len(thresholds) + 1)
            or not 1 < len(names) <= MOST_MEMBERS
            or not all(isinstance(name, str) for name in names)
            or not all(type(value) in (int, float) and 0 <= value <= 1 for value in thresholds)
        ):
            raise CompressError(
                f"{path} has no names of 2 to {MOST_MEMBERS} members with numbers from 0 to 1 as thresholds of all but "
                "the last; make the cascade again"
            )
        return found

    @property
    def config(self) -> Mapping[str, Any]:  # type: ignore[override]
        return self.members[-1].config  # whose labels all have

    @property
    def is_onnx(self) -> bool:
        return self.members[-1].is_onnx  # as all are

    @property
    def size_bytes(self) -> int:
        return sum(member.size_bytes for member in self.members)

    @property
    def parameters(self) -> int:
        return sum(member.parameters for member in self.members)

    def load(self, **_: Any) -> NoReturn:
        """Refuse: there is no one network, nor one tokenizer.

        Raises:
            CompressError: always.
        """
        raise CompressError(cascade_refusal(self.path))

    @property
    def tokenizer(self) -> NoReturn:
        self.load()


def open_model(path: Model | str | Path, *, classifier: bool = True, verify: bool = True) -> Model:
    """Open a model directory or a cascade; ``verify`` compares every file with its hash.

    Raises:
        CompressError: it is neither, or damaged, or the members of a cascade do not fit each other.
    """
    if isinstance(path, Model):
        return path
    directory = Path(path)
    if not (directory / CASCADE_NAME).is_file():
        return Model.open(path, classifier=classifier, verify=verify)
    check_files(directory)
    cascade = CascadeDir(directory, Manifest.read(directory / MANIFEST_NAME))
    if verify:
        verify_files(directory, cascade.manifest)
    check_members(cascade.members)
    return cascade


def check_members(members: Sequence[Model]) -> None:
    """Refuse models that make no cascade: too few or many, of other labels, no classifiers, or torch beside ONNX."""
    if not 1 < len(members) <= MOST_MEMBERS:
        raise CompressError(f"a cascade has 2 to {MOST_MEMBERS} members, not {len(members)}; repeat --model")
    last = members[-1]
    for member in members:
        torch, onnx = (last, member) if member.is_onnx else (member, last)
        refuse(
            (isinstance(member, CascadeDir), f"{member.path} is a cascade itself; give its members"),
            (bool(member.task.no_cascade), f"{member.path} is made for {member.task}; {member.task.no_cascade}"),
            (
                member.labels != last.labels,
                f"{member.path} has the labels {', '.join(member.labels[:5])}, and {last.path} has "
                f"{', '.join(last.labels[:5])}; the members of a cascade have the same labels in the same order",
            ),
            (
                torch.is_onnx != onnx.is_onnx,
                f"{torch.path} is a torch model and {onnx.path} an ONNX one; members run in one runtime, so turn the "
                "first into ONNX with 'compress quantize' or 'compress export'",
            ),
        )
