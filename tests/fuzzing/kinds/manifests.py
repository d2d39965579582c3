"""What a manifest says of its directory; most of its values are hashes and versions, which other changes hit."""

from __future__ import annotations

import json
from random import Random

from tests.fuzzing.mutations import change_value

FILES = "compress.json"


def change(content: bytes, draw: Random) -> bytes:
    """Change what a manifest says of the directory; most of its values are hashes and versions."""
    manifest = json.loads(content)
    name = draw.choice([name for name in ("data", "labels", "notes", "parents", "stage", "task") if manifest.get(name)])
    return json.dumps(manifest | change_value({name: manifest.pop(name)}, draw)).encode()
