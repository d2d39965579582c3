"""The examples of docs/labels.md: the script asks a server on the loopback address, and the commands read it."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from compress.cli import execute
from compress.labelling.label_dir import LabelDir
from tests.support import REPOSITORY
from tests.support.tiny import examples
from tests.support.training_data import TINY_STUDENT
from tests.test_docs import commands_in

PAGE = (REPOSITORY / "docs" / "labels.md").read_text(encoding="utf-8")
FILES: dict[str, str] = dict(re.findall(r"^`([\w.]+)`:\n\n```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


class Stub(BaseHTTPRequestHandler):
    """Answers like an OpenAI-compatible server: 0.7 for the letter of the class that the text belongs to."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions" and self.headers["Authorization"] == "Bearer secret"
        assert body["logprobs"] and body["max_tokens"] == 1 and body["top_logprobs"] <= 20
        question = body["messages"][0]["content"]
        assert "A: negative\nB: positive\n" in question
        text = question.rpartition("\n")[2]
        label = {row.text: row.label for row in examples()}.get(text)
        shares = {"A": 0.1, " B": 0.6, "B": 0.1} if label == "positive" else {"A": 0.7, "B": 0.1}
        shares = {**shares, "The": 0.2} if label else {"The": 1.0}
        candidates = [{"token": token, "logprob": math.log(share)} for token, share in shares.items()]
        content = [{"token": "A", "logprob": -1.0, "top_logprobs": candidates}]
        answer = json.dumps({"choices": [{"logprobs": {"content": content}}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *given: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as stub:
        thread = threading.Thread(target=stub.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{stub.server_port}/v1"
        stub.shutdown()
        thread.join()


def command_of_page(start: str) -> list[str]:
    """Return the words of the first command of the page that begins like this."""
    return shlex.split(next(line for line in commands_in(PAGE) if line.startswith(f"compress {start}")))[1:]


def softmax(logits: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(logits.astype(np.float64))
    return powers / powers.sum()


def test_a_language_model_behind_an_api(
    server: str, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("label_texts.py").write_text(FILES["label_texts.py"], encoding="utf-8")
    environment = os.environ | {"OPENAI_BASE_URL": server, "OPENAI_API_KEY": "secret", "no_proxy": "127.0.0.1"}
    given = "".join(f"{row.text}\n" for row in examples()) + "\nwhat is this\n"
    asked = subprocess.run(
        [sys.executable, "label_texts.py"], input=given, env=environment, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stderr == "no letter was among the likeliest tokens: what is this\n"
    Path("answers.jsonl").write_text(asked.stdout, encoding="utf-8")
    assert execute(command_of_page("labels import answers.jsonl")) == 0
    for (example, logits), row in zip(LabelDir.open("models/answers"), examples(), strict=True):
        expected = 0.99 * 7 / 8 + 0.005
        shares = [expected, 1 - expected] if row.label == "negative" else [1 - expected, expected]
        assert example.text == row.text
        np.testing.assert_allclose(softmax(logits), shares, rtol=1e-5)
    Path("tiny.toml").write_text(TINY_STUDENT)
    student = ["distill", "--teacher", str(teacher), "--student", "tiny.toml", "--device", "cpu", "--threads", "1"]
    labels = ["--labels", "models/answers"] * 2
    added = [*labels, "-o", "models/added"]
    combined = [*labels, "--combine", "mean", "--weight", "2", "--weight", "1", "-o", "models/combined"]
    assert execute([*student, *added]) == execute([*student, *combined]) == 0
    notes = {
        name: json.loads(Path(f"models/{name}/compress.json").read_text())["notes"] for name in ("added", "combined")
    }
    assert [notes[name]["pool_rows"] for name in ("added", "combined")] == [80, 40]
    assert "labels: probabilities of answers.jsonl, whose logits are not of tiny-bert" in capsys.readouterr().err


def test_votes_of_annotators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("votes.csv").write_text(FILES["votes.csv"], encoding="utf-8")
    command = next(line for line in commands_in(PAGE) if "votes.csv" in line and "--smoothing" in line)
    assert execute(shlex.split(command)[1:]) == 0
    made = LabelDir.open("models/votes")
    votes = np.array([[1, 3, 1], [0, 0, 5], [4, 1, 0]]) / 5
    found = np.stack([softmax(logits) for _, logits in made])
    np.testing.assert_allclose(found, 0.95 * votes + 0.05 / 3, rtol=1e-5)
    assert made.manifest.labels == ("negative", "neutral", "positive") and not made.has_zeros
