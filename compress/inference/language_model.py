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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Self

import numpy as np

from compress.data.examples import Example
from compress.errors import CompressError, refuse
from compress.escaping import one_line, without_secrets
from compress.fields import option, validated
from compress.files import read_text, read_toml
from compress.files.remote import cache_exists, cache_place
from compress.host import is_installed
from compress.inference.questions import Answer, ChooseLabel, question
from compress.models.model_dir import CASCADE_NAME
from compress.progress import Advance, Progress, each, logger, silent
from compress.recipes.parsing import Checked, parse
from compress.requests.labelling import LANGUAGE_MODEL, MOST_LABELS, Asked

RETRIES, TIMEOUT_S = 8, 120.0  # of the client, which waits longer each time, or as long as the server says
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


class LanguageModel:
    """A model on a server, what was asked of it, and what that cost.

    Args:
        base_url: of the server; by default that of ``$OPENAI_BASE_URL``, as of the package ``openai``, or OpenAI's.
        budget_usd: no question is asked that could make the cost of this object's questions higher; 0 for no limit.
    """

    def __init__(self, name: str, base_url: str | None, prices: Prices | None = None, budget_usd: float = 0) -> None:
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
        self._store = AnswerStore(cache_place("answers", self.place) / "answers.sqlite")
        self.prices, self._budget_usd = prices, budget_usd
        self._lock, self._refused = threading.Lock(), {LIMITS[0 if is_openai else 1]}
        self._same = dict[str, threading.Lock]()
        self._reserved_usd = self.cost_usd = 0.0
        self.counts, self.under_way = Counter[str](), 0

    @cached_property
    def _clients(self) -> tuple[Any, Any]:
        """A client that repeats questions, and one of the same connections that does not."""
        import openai

        timeout, key = openai.Timeout(TIMEOUT_S, connect=CONNECT_S), _key() or "none"
        client = openai.OpenAI(api_key=key, base_url=self.place, max_retries=RETRIES, timeout=timeout)
        return client, client.with_options(max_retries=0)

    def stop(self) -> None:
        """Repeat none of the questions that are under way."""
        self._clients[0].close()
        del self._clients

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
                if known := self._store.get(key):
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
                self._store.put(key, self.name, asked_bytes, answer)
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

    def is_known(self, key: str) -> bool:
        return self._store.get(key) is not None

    def estimate(self, asked_bytes: int, questions: int, most_tokens: int) -> tuple[int, int, bool, float | None]:
        """Return the tokens of questions and of their answers, whether earlier answers tell them, and their price."""
        found = self._store.tokens_per_question(self.name)
        bytes_a_token, written = found or (BYTES_A_TOKEN, most_tokens)
        read, wrote = round(asked_bytes / bytes_a_token), round(questions * written)
        answer = Answer("", input_tokens=read, output_tokens=wrote)
        return read, wrote, found is not None, self.prices.cost(answer) if self.prices else None

    def key(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], most_tokens: int) -> str:
        """Return the hash of a question, by which its answer is kept."""
        asked = json.dumps([self.place, self.name, messages, parameters, most_tokens], sort_keys=True)
        return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()

    def _answer(self, messages: Any, parameters: Mapping[str, Any], most_tokens: int) -> Answer:
        import openai

        limits, garbage, clients = dict.fromkeys(LIMITS, most_tokens), 0, self._clients
        while True:
            asked = {name: value for name, value in {**limits, **parameters}.items() if name not in self._refused}
            first, begun = not self._is_there, time.monotonic()
            try:
                reply = clients[first].chat.completions.create(model=self.name, messages=messages, **asked)
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
                    self._is_there = True
                    continue
                if isinstance(error, openai.APITimeoutError) and not is_gone:
                    return Answer("", refusal=f"{self.place} gives {self.name} no answer in time", failed=True)
                raise CompressError(
                    f"{self.place} does not answer ({type(cause).__name__}); check that the server runs, --base-url "
                    "and the network, and repeat the command: answers are kept"
                ) from None
            except openai.APIStatusError as error:
                if first:
                    self._is_there = True
                    continue
                said = f"{self.place} answers {error.status_code} for {self.name}: {self._said(error)}"
                if isinstance(error, openai.InternalServerError):  # perhaps of this text alone
                    return Answer("", refusal=said, failed=True)
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


