"""Every text source keeps the protocol: passes, names, exclusions, samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compress.data import Example, ExampleSource, TextSource, join_sources, open_source, read_examples, row_key
from compress.labelling.label_dir import LabelDir, write_shard
from compress.models.manifest import Manifest
from compress.tasks import default
from compress.training.training_data import AugmentedSource, LabelledPool

TEXTS = [f"text number {number}" for number in range(12)]
EXAMPLES = [Example(text) for text in TEXTS]


def file_source(directory: Path) -> TextSource:
    (directory / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return open_source(directory / "texts.txt", role="unlabeled", labelled=False)


def joined_source(directory: Path) -> TextSource:
    return join_sources([ExampleSource(EXAMPLES[::2], "even"), ExampleSource(EXAMPLES[1::2], "odd")])


def augmented_source(directory: Path) -> TextSource:
    return AugmentedSource(ExampleSource(EXAMPLES, "rows"), lambda example, generator: example, 1, 0)


def pool_of_labels(directory: Path) -> TextSource:
    write_shard(directory, 0, EXAMPLES, np.zeros((len(EXAMPLES), 2)), {}, default())
    manifest = Manifest(
        stage="label",
        kind="labels",
        name="labels",
        labels=("0", "1"),
        data=({"role": "unlabeled", "name": "pool", "rows": len(EXAMPLES)},),
    )
    return LabelledPool((LabelDir(directory, manifest),), identity=frozenset({"labels"}))


IMPLEMENTATIONS: dict[str, Callable[[Path], TextSource]] = {
    "file": file_source,
    "examples": lambda directory: ExampleSource(EXAMPLES, "rows"),
    "joined": joined_source,
    "subset": lambda directory: ExampleSource([*EXAMPLES, Example("last")], "rows").without(
        frozenset([row_key(Example("last"))])
    ),
    "augmented": augmented_source,
    "labels": pool_of_labels,
}


@pytest.mark.parametrize("make", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_sources_keep_the_protocol(make: Callable[[Path], TextSource], tmp_path: Path) -> None:
    source = make(tmp_path)
    assert isinstance(source, TextSource)
    assert [row.text for row in source] == [row.text for row in source] == TEXTS, "every pass gives all rows"
    assert read_examples(source) == EXAMPLES
    assert source.name and source.describe().startswith(source.name.partition(" + ")[0]) and source.identity


@pytest.mark.parametrize("make", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_sources_leave_out_keys_and_sample(make: Callable[[Path], TextSource], tmp_path: Path) -> None:
    source = make(tmp_path)
    kept = source.without(frozenset(map(row_key, EXAMPLES[:2]))).without(frozenset({row_key(EXAMPLES[2])}))
    assert isinstance(kept, TextSource) and kept.identity == source.identity
    assert sorted(row.text for row in kept) == sorted(TEXTS[3:])
    sampled = source.sample(4)
    assert isinstance(sampled, TextSource) and sampled.identity == source.identity
    assert len(list(sampled)) == 4 and set(sampled) < set(EXAMPLES)
    assert len(list(kept.sample(6))) == 6, "a sample is of the rows that are left"
    assert sorted(map(row_key, source.sample(100))) == sorted(map(row_key, EXAMPLES))
    assert list(source) == EXAMPLES, "the source itself is unchanged"
