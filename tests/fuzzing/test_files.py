"""Whatever bytes and values a file holds, its reader returns something or says one sentence."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.benchmarking.lockfile import read_lock, write_lock
from compress.benchmarking.results.files import Results
from compress.data import Example, check_roles, grouped_split, open_rows, open_source, read_examples
from compress.data.stored_tokenizer import PlainTokenizer
from compress.errors import CompressError
from compress.gating.budgets import read_budgets
from compress.inference.compute import Compute
from compress.labelling.label_dir import LabelDir, open_labels, write_shard
from compress.models.manifest import MANIFEST_NAME, Manifest, describe_files
from compress.recipes import BenchmarkSettings, load_recipe
from compress.recipes import folder as recipe_folder
from compress.requests.labelling import merge_labels
from compress.studies.journal import Stages
from compress.studies.plan import planned_students
from compress.tasks import default
from tests.fuzzing.kinds import manifests
from tests.fuzzing.mutations import COLUMNS, change_bytes, change_toml, change_value
from tests.support.results import line
from tests.support.tiny import tokenizer

ROWS = [("a fine, quiet film", "good"), ('they call it "art"', "bad"), ("dull \U0001f600", "bad"), ("a joy", "good")]
RESULTS = [line("teacher", kind="teacher"), line("student", predictions=[0, 1] * 1000)]
SETTINGS = settings(max_examples=60)
RANDOM = st.randoms(use_true_random=False)


def only_sentences(read: Callable[[], Any]) -> None:
    """Read; a mistake of the file is one sentence of a size that somebody reads."""
    try:
        read()
    except CompressError as error:
        assert 0 < len(str(error)) < 5000


def read_data(path: Path) -> None:
    for labelled in (False, True):
        only_sentences(lambda labelled=labelled: use(path, labelled))  # type: ignore[misc]


def use(path: Path, labelled: bool) -> None:
    source = open_source(path, role="train", labelled=labelled)
    source.describe()
    rows = read_examples(source)
    check_roles({"train": rows}, overlap="refuse")
    grouped_split(rows, 0.3, seed=0)


def parquet(table: dict[str, Any], path: Path) -> bytes:
    pq.write_table(pa.table(table), path)
    return path.read_bytes()


def as_json_lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


RECORDS = [{"text": text, "label": label} for text, label in ROWS]
TAGGED = [{"words": ["We", "ca", "n't"], "tags": ["A", "B", "C"]}, {"words": ["Yes"], "tags": ["A"]}]
DATA: dict[str, bytes] = {
    "a.csv": b"text,label\n" + "".join('"{}",{}\n'.format(t.replace('"', '""'), x) for t, x in ROWS).encode(),
    "a.tsv": b"text\tlabel\n" + "".join(f"{t}\t{x}\n" for t, x in ROWS).encode(),
    "a.jsonl": as_json_lines(RECORDS),
    "tagged.jsonl": as_json_lines(TAGGED),
    "a.json": json.dumps(RECORDS).encode(),
    "labels.json": json.dumps({"good": ["a b", "c d"], "bad": ["e f"]}).encode(),
    "columns.json": json.dumps({"text": ["a", "b"], "label": ["x", "y"]}).encode(),
    "a.txt": "".join(f"{text}\n" for text, _ in ROWS).encode(),
    "a.txt.gz": gzip.compress("".join(f"{text}\n" for text, _ in ROWS).encode(), mtime=0),
    "x.all": b"1 a fine film\n0 dull\n",
    "trees.txt": b"(3 (2 a) (4 (3 fine) (2 film)))\n(1 (2 so) (0 dull))\n",
    "nested.jsonl": as_json_lines([{"data": record, "label": [record["label"]]} for record in RECORDS]),
    "tokens.jsonl": as_json_lines([{"tokens": row["words"], "ner_tags": [0] * len(row["words"])} for row in TAGGED]),
    "studio.json": json.dumps(
        [{"data": row, "annotations": [{"result": [{"value": {"choices": [row["label"]]}}]}]} for row in RECORDS]
    ).encode(),
    "cats.jsonl": as_json_lines([{"text": "a b", "cats": {"x": 1, "y": 0}}, {"text": "c", "cats": {"x": 0, "y": 1}}]),
    "a.conll": b"-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nYes UH O\n",
    "a.conllu": b"1\tWe\t_\tX\n2\tgo\t_\tY\n\n1\tYes\t_\tX\n",
}


@pytest.mark.parametrize("name", DATA)
def test_bytes_of_data(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    path = tmp_path_factory.mktemp("data") / name

    @SETTINGS
    @given(RANDOM)
    def check(draw: Random) -> None:
        path.write_bytes(change_bytes(DATA[name], draw))
        read_data(path)

    check()


@pytest.mark.parametrize("name", [name for name in DATA if name.endswith((".json", ".jsonl"))])
def test_values_of_data(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    path = tmp_path_factory.mktemp("data") / name
    lines = [json.loads(row) for row in DATA[name].splitlines()]

    @SETTINGS
    @given(RANDOM)
    def check(draw: Random) -> None:
        path.write_bytes(as_json_lines(change_value(lines, draw)))
        read_data(path)

    check()


@pytest.mark.parametrize("text", COLUMNS)
@pytest.mark.parametrize("label", COLUMNS)
def test_columns_of_parquet(tmp_path: Path, text: str, label: str) -> None:
    path = tmp_path / "a.parquet"
    parquet({"text": COLUMNS[text], "label": COLUMNS[label]}, path)
    read_data(path)


def test_features_of_parquet(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    classes = {"names": ["bad", "good"], "_type": "ClassLabel"}
    features = {"label": classes, "tags": {"feature": classes, "_type": "List"}, "inner": {"label": [classes]}}
    table = pa.table({"text": ["a b", "c", "d"], "label": [0, 1, -1], "tags": [[0, 1], [1], []]})

    @SETTINGS
    @given(RANDOM)
    def check(draw: Random) -> None:
        described = json.dumps(change_value({"info": {"features": features}}, draw)).encode()
        changed = change_bytes(described, draw) if draw.random() < 0.3 else described
        pq.write_table(table.replace_schema_metadata({"huggingface": changed}), path)
        read_data(path)

    check()


def test_values_of_a_label_map(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    path = folder / "a.jsonl"
    path.write_bytes(DATA["a.jsonl"])

    @SETTINGS
    @given(RANDOM)
    def check(draw: Random) -> None:
        (folder / "map.json").write_text(json.dumps(change_value({"good": "1", "bad": "0"}, draw)))
        only_sentences(lambda: list(open_rows(path, role="train", label_map=folder / "map.json")))

    check()


def test_bytes_of_parquet(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    content = parquet({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}, path)

    @SETTINGS
    @given(RANDOM)
    def check(draw: Random) -> None:
        path.write_bytes(change_bytes(content, draw))
        read_data(path)

    check()


@cache
def labels(folder: Path) -> dict[str, bytes]:
    write_shard(folder, 0, [Example(text) for text, _ in ROWS], np.ones((len(ROWS), 2), np.float32), {}, default())
    manifest = Manifest(
        stage="label",
        kind="labels",
        labels=("bad", "good"),
        parents=({"role": "teacher", "name": "t", "sha256": "a" * 64},),
        data=({"role": "unlabeled", "name": "p", "rows": len(ROWS), "sha256": "b" * 64},),
        files=describe_files(folder),
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_labels(folder: Path) -> None:
    opened = LabelDir.open(folder)
    assert isinstance(opened.rows, int) and isinstance(opened.teacher_sha256, str)
    assert all(np.isfinite(logits).all() and len(logits) == 2 for _, logits in opened)


def test_values_of_the_manifest_of_labels(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("labels")
    manifest = json.loads(labels(folder)[MANIFEST_NAME])

    @SETTINGS
    @given(RANDOM)
    def check(draw: Random) -> None:
        (folder / MANIFEST_NAME).write_text(json.dumps(change_value(manifest, draw)))
        only_sentences(lambda: LabelDir.open(folder))

    check()


def test_values_of_the_manifest_of_a_part_and_of_labels_that_end_early(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("labels")
    manifest = json.loads(labels(folder)[MANIFEST_NAME])
    part = {"part": 1, "parts": 1, "tokenizer_sha256": "a" * 64, "shards_sha256": "b" * 64}
    part |= {"max_length": 64, "precision": "float32", "shard_rows": 2048}
    output = folder.parent / "joined"

    @SETTINGS
    @given(RANDOM)
    def check(draw: Random) -> None:
        for notes, read in (
            (part, lambda: merge_labels([folder], output)),
            ({"rows_asked": 10}, lambda: open_labels([folder])[0].described_rows),
        ):
            changed = manifests.change(json.dumps({**manifest, "notes": notes}).encode(), draw)
            (folder / MANIFEST_NAME).write_bytes(changed)
            only_sentences(read)
            shutil.rmtree(output, ignore_errors=True)

    check()


LOGITS: dict[str, Any] = {
    "none": None,
    "ragged": [[1.0], [1.0, 2.0], [], [1.0, 2.0, 3.0]],
    "narrow": [[1.0]] * 4,
    "wide": [[1.0] * 3] * 4,
    "not a number": [[1.0, float("nan")]] * 4,
    "infinite": [[1.0, float("inf")]] * 4,
    "null": [[1.0, None]] * 4,
    "no list": [None] * 4,
    "numbers": [1.0] * 4,
    "texts": [["a", "b"]] * 4,
}


@pytest.mark.parametrize("rows", [0, 3, 4])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("given", LOGITS)
def test_shards_of_other_logits_are_refused(tmp_path: Path, given: str, kind: Any, rows: int) -> None:
    labels.__wrapped__(tmp_path)
    values = LOGITS[given]
    table: dict[str, Any] = {"text": pa.array([text for text, _ in ROWS][:rows], pa.string())}
    if values is not None:
        is_list = given not in ("numbers", "texts")
        table["logits"] = pa.array(values[:rows], pa.list_(kind)) if is_list else pa.array(values[:rows])
    pq.write_table(pa.table(table), tmp_path / "shard-00000.parquet")
    manifest = json.loads((tmp_path / MANIFEST_NAME).read_text())
    manifest["files"] = describe_files(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(CompressError):
        read_labels(tmp_path)


def reads(folder: Path) -> dict[str, tuple[bytes, Callable[[Path], Any]]]:
    """Return the files of JSON and TOML by name: what is in them, and what reads them."""
    write_lock(folder / "r.jsonl", RESULTS, BenchmarkSettings(), Compute(), {})
    results = "".join(json.dumps(one.to_json()) + "\n" for one in RESULTS).encode()
    student = (recipe_folder("students") / "int8-half.toml").read_bytes()
    study = (recipe_folder("benchmarks") / "table1.toml").read_bytes()
    tokenizer("bert").save_pretrained(folder / "tokenizer")
    config = (folder / "tokenizer" / "tokenizer_config.json").read_bytes()
    return {
        "r.jsonl": (results, lambda path: Results.open(path)),
        "r.lock.json": ((folder / "r.lock.json").read_bytes(), read_lock),
        "study.json": (
            json.dumps({"teacher": {"fingerprint": "a", "seconds": 1.5}}).encode(),
            lambda path: Stages.open(path.parent, False).__enter__(),
        ),
        "budgets.toml": (
            b'[[budget]]\nmodel = "bilstm*"\nmax_accuracy_drop = 1.0\nmax_size = "30MB"\n[baseline]\nmax_drop = 1.0\n',
            lambda path: [budget.limits() for budget in read_budgets(path).budget],
        ),
        "student.toml": (student, lambda path: load_recipe("students", str(path))),
        "table.toml": (study, lambda path: planned_students(load_recipe("benchmarks", str(path)))),
        "tokenizer/tokenizer_config.json": (config, lambda path: PlainTokenizer.read(path.parent, segments=True)),
    }


NAMES = (
    "r.jsonl",
    "r.lock.json",
    "study.json",
    "budgets.toml",
    "student.toml",
    "table.toml",
    "tokenizer/tokenizer_config.json",
)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_records(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("records")
    content, read = reads(folder)[name]

    @SETTINGS
    @given(RANDOM)
    def check(draw: Random) -> None:
        (folder / name).write_bytes(change_bytes(content, draw))
        only_sentences(lambda: read(folder / name))

    check()


@pytest.mark.parametrize("name", [name for name in NAMES if "json" in name])
def test_values_of_records(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("records")
    content, read = reads(folder)[name]
    is_lines = name.endswith(".jsonl")
    value = [json.loads(row) for row in content.splitlines()] if is_lines else json.loads(content)

    @settings(max_examples=200)
    @given(RANDOM)
    def check(draw: Random) -> None:
        made = change_value(value, draw)
        (folder / name).write_bytes(as_json_lines(made) if is_lines else json.dumps(made).encode())
        only_sentences(lambda: read(folder / name))

    check()


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".toml")])
def test_values_of_recipes_and_budgets(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("records")
    content, read = reads(folder)[name]

    @settings(max_examples=150)
    @given(RANDOM)
    def check(draw: Random) -> None:
        (folder / name).write_bytes(change_toml(content, draw))
        only_sentences(lambda: read(folder / name))

    check()
