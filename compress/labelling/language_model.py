"""A language model behind an interface of OpenAI's form as teacher, by the package ``openai``.

Every answer is kept in the cache by a hash of the server, the model and the question, so that no question is paid
twice; texts are not kept there. The key comes from ``$OPENAI_API_KEY`` alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import Example, TextSource
from compress.errors import CompressError, refuse
from compress.escaping import one_line, without_secrets
from compress.evaluation.metrics import interval
from compress.fields import option, validated
from compress.files import read_text, read_toml
from compress.files.remote import cache_place
from compress.host import is_installed
from compress.labelling.label import Labelled, Plan, Shard
from compress.labelling.questions import Answer, ChooseLabel, question
from compress.progress import Advance, logger
from compress.recipes.parsing import parse
from compress.requests.labelling import LANGUAGE_MODEL, MOST_LABELS, Label

SHARD_ROWS = 64  # whole shards are kept where a budget ends
PILOT_ROWS = 128  # from whose answers the preference for places is estimated
RETRIES, TIMEOUT_S = 8, 120.0  # of the client, which waits longer each time, or as long as the server says
GARBAGE_TRIES = 3
HOPELESS = 20  # texts without one label, after which no more are asked
BYTES_A_TOKEN = 4.0  # of English, where no answer of the model is known yet
KEPT_CHARACTERS = 200  # of an answer that says nothing
# What not every server takes. A question that is refused because of one is asked without it from then on.
OPTIONAL = ("top_logprobs", "logprobs", "response_format", "temperature", "max_completion_tokens", "max_tokens")


@validated
class Prices:
    """US dollars for a million tokens of a model."""

    input: float = option(ge=0, help="Of tokens that are read.")
    output: float = option(ge=0, help="Of tokens that are written.")
    cached_input: float | None = option(default=None, ge=0, help="Of tokens that are read again; default: as input.")

    def cost(self, answer: Answer) -> float:
        fresh = answer.input_tokens - answer.cached_tokens
        again = self.input if self.cached_input is None else self.cached_input
        return (fresh * self.input + answer.cached_tokens * again + answer.output_tokens * self.output) / 1e6


@dataclass(frozen=True)
class LanguageModelPlan(Plan):
    """``preference`` is that of each place of the list of labels, in nats; empty where none is taken away."""

    preference: tuple[float, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """What labelling a text would take: questions, those that are answered already, and tokens of the others.

    ``usd`` is None without prices.
    """

    rows: int
    questions: int
    answered: int
    input_tokens: int
    output_tokens: int
    measured: bool
    usd: float | None


class BudgetEnds(Exception):
    """The next question could cost more than is left."""


class AnswerStore:
    """Answers on disk, by the hash of what was asked: an SQLite table that several commands may use at once."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._table = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=60)
        self._table.execute("PRAGMA journal_mode = WAL")
        self._table.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model, bytes, answer TEXT)")

    def get(self, key: str) -> Answer | None:
        with self._lock:
            found = self._table.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        kept = json.loads(found[0]) if found else {}
        return (
            Answer(**{**kept, "tokens": tuple((token, likeliest) for token, likeliest in kept["tokens"])})
            if kept
            else None
        )

    def put(self, key: str, model: str, asked_bytes: int, answer: Answer) -> None:
        with self._lock:
            row = (key, model, asked_bytes, json.dumps(asdict(answer)))
            self._table.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)

    def tokens_per_question(self, model: str) -> tuple[float, float] | None:
        """Return how many bytes a token of a question had, and how many tokens an answer; None without any."""
        fields = "json_extract(answer, '$.input_tokens')", "json_extract(answer, '$.output_tokens')"
        query = f"SELECT sum(bytes), sum({fields[0]}), avg({fields[1]}) FROM answers WHERE model = ?"
        with self._lock:
            asked_bytes, tokens, written = self._table.execute(query, (model,)).fetchone()
        return (asked_bytes / tokens, written) if tokens else None


