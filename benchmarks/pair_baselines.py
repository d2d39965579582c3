"""How well baselines of pairs, which compress nothing, rate the similarity of sentences: BM25, and the cosine.

    python benchmarks/pair_baselines.py --data-root DIR -o RESULTS.jsonl [--set glue/STS-B] [--baseline bm25 cosine]
        [--encoder minilm-l6] [--threads 1]

They are fitted to the set's ``train`` and judged on its ``dev``, with 95% intervals over pairs. A line takes the place
of the one of the same set and baseline.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from script import provenance, read_options, read_rows, replace_line

from compress import plugins
from compress.evaluation.metrics import SCORE_METRICS, interval, score
from compress.models.encoders import open_encoder
from compress.studies.data import find_set
from compress.tasks import find_task

BATCH = 32


def main() -> None:
    options = read_options(
        __doc__, data_root=Path, set="glue/STS-B", baseline=(["bm25", "cosine"],), encoder="minilm-l6", threads=1
    )
    train, test = (read_rows(find_set(options.data_root, options.set, split), split) for split in ("train", "dev"))
    gold, expected = (np.array([float(row.label or "nan") for row in rows]) for rows in (train, test))
    encoder = open_encoder(options.encoder)
    for name in options.baseline:
        baseline: Any = plugins.find("baselines", name).load()
        own = {"encoder": options.encoder} if getattr(baseline, "READS_ENCODER", False) else {}
        with tempfile.TemporaryDirectory() as folder:
            baseline.fit(Path(folder), train, gold, find_task("regression"), 1, encoder, **own)
            runner = baseline.start(Path(folder), threads=options.threads, device="cpu")
            parts = [test[first : first + BATCH] for first in range(0, len(test), BATCH)]
            scores = np.concatenate([runner.run(runner.prepare(part)) for part in parts])[:, 0]
        line: dict[str, Any] = {"set": options.set, "baseline": name, **({"encoder": options.encoder} if own else {})}
        line |= {"train_rows": len(train), "rows": len(test)}
        for metric in SCORE_METRICS[:2]:
            low, high = interval(scores, expected, metric=metric, classes=1)
            line[metric.name] = {"value": score(scores, expected, metric=metric, classes=1), "low": low, "high": high}
        print(name, *(f"{metric.name} {line[metric.name]['value']:.4f}" for metric in SCORE_METRICS[:2]))
        replace_line(options.output, {**line, **provenance()}, "set", "baseline")


if __name__ == "__main__":
    main()
