"""Lines that the scripts in ``benchmarks`` write, which have fields of their own: where they come from, their file."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compress.benchmarking.results.files import host_id
from compress.host import describe_host, library_versions, typed_command
from compress.models.output_dir import write_json_lines


def provenance() -> dict[str, Any]:
    """Return by which command, when, where and with which versions a line was measured."""
    host = describe_host()
    return {
        "command": typed_command("python"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host,
        "host_id": host_id(host),
        "versions": library_versions(),
    }


def replace_line(path: Path, line: Mapping[str, Any], *keys: str) -> None:
    """Write a line to a file of JSON lines, in place of the one that has the same values of these fields."""
    before = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    known = map(json.loads, before)
    write_json_lines(path, [*(one for one in known if any(one[key] != line[key] for key in keys)), line])
