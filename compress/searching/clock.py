"""The time that a search has taken, over all starts of its command."""

import json
import math
import time
from pathlib import Path

from compress.models.output_dir import write_atomically


class SearchClock:
    """Counts seconds towards a limit; ``path`` keeps what earlier starts have taken."""

    def __init__(self, path: Path, limit_s: float) -> None:
        self.path, self.limit_s = path, limit_s
        self._before = float(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else 0.0
        self._begun = time.monotonic()

    @property
    def spent_s(self) -> float:
        return self._before + time.monotonic() - self._begun

    @property
    def left_s(self) -> float:
        return self.limit_s - self.spent_s

    def save(self) -> None:
        """Keep what was spent, after work that a later start does not repeat."""
        write_atomically(self.path, json.dumps(round(self.spent_s, 1)))

    def fits(self, seconds: float) -> bool:
        """Tell whether so much work is likely to end in time."""
        return seconds <= self.left_s

    def is_over(self, share: float) -> bool:
        """Tell whether a share of the time is over."""
        return math.isfinite(self.limit_s) and self.spent_s >= share * self.limit_s
