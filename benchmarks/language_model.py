"""From a prompt to a classifier: 2,000 texts labelled by a language model, and students that learn from them.

    python benchmarks/language_model.py --data-root DIR --work DIR -o RESULTS.jsonl --set sst2|banking77 --teacher DIR
        [--threads 1]

No language model is at hand: a fine-tuned model behind a server of OpenAI's protocol on the loopback address plays it.
Questions, answers, log-probabilities, the cache and tokens are those of ``compress label --teacher openai:MODEL``; the
tokens of a real model differ by some percent, and its accuracy is another. Prices are PRICES, an example. Students are
``ngram`` and ``cnn`` with the embeddings of the MiniLM encoder, and learn the log-probabilities of ORDERS orders of the
labels; the baseline is a logistic regression on tf-idf of the labels alone. ``encoder`` is the whole MiniLM, taught the
same labels; "through the encoder" are students of what it says of the pool, and of the paid labels. The test is what
nobody has read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from script import provenance, read_options, read_rows, replace_line
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from compress.data import Example, open_source, row_key
from compress.evaluation.metrics import interval, paired_difference
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.encoders import open_recipe
from compress.models.model_dir import Model
from compress.progress import for_terminal
from compress.recipes import load_recipe
from compress.requests.labelling import label
from compress.requests.training import distill
from compress.tasks import default

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.chat_server import KEY, serving  # noqa: E402

PAID_ROWS, ORDERS, POOL_ROWS = 2000, 2, 40_000
PRICES = {"input": 0.25, "cached_input": 0.025, "output": 2.0}  # USD for a million tokens
ALONE = {"cnn": 3000, "ngram": 3000}  # steps of the students of the paid labels alone


def main() -> None:
    options = read_options(__doc__, data_root=Path, work=Path, set=("sst2", "banking77"), teacher=Path, threads=1)
    options.work.mkdir(parents=True, exist_ok=True)
    teacher = load(options.teacher, compute=Compute("cpu", options.threads))
    labels = Model.open(options.teacher).labels
    test, pool = read_set(options.set, options.data_root)
    texts = [pool[number] for number in np.random.default_rng(0).choice(len(pool), PAID_ROWS, replace=False)]
    known = dict(zip(texts, teacher.predict_proba(texts), strict=True))
    gold = np.array([labels.index(str(row.label)) for row in test])
    model_answers = teacher.predict_proba([row.text for row in test]).argmax(axis=1)
    made, paid = paid_labels(texts, known, labels, options)
    shared = {"set": options.set, "paid_rows": PAID_ROWS, "rows": len(test), **paid}
    lines: list[dict[str, Any]] = [
        {"model": "language model", **judged(model_answers, model_answers, gold, len(labels))}
    ]
    begun = time.monotonic()
    answers = tfidf(made, test)
    lines.append({"model": "tfidf", "train_seconds": time.monotonic() - begun})
    lines[-1] |= judged(answers, model_answers, gold, len(labels))

    def judge(name: str, title: str, teacher: Model, given: Sequence[Any], steps: int | None, **notes: Any) -> Model:
        recipe, begun = load_recipe("students", name), time.monotonic()
        if steps:
            recipe = replace(recipe, training=replace(recipe.training, max_steps=steps, evaluations=6))
        place = options.work / f"{options.set}-{title.replace(' ', '-')}"
        model = distill(teacher, recipe, place, labels=given, **settings(options))
        seconds = time.monotonic() - begun
        opened = load(model, compute=Compute("cpu", options.threads))
        answers = np.array([labels.index(one["label"]) for one in opened.predict([row.text for row in test])])
        line = {"model": title, "train_seconds": seconds, "rows_per_second": speed(opened, test), **notes}
        lines.append(line | judged(answers, model_answers, gold, len(labels)))
        return model

    untrained = open_recipe(load_recipe("teachers", "minilm-l6"))
    for name, steps in ALONE.items():
        judge(name, name, untrained, [made.path], steps)
    encoder = judge("encoder", "encoder", untrained, [made.path], None)
    begun = time.monotonic()
    free = label(encoder, pool, options.work / f"{options.set}-pool", **settings(options))
    notes = {"pool_rows": len(pool), "pool_seconds": time.monotonic() - begun}
    for name in ALONE:
        judge(name, f"{name} through the encoder", encoder, [made.path, free.path], None, **notes)
    for line in lines:
        replace_line(options.output, {**shared, **line, **provenance()}, "set", "model")


def read_set(name: str, root: Path) -> tuple[list[Example], list[str]]:
    """Return test rows, and the pool of texts that may be paid for, none of which is a text of the test."""
    if name == "banking77":
        test, texts = (read_rows(root / "banking77" / f"{part}.csv") for part in ("test", "train"))
    else:
        test = read_rows(root / "glue" / "SST-2" / "dev.tsv")
        names = {"0": "negative", "1": "positive"}
        test = [replace(row, label=names.get(str(row.label), row.label)) for row in test]
        sentences = open_source(root / "imdb-sentences" / "unlabeled.txt.gz", role="unlabeled", labelled=False)
        texts = [*sentences.sample(POOL_ROWS)]
    keys = {row_key(Example(row.text)) for row in test}
    return test, [*dict.fromkeys(row.text for row in texts if row_key(Example(row.text)) not in keys)]


def paid_labels(texts: list[str], known: Any, labels: tuple[str, ...], options: Any) -> tuple[Any, dict[str, Any]]:
    """Return the labels, and what they cost, which the server has counted."""
    import os

    os.environ["OPENAI_API_KEY"], os.environ["COMPRESS_CACHE"] = KEY, str(options.work.absolute() / "cache")
    begun = time.monotonic()
    with serving(lambda text: dict(zip(labels, known[text].tolist(), strict=True))) as server:
        made = label(
            "openai:stand-in",
            texts,
            options.work / f"{options.set}-labels",
            labels=labels,
            orders=ORDERS,
            base_url=server.url,
            force=True,
            progress=for_terminal(),
        )
        asked = len(server.asked)
        read = sum(len(message["content"]) // 4 for one in server.asked for message in one["messages"])
    usd = (read * PRICES["input"] + 2 * asked * PRICES["output"]) / 1e6
    said = {"questions": asked, "input_tokens": read, "usd": usd, "label_seconds": time.monotonic() - begun}
    return made, {**said, "usd_per_million_texts": 1e6 * usd / ORDERS / len(texts), "prices": PRICES}


def tfidf(made: Any, test: list[Example]) -> np.ndarray:
    rows = [*made]
    answers = [int(logits.argmax()) for _, logits in rows]
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10, max_iter=1000)
    )
    model.fit([row.text for row, _ in rows], answers)
    return np.asarray(model.predict([row.text for row in test]))


def settings(options: Any) -> dict[str, Any]:
    return {"device": "cpu", "threads": options.threads, "progress": for_terminal(), "force": True}


def judged(answers: np.ndarray, reference: np.ndarray, gold: np.ndarray, classes: int) -> dict[str, Any]:
    """Return accuracy, and the difference to the language model in points, each with its interval."""
    metric: dict[str, Any] = {"metric": default().metric("accuracy"), "classes": classes}
    low, high = interval(answers, gold, **metric)
    found = paired_difference(answers, reference, gold, **metric)
    kept = {"points": found.points, "low": found.low, "high": found.high}
    return {"accuracy": {"value": float((answers == gold).mean()), "low": low, "high": high}, "to_model": kept}


def speed(opened: Any, test: list[Example]) -> float:
    """Return how many texts are predicted in a second, one at a time; the median of five passes."""
    texts, passes = [row.text for row in test[:500]], []
    for _ in range(5):
        begun = time.perf_counter()
        for text in texts:
            opened.predict([text])
        passes.append(time.perf_counter() - begun)
    return len(texts) / float(np.median(passes))


if __name__ == "__main__":
    main()
