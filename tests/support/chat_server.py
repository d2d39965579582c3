"""A server that speaks OpenAI's chat completions on the loopback address, answers by a function, and makes mistakes."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LISTED = re.compile(r"^([A-Z]|[0-9]+): (.*)$", re.MULTILINE)
KEY = "secret-key-1234"


class ChatServer(ThreadingHTTPServer):
    """Answers questions for one label by the likeliest of ``chances(text)``, and others by ``says(text)``.

    Args:
        preference: how much likelier each place of the list is, in nats.
        unknown: parameters that it refuses, each with its words.
        faults: what goes wrong with each request in turn: a status, ``cut``, ``garbage``, ``slow``, ``stuck``, nothing.
    """

    daemon_threads = True

    def __init__(
        self,
        chances: Callable[[str], Mapping[str, float]] = lambda text: {},
        says: Callable[[str], str] = lambda text: "",
        *,
        preference: Sequence[float] = (),
        unknown: Mapping[str, str] = {},
        faults: Sequence[Any] = (),
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.chances, self.says, self.preference, self.unknown = chances, says, preference, unknown
        self.faults, self.lock, self.asked = [*faults], threading.Lock(), list[dict[str, Any]]()
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are stopped close connections."""


class Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(body)
            fault = self.server.faults.pop(0) if self.server.faults else None
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self.reply(401, {"error": {"message": f"Incorrect API key: {self.headers['Authorization'][7:]}"}})
        elif isinstance(fault, int):
            self.reply(fault, {"error": {"message": "the server has a fault"}})
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"id": ')
            self.close_connection = True
        elif fault == "garbage":
            self.reply(200, "<html>")
        elif refused := [said for name, said in self.server.unknown.items() if name in body]:
            self.reply(400, {"error": {"message": refused[0]}})
        else:
            if fault == "stuck":
                self.server.closing.wait()
            time.sleep(0.2 if fault == "slow" else 0)
            system, user = (one["content"] for one in body["messages"])
            marks = LISTED.findall(system)
            said, logprobs = self.choose(marks, user) if marks else (self.server.says(user), None)
            if said in ("REFUSE", "FAIL"):
                self.reply(400 if said == "REFUSE" else 500, {"error": {"message": "the text breaks our rules"}})
                return
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
            if logprobs and body.get("logprobs"):
                choice["logprobs"] = {"content": logprobs}
            used = {"prompt_tokens": len(system + user) // 4, "completion_tokens": 2, "total_tokens": 0}
            self.reply(
                200,
                {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [choice],
                    "usage": used,
                },
            )

    def choose(self, marks: Sequence[tuple[str, str]], text: str) -> tuple[str, Any]:
        """Return the likeliest mark, and the log-probabilities of its tokens, which are single characters."""
        chances = self.server.chances(text)
        if "" in chances:  # what else the model says
            return str(chances[""]), None
        preference = self.server.preference or [0.0] * len(marks)
        weights = {
            mark: chances.get(label, 1e-9) * math.exp(preferred)
            for (mark, label), preferred in zip(marks, preference, strict=True)
        }
        total = sum(weights.values())
        best = max(weights, key=weights.__getitem__)
        tokens = []
        for place in range(len(best)):
            begun = {mark: one for mark, one in weights.items() if mark.startswith(best[:place])}
            mass = {one[place]: 0.0 for one in begun}
            for mark, one in begun.items():
                mass[mark[place]] += one / sum(begun.values())
            top = sorted(mass.items(), key=lambda one: -one[1])[:20]
            listed = [{"token": token, "logprob": math.log(one), "bytes": None} for token, one in top]
            chosen = next(one for one in listed if one["token"] == best[place])
            tokens.append({**chosen, "top_logprobs": listed})
        assert total > 0
        return best, tokens

    def reply(self, status: int, content: Any) -> None:
        sent = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(sent)


@contextmanager
def serving(*arguments: Any, **options: Any) -> Iterator[ChatServer]:
    """Run a :class:`ChatServer` in a thread."""
    with ChatServer(*arguments, **options) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
