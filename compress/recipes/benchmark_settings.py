"""The settings of a benchmark, which Python, the command line, studies and lock files share; reference models."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, Strict

from compress import plugins
from compress.data.examples import Overlap
from compress.data.windows import Windows
from compress.errors import did_you_mean
from compress.fields import Holds, group, option
from compress.recipes.parsing import Checked
from compress.recipes.training import LEAST_MAX_LENGTH, MOST_MAX_LENGTH

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
Threads = Annotated[int, Field(ge=1, le=4096)]
if TYPE_CHECKING:
    Names = Sequence[str]
    Sizes = Sequence[int]
else:
    Names = Annotated[tuple[Name, ...], Field(max_length=100), Strict(False)]
    Sizes = Annotated[
        tuple[Annotated[int, Field(ge=1, le=MOST_MAX_LENGTH)], ...],
        Field(max_length=100),
        Holds("numbers"),
        Strict(False),
    ]


@group
class BenchmarkSettings(Checked):
    """How models are measured."""

    baselines: bool | Names = option(
        default=True,
        flags={"--no-baselines": (False, "Do not measure baselines, cheap classifiers fitted on gold labels only.")},
        help="Whether to measure baselines, cheap classifiers fitted on gold labels only, or which.",
    )
    encoder: str = option(
        default="",
        metavar="DIR|RECIPE",
        help="Pretrained encoder of the baseline cosine. Default: the one that the teacher was fine-tuned from.",
    )
    competitors: Names = option(
        default=(),
        metavar="NAME",
        flag="--competitor",
        help="Run the torch models in another tool too: see 'compress list competitors'; 'all' runs every one; "
        "repeatable.",
    )
    competitor_models: Names = option(
        default=(),
        metavar="NAME",
        flag="--competitor-model",
        needs=("competitors",),
        help="A model for competitors; default all.",
    )
    reference_models: Names = option(
        default=(),
        metavar="NAME",
        flag="--reference-model",
        help="For scale, measure the speed of bert-base, bert-large, distilbert, albert-base or albert-xxlarge with "
        "random weights; may be repeated.",
    )
    pruning_steps: bool = option(
        default=False, help="Measure each removal of pruned torch models, for the report's waterfall."
    )
    # Empty: each model in the runtime that opens its files, and the teacher in all of these.
    runtimes: Names = option(
        default=(), metavar="NAME", flag="--runtime", help="See 'compress list runtimes'; may be repeated."
    )
    batch_sizes: Sizes = option(
        default=(1, 32),
        metavar="N",
        flag="--batch-size",
        help="1 measures latency, larger ones throughput; repeated, or separated by commas.",
    )
    lengths: Sizes = option(
        default=(),
        metavar="N",
        flag="--length",
        help="Measure rows of exactly so many tokens too, beside the data's own lengths; several as above.",
    )
    max_length: int = option(
        default=0,
        ge=0,
        le=MOST_MAX_LENGTH,
        metavar="N",
        help="Tokens a text is cut to for models and competitors; baselines read more. 0 is as many as each can read.",
    )
    windows: str = option(
        default="",
        metavar="SIZE,STRIDE[,POOLING]",
        help="Let the teacher read long documents by windows, such as 256,128,mean.",
    )
    padded_teacher: bool = option(
        default=True,
        help="Measure the teacher in torch also with all rows padded to --max-length, or 128 tokens.",
    )
    # Two processes of one model differ by 0.02.
    half_width: float = option(
        default=0.05,
        ge=0.025,
        le=1,
        metavar="SHARE",
        help="Measure until the 95% interval of every model's speed-up is within this share of it, and that of "
        "baselines and controls within twice as much.",
    )
    time_limit: Annotated[float, Holds("seconds")] = option(
        default=120.0,
        ge=1,
        le=86_400,
        metavar="TIME",
        help="Begin no further round after this time, such as 90s or 10m, if three are done; a number is seconds.",
    )
    rounds: int = option(default=100, ge=3, le=10_000, help="Most rounds.")
    slice_columns: Names = option(
        default=(),
        metavar="NAME",
        flag="--slice-column",
        help="Judge the rows of each value of this column of --data by themselves too; may be repeated.",
    )
    slice_lengths: Sizes = option(
        default=(),
        metavar="N",
        flag="--slice-length",
        help="Judge rows of up to so many tokens, and longer ones, by themselves too; several as above.",
    )
    together: int = option(
        default=0,
        ge=0,
        le=10_000,
        has_option=False,
        help="How many models to hold in memory at a time, beside the teacher; 0 for all.",
    )
    threads: Threads | Annotated[tuple[Threads, ...], Field(max_length=100)] = 1  # several make a sweep
    metric: Name | None = None
    overlap: Overlap = "few"

    @property
    def thread_counts(self) -> tuple[int, ...]:
        return (self.threads,) if isinstance(self.threads, int) else self.threads

    def faults(self) -> Iterator[str]:
        if self.windows:
            Windows.read(self.windows)
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
