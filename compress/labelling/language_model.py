"""A language model as teacher: it is judged, and labels a text."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import Example, TextSource
from compress.errors import refuse
from compress.evaluation.metrics import interval
from compress.inference.language_model import PILOT_ROWS, Asker, BudgetEnds, Estimate, Reply
from compress.labelling.label import Labelled, Plan, Shard
from compress.labelling.label_dir import BOUGHT
from compress.progress import Advance, logger
from compress.requests.labelling import LANGUAGE_MODEL, Label

SHARD_ROWS = 64  # whole shards are kept where a budget ends


@dataclass(frozen=True)
class LanguageModelPlan(Plan):
    """``preference`` is that of each place of the list of labels, in nats; empty where none is taken away."""

    preference: tuple[float, ...] = ()


class LanguageModelTeacher(Asker):
    """Labels a text by questions to a language model; see :class:`compress.labelling.label.LocalTeacher`."""

    plan_type = LanguageModelPlan

    def __init__(self, request: Label) -> None:
        super().__init__(request.language_model, request, request.answer)
        self.request, self.ended, self._bought = request, False, dict[str, Any]()
        names = self.question.logit_labels
        self.task = self.question.task.of_model(self.question.task.head_settings(names))
        entry = {"role": "teacher", "name": f"{LANGUAGE_MODEL}{self.model.name}", "sha256": self.sha256}
        self.models = dict[str, Any]()
        self.described = {"parents": (entry,), "task": self.task, "labels": names}
        self.opened = {"prompt": self.question.prompt, "labels": self.question.labels, "asked": self.sha256}
        self.identity = {"teacher_sha256": self.sha256, "tokenizer_sha256": ""}

    @cached_property
    def _judging(self) -> tuple[list[Example], Sequence[Any]]:
        """Rows of validation with their gold labels; none where none are given."""
        rows = [*map(self.task.row, self.request.read("validation"))] if self.request.validation is not None else []
        return rows, self.task.gold(rows, self.question.logit_labels, "validation")

    def estimate(self, rows: Iterable[Example]) -> Estimate:
        return super().estimate(itertools.chain(self._judging[0], rows))

    def _ask_first(self, rows: Sequence[Example], title: str) -> list[Reply]:
        """Return what the answers say of texts; the record of the first shard has their cost."""
        with self.request.progress(title, len(rows)) as advance:
            replies = self.said(rows, advance)
        self._bought |= dict(map(self._cost, rows, replies))
        return replies

    def _cost(self, row: Example, reply: Reply) -> tuple[str, dict[str, float]]:
        """Return a key of a text, which equal texts have, and what the answers to it cost."""
        found = Counter[str]()
        for answer in reply.answers:
            found.update(self.model.cost(answer))
        return self.model.key(*self.asks(row, 0))[:16], {**found}

    def make_plan(self, unlabeled: TextSource, scratch: Path) -> LanguageModelPlan:
        """Estimate the preference for places, by some of the texts."""
        preference = np.zeros(0)
        if self.has_preference:
            replies = self._ask_first([*unlabeled.sample(PILOT_ROWS)], "Preference for places")
            preference = self.preference(replies)
        place = self.model.place
        return LanguageModelPlan(
            "openai", place, 1, 0, "", shard_rows=SHARD_ROWS, preference=tuple(preference.tolist())
        )

    def judge(self) -> None:
        """Say how often the teacher is right on labelled rows, of which it has the preference for places too.

        Raises:
            CompressError: it is not certainly as good as asked.
        """
        if self.request.validation is None:
            return
        rows, gold = self._judging
        metric = self.task.metric(None, self.question.logit_labels)
        replies = self._ask_first(rows, "Asking for the labels of validation")
        preference = self.preference(replies)
        known = [number for number, one in enumerate(replies) if one.said]
        refuse((not known, f"no answer to the {len(rows)} rows of validation names a label; correct --prompt"))
        logits = np.concatenate([self.question.logits(replies[number].said, preference) for number in known])
        clusters = self.task.clusters([rows[number] for number in known], metric)
        judged = self.task.judged(logits, metric, clusters)
        column = self.task.column([gold[number] for number in known])
        value = self.task.score(logits, column, metric, clusters)
        low, high = interval(judged, column, metric=metric, classes=logits.shape[1], sentences=clusters)
        found = f"{metric.name} {value:.4f} ({low:.4f} to {high:.4f}) on {len(known)} rows of validation"
        logger.info("%s, %d without an answer; %s", found, len(rows) - len(known), self.model.bill())
        least = self.request.min_score
        refuse(
            (
                least is not None and low < least,
                f"{self.model.name} has {found}, which is not certainly {least}; improve --prompt, give more rows of "
                "validation, or a smaller --min-score. Nothing else was asked",
            )
        )

    def run(self, plan: LanguageModelPlan, scratch: Path, shards: Iterator[Shard], advance: Advance) -> Labelled:
        """Yield each shard with the rows that have an answer, their logits, and the rows that have none."""
        waiting = deque[tuple[int, list[Example], list[AsyncResult[Reply]]]]()
        try:
            with self.pool() as pool:
                for number, examples in shards:
                    waiting.append((number, examples, [pool.apply_async(self.ask, (row,)) for row in examples]))
                    if len(waiting) > 1 + self.request.concurrency // plan.shard_rows:
                        yield self._shard(*waiting.popleft(), plan, advance)
                while waiting:
                    yield self._shard(*waiting.popleft(), plan, advance)
        except BudgetEnds:
            self.ended = True
            logger.warning("the budget ends here: the same command goes on with the rest; answers are kept")
        else:
            logger.info("%s", self.model.bill())

    def _shard(
        self,
        number: int,
        examples: list[Example],
        asked: Sequence[AsyncResult[Reply]],
        plan: LanguageModelPlan,
        advance: Advance,
    ) -> tuple[int, list[Example], np.ndarray, dict[str, Any]]:
        kept, logits, unanswered = list[Example](), [np.empty((0, len(self.question.logit_labels)))], list[Any]()
        bought = self._bought if number == (self.request.shard or (1, 1))[0] - 1 else {}
        for place, (row, one) in enumerate(zip(examples, asked, strict=True)):
            reply = one.get()
            if reply.said:
                kept.append(row)
                logits.append(self.question.logits(reply.said, np.array(plan.preference)))
            else:
                pair = {} if row.text_pair is None else {"text_pair": row.text_pair}
                why = {"reason": reply.why, "answer": reply.text}
                unanswered.append(
                    {"row": number * plan.shard_rows + place + 1, "text": row.given or row.text, **pair, **why}
                )
            bought |= [self._cost(row, reply)]
            advance(1)
        return number, kept, np.concatenate(logits), {"truncated": 0, "unanswered": unanswered, BOUGHT: bought}
