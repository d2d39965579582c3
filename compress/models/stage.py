"""The frame of a stage: the working directory, the request that unfinished work is resumed by, and the manifest.

A stage opens its inputs, checks the request, does its work in ``stage.working`` and writes the result::

    with Stage.begin("distill", output, parents={"teacher": teacher}, settings=settings, data=data, seed=seed,
                     force=force) as stage:
        student, tokenizer = ...  # what serves the resumption alone lies in stage.scratch
        stage.write_model(student, tokenizer, recipe=recipe, metrics=metrics, notes=notes)
    return ModelDir.open(output)

A stage whose result is no torch model writes its own files and ends with ``stage.finish(...)`` instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from compress import tasks
from compress.data.truncation import READS_NO_MORE, Truncation, counting
from compress.models.manifest import Manifest
from compress.models.model_dir import ModelDir, parent_entry
from compress.models.output_dir import WORK_FOLDER, finish, keep_apart, places_of, writing
from compress.progress import logger

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_TAKES_LENGTH = ("finetune", "label", "distill")
_READS_MORE = "--max-length N reads more of them, if the model can"


@dataclass(frozen=True)
class Stage:
    """A stage at work.

    ``manifest`` holds what is known at its start, and ``truncation`` counts the rows that were cut.
    """

    output: Path
    working: Path
    manifest: Manifest
    truncation: Truncation

    @classmethod
    @contextmanager
    def begin(
        cls,
        name: str,
        output: str | Path,
        *,
        parents: Mapping[str, ModelDir | None],
        settings: Mapping[str, Any],
        data: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        force: bool = False,
        keep: bool = True,
    ) -> Iterator[Self]:
        """Give a stage its working directory, which becomes ``output`` when the block succeeds.

        Args:
            name: the stage, as the manifest names it.
            parents: the models that the result is made from, by role; those that are None do not occur in the
                manifest. Task and labels of the result are those of the first, unless they are given at the end, as
                they are where there is none.
            settings: every other setting that the result depends on. Settings, parents, data and seed are the request:
                the same request resumes unfinished work, and another is refused without ``force``.
            data: entries of :func:`compress.data.describe_rows`, where they are known before the work.
            seed: None for a stage that draws nothing.
            force: move an existing ``output`` aside, and discard unfinished work of another request.
            keep: keep unfinished work, so that it can be resumed.
        """
        request = {"stage": name, **settings, **{role: model and model.sha256 for role, model in parents.items()}}
        request |= {} if data is None else {"data": list(data)}
        request |= {} if seed is None else {"seed": seed}
        given = {role: model for role, model in parents.items() if model}
        keep_apart(places_of(output), [model.path for model in given.values()])
        first = next(iter(given.values()), None)
        manifest = Manifest(
            stage=name,
            name=Path(output).name,
            task=first.task if first else tasks.default(),
            labels=first.labels if first else (),
            parents=tuple(parent_entry(role, parent) for role, parent in given.items()),
            data=tuple(dict(entry) for entry in data or ()),
            seeds={} if seed is None else {"seed": seed},
        )
        with counting() as truncation, writing(output, request, force=force, keep=keep) as working:
            yield cls(Path(output), working, manifest, truncation)
        if said := truncation.sentence(_READS_MORE if name in _TAKES_LENGTH else READS_NO_MORE):
            logger.info("%s", said)

    @property
    def scratch(self) -> Path:
        """The folder of what serves the work alone; it is no part of the result."""
        return self.working / WORK_FOLDER

    def finish(self, **described: Any) -> None:
        """Write ``compress.json`` with the hash of every file, and a model's card.

        Args:
            described: fields of :class:`compress.models.manifest.Manifest` that the start did not know.
        """
        finish(self.working, self._described(described))

    def _described(self, fields: Mapping[str, Any]) -> Manifest:
        notes = {**fields.get("notes", {}), **self.truncation.notes()}
        return replace(self.manifest, **{**fields, "notes": notes})

    def write_model(self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", **described: Any) -> None:
        """Write a torch model, its tokenizer, the manifest and the card; then reopen it and compare outputs."""
        import transformers

        from compress.models.loading import load_network
        from compress.models.modeling import auto_class
        from compress.models.saving import check_same, describe_architecture, save_model

        manifest = self._described({"architecture": describe_architecture(model), **described})
        model = model.cpu().float().eval()
        save_model(model, tokenizer, self.working)
        finish(self.working, manifest)
        reopened, _ = load_network(getattr(transformers, auto_class(manifest.task)), self.working)
        check_same(model, reopened.eval())
