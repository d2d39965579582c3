"""One change of a file, drawn at random: what somebody unlucky or malicious would hand over."""

from __future__ import annotations

import copy
import gzip
import json
import os
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import onnx
import pyarrow as pa
import pyarrow.parquet as pq

from compress.models.manifest import MANIFEST_NAME, file_sha256
from tests.fuzzing.kinds import changes_of

Change = Callable[[bytes, Random], bytes]
# What every value of a file may be replaced with.
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 10**9, 10**12, 10**30, 0.5, -1e308, 1e308, float("nan"), float("inf")),
    *("", "x", "../outside", "/dev/zero", "\ud800", "a\nb\0", "\u202e\x1b[31m", "##[x]\n::error::", "x" * 5000),
    *([], {}, [[]], {"0": "a"}, {"a": {"b": []}}, [1, "a", None], ["x"] * 9),
)
MARKS = (
    *(b"\x00", b"\xff\xfe", b'"', b"\n", b"\t", b",", b"{", b"}", b"[" * 3000, b"1" * 5000, b"NaN", b"\xed\xa0\x80"),
    *(b"=", b"-", b"\x7f\xff\xff\xff", b"\xff" * 8, b"\r", b"\x1b[31m", b"1e999"),
)
TOML_VALUES = (
    *("true", "-1", "0", "1e308", "1" * 30, "nan", "inf", '""', '"../x"', "[]", "{}", "[[1]]", "2026-01-01"),
    *('"\\u0000"', "1e-308", '["a", 1]', "9223372036854775807"),
)
ROWS = 8
COLUMNS: dict[str, Any] = {
    "integers": pa.array([1, 2] * 4),
    "numbers": pa.array([1.0, float("nan"), float("inf"), None] * 2),
    "bytes": pa.array([b"\xff", b"a", b"b", None] * 2),
    "lists": pa.array([["a", "b"], [], None, [None]] * 2),
    "tables": pa.array([{"a": 1}, None, {"a": 2}, {"a": 3}] * 2),
    "objects": pa.array(
        [{"text": "a b", "label": [1]}, None, {"text": None, "label": []}, {"text": "", "label": [1, 2]}] * 2
    ),
    "segments": pa.array([[{"text": "a"}, {"text": "b"}], [{"text": None}], [], None] * 2),
    "tags": pa.array([[0, 1], [], None, [None]] * 2),
    "times": pa.array([1, 2] * 4, pa.timestamp("ns")),
    "classes": pa.array(["a", "b", "a", None] * 2).dictionary_encode(),
    "texts": pa.array(["a b", None, "", "c d"] * 2),
    "nothing": pa.nulls(ROWS),
    "decimals": pa.array([1, 2] * 4, pa.decimal128(5, 2)),
    "ragged": pa.array([[1.0], [1.0, 2.0], [], [1.0, 2.0, 3.0]] * 2),
    "infinite": pa.array([[1.0, float("inf")]] * ROWS, pa.list_(pa.float32())),
}


