"""A language model behind an interface of OpenAI's form as teacher, by the package ``openai``.

Every answer is kept in the cache by a hash of the server, the model and the question, so that no question is paid
twice; texts are not kept there. The key comes from ``$OPENAI_API_KEY`` alone.
"""

from __future__ import annotations

import hashlib
import itertools
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
from compress.progress import Advance, each, logger
from compress.recipes.parsing import parse
from compress.requests.labelling import LANGUAGE_MODEL, MOST_LABELS, Label

SHARD_ROWS = 64  # whole shards are kept where a budget ends
PILOT_ROWS = 128  # from whose answers the preference for places is estimated
RETRIES, TIMEOUT_S = 8, 120.0  # of the client, which waits longer each time, or as long as the server says
GARBAGE_TRIES = 3
HOPELESS = 20  # texts in a row without a label, after which no more are asked
BYTES_A_TOKEN = 4.0  # of English, where no answer of the model is known yet
LEAST_BYTES_A_TOKEN = 2.0  # by which a budget reserves what a question may cost
KEPT_CHARACTERS = 200  # of an answer that says nothing
OPENAI_URL = "https://api.openai.com/v1"
# What not every server takes. A question that is refused because of one is asked without it from then on.
OPTIONAL = ("top_logprobs", "logprobs", "response_format", "temperature")
LIMITS = ("max_tokens", "max_completion_tokens")  # two names of one parameter; which one depends on the server


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
        self._lock, self._path = threading.Lock(), path
        self._table = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=60)
        self._run("PRAGMA journal_mode = WAL")
        self._run("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model, bytes, answer TEXT)")

    def _run(self, query: str, values: Sequence[Any] = ()) -> Any:
        try:
            with self._lock:
                return self._table.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise CompressError(
                f"the cache of answers {self._path} fails ({error}); move it away, or free the disk"
            ) from None

    def get(self, key: str) -> Answer | None:
        if not (found := self._run("SELECT answer FROM answers WHERE key = ?", (key,))):
            return None
        kept = json.loads(found[0])
        return Answer(**{**kept, "tokens": tuple((token, likeliest) for token, likeliest in kept["tokens"])})

    def put(self, key: str, model: str, asked_bytes: int, answer: Answer) -> None:
        self._run(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (key, model, asked_bytes, json.dumps(asdict(answer)))
        )

    def tokens_per_question(self, model: str) -> tuple[float, float] | None:
        """Return how many bytes a token of a question had, and how many tokens an answer; None without any."""
        fields = "json_extract(answer, '$.input_tokens')", "json_extract(answer, '$.output_tokens')"
        query = f"SELECT sum(bytes), sum({fields[0]}), avg({fields[1]}) FROM answers WHERE model = ?"
        asked_bytes, tokens, written = self._run(query, (model,))
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
                base_url and not base_url.startswith(("http://", "https://")),
                f"--base-url {base_url} is no URL; give one such as http://127.0.0.1:8000/v1",
            ),
            (
                base_url and without_secrets(base_url) != base_url,
                "--base-url holds a user or a key; give the key in the environment variable OPENAI_API_KEY",
            ),
            (
                not base_url and not _key(),
                f"{LANGUAGE_MODEL}{name} needs a key in the environment variable OPENAI_API_KEY; set it, or name "
                "another server with --base-url",
            ),
        )
        import openai

        self.name, self.place = name, (base_url or OPENAI_URL).rstrip("/")
        self._client = openai.OpenAI(
            api_key=_key() or "none", base_url=self.place, max_retries=RETRIES, timeout=TIMEOUT_S
        )
        self._store = AnswerStore(cache_place("answers", self.place) / "answers.sqlite")
        self._prices, self._budget_usd = prices, budget_usd
        self._lock, self._refused = threading.Lock(), {LIMITS[0 if base_url is None else 1]}
        self._under_way = dict[str, threading.Lock]()
        self._reserved_usd = self.cost_usd = 0.0
        self.counts, self.stopped = Counter[str](), False

    def stop(self) -> None:
        """Break the connections: questions that are under way end without an answer."""
        self.stopped = True
        self._client.close()

    def ask(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> Answer:
        """Return the answer, from the cache where it is there.

        Raises:
            BudgetEnds: it could cost more than is left.
            CompressError: the server is not there, does not take the key, or answers nothing.
        """
        key, asked_bytes = self._hash(messages, parameters, most_tokens), _bytes(messages)
        with self._lock:
            same = self._under_way.setdefault(key, threading.Lock())
        with same:  # a text that is there twice is asked once
            if known := self._store.get(key):
                self.counts["from the cache"] += 1
                return known
            reserved_usd = 0.0
            if self._prices and self._budget_usd:
                most = Answer("", input_tokens=int(asked_bytes / LEAST_BYTES_A_TOKEN), output_tokens=most_tokens)
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
            if not answer.refusal:  # which costs nothing, and may be of an account that is empty today
                self._store.put(key, self.name, asked_bytes, answer)
            with self._lock:
                self._under_way.pop(key, None)
            if self._prices and not answer.input_tokens and not answer.refusal:
                raise CompressError(
                    f"{self.place} does not count tokens, so that nothing is known of costs; leave --prices out"
                )
            return answer

    def is_known(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> bool:
        return self._store.get(self._hash(messages, parameters, most_tokens)) is not None

    def estimate(self, asked_bytes: int, questions: int, most_tokens: int) -> tuple[int, int, bool, float | None]:
        """Return the tokens of questions and of their answers, whether earlier answers tell them, and their price."""
        found = self._store.tokens_per_question(self.name)
        bytes_a_token, written = found or (BYTES_A_TOKEN, most_tokens)
        read, wrote = round(asked_bytes / bytes_a_token), round(questions * written)
        answer = Answer("", input_tokens=read, output_tokens=wrote)
        return read, wrote, found is not None, self._prices.cost(answer) if self._prices else None

    def _hash(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> str:
        asked = json.dumps([self.place, self.name, messages, parameters, most_tokens], sort_keys=True)
        return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()

    def _answer(self, messages: Any, parameters: Mapping[str, Any], most_tokens: int) -> Answer:
        import openai

        limits, garbage = dict.fromkeys(LIMITS, most_tokens), 0
        while True:
            asked = {name: value for name, value in {**limits, **parameters}.items() if name not in self._refused}
            try:
                return _read(self._client.chat.completions.create(model=self.name, messages=messages, **asked))
            except (openai.BadRequestError, openai.PermissionDeniedError, openai.UnprocessableEntityError) as error:
                if self._goes_without(asked, said := self._said(error)):
                    continue
                if isinstance(error, openai.PermissionDeniedError):
                    raise CompressError(f"{self.place} answers 403 for {self.name}: {said}") from None
                return Answer("", refusal=said[:KEPT_CHARACTERS])
            except openai.APIConnectionError as error:
                if self.stopped:
                    raise BudgetEnds from None
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

    def _goes_without(self, asked: Mapping[str, Any], said: str) -> bool:
        """Tell whether a refusal names a parameter; it is left out from then on, and the limit takes its other name."""
        words = said.casefold()
        with self._lock:
            if LIMITS[0] in asked and LIMITS[1] in words and "instead" in words:
                self._refused = self._refused - {LIMITS[1]} | {LIMITS[0]}
                return True
            unknown = next((one for one in OPTIONAL if one in asked and one in words), None)
            if unknown and unknown not in self._refused:
                self._refused |= {unknown}
                logger.info("%s takes no %s; questions are asked without it", self.name, unknown)
            return unknown is not None

    def _said(self, error: Any) -> str:
        """Return the message of an error on one line, without the key."""
        body = error.body if isinstance(error.body, Mapping) else {}
        return one_line(str(body.get("message") or error.message)).replace(_key() or "\0", "***")


def _key() -> str:
    return os.environ.get("OPENAI_API_KEY", "").strip()


def _bytes(messages: Sequence[Mapping[str, str]]) -> int:
    return sum(len(one["content"].encode("utf-8", "surrogatepass")) for one in messages)


def _read(reply: Any) -> Answer:
    """Return what a reply holds.

    Raises:
        AttributeError, IndexError, KeyError, TypeError, ValueError: it is no chat completion.
    """
    refuse((fault := getattr(reply, "error", None), f"the server answers with an error: {one_line(str(fault))[:300]}"))
    choice, used = reply.choices[0], reply.usage
    listed = (choice.logprobs and choice.logprobs.content) or []
    tokens = tuple(
        (
            str(one.token),
            {str(other.token): float(other.logprob) for other in one.top_logprobs or () if other.logprob is not None},
        )
        for one in listed
    )
    message, cached = choice.message, getattr(used, "prompt_tokens_details", None)
    refusal = getattr(message, "refusal", None) or (
        "content_filter" if choice.finish_reason == "content_filter" else ""
    )
    return Answer(
        message.content if isinstance(message.content, str) else json.dumps(message.content or ""),
        tokens,
        int(getattr(used, "prompt_tokens", 0) or 0),
        int(getattr(cached, "cached_tokens", 0) or 0),
        int(getattr(used, "completion_tokens", 0) or 0),
        str(refusal),
    )


class LanguageModelTeacher:
    """Labels a text by questions to a language model; see :class:`compress.labelling.label.LocalTeacher`."""

    plan_type = LanguageModelPlan

    def __init__(self, request: Label) -> None:
        self.request, self.ended, self.silent = request, False, 0
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
        judging = self.request.read("validation") if self.request.validation is not None else []
        for row in itertools.chain(map(self.task.row, judging), unlabeled):
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
        """Estimate the preference for places, by some of the texts."""
        preference = self._preference([*unlabeled.sample(PILOT_ROWS)], "Preference for places")[1]
        place = self.model.place
        return LanguageModelPlan(
            "openai", place, 1, 0, "", shard_rows=SHARD_ROWS, preference=tuple(preference.tolist())
        )

    def _preference(self, rows: Sequence[Example], title: str) -> tuple[list[list[np.ndarray]], np.ndarray]:
        """Return what the answers say of texts, and the preference for places, ``[C]``; nothing where none is found."""
        if not isinstance(self.question, ChooseLabel) or len(self.question.orders) < 2:
            return [], np.zeros(0)
        said = self._said(rows, title)
        answered = [one for one in said if one]
        found = self.question.place_preference(answered)
        if found is not None:
            spread = np.exp(found.max() - found.min())
            logger.info("the likeliest place of the list is x%.2f as likely as the least, which is taken away", spread)
        if answered:
            same = np.mean([len({int(one.argmax()) for one in orders}) == 1 for orders in answered])
            logger.info("%.1f%% of %d texts get one label in all orders", 100 * same, len(answered))
        return said, np.zeros(0) if found is None else found.round(4)

    def judge(self) -> None:
        """Say how often the teacher is right on labelled rows, of which it has the preference for places too.

        Raises:
            CompressError: it is not certainly as good as asked.
        """
        if self.request.validation is None:
            return
        rows = [self.task.row(row) for row in self.request.read("validation")]
        gold = self.task.gold(rows, self.question.logit_labels, "validation")
        metric, title = self.task.metric(None, self.question.logit_labels), "Asking for the labels of validation"
        said, preference = self._preference(rows, title)
        said = said or self._said(rows, title)
        known = [number for number, one in enumerate(said) if one]
        refuse((not known, f"no answer to the {len(rows)} rows of validation names a label; correct --prompt"))
        logits = np.concatenate([self.question.logits(said[number], preference) for number in known])
        clusters = self.task.clusters([rows[number] for number in known], metric)
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
            logger.warning("the budget ends here: the same command goes on with the rest; answers are kept")
            pool.shutdown(cancel_futures=True)  # those that are under way are paid
        except BaseException:
            self.model.stop()
            raise
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
                pair = {} if row.text_pair is None else {"text_pair": row.text_pair}
                unanswered.append(
                    {"row": number * SHARD_ROWS + place + 1, "text": row.given or row.text, **pair, **why}
                )
            advance(1)
        return number, kept, np.concatenate(logits), {"truncated": 0, "unanswered": unanswered}

    def _said(self, rows: Sequence[Example], title: str) -> list[list[np.ndarray]]:
        """Return what the answers in all orders say of each text; nothing where one says nothing."""
        pool = ThreadPoolExecutor(self.request.concurrency)
        try:
            with self.request.progress(title, len(rows)) as advance:
                return [said for said, _ in each(pool.map(self._ask, rows), advance)]
        except BudgetEnds:
            raise CompressError(
                "the budget ends before the text itself is asked; give a larger --budget: answers are kept"
            ) from None
        except BaseException:
            self.model.stop()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, row: Example) -> tuple[list[np.ndarray], dict[str, str]]:
        """Return what the answers in all orders say of a text; or nothing, and why."""
        found = list[np.ndarray]()
        for order in range(len(self.question.orders)):
            answer = self.model.ask(self.question.messages(row, order), self.question.parameters(), self.most_tokens)
            said = None if answer.refusal else self.question.read(answer, row, order)
            if said is None:
                why, text = ("refused", answer.refusal) if answer.refusal else ("malformed", answer.text)
                # Without half characters, which no JSON file holds.
                text = text[:KEPT_CHARACTERS].encode("utf-8", "replace").decode()
                self.silent += 1
                refuse(
                    (
                        self.silent >= HOPELESS,
                        f"{HOPELESS} texts in a row got no label of {self.model.name}; the last answer is {why}: "
                        f"{text!r}. Correct --prompt or --answer, or give more --answer-tokens",
                    )
                )
                return [], {"reason": why, "answer": text}
            found.append(said)
        self.silent = 0
        return found, {}


def _labels(given: Sequence[str]) -> Sequence[str]:
    """Return labels, or those of a text file."""
    if len(given) == 1 and given[0].endswith(".txt"):
        given = [line.strip() for line in read_text(Path(given[0])).splitlines() if line.strip()]
    refuse(("" in given, "--labels holds a label without a name; remove the comma, or give a .txt file"))
    refuse((len(given) > MOST_LABELS, f"there are {len(given):,} labels, and {MOST_LABELS:,} can be asked for at most"))
    return given


def _prices(path: Path, model: str) -> Prices:
    table = read_toml(path)
    known = f'{path} has no prices of {model}; add ["{model}"] with input and output, in USD for a million tokens'
    refuse((not isinstance(table.get(model), Mapping), known))
    return parse(Prices, table[model], source=f"{path}, {model}")
