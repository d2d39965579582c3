"""A server of others: ``transformers serve``, with a decoder that was taught for seconds."""

from __future__ import annotations

import importlib.util
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import compress
from compress.data import Example
from compress.inference.questions import question

MISSING = [name for name in ("openai", "fastapi", "uvicorn") if not importlib.util.find_spec(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"{', '.join(MISSING)} is not installed: pip install transformers[serving]"
    ),
]
LABELS = ("bad", "good")
WORDS = {"bad": ("bad", "dull", "poor"), "good": ("good", "great", "fine")}
TEMPLATE = "{% for one in messages %}{{ one['role'] }} : {{ one['content'] }}\n{% endfor %}assistant :"


def row(drawn: random.Random) -> tuple[str, str]:
    label = drawn.choice(LABELS)
    return f"{drawn.choice(('film', 'plot'))} {drawn.choice(('scene', 'music'))} is {drawn.choice(WORDS[label])}", label


def teach(folder: Path) -> None:
    """Write a decoder of words that answers our question with the mark of the label."""
    asked = question("label", "", LABELS, 1)
    words = pre_tokenizers.Whitespace()
    said = f"system user assistant : A B film plot scene music is {' '.join(sum(WORDS.values(), ()))} "
    said += asked.messages(Example(""), 0)[0]["content"]
    known = ["<s>", "</s>", "<unk>", *dict.fromkeys(word for word, _ in words.pre_tokenize_str(said))]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="<unk>"))
    backend.pre_tokenizer = words
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=len(known), max_position_embeddings=256, **shape, **ends))
    optimizer, drawn = torch.optim.AdamW(model.parameters(), 2e-3), random.Random(0)
    for _ in range(150):
        rows = [row(drawn) for _ in range(16)]
        texts = [
            tokenizer.apply_chat_template(asked.messages(Example(text), 0), tokenize=False)
            + f" {'AB'[label == 'good']}"
            for text, label in rows
        ]
        ids = torch.tensor([[*tokenizer(text)["input_ids"], 1] for text in texts])
        gold = ids.clone()
        gold[:, :-2] = -100
        model(input_ids=ids, labels=gold).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.generation_config = GenerationConfig(do_sample=False, **ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Serve the decoder: its name and the URL."""
    folder = tmp_path_factory.mktemp("decoder")
    teach(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--device", "cpu"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([*words, "--host", "127.0.0.1", "--port", port], stdout=log, stderr=log) as server,
    ):
        try:
            for _ in range(120):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, (folder / "log").read_text()
                    time.sleep(1)
            yield str(folder), f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def test_its_answers_are_labels(served: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives no log-probabilities and says nothing of that, so that answers are votes; tokens are counted."""
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    name, url = served
    drawn = random.Random(1)
    rows = dict(row(drawn) for _ in range(12))
    made = compress.label(f"openai:{name}", [*rows], tmp_path / "labels", labels=LABELS, base_url=url)
    assert [LABELS[int(logits.argmax())] for _, logits in made] == [rows[example.text] for example, _ in made]
    # Votes: 0.95 and 0.05.
    np.testing.assert_allclose([np.ptp(logits) for _, logits in made], np.log(19), rtol=1e-5)
    bought = made.manifest.notes["bought"]
    assert bought["questions"] == len(rows) and bought["output_tokens"] == 2 * len(rows) < bought["input_tokens"]
