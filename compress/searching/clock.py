"""The time that a search has taken, over all starts of its command."""

import threading
import time
from pathlib import Path
from typing import Self

from compress.models.resumption import keep, kept

SAVED_EVERY_S = 5.0


class SearchClock:
    """Counts seconds towards a limit, in a ``with`` block; ``path`` keeps them, also where the process is killed."""

    def __init__(self, path: Path, limit_s: float) -> None:
        self.path, self.limit_s = path, limit_s
        before = kept(path, {"spent_s": 0.0, "marks": {}})
        self._before: float = before["spent_s"]
        self.marks: dict[str, float] = before["marks"]
        self._begun = time.monotonic()
        self._over = threading.Event()
        # A training that is killed goes on where it was: the time that it took until then counts.
        self._saving = threading.Thread(target=self._save, daemon=True)

    def __enter__(self) -> Self:
        self._saving.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._saving.join()

    @property
    def spent_s(self) -> float:
        return self._before + time.monotonic() - self._begun

    def left_s(self, share: float = 1.0, begun_s: float = 0.0) -> float:
        """Return the seconds that are left of a share of the time after ``begun_s``, below 0 where it is over."""
        return begun_s + share * (self.limit_s - begun_s) - self.spent_s

    def mark(self, name: str) -> float:
        """Return the seconds that were spent when this was asked first, also by an earlier start."""
        return self.marks.setdefault(name, round(self.spent_s, 1))

    def _save(self) -> None:
        over = False
        while not over:
            over = self._over.wait(SAVED_EVERY_S)
            keep(self.path, {"spent_s": round(self.spent_s, 1), "marks": {**self.marks}})
