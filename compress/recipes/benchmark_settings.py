"""The settings of a benchmark, which Python, the command line, studies and lock files share; reference models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compress import plugins
from compress.data.examples import Overlap
from compress.errors import did_you_mean
from compress.recipes.training import LEAST_MAX_LENGTH

# Name -> model type and what differs from the defaults of its config.
# Lan et al. (2020), table 1; Devlin et al. (2019), section 3; Sanh et al. (2019), section 2.
REFERENCE_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "albert-base": (
        "albert",
        {
            "embedding_size": 128,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
    ),
    # Its twelve layers are one, so that it takes 0.9 GB of the benchmark's scratch, less than bert-large.
    "albert-xxlarge": (
        "albert",
        {
            "embedding_size": 128,
            "hidden_size": 4096,
            "num_hidden_layers": 12,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
        },
    ),
    "bert-base": (
        "bert",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "bert-large": (
        "bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "distilbert": ("distilbert", {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}),
}


LONGEST_LIST = 100
MOST_ROWS = 200_000  # of a round, before which every batch is run to warm up
LONGEST_NAME = 200


@dataclass(frozen=True)
class BenchmarkSettings:
    """How models are measured.

    Args:
        runtimes: where to run; torch models are exported where needed. Empty: each model in the runtime that opens its
            files, and the teacher in all of these.
        baselines: cheap classifiers fitted on gold labels of the training rows: all of the task, none, or by name.
        competitors: other tools that run the torch models too, ``"all"`` for every one. Those that are not installed
            are left out, and result lines say so.
        competitor_models: names of the models that competitors run; empty: all but controls.
        reference_models: published architectures with random weights, for scale.
        pruning_steps: measure also the effect of each removal on pruned torch models, in their runtimes.
        threads: threads, and cores that a process is pinned to; several make a sweep.
        batch_sizes: 1 measures latency, larger ones throughput; reference models are measured at the smallest only.
        lengths: numbers of tokens to measure runtimes at, beside the data's own lengths.
        padded_teacher: measure the teacher in torch also with every row padded to ``max_length``, or 128 tokens.
        rounds: how often every configuration is timed at most; at least 3.
        half_width: a speed-up is measured until its interval is within this share of it, 0.05 for 5%; that of a
            baseline, a control, random weights or the padded teacher to twice as much. At least 0.025: two processes of
            one model differ by 0.02.
        time_limit: seconds of measuring after which no further round begins, loading and predicting apart.
        metric: see ``compress.tasks``; default accuracy, or Pearson for regression.
        overlap: what becomes of training rows that are test rows; see :class:`compress.data.LabelledData`.
        max_length: tokens a text is cut to; 0 for as many as each model can read.
        together: how many models to hold in memory at a time, beside the teacher; 0 for all.
    """

    runtimes: tuple[str, ...] = ()
    baselines: bool | tuple[str, ...] = True
    competitors: tuple[str, ...] = ()
    competitor_models: tuple[str, ...] = ()
    reference_models: tuple[str, ...] = ()
    pruning_steps: bool = False
    threads: int | tuple[int, ...] = 1
    batch_sizes: tuple[int, ...] = (1, 32)
    lengths: tuple[int, ...] = ()
    padded_teacher: bool = True
    rounds: int = 100
    half_width: float = 0.05
    time_limit: float = 120.0
    metric: str | None = None
    overlap: Overlap = "few"
    max_length: int = 0
    together: int = 0

    @property
    def thread_counts(self) -> tuple[int, ...]:
        return (self.threads,) if isinstance(self.threads, int) else tuple(self.threads)

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words.

        The upper bounds keep a lock file of somebody else from asking this machine for the impossible.
        """
        bounds = (
            ("rounds", (self.rounds,), 3, 10_000),
            ("half_width", (self.half_width,), 0.025, 1),
            ("time_limit", (self.time_limit,), 1, 86_400),
            ("threads", self.thread_counts, 1, 4096),
            ("batch_sizes", self.batch_sizes, 1, 65_536),
            ("lengths", self.lengths, 1, 65_536),
            ("max_length", (self.max_length,), 0, 1_000_000),
            ("together", (self.together,), 0, 10_000),
        )
        found = [
            f"{name} = {', '.join(map(str, values)):.60} must be at least {least} and at most {most}"
            for name, values, least, most in bounds
            if not all(least <= value <= most for value in values)
        ]
        if 0 < self.max_length < LEAST_MAX_LENGTH:
            found.append(f"max_length = {self.max_length} must be at least {LEAST_MAX_LENGTH}, or 0 for no limit")
        if not self.thread_counts or not self.batch_sizes:
            found.append("needs one or more threads and batch_sizes")
        batches = sum(self.batch_sizes) * (1 + len(self.lengths)) * len(self.thread_counts)
        if batches > MOST_ROWS:
            found.append(
                f"batch_sizes, lengths and threads make a round of {batches:,} rows for each model; give fewer or "
                f"smaller ones, of {MOST_ROWS:,} rows at most"
            )
        baselines = () if isinstance(self.baselines, bool) else self.baselines
        kinds = (
            ("runtime", self.runtimes, plugins.names("runtimes")),
            ("baseline", baselines, plugins.names("baselines")),
            ("competitor", self.competitors, (*plugins.names("competitors"), "all")),
            ("reference model", self.reference_models, tuple(REFERENCE_MODELS)),
        )
        found += [
            f"unknown {kind} {name!r}; there is {', '.join(known)}.{did_you_mean(name, known)}"
            for kind, names, known in kinds
            for name in names
            if name.replace("_", "-") not in known
        ]
        found += [
            f"{name} has {len(values)} values; give at most {LONGEST_LIST}"
            for name, values in vars(self).items()
            if isinstance(values, tuple | list) and len(values) > LONGEST_LIST
        ]
        if any(len(name) > LONGEST_NAME for name in (*self.competitor_models, self.metric or "")):
            found.append(f"competitor_models and metric are names of at most {LONGEST_NAME} characters")
        return found
