"""Lines of the benchmark scripts: what they say of their origin, and how a file keeps one of each kind."""

from __future__ import annotations

import json
from pathlib import Path

from compress.benchmarking.results.files import host_id, provenance, replace_line


def test_a_line_replaces_the_one_of_the_same_fields(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for line in ({"set": "a", "calls": 1, "n": 1}, {"set": "a", "calls": 2, "n": 2}, {"set": "a", "calls": 1, "n": 3}):
        replace_line(file, line, "set", "calls")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["n"] for line in lines] == [2, 3] and [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_a_line_says_where_it_comes_from() -> None:
    found = provenance()
    assert list(found) == ["command", "created", "host", "host_id", "versions"]
    assert found["host_id"] == host_id(found["host"]) and found["command"].startswith("python")
