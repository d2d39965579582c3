"""Device, threads, seed, precision and tracker of a stage."""

from dataclasses import dataclass
from typing import Literal, get_args

from compress.errors import refuse
from compress.host import is_installed

Precision = Literal["float32", "bfloat16"]
PRECISIONS = ("auto", *get_args(Precision))
TRACKERS = ("trackio", "tensorboard", "mlflow", "wandb")  # as transformers calls them; their packages too


MOST_THREADS = 1024  # more than any machine has cores; libraries end without a word when they get no more


@dataclass(frozen=True)
class Compute:
    """How every stage computes.

    Args:
        device: ``auto`` (cuda where there is a GPU), ``cpu`` or ``cuda``.
        threads: CPU threads; 0 for one a free core (:func:`compress.inference.threads.default_threads`).
        seed: of every random choice.
        report_to: one of :data:`TRACKERS`, which trainings report to beside ``metrics.jsonl``; the result is the same.
        precision: in which trainings compute; ``auto`` leaves it to the recipe, and there to what is faster here.

    Raises:
        CompressError: the threads are no number of them, the tracker or precision is unknown, or the tracker is not
            installed.
    """

    device: str = "auto"
    threads: int = 0
    seed: int = 0
    report_to: str | None = None
    precision: Precision | Literal["auto"] = "auto"

    @property
    def asked(self) -> dict[str, str]:
        """What a request for a training says of the precision: nothing where it is left to the recipe."""
        return {} if self.precision == "auto" else {"precision": self.precision}

    def __post_init__(self) -> None:
        tracker = self.report_to
        refuse(
            (
                not (isinstance(self.threads, int) and 0 <= self.threads <= MOST_THREADS),
                f"--threads {self.threads} is not a whole number from 0 to {MOST_THREADS}",
            ),
            (
                self.precision not in PRECISIONS,
                f"--precision {self.precision} is not known; use one of {', '.join(PRECISIONS)}",
            ),
            (
                tracker not in {None, *TRACKERS},
                f"--report-to {tracker} is not known; use one of {', '.join(TRACKERS)}",
            ),
            (
                tracker in TRACKERS and not is_installed(str(tracker)),
                f"--report-to {tracker} needs the package {tracker}; install it with pip install {tracker}",
            ),
        )
