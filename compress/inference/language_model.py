"""A language model behind an interface of OpenAI's form, by the package ``openai``.

Every answer is kept in the cache by a hash of the server, the model and the question, so that no question is paid
twice; texts are not kept there. The key comes from ``$OPENAI_API_KEY`` alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Self

import numpy as np

from compress.data.examples import Example
from compress.errors import CompressError, refuse, some_of
from compress.escaping import one_line, without_secrets
from compress.fields import option, validated
from compress.files import read_text, read_toml
from compress.files.remote import cache_exists, cache_place
from compress.host import is_installed
from compress.inference.questions import Answer, ChooseLabel, question
from compress.models.model_dir import CASCADE_NAME
from compress.progress import Advance, each, logger
from compress.recipes.parsing import Checked, parse
from compress.requests.labelling import LANGUAGE_MODEL, Asked
from compress.tasks import check_count

RETRIES, TIMEOUT_S = 8, 120.0  # of the client, which waits longer each time, or as long as the server says
FEW_RETRIES = 1  # of predictions, for which somebody may wait
CONNECT_S, SETTLE_S = 10.0, 5.0  # for a connection, and for what is under way when an error ends the work
GARBAGE_TRIES = 3
HOPELESS = 20  # texts in a row without a label, after which no more are asked
# Texts in a row that fail, and the share of all where there are HOPELESS of them: then the fault is no text's.
MOST_FAILURES, MOST_FAILED = 5, 0.1
PILOT_ROWS = 128  # from whose answers the preference for places is estimated
BYTES_A_TOKEN = 4.0  # of English, where no answer of the model is known yet
LEAST_BYTES_A_TOKEN = 2.0  # by which a budget reserves what a question may cost
KEPT_CHARACTERS = 200  # of an answer that says nothing
OPENAI_URL = "https://api.openai.com/v1"
# What not every server takes. A question that is refused because of one is asked without it from then on.
OPTIONAL = ("top_logprobs", "logprobs", "response_format", "temperature")
UNREACHABLE = ("ConnectError", "ConnectTimeout")  # of httpx or httpx2, by the version of openai
KEPT = ("name", "base_url", "labels", "prompt", "orders", "answer_tokens", "concurrency", "preference")
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


class BudgetEnds(Exception):
    """The next question could cost more than is left, or none is to be asked any more."""


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


@validated
class AskedMember(Asked, Checked):
    """What ``cascade.json`` keeps of a language model: no key, and the prompt's text."""

    name: str = option(default="")
    prompt: str = option(default="")
    preference: tuple[float, ...] = option(default=())

    def read_prompt(self) -> str:
        return self.prompt


@dataclass(frozen=True)
class Estimate:
    """What asking about texts would take: questions, those that are answered already, and tokens of the others.

    ``usd`` is None without prices.
    """

    rows: int
    questions: int
    answered: int
    input_tokens: int
    output_tokens: int
    measured: bool
    usd: float | None


