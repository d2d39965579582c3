"""Ask the last member of a cascade about some of the texts that another answers: does it still keep its promise?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from compress.arrays import np
from compress.data.examples import Example
from compress.errors import refuse
from compress.evaluation.metrics import confidence
from compress.evaluation.promise import MOST, SequentialTest
from compress.files import read_json_table, write_atomically
from compress.inference.compute import Compute
from compress.inference.predict import as_examples, load
from compress.models.model_dir import CascadeDir, Model


class AgreementAudit:
    """Predicts with a cascade that promises agreement, and asks its last member about some of the same texts too.

    The answers are those of the cascade. Texts are chosen by a hash, so that neither their order nor their batch
    matters; those that the last member answers anyway are left out.

    Args:
        model: a cascade that was made with ``--agree``, or its directory.
        share: of the texts, above 0 and at most 1.
        seed: another chooses other texts.
        file: where :meth:`save` keeps the state; one that is there goes on.
        compute: device and threads.

    Raises:
        CompressError: the model promises nothing, or the file is not of an audit of this cascade.
    """

    def __init__(
        self,
        model: Model | str | Path,
        share: float,
        *,
        seed: int = 0,
        file: str | Path | None = None,
        compute: Compute = Compute(),
    ) -> None:
        self.model, self.share, self.seed = load(model, compute=compute), share, seed
        self.file = None if file is None else Path(file)
        promised: Any = self.model.manifest.recipe.get("agree")
        refuse(
            (not 0 < share <= 1, f"an audit of {share:.6g} is none; give a share above 0 and at most 1, such as 2%"),
            (
                bool(self.file and not self.file.parent.is_dir()),
                f"the folder of {self.file} is not there; make it, or give another --audit-file",
            ),
            (
                not (isinstance(self.model, CascadeDir) and type(promised) is float and 0.5 <= promised < 1),
                f"{self.model.path} promises no agreement; audit a cascade of 'compress cascade --agree 98%'",
            ),
        )
        cascade = cast(CascadeDir, self.model)
        self.test, self.names, self.threshold = SequentialTest(promised), cascade.member_names, cascade.thresholds[0]
        if self.file and self.file.exists():
            self.test = self._stored(self.file)

    @property
    def rows(self) -> int:
        """How many answers were compared with those of the last member."""
        return self.test.rows

    @property
    def same(self) -> int:
        """How many of them were the same."""
        return self.test.same

    @property
    def evidence(self) -> float:
        """The evidence against the promise: from 20 on it is broken; 1 over it is a p-value whenever one looks."""
        return self.test.evidence

    @property
    def holds(self) -> bool:
        """Whether nothing says so far that the promise is broken."""
        return self.test.holds

    def predict(self, texts: Any, *, probabilities: bool = False) -> Any:
        """Return what :meth:`Model.predict` does, and audit these texts."""
        texts = list(texts) if isinstance(texts, Iterator) else texts
        found = self.model.predict(texts, probabilities=probabilities)
        first, *_, last = self.model.runner.members
        if chosen := [one for one in as_examples(texts, self.model.task) if self._chooses(one)]:
            logits = first.logits(chosen)
            early = np.flatnonzero(confidence(logits) >= self.threshold)
            if len(early):
                other = last.logits([chosen[row] for row in early])
                answered = np.isfinite(other).all(axis=1)  # a language model may give no label
                for same in (logits[early].argmax(axis=1) == other.argmax(axis=1))[answered].tolist():
                    self.test.add(same)
        return found

    def _chooses(self, row: Example) -> bool:
        key = json.dumps([self.seed, row.text, row.text_pair]).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) < self.share * 2**64

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        first, *_, last = self.names
        found = f"{self.same:,} of {self.rows:,} answers of {first} are those of {last}, at least "
        found += f"{100 * self.test.promised:.6g}% were promised"
        if self.holds:
            return f"audit: {found}; nothing says that this is broken (evidence {self.evidence:.3g} of 20)"
        return (
            f"audit: the promise is broken: {found} (evidence {self.evidence:.3g}, from 20 on); make the cascade again "
            "with texts of today: 'compress cascade --agree'"
        )

    def save(self) -> None:
        """Write the state to the file, if there is one."""
        if self.file:
            state = {"cascade": self.model.sha256, **asdict(self.test), "holds": self.holds}
            write_atomically(self.file, json.dumps(state) + "\n")

    def _stored(self, path: Path) -> SequentialTest:
        found: Any = read_json_table(path)
        new = self.test
        other = f"{path} is no audit of {self.model.path} as it is now; give another file, or delete it"
        refuse((found.get("cascade") != self.model.sha256 or found.get("promised") != new.promised, other))
        rows, same, evidence, bets = (found.get(name) for name in ("rows", "same", "evidence", "bets"))
        counts = type(rows) is type(same) is int and 0 <= same <= rows
        worth = [evidence, *(bets if isinstance(bets, list) and len(bets) == len(new.bets) else [None])]
        refuse((not counts or not all(type(one) in (int, float) and 0 <= one <= MOST for one in worth), other))
        return SequentialTest(new.promised, rows, same, evidence, bets)
