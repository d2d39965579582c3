"""Entity F1 by the likeliest tag of each word and by the likeliest legal tags of each sentence, on the same logits.

    python benchmarks/tag_decoding.py --data uner_ewt/test.iob2 --model runs/uner-ewt/teacher \\
        --model runs/uner-ewt/cnn-int8 -o benchmarks/results/tag-decoding.jsonl

A line has one metric of one model: its value by words, its value by sentences, and their difference in points with the
95% interval over whole sentences. Nothing is learned or tuned. Lines are added to those that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from script import provenance, read_options, replace_line

from compress.data import Example, open_source, read_examples
from compress.evaluation.metrics import paired_difference, score
from compress.inference.compute import Compute
from compress.inference.runners import load_runner
from compress.models.model_dir import Model
from compress.tasks import LEGAL_TAGS, find_task


def main() -> None:
    options = read_options(__doc__, data=Path, models=[Path], output=Path)
    rows = read_examples(open_source(options.data, role="test", labelled=True))
    first = None
    for path in options.models:
        model = Model.open(path)
        logits = load_runner(model, Compute("cpu", 1)).logits(rows)
        first = logits if first is None else first
        for line in compared(model, rows, logits, first):
            known = {"data": options.data.parent.name, "model": path.name, **line, **provenance()}
            replace_line(options.output, known, "data", "model", "metric")


def compared(model: Model, rows: Sequence[Example], logits: np.ndarray, first: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield a line for each metric of a model."""
    task = model.task.of_model({**model.config, LEGAL_TAGS: True})
    gold = task.column(task.gold(rows, model.labels, "test"))
    sentences = task.clusters(rows, task.metric())
    by_word = find_task("tagging").predictions(logits)
    by_sentence, of_first = (task.predictions(values, sentences) for values in (logits, first))
    changed = by_word != by_sentence
    for one in task.metrics:
        metric = task.metric(one.name, model.labels)
        compare: dict[str, Any] = {"metric": metric, "classes": len(model.labels), "sentences": sentences}
        change = paired_difference(by_sentence, by_word, gold, **compare)
        loss = paired_difference(by_sentence, of_first, gold, **compare)
        yield {
            "metric": metric.name,
            "sentences": len(rows),
            "by_word": round(100 * score(by_word, gold, **compare), 2),
            "by_sentence": round(100 * score(by_sentence, gold, **compare), 2),
            "points": round(change.points, 2),
            "points_interval": [round(change.low, 2), round(change.high, 2)],
            "from_first": round(loss.points, 2),
            "from_first_interval": [round(loss.low, 2), round(loss.high, 2)],
            "changed_sentences": len(np.unique(sentences[changed])),
            "changed_words": int(changed.sum()),
        }


if __name__ == "__main__":
    main()
