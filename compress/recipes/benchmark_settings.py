"""The settings of a benchmark, which Python, the command line, studies and lock files share; reference models."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from compress import plugins
from compress.data.examples import Overlap
from compress.errors import did_you_mean
from compress.fields import validated
from compress.recipes.parsing import Checked
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

# Upper bounds keep a lock file of somebody else from asking this machine for the impossible.
MOST_ROWS = 200_000  # of a round, before which every batch is run to warm up
Name = Annotated[str, Field(max_length=200)]
Names = Annotated[tuple[Name, ...], Field(max_length=100)]
Threads = Annotated[int, Field(ge=1, le=4096)]
Sizes = Annotated[tuple[Annotated[int, Field(ge=1, le=65_536)], ...], Field(max_length=100)]


@validated
class BenchmarkSettings(Checked):
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

    runtimes: Names = ()
    baselines: bool | Names = True
    competitors: Names = ()
    competitor_models: Names = ()
    reference_models: Names = ()
    pruning_steps: bool = False
    threads: Threads | Annotated[tuple[Threads, ...], Field(max_length=100)] = 1
    batch_sizes: Sizes = (1, 32)
    lengths: Sizes = ()
    padded_teacher: bool = True
    rounds: Annotated[int, Field(ge=3, le=10_000)] = 100
    half_width: Annotated[float, Field(ge=0.025, le=1)] = 0.05
    time_limit: Annotated[float, Field(ge=1, le=86_400)] = 120.0
    metric: Name | None = None
    overlap: Overlap = "few"
    max_length: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    together: Annotated[int, Field(ge=0, le=10_000)] = 0

    @property
    def thread_counts(self) -> tuple[int, ...]:
        return (self.threads,) if isinstance(self.threads, int) else self.threads

    def faults(self) -> Iterator[str]:
        if 0 < self.max_length < LEAST_MAX_LENGTH:
            yield f"max_length = {self.max_length} must be at least {LEAST_MAX_LENGTH}, or 0 for no limit"
        if not self.thread_counts or not self.batch_sizes:
            yield "needs one or more threads and batch_sizes"
        batches = sum(self.batch_sizes) * (1 + len(self.lengths)) * len(self.thread_counts)
        if batches > MOST_ROWS:
            yield (
                f"batch_sizes, lengths and threads make a round of {batches:,} rows for each model; give fewer or "
                f"smaller ones, of {MOST_ROWS:,} rows at most"
            )
        for kind, names, known in (
            ("runtime", self.runtimes, plugins.names("runtimes")),
            ("baseline", () if isinstance(self.baselines, bool) else self.baselines, plugins.names("baselines")),
            ("competitor", self.competitors, (*plugins.names("competitors"), "all")),
            ("reference model", self.reference_models, tuple(REFERENCE_MODELS)),
        ):
            for name in names:
                if name.replace("_", "-") not in known:
                    yield f"unknown {kind} {name!r}; there is {', '.join(known)}.{did_you_mean(name, known)}"