def prompt_of(request: Any) -> str:
    """Read the prompt of a request, which is empty where none is named."""
    prompt = read_text(Path(request.prompt)).strip() if request.prompt else ""
    refuse((request.prompt and not prompt, f"{request.prompt} is empty; write what the labels mean, or leave it out"))
    return prompt


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
        asked: labels, orders, server, limits. The prompt is the file's text.
        answer: ``label``, ``labels``, ``spans`` or ``score``.
        labels: where none are given.
    """

    def __init__(self, name: str, asked: Asked, prompt: str, answer: str = "label", labels: Sequence[str] = ()) -> None:
        self.concurrency, labels = asked.concurrency, tuple(_labels(asked.labels or labels))
        self.question = question(answer, prompt, labels, asked.orders)
        prices = _prices(Path(asked.prices), name) if asked.prices else None
        self.model = LanguageModel(name, asked.base_url, prices, asked.budget or 0)
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
        with ThreadPool(self.concurrency, setattr, (self._here, "stop", stop)) as pool:
            try:
                yield pool
            except BaseException as error:
                stop.set()
                pool.terminate()
                if isinstance(error, Exception | GeneratorExit):
                    self.model.settle(math.inf if isinstance(error, BudgetEnds) else SETTLE_S)
                else:
                    self.model.stop()
                raise

    def said(self, rows: Sequence[Example], title: str = "", progress: Progress = silent) -> list[Reply]:
        """Return what the answers say of each text."""
        try:
            with self.pool() as pool, progress(title, len(rows)) as advance:
                return [*each(pool.imap(self.ask, rows), advance)]
        except BudgetEnds:
            raise CompressError(
                f"the budget ends before all of these texts are asked ({self.model.bill()}); repeat the command, or "
                "give a larger --budget: answers are kept"
            ) from None

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
    """

    max_length, tokenizer_inside = 0, True

    def __init__(self, asker: Asker, labels: Sequence[str], preference: np.ndarray) -> None:
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
        member = parse(
            AskedMember, {name: kept[name] for name in KEPT if name in kept}, source=str(source / CASCADE_NAME)
        )
        refuse(
            (
                len(member.preference) not in (0, len(labels)) or not member.name,
                f"{source / CASCADE_NAME} has no question to a language model; make the cascade again",
            )
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
        asker = Asker(member.name, member, member.prompt, labels=member.labels)
        return cls(asker, labels, np.array(member.preference))

    def kept(self, asked: Asked) -> dict[str, Any]:
        """Return what :meth:`open` takes."""
        model = self.asker.model
        own = {"name": model.name, "base_url": model.place, "preference": self.preference.tolist()}
        own |= {name: getattr(self.asker.question, name) for name in ("labels", "prompt")}
        return own | {name: getattr(asked, name) for name in KEPT if name not in own}

    def logits(self, examples: Sequence[Example], advance: Advance = lambda rows: None) -> np.ndarray:
        """Return logits ``[N, C]``; advances by the rows."""
        replies = self.asker.said(examples)
        self._last.why = {row: f"{one.why}: {one.text}" for row, one in zip(examples, replies, strict=True) if one.why}
        advance(len(examples))
        return self.of(replies)

    def of(self, replies: Sequence[Reply]) -> np.ndarray:
        """Return the logits of replies, ``[N, C]``."""
        found = np.full((len(replies), len(self._order)), np.nan, np.float32)
        for number, reply in enumerate(replies):
            if reply.said:
                found[number] = self.asker.question.logits(reply.said, self.preference)[0, self._order]
        return found

    def why(self, row: Example) -> str:
        """Return why a text of this thread's last call got no label."""
        return str(self._last.why.get(row, ""))


def _labels(given: Sequence[str]) -> Sequence[str]:
    """Return labels, or those of a text file."""
    if len(given) == 1 and given[0].endswith(".txt"):
        given = [line.strip() for line in read_text(Path(given[0])).splitlines() if line.strip()]
    refuse(
        ("" in given, "--labels holds a label without a name; remove the comma, or give a .txt file"),
        (len(given) > MOST_LABELS, f"there are {len(given):,} labels, and {MOST_LABELS:,} can be asked for at most"),
    )
    return given


def _prices(path: Path, model: str) -> Prices:
    table = read_toml(path)
    known = f'{path} has no prices of {model}; add ["{model}"] with input and output, in USD for a million tokens'
    refuse((not isinstance(table.get(model), Mapping), known))
    return parse(Prices, table[model], source=f"{path}, {model}")
