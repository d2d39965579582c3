"""Label directory: texts with the logits of a teacher, as Parquet shards with a manifest each.

A shard holds ``text``, ``text_pair`` (if any) and the teacher's raw logits ``[N, C]`` in float32; losses apply a
temperature later. Those of a tagger are ``[W, C]`` for each text, in one list: word after word, not a number where it
did not answer (:mod:`compress.data.tokenization`). ``shard-00000.json`` beside it names the teacher, the tokenizer,
the rows and the checksum.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compress.data import Example
from compress.data.tokenization import by_sentence, word_counts
from compress.errors import CompressError
from compress.models.manifest import MANIFEST_NAME, Manifest, file_sha256, verify_files
from compress.models.output_dir import write_atomically

SHARD_ROWS = 2048


@dataclass(frozen=True)
class LabelDir:
    """Pseudo-labels on disk. Make one with :meth:`open`."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open and check a finished label directory."""
        directory = Path(path)
        if not (directory / MANIFEST_NAME).is_file():
            raise CompressError(
                f"{path} is not a finished label directory (no {MANIFEST_NAME}); make one with 'compress label'"
            )
        manifest = Manifest.read(directory / MANIFEST_NAME)
        if manifest.kind != "labels":
            raise CompressError(
                f"{path} is a directory of kind {manifest.kind!r}, not of labels; make one with 'compress label'"
            )
        verify_files(directory, manifest)
        return cls(directory, manifest)

    @property
    def rows(self) -> int:
        return sum(int(entry["rows"]) for entry in self.manifest.data)

    @property
    def teacher_sha256(self) -> str:
        return str(self.manifest.parents[0]["sha256"])

    def __iter__(self) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield every example with its logits ``[C]``, of a tagger ``[W, C]``, a shard in memory at a time."""
        for number in range(len(list(self.path.glob("shard-*.parquet")))):
            examples, logits = read_shard(self.path, number, task=self.manifest.task)
            yield from zip(examples, logits, strict=True)


def open_labels(labels: Sequence[LabelDir | str | Path]) -> tuple[LabelDir, ...]:
    """Open the label directories that are not open yet."""
    return tuple(part if isinstance(part, LabelDir) else LabelDir.open(part) for part in labels)


def shard_path(directory: Path, number: int) -> Path:
    return directory / f"shard-{number:05d}.parquet"


def write_shard(
    directory: Path,
    number: int,
    examples: Sequence[Example],
    logits: np.ndarray,
    record: dict[str, Any],
    task: str = "classification",
) -> None:
    """Write one shard, then its manifest: a shard without a valid manifest does not count.

    ``logits`` are ``[N, C]``, where N counts words if the task is tagging.
    """
    columns: dict[str, Any] = {"text": pa.array([e.text for e in examples], pa.string())}
    if examples[0].text_pair is not None:
        columns["text_pair"] = pa.array([e.text_pair for e in examples], pa.string())
    flat = pa.array(np.ascontiguousarray(logits, dtype=np.float32).reshape(-1))
    if task == "tagging":
        ends = np.cumsum([0, *word_counts(examples)]) * logits.shape[1]
        columns["logits"] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat)
    else:
        columns["logits"] = pa.FixedSizeListArray.from_arrays(flat, logits.shape[1])
    path = shard_path(directory, number)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    record = {**record, "shard": number, "rows": len(examples), "sha256": file_sha256(path)}
    write_atomically(path.with_suffix(".json"), json.dumps(record, indent=1, sort_keys=True) + "\n")


def read_shard(
    directory: Path, number: int, *, task: str = "classification"
) -> tuple[list[Example], np.ndarray | list[np.ndarray]]:
    """Return a shard's examples and logits ``[N, C]`` float32; of a tagger one array ``[W, C]`` for each example."""
    table = pq.read_table(shard_path(directory, number))
    texts = table["text"].to_pylist()
    pairs = table["text_pair"].to_pylist() if "text_pair" in table.column_names else [None] * len(texts)
    logits = table["logits"].combine_chunks()
    examples = [Example(text, pair) for text, pair in zip(texts, pairs, strict=True)]
    values = logits.flatten().to_numpy(zero_copy_only=False)
    if task == "tagging":
        counts = word_counts(examples)
        return examples, by_sentence(values.reshape(sum(counts), -1), counts)
    return examples, values.reshape(len(texts), -1)


def shard_is_done(directory: Path, number: int, record: dict[str, Any]) -> bool:
    """Tell whether a shard is whole and was made by the same teacher, tokenizer and plan."""
    path = shard_path(directory, number)
    try:
        written = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    same = all(written.get(key) == value for key, value in record.items())
    return same and path.is_file() and file_sha256(path) == written.get("sha256")