def change_bytes(content: bytes, draw: Random) -> bytes:
    """Cut content, put bytes into it, replace or leave some out; at its ends as often as elsewhere."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        window = draw.choice((1024, 1024, len(content)))
        place = min(int(draw.random() * window), len(content))
        place = draw.choice((place, place, len(content) - place))
        mark = draw.choice((*MARKS, bytes([draw.randrange(256)])))
        what = draw.choice(("cut", "put", "replace", "drop"))
        rest = {
            "cut": b"",
            "put": mark + content[place:],
            "replace": mark + content[place + len(mark) :],
            "drop": content[place + len(mark) :],
        }[what]
        content = content[:place] + rest
    return content


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a JSON value with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


def change_value(value: Any, draw: Random) -> Any:
    """Return a JSON value with one part of it replaced or left out."""
    changed = copy.deepcopy(value)
    container, key = draw.choice(list(places(changed)) or [([None], 0)])
    if isinstance(container, dict) and draw.random() < 0.25:
        del container[key]
    elif isinstance(container, dict) and draw.random() < 0.1:
        container["unknown"] = container.pop(key)
    else:
        container[key] = draw.choice(ODD)
    return changed


def change_json(content: bytes, draw: Random) -> bytes:
    return json.dumps(change_value(json.loads(content), draw)).encode()


def change_json_lines(content: bytes, draw: Random) -> bytes:
    rows = [json.loads(row) for row in content.splitlines()]
    return "".join(json.dumps(row) + "\n" for row in change_value(rows, draw)).encode()


def change_toml(content: bytes, draw: Random) -> bytes:
    """Change the value of one line, or leave the line out, or write it twice."""
    rows = content.decode().splitlines()
    place = draw.choice([number for number, row in enumerate(rows) if "=" in row and not row.startswith("#")])
    key = rows[place].split("=")[0]
    rows[place : place + 1] = draw.choice(([f"{key}= {draw.choice(TOML_VALUES)}"],) * 8 + ([], [rows[place]] * 2))
    return "\n".join(rows).encode()


def change_header(content: bytes, draw: Random) -> bytes:
    """Change one value in the header of a safetensors file, which stays of the right length."""
    (size,) = struct.unpack("<Q", content[:8])
    header = change_json(content[8 : 8 + size], draw)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


def change_graph(content: bytes, draw: Random) -> bytes:
    """Change one thing of an ONNX graph that stays an ONNX file."""
    model = onnx.load_from_string(content)
    graph = model.graph
    node, weight = draw.choice(graph.node), draw.choice(graph.initializer)
    given, made = draw.choice(graph.input), draw.choice(graph.output)

    def outside() -> None:
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", draw.choice(("../outside.bin", "/dev/zero", "model.onnx"))), ("length", "99")):
            weight.external_data.add(key=key, value=value)

    changes: list[Callable[[], Any]] = [
        lambda: graph.node.remove(node),
        lambda: graph.initializer.remove(weight),
        lambda: graph.output.remove(made),
        lambda: graph.input.remove(given),
        lambda: setattr(made, "name", "other"),
        lambda: setattr(given, "name", "other"),
        lambda: setattr(given.type.tensor_type, "elem_type", draw.choice((1, 6, 7, 8, 10, 99))),
        lambda: given.type.tensor_type.shape.dim.add(dim_value=draw.choice((-1, 0, 7, 2**40))),
        lambda: setattr(node, "op_type", draw.choice(("Identity", "Add", "NoSuch", "Loop", "Shape"))),
        lambda: setattr(node, "domain", "somebody.else"),
        lambda: node.input.reverse(),
        lambda: weight.dims.append(draw.choice((0, 2, -1, 2**40))),
        lambda: setattr(weight, "raw_data", b"\xff" * len(weight.raw_data)),
        lambda: setattr(model, "ir_version", draw.choice((-1, 0, 99))),
        lambda: setattr(model.opset_import[0], "version", draw.choice((-1, 0, 1, 99))),
        outside,
    ]
    draw.choice(changes)()
    return model.SerializeToString()


def change_columns(content: bytes, draw: Random) -> bytes:
    """Give a Parquet file a column of another type."""
    table = pq.read_table(pa.BufferReader(content)).slice(0, ROWS)
    number = draw.randrange(table.num_columns)
    other = draw.choice([*COLUMNS.values()])[: table.num_rows]
    name = table.schema.names[number]
    table = draw.choice((table.drop([name]), *(table.set_column(number, name, other),) * 5))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def change_packed(content: bytes, draw: Random) -> bytes:
    """Change what a gzip file holds."""
    return gzip.compress(change_bytes(gzip.decompress(content), draw))


# By the end of a file's name, what may change beside any bytes.
CHANGES: dict[str, Change] = {
    ".json": change_json,
    ".jsonl": change_json_lines,
    ".toml": change_toml,
    ".safetensors": change_header,
    ".onnx": change_graph,
    ".parquet": change_columns,
    ".gz": change_packed,
}


def _directory(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("somebody's notes")


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # the path of a socket has at most 108 bytes
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def _sparse(path: Path) -> None:
    with path.open("wb") as handle:
        handle.truncate(10**12)


# What may lie where a file or directory is expected, or not expected.
INSTEAD: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda path: None,
    "an empty file": Path.touch,
    "a file of notes": lambda path: path.write_text("somebody's notes"),
    "a directory": _directory,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a terabyte of zeros": _sparse,
}


def replace_file(path: Path, draw: Random) -> str:
    """Put something of another kind in the place of a file or directory; return what."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    name = draw.choice([*INSTEAD])
    INSTEAD[name](path)
    return name


def sign(path: Path) -> None:
    """Give the manifest beside a file the hash that the file has now, as one who means harm would."""
    manifest = path.parent / MANIFEST_NAME
    try:
        record = json.loads(manifest.read_bytes())
        entry = record["files"][path.name]
    except (OSError, ValueError, KeyError, TypeError):
        return
    entry |= {"sha256": file_sha256(path), "size_bytes": path.stat().st_size}
    manifest.write_text(json.dumps(record))


def change_file(path: Path, draw: Random) -> str:
    """Change a file in one way that fits its kind; return which."""
    way = draw.random()
    if way < 0.1 or not path.is_file():
        return replace_file(path, draw)
    kinds = changes_of(path)
    ways: list[tuple[str, Change]] = [("bytes", change_bytes)]
    if path.suffix in CHANGES:
        ways.append(("values", CHANGES[path.suffix]))
    if kinds:
        ways.append(("kind", draw.choice(kinds)))
    name, change = draw.choice(ways)
    path.write_bytes(change(path.read_bytes(), draw))
    if draw.random() < 0.5 or name == "kind":
        sign(path)
    return name