class LanguageModel:
    """A model on a server, what was asked of it, and what that cost.

    Args:
        budget_usd: no question is asked that could make the cost of this object's questions higher; 0 for no limit.
    """

    def __init__(self, name: str, base_url: str | None, prices: Prices | None = None, budget_usd: float = 0) -> None:
        refuse(
            (
                not is_installed("openai"),
                f"a teacher {LANGUAGE_MODEL}{name} needs the package openai; install it with pip install "
                "'compress[llm]'",
            ),
            (
                not base_url and not os.environ.get("OPENAI_API_KEY"),
                f"{LANGUAGE_MODEL}{name} needs a key in the environment variable OPENAI_API_KEY; set it, or name "
                "another server with --base-url",
            ),
        )
        import openai

        self.name, self.place = name, without_secrets(base_url or "https://api.openai.com/v1")
        self._client = openai.OpenAI(
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            base_url=base_url,
            max_retries=RETRIES,
            timeout=TIMEOUT_S,
        )
        self._hosted = not base_url
        self._store = AnswerStore(cache_place("answers", self.place) / "answers.sqlite")
        self._prices, self._budget_usd = prices, budget_usd
        self._lock, self._refused = threading.Lock(), set[str]()
        self._reserved_usd = self.cost_usd = 0.0
        self.counts = Counter[str]()

    def ask(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> Answer:
        """Return the answer, from the cache where it is there.

        Raises:
            BudgetEnds: it could cost more than is left.
            CompressError: the server is not there, does not take the key, or answers nothing.
        """
        key, asked_bytes = self._key(messages, parameters, most_tokens), _bytes(messages)
        if known := self._store.get(key):
            self.counts["from the cache"] += 1
            return known
        reserved_usd = 0.0
        if self._prices and self._budget_usd:
            bytes_a_token, _ = self._store.tokens_per_question(self.name) or (BYTES_A_TOKEN / 2, 0)
            most = Answer("", input_tokens=int(asked_bytes / bytes_a_token), output_tokens=most_tokens)
            reserved_usd = self._prices.cost(most)
        with self._lock:
            if self._budget_usd and self.cost_usd + self._reserved_usd + reserved_usd > self._budget_usd:
                raise BudgetEnds
            self._reserved_usd += reserved_usd
        answer = Answer("")
        try:
            answer = self._answer(messages, parameters, most_tokens)
        finally:
            with self._lock:
                self._reserved_usd -= reserved_usd
                self.cost_usd += self._prices.cost(answer) if self._prices else 0
                self.counts.update(new=1, input_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
        self._store.put(key, self.name, asked_bytes, answer)
        return answer

    def is_known(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> bool:
        return self._store.get(self._key(messages, parameters, most_tokens)) is not None

    def estimate(self, asked_bytes: int, questions: int, most_tokens: int) -> tuple[int, int, bool, float | None]:
        """Return the tokens of questions and of their answers, whether earlier answers tell them, and their price."""
        found = self._store.tokens_per_question(self.name)
        bytes_a_token, written = found or (BYTES_A_TOKEN, most_tokens)
        read, wrote = round(asked_bytes / bytes_a_token), round(questions * written)
        answer = Answer("", input_tokens=read, output_tokens=wrote)
        return read, wrote, found is not None, self._prices.cost(answer) if self._prices else None

    def _key(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> str:
        asked = json.dumps([self.place, self.name, messages, parameters, most_tokens], sort_keys=True)
        return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()

    def _answer(self, messages: Any, parameters: Mapping[str, Any], most_tokens: int) -> Answer:
        import openai

        limits = {"max_completion_tokens" if self._hosted else "max_tokens": most_tokens}
        garbage = 0
        while True:
            asked = {name: value for name, value in {**limits, **parameters}.items() if name not in self._refused}
            try:
                return _read(self._client.chat.completions.create(model=self.name, messages=messages, **asked))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                said = self._said(error)
                if not (unknown := next((one for one in OPTIONAL if one in asked and one in said), None)):
                    return Answer("", refusal=said[:KEPT_CHARACTERS])
                self._refused.add(unknown)
                logger.info("%s takes no %s; questions are asked without it", self.name, unknown)
            except openai.APIConnectionError as error:
                raise CompressError(
                    f"{self.place} does not answer ({type(error.__cause__ or error).__name__}); check --base-url "
                    "and the network, and repeat the command: answers are kept"
                ) from None
            except openai.APIStatusError as error:
                raise CompressError(
                    f"{self.place} answers {error.status_code} for {self.name}: {self._said(error)}; correct that and "
                    "repeat the command: answers are kept"
                ) from None
            except (openai.APIError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                garbage += 1
                if garbage == GARBAGE_TRIES:
                    raise CompressError(
                        f"{self.place} answers with something that is no chat completion ({type(error).__name__}); "
                        "check --base-url, which often ends in /v1, and repeat the command: answers are kept"
                    ) from None
                time.sleep(garbage)

    def _said(self, error: Any) -> str:
        """Return the message of an error on one line, without the key."""
        body = error.body if isinstance(error.body, Mapping) else {}
        said = one_line(str(body.get("message") or error.message))
        return said.replace(os.environ.get("OPENAI_API_KEY") or "\0", "***")


def _bytes(messages: Sequence[Mapping[str, str]]) -> int:
    return sum(len(one["content"].encode("utf-8", "surrogatepass")) for one in messages)


def _read(reply: Any) -> Answer:
    choice, used = reply.choices[0], reply.usage
    listed = choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
    tokens = tuple((one.token, {other.token: other.logprob for other in one.top_logprobs}) for one in listed)
    details = getattr(used, "prompt_tokens_details", None)
    refusal = choice.message.refusal or ("content_filter" if choice.finish_reason == "content_filter" else "")
    return Answer(
        choice.message.content or "",
        tokens,
        used.prompt_tokens if used else 0,
        (getattr(details, "cached_tokens", 0) or 0) if details else 0,
        used.completion_tokens if used else 0,
        refusal,
    )


class LanguageModelTeacher:
    """Labels a text by questions to a language model; see :class:`compress.labelling.label.LocalTeacher`."""

    plan_type = LanguageModelPlan

    def __init__(self, request: Label) -> None:
        self.request, self.ended = request, False
        labels = tuple(_labels(request.labels))
        prompt = read_text(Path(request.prompt)).strip() if request.prompt else ""
        self.question = question(request.answer, prompt, labels, request.orders)
        prices = _prices(Path(request.prices), request.language_model) if request.prices else None
        self.model = LanguageModel(request.language_model, request.base_url, prices, request.budget or 0)
        self.most_tokens = request.answer_tokens or self.question.most_tokens
        names = self.question.logit_labels
        self.task = self.question.task.of_model(self.question.task.head_settings(names))
        decides = [self.model.place, self.model.name, prompt, labels, self.question.orders, request.answer]
        sha256 = hashlib.sha256(json.dumps([*decides, self.most_tokens]).encode()).hexdigest()
        entry = {"role": "teacher", "name": f"{LANGUAGE_MODEL}{self.model.name}", "sha256": sha256}
        self.models = dict[str, Any]()
        self.described = {"parents": (entry,), "task": self.task, "labels": names}
        self.opened = {"prompt": prompt, "labels": labels, "asked": sha256}
        self.identity = {"teacher_sha256": sha256, "tokenizer_sha256": ""}

    def estimate(self, unlabeled: TextSource) -> Estimate:
        """Return what labelling the text would take; nothing is asked."""
        rows = questions = answered = asked_bytes = 0
        parameters = self.question.parameters()
        for row in unlabeled:
            rows += 1
            for order in range(len(self.question.orders)):
                messages = self.question.messages(row, order)
                questions += 1
                if self.model.is_known(messages, parameters, self.most_tokens):
                    answered += 1
                else:
                    asked_bytes += _bytes(messages)
        read, wrote, measured, usd = self.model.estimate(asked_bytes, questions - answered, self.most_tokens)
        return Estimate(rows, questions, answered, read, wrote, measured, usd)

    def make_plan(self, unlabeled: TextSource, scratch: Path) -> LanguageModelPlan:
        """Judge the teacher by labelled rows, and estimate its preference for places."""
        preference = np.zeros(0)
        if isinstance(self.question, ChooseLabel) and len(self.question.orders) > 1:
            rows = [*unlabeled.sample(PILOT_ROWS)]
            with self.request.progress("Preference for places", len(rows)) as advance:
                said = [said for said, _ in self._said(rows, advance) if said]
            found = self.question.place_preference(said)
            preference = preference if found is None else found.round(4)
            if len(preference):
                spread = np.exp(preference.max() - preference.min())
                logger.info(
                    "the likeliest place of the list is x%.2f as likely as the least, which is taken away", spread
                )
            first = [[one.argmax() for one in texts] for texts in said]
            logger.info(
                "%.1f%% of %d texts get one label in all orders",
                100 * np.mean([len({*one}) == 1 for one in first]),
                len(first),
            )
        if self.request.validation is not None:
            self._judge(preference)
        place = self.model.place
        return LanguageModelPlan(
            "openai", place, 1, 0, "", shard_rows=SHARD_ROWS, preference=tuple(preference.tolist())
        )

    def _judge(self, preference: np.ndarray) -> None:
        """Say how often the teacher is right on labelled rows.

        Raises:
            CompressError: it is not certainly as good as asked.
        """
        rows = [self.task.row(row) for row in self.request.read("validation")]
        gold = self.task.gold(rows, self.question.logit_labels, "validation")
        metric = self.task.metric(None, self.question.logit_labels)
        with self.request.progress("Asking for the labels of validation", len(rows)) as advance:
            said = [said for said, _ in self._said(rows, advance)]
        known = [number for number, one in enumerate(said) if one]
        refuse((not known, f"no answer to the {len(rows)} rows of validation names a label; correct --prompt"))
        logits = np.concatenate([self.question.logits(said[number], preference) for number in known])
        answered = [rows[number] for number in known]
        clusters = self.task.clusters(answered, metric)
        judged = self.task.judged(logits, metric, clusters)
        column = self.task.column([gold[number] for number in known])
        value = self.task.score(logits, column, metric, clusters)
        low, high = interval(judged, column, metric=metric, classes=logits.shape[1], sentences=clusters)
        found = f"{metric.name} {value:.4f} ({low:.4f} to {high:.4f}) on {len(known)} rows of validation"
        logger.info("%s: %s, %d without an answer; %s", self.model.name, found, len(rows) - len(known), self.bill())
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
        preference, waiting = np.array(plan.preference), deque[tuple[int, list[Example], list[Future[Any]]]]()
        pool = ThreadPoolExecutor(self.request.concurrency)
        try:
            for number, examples in shards:
                waiting.append((number, examples, [pool.submit(self._ask, row) for row in examples]))
                if len(waiting) > 1 + self.request.concurrency // SHARD_ROWS:
                    yield self._shard(*waiting.popleft(), preference, advance)
            while waiting:
                yield self._shard(*waiting.popleft(), preference, advance)
        except BudgetEnds:
            self.ended = True
            logger.warning("the budget ends here: the same command with another --budget goes on with the rest")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            logger.info("%s: %s", self.model.name, self.bill())

    def bill(self) -> str:
        """Return what was asked and paid since the start, for a message."""
        counts = self.model.counts
        asked = f"{counts['new']:,} questions ({counts['from the cache']:,} more from the cache)"
        tokens = f"{counts['input_tokens']:,} tokens read and {counts['output_tokens']:,} written"
        return f"{asked}, {tokens}" + (f", {self.model.cost_usd:.4f} USD" if self.request.prices else "")

    def _shard(
        self,
        number: int,
        examples: list[Example],
        asked: Sequence[Future[Any]],
        preference: np.ndarray,
        advance: Advance,
    ) -> tuple[int, list[Example], np.ndarray, dict[str, Any]]:
        kept, logits, unanswered = list[Example](), [np.empty((0, len(self.question.logit_labels)))], list[Any]()
        for place, (row, one) in enumerate(zip(examples, asked, strict=True)):
            said, why = one.result()
            if said:
                kept.append(row)
                logits.append(self.question.logits(said, preference))
            else:
                unanswered.append({"row": number * SHARD_ROWS + place + 1, "text": row.given or row.text, **why})
            advance(1)
        return number, kept, np.concatenate(logits), {"truncated": 0, "unanswered": unanswered}

    def _said(self, rows: Sequence[Example], advance: Advance) -> Iterator[tuple[list[np.ndarray], dict[str, str]]]:
        with ThreadPoolExecutor(self.request.concurrency) as pool:
            for found in pool.map(self._ask, rows):
                advance(1)
                yield found

    def _ask(self, row: Example) -> tuple[list[np.ndarray], dict[str, str]]:
        """Return what the answers in all orders say of a text; or nothing, and why."""
        found = list[np.ndarray]()
        for order in range(len(self.question.orders)):
            answer = self.model.ask(self.question.messages(row, order), self.question.parameters(), self.most_tokens)
            said = None if answer.refusal else self.question.read(answer, row, order)
            if said is None:
                why, text = (
                    "refused" if answer.refusal else "malformed",
                    (answer.refusal or answer.text)[:KEPT_CHARACTERS],
                )
                self.model.counts[why] += 1
                hopeless = self.model.counts["refused"] + self.model.counts["malformed"] >= HOPELESS
                refuse(
                    (
                        hopeless and not self.model.counts["read"],
                        f"none of the first {HOPELESS} answers of {self.model.name} says a label; the last is {why}: "
                        f"{text!r}. Correct --prompt or --answer, or give more --answer-tokens",
                    )
                )
                return [], {"reason": why, "answer": text}
            found.append(said)
        self.model.counts["read"] += 1
        return found, {}


def _labels(given: Sequence[str]) -> Sequence[str]:
    """Return labels, or those of a text file."""
    if len(given) == 1 and given[0].endswith(".txt"):
        given = [line.strip() for line in read_text(Path(given[0])).splitlines() if line.strip()]
    refuse((len(given) > MOST_LABELS, f"there are {len(given):,} labels, and {MOST_LABELS:,} can be asked for at most"))
    return given


def _prices(path: Path, model: str) -> Prices:
    table = read_toml(path)
    known = f'{path} has no prices of {model}; add ["{model}"] with input and output, in USD for a million tokens'
    refuse((not isinstance(table.get(model), Mapping), known))
    return parse(Prices, table[model], source=f"{path}, {model}")