class LanguageModel:
    """A model on a server, what was asked of it, and what that cost.

    Args:
        base_url: of the server; by default that of ``$OPENAI_BASE_URL``, as of the package ``openai``, or OpenAI's.
        budget_usd: no question is asked that could make the cost of this object's questions higher; 0 for no limit.
        patient: whether a question is repeated as often as a long work needs, and not as somebody who waits wants.
    """

    def __init__(
        self,
        name: str,
        base_url: str | None,
        prices: Prices | None = None,
        budget_usd: float = 0,
        patient: bool = True,
    ) -> None:
        self.name, self.place = name, (base_url or _named_server() or OPENAI_URL).rstrip("/")
        is_openai = self.place == OPENAI_URL
        refuse(
            (
                not is_installed("openai"),
                f"a teacher {LANGUAGE_MODEL}{name} needs the package openai; install it with pip install "
                "'compress[llm]'",
            ),
            (
                not self.place.startswith(("http://", "https://")),
                f"--base-url {self.place} is no URL; give one such as http://127.0.0.1:8000/v1",
            ),
            (
                without_secrets(self.place) != self.place,
                "--base-url holds a user or a key; give the key in the environment variable OPENAI_API_KEY",
            ),
            (
                is_openai and not _key(),
                f"{LANGUAGE_MODEL}{name} needs a key in the environment variable OPENAI_API_KEY; set it, or name "
                "another server with --base-url",
            ),
        )
        self._is_there = False
        self.store = AnswerStore(cache_place("answers", self.place) / "answers.sqlite")
        self.prices, self._budget_usd, self._retries = prices, budget_usd, RETRIES if patient else FEW_RETRIES
        self._lock, self._refused = threading.Lock(), {LIMITS[0 if is_openai else 1]}
        self._same = dict[str, threading.Lock]()
        self._reserved_usd = self.cost_usd = 0.0
        self.counts, self.under_way = Counter[str](), 0

    @cached_property
    def _client(self) -> Any:
        import openai

        timeout, key = openai.Timeout(TIMEOUT_S, connect=CONNECT_S), _key() or "none"
        return openai.OpenAI(api_key=key, base_url=self.place, timeout=timeout)

    def stop(self) -> None:
        """Repeat none of the questions that are under way."""
        self._client.close()
        del self._client

    def settle(self, seconds: float = SETTLE_S) -> None:
        """Wait for the questions that are under way, which are paid, but not for a server that hangs."""
        end = time.monotonic() + seconds
        while self.under_way and time.monotonic() < end:
            time.sleep(0.02)

    def bill(self) -> str:
        """Return what was asked and paid so far, for a message."""
        with self._lock:
            counts, usd, late = self.counts.copy(), self.cost_usd, self.under_way
        asked = f"{counts['new']:,} questions ({counts['from the cache']:,} more from the cache)"
        tokens = f"{counts['input_tokens']:,} tokens read and {counts['output_tokens']:,} written"
        money = f", {usd:.4f} USD" if self.prices else ""
        return f"{self.name}: {asked}, {tokens}{money}" + f"; {late} more are under way and may be paid" * bool(late)

    def ask(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> Answer:
        """Return the answer, from the cache where it is there.

        Raises:
            BudgetEnds: it could cost more than is left.
            CompressError: the server is not there, does not take the key, or answers nothing.
        """
        key = self.key(messages, parameters, most_tokens)
        with self._lock:
            same = self._same.setdefault(key, threading.Lock())
        with same:  # a text that is there twice is asked once
            try:
                if known := self.store.get(key):
                    with self._lock:
                        self.counts["from the cache"] += 1
                answer = known or self._bought(key, messages, parameters, most_tokens)
            finally:
                with self._lock:
                    self._same.pop(key, None)
        refuse(
            (
                self.prices and not answer.input_tokens and not answer.refusal,
                f"{self.place} does not count tokens, so that nothing is known of costs; leave --prices out",
            )
        )
        return answer

    def _bought(self, key: str, messages: Any, parameters: Mapping[str, Any], most_tokens: int) -> Answer:
        """Return the answer of the server, keep it, and count what it costs."""
        reserved_usd, answer, asked_bytes = 0.0, Answer(""), question_bytes(messages)
        if self.prices and self._budget_usd:
            most = Answer("", input_tokens=int(asked_bytes / LEAST_BYTES_A_TOKEN), output_tokens=most_tokens)
            reserved_usd = self.prices.cost(most)
        with self._lock:
            if self._budget_usd and self.cost_usd + self._reserved_usd + reserved_usd > self._budget_usd:
                raise BudgetEnds
            self._reserved_usd += reserved_usd
        try:
            answer = self._answer(messages, parameters, most_tokens)
            if not answer.refusal:  # which costs nothing, and may be of an account that is empty today
                self.store.put(key, self.name, asked_bytes, answer)
        finally:
            with self._lock:
                self._reserved_usd -= reserved_usd
                self.cost_usd += self.prices.cost(answer) if self.prices else 0
                self.counts.update(new=1, input_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
        return answer

    def cost(self, answer: Answer) -> dict[str, float]:
        """Return what an answer takes, by name; USD where prices are known."""
        names = ("input_tokens", "cached_tokens", "output_tokens")
        money = {"usd": self.prices.cost(answer)} if self.prices else {}
        return {"questions": 1, **{name: getattr(answer, name) for name in names}, **money}

    def key(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> str:
        """Return the hash of a question, by which its answer is kept."""
        asked = json.dumps([self.place, self.name, messages, parameters, most_tokens], sort_keys=True)
        return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()

    def _answer(self, messages: Any, parameters: Mapping[str, Any], most_tokens: int) -> Answer:
        import openai

        limits, garbage, retries, client = dict.fromkeys(LIMITS, most_tokens), 0, self._retries, self._client
        while True:
            asked = {name: value for name, value in {**limits, **parameters}.items() if name not in self._refused}
            first, begun = not self._is_there, time.monotonic()
            try:
                own = client.with_options(max_retries=0 if first else retries)
                reply = own.chat.completions.create(model=self.name, messages=messages, **asked)
                self._is_there = True
                return replace(_read(reply), seconds=time.monotonic() - begun)
            except (openai.BadRequestError, openai.PermissionDeniedError, openai.UnprocessableEntityError) as error:
                if self._goes_without(asked, said := self._said(error)):
                    continue
                if isinstance(error, openai.PermissionDeniedError):
                    raise CompressError(f"{self.place} answers 403 for {self.name}: {said}") from None
                return Answer("", refusal=said[:KEPT_CHARACTERS])
            except openai.APIConnectionError as error:
                cause = error.__cause__ or error
                # A server that is there may lose a connection; one that never was is not waited for.
                is_gone = type(cause).__name__ in UNREACHABLE
                if first and not is_gone:
                    self._is_there, retries = True, retries - 1
                    continue
                if isinstance(error, openai.APITimeoutError) and not is_gone:
                    late = f"no answer in {self._retries + 1} tries of {TIMEOUT_S:g} s"
                    return Answer("", refusal=f"{self.place} gives {self.name} {late}", failed=True)
                raise CompressError(
                    f"{self.place} does not answer ({type(cause).__name__}); check that the server runs, --base-url "
                    "and the network, and repeat the command: answers are kept"
                ) from None
            except openai.APIStatusError as error:
                if first:
                    self._is_there, retries = True, retries - 1
                    continue
                said = f"{self.place} answers {error.status_code} for {self.name}: {self._said(error)}"
                if isinstance(error, openai.InternalServerError):  # perhaps of this text alone
                    return Answer("", refusal=said, failed=True)
                if not _key() and isinstance(error, openai.AuthenticationError):
                    said = f"{self.place} needs a key, and OPENAI_API_KEY is not set: type export OPENAI_API_KEY=KEY"
                raise CompressError(f"{said}; correct that and repeat the command: answers are kept") from None
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


def _named_server() -> str:
    return os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")


def _key() -> str:
    return os.environ.get("OPENAI_API_KEY", "").strip()


def question_bytes(messages: Sequence[Mapping[str, str]]) -> int:
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


class Asker:
    """Asks a language model for the labels of texts, several at a time.

    Args:
        name: of the model.
        asked: labels, prompt, orders, server, limits.
        answer: ``label``, ``labels``, ``spans`` or ``score``.
        labels: where none are given.
        patient: as of :class:`LanguageModel`.
    """

    def __init__(
        self, name: str, asked: Asked, answer: str = "label", labels: Sequence[str] = (), patient: bool = True
    ) -> None:
        self.asked, labels, prompt = asked, tuple(_labels(asked.labels or labels)), asked.read_prompt()
        self.question = question(answer, prompt, labels, asked.orders)
        prices = _prices(Path(asked.prices), name) if asked.prices else None
        self.model = LanguageModel(name, asked.base_url, prices, asked.budget or 0, patient)
        self.most_tokens = asked.answer_tokens or self.question.most_tokens
        decides = [self.model.place, name, prompt, labels, self.question.orders, answer, self.most_tokens]
        self.sha256 = hashlib.sha256(json.dumps(decides).encode()).hexdigest()
        self._lock, self._counts, self._here = threading.Lock(), Counter[str](), threading.local()

    @property
    def has_preference(self) -> bool:
        """Whether it can be found which places of the list the model prefers."""
        return isinstance(self.question, ChooseLabel) and len(self.question.orders) > 1

    @contextmanager
    def pool(self) -> Iterator[ThreadPool]:
        """Give threads that ask. They keep no process that is interrupted from ending, whatever the server does.

        After an error, or when nobody wants more, no more is asked, and the questions under way, which are paid, may
        end. An interruption does not wait for them.
        """
        stop = threading.Event()
        with ThreadPool(self.asked.concurrency, setattr, (self._here, "stop", stop)) as pool:
            try:
                yield pool
            except BaseException as error:
                stop.set()
                pool.terminate()
                if isinstance(error, Exception | GeneratorExit):
                    self.model.settle(math.inf if isinstance(error, BudgetEnds) else SETTLE_S)
                else:
                    self.model.stop()
                logger.info("%s", self.model.bill())
                raise

    def said(self, rows: Sequence[Example], advance: Advance = lambda rows: None) -> list[Reply]:
        """Return what the answers say of each text; advances by the rows."""
        try:
            with self.pool() as pool:
                return [*each(pool.imap(self.ask, rows), advance)]
        except BudgetEnds:
            raise CompressError(
                "the budget ends before all of these texts are asked; repeat the command, or give a larger --budget: "
                "answers are kept"
            ) from None

    def estimate(self, rows: Iterable[Example]) -> Estimate:
        """Return what asking about texts would take; nothing is asked."""
        questions = asked_bytes = 0
        known = dict[str, bool]()  # whether a question has an answer: equal texts are asked once
        for row in rows:
            for order in range(len(self.question.orders)):
                asks = self.asks(row, order)
                questions += 1
                if (key := self.model.key(*asks)) not in known:
                    known[key] = self.model.store.get(key) is not None
                    asked_bytes += 0 if known[key] else question_bytes(asks[0])
        left, told = [*known.values()].count(False), self.model.store.tokens_per_question(self.model.name)
        bytes_a_token, written = told or (BYTES_A_TOKEN, self.most_tokens)
        rest = Answer("", input_tokens=round(asked_bytes / bytes_a_token), output_tokens=round(left * written))
        usd = self.model.prices.cost(rest) if self.model.prices else None
        count = questions // len(self.question.orders), questions, questions - left
        return Estimate(*count, rest.input_tokens, rest.output_tokens, told is not None, usd)

    def ask(self, row: Example) -> Reply:
        """Return what the answers in all orders say of a text; or nothing, and why. In a thread of :meth:`pool`.

        Raises:
            CompressError: so many texts got no label that no other will.
        """
        with self._lock:  # before it looks whether to stop, so that who stops it waits for it
            self.model.under_way += 1
        try:
            return self._reply(row)
        finally:
            with self._lock:
                self.model.under_way -= 1

    def _reply(self, row: Example) -> Reply:
        found, answers = list[np.ndarray](), list[Answer]()
        for order in range(len(self.question.orders)):
            if self._here.stop.is_set():
                raise BudgetEnds
            answers.append(self.model.ask(*self.asks(row, order)))
            answer = answers[-1]
            said = None if answer.refusal else self.question.read(answer, row, order)
            if said is None:
                why = "failed" if answer.failed else "refused" if answer.refusal else "malformed"
                # Without half characters, which no JSON file holds.
                text = (answer.refusal or answer.text)[:KEPT_CHARACTERS].encode("utf-8", "replace").decode()
                self._count(why, text)
                return Reply([], why, text, answers)
            found.append(said)
        self._count()
        return Reply(found, answers=answers)

    def asks(self, row: Example, order: int) -> tuple[list[dict[str, str]], dict[str, Any], int]:
        """Return what :meth:`LanguageModel.ask` takes."""
        return self.question.messages(row, order), self.question.parameters(), self.most_tokens

    def _count(self, why: str = "", text: str = "") -> None:
        """Count a text, and those in a row without a label, or that failed.

        Raises:
            CompressError: there are too many.
        """
        with self._lock:
            counts = self._counts
            counts.update(texts=1, failed=why == "failed")
            counts["silent"] = counts["silent"] + 1 if why else 0
            counts["failing"] = counts["failing"] + 1 if why == "failed" else 0
            silent, failing, failed, texts = (counts[name] for name in ("silent", "failing", "failed", "texts"))
            many = failed >= HOPELESS and failed > MOST_FAILED * texts
            if many or failing >= MOST_FAILURES or silent >= HOPELESS:
                counts.clear()  # a model that was loaded is asked again when the server is well
        said = f"{failing} texts in a row" if failing >= MOST_FAILURES else f"{failed:,} of {texts:,} texts"
        refuse(
            (
                failing >= MOST_FAILURES or many,
                f"{said} failed, so that no more are asked: {text}; repeat the command when the server is well: "
                "answers are kept",
            ),
            (
                silent >= HOPELESS,
                f"{HOPELESS} texts in a row got no label of {self.model.name}; the last answer is {why}: {text!r}. "
                "Correct --prompt or --answer, or give more --answer-tokens",
            ),
        )

    def preference(self, replies: Sequence[Reply]) -> np.ndarray:
        """Return the preference for places, ``[C]``, by what was said of texts, and say it; nothing without one."""
        answered = [one.said for one in replies if one.said]
        if not isinstance(self.question, ChooseLabel) or not self.has_preference or not answered:
            return np.zeros(0)
        found = self.question.place_preference(answered)
        if found is not None:
            spread = np.exp(found.max() - found.min())
            logger.info("the likeliest place of the list is x%.2f as likely as the least, which is taken away", spread)
        same = np.mean([len({int(one.argmax()) for one in orders}) == 1 for orders in answered])
        logger.info("%.1f%% of %d texts get one label in all orders", 100 * same, len(answered))
        return np.zeros(0) if found is None else found.round(4)


@dataclass(frozen=True)
class Reply:
    """What the answers in all orders say of a text: nothing where one says nothing, and then why, and its text."""

    said: list[np.ndarray]
    why: str = ""
    text: str = ""
    answers: Sequence[Answer] = ()


class LanguageModelRunner:
    """A language model as the last member of a cascade: see :class:`compress.inference.runners.LoadedModel`.

    Texts that get no label have no logits, but numbers that are none.

    Args:
        labels: in the order of the logits, C of them.
        preference: for places, ``[C]``; None where the first texts tell it.
    """

    max_length, tokenizer_inside = 0, True

    def __init__(self, asker: Asker, labels: Sequence[str], preference: np.ndarray | None = None) -> None:
        self.asker, self.preference, self._last = asker, preference, threading.local()
        asked = asker.question.labels
        said = f"it is asked for {', '.join(asked[:5])}, and the models before it give {', '.join(labels[:5])}"
        refuse(
            (sorted(asked) != sorted(labels), f"the members of a cascade have the same labels: {said}; give --labels")
        )
        self._order = [asked.index(label) for label in labels]

    @classmethod
    def open(cls, kept: Mapping[str, Any], labels: Sequence[str], source: Path) -> Self:
        """Open what ``cascade.json`` of the directory ``source`` has of a language model.

        Raises:
            CompressError: it is damaged, or of a server that nobody named here, to which key and texts would be sent.
        """
        member = parse(AskedMember, kept, source=str(source / CASCADE_NAME))
        refuse(
            (
                kept.keys() - {*KEPT},
                f"{source / CASCADE_NAME} says {some_of(sorted(kept.keys() - {*KEPT}))} of a language model, of which "
                f"it has {', '.join(KEPT)}; make the cascade again",
            ),
            (
                len(member.preference) not in (0, len(labels)) or not member.name,
                f"{source / CASCADE_NAME} has no question to a language model; make the cascade again",
            ),
        )
        place = (member.base_url or OPENAI_URL).rstrip("/")
        allowed = place in {_named_server(), OPENAI_URL}
        refuse(
            (
                not allowed and not cache_exists("answers", place),
                f"{source} sends texts to {without_secrets(place)}, which no command here has asked before; if that is "
                "right, set the environment variable OPENAI_BASE_URL to it",
            )
        )
        asker = Asker(member.name, member, labels=member.labels, patient=False)
        return cls(asker, labels, np.array(member.preference))

    def bill(self) -> str:
        return self.asker.model.bill()

    def kept(self) -> dict[str, Any]:
        """Return what :meth:`open` takes."""
        model, preference = self.asker.model, [] if self.preference is None else self.preference.tolist()
        own = {"name": model.name, "base_url": model.place, "preference": preference}
        own |= {name: getattr(self.asker.question, name) for name in ("labels", "prompt")}
        return own | {name: getattr(self.asker.asked, name) for name in KEPT if name not in own}

    def logits(self, examples: Sequence[Example], advance: Advance = lambda rows: None) -> np.ndarray:
        """Return logits ``[N, C]``; advances by the rows."""
        replies = self._last.replies = self.asker.said(examples, advance)
        rows = zip(examples, replies, strict=True)
        self._last.why = {row: f"{reply.why}: {reply.text}" for row, reply in rows if not reply.said}
        if self.preference is None:
            self.preference = self.asker.preference(replies)
        found = np.full((len(examples), len(self._order)), np.nan, np.float32)
        for number, reply in enumerate(replies):
            if reply.said:
                found[number] = self.asker.question.logits(reply.said, self.preference)[0, self._order]
        return found

    # Of this thread's last call.

    def why(self, row: Example) -> str:
        """Return why a text got no label."""
        return str(self._last.why[row])

    def latency_ms(self) -> float:
        """Return the median time of a text whose answers say how long they took."""
        times = [[one.seconds for one in reply.answers] for reply in self._last.replies if reply.said]
        found = [sum(own) for own in times if all(own)]
        refuse((not found, "the answers in the cache are of an earlier version, without times; ask about other texts"))
        return 1000 * float(np.median(found))

    def usd(self) -> np.ndarray:
        """Return what the answers to each text cost, ``[N]``, also where they give no label."""
        cost = self.asker.model.cost
        return np.array([sum(cost(one)["usd"] for one in reply.answers) for reply in self._last.replies])


def _labels(given: Sequence[str]) -> Sequence[str]:
    """Return labels, or those of a text file."""
    if len(given) == 1 and given[0].endswith(".txt"):
        given = [line.strip() for line in read_text(Path(given[0])).splitlines() if line.strip()]
    refuse(("" in given, "--labels holds a label without a name; remove the comma, or give a .txt file"))
    check_count(len(given), "labels in --labels", "the list")
    return given


def _prices(path: Path, model: str) -> Prices:
    table = read_toml(path)
    known = f'{path} has no prices of {model}; add ["{model}"] with input and output, in USD for a million tokens'
    refuse((not isinstance(table.get(model), Mapping), known))
    return parse(Prices, table[model], source=f"{path}, {model}")
