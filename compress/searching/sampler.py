"""Which shape is tried next: a multi-objective tree-structured Parzen estimator, in a study of Optuna.

Ozaki et al. 2020, "Multiobjective Tree-Structured Parzen Estimator for Computationally Expensive Optimization Problems"
(GECCO), through Akiba et al. 2019, "Optuna" (arXiv:1907.10902). It learns from the first rung alone, which all students
reach: figures of different schedules do not compare. A file keeps what it was told, so that a search goes on after a
stop.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compress.errors import CompressError
from compress.models.manifest import keep, kept
from compress.searching.space import PRECISIONS, Shape, committed

STARTUP_TRIALS = 8  # that are drawn at random before the estimator has enough to learn from


class ShapeSampler:
    """Asks for shapes and is told what they are worth.

    Args:
        path: a JSON file that keeps what it is told.
        space: the values of every option of every family.

    Raises:
        CompressError: Optuna is not installed.
    """

    def __init__(self, path: Path, space: Mapping[str, Mapping[str, tuple[Any, ...]]], seed: int) -> None:
        self.path, self.space, self.seed = path, space, seed
        self._optuna = import_optuna()
        self.study = self._optuna.create_study(directions=["maximize", "maximize"])
        self._told: list[dict[str, Any]] = []
        for one in kept(path, []):
            self.study.enqueue_trial(one["params"])
            self._learn(self.ask()[0], one["values"], one["constraints"])
        for shape in committed(space)[len(self._told) :]:
            values, family = space[shape.family], shape.family
            numbers = {f"{family}.{name}": values[name].index(value) for name, value in shape.options.items()}
            self.study.enqueue_trial({"family": family, **numbers, "precision": shape.precision})

    def ask(self) -> tuple[Any, Shape]:
        """Return a trial and its shape: the one that an earlier start was stopped in, or a new one."""
        # Seeded anew for each: what is drawn depends on nothing but what was told.
        self.study.sampler = self._optuna.samplers.TPESampler(
            seed=(self.seed + 7919 * len(self._told)) % 2**32, n_startup_trials=STARTUP_TRIALS, multivariate=False
        )
        trial = self.study.ask()
        family = trial.suggest_categorical("family", list(self.space))
        for name, values in self.space[family].items():
            trial.suggest_int(f"{family}.{name}", 0, len(values) - 1)
        trial.suggest_categorical("precision", list(PRECISIONS))
        return trial, self._shape(trial.params)

    def tell(self, trial: Any, values: tuple[float, float] | None, excess: Mapping[str, float]) -> None:
        """Say what a shape is worth.

        Args:
            values: the logarithm of its speed-up, and its metric; None where it was not trained.
            excess: by how much it is beyond each limit, below 0 where it is within.
        """
        numbers = None if values is None else [float(value) for value in values]  # as JSON has them
        self._learn(trial, numbers, {name: float(value) for name, value in excess.items()})
        keep(self.path, self._told)

    def told(self) -> list[Shape]:
        """Return the shapes of all trials that have ended, in order, each once."""
        found = [self._shape(one["params"]) for one in self._told]
        return list({shape.key: shape for shape in found}.values())

    def _learn(self, trial: Any, values: list[float] | None, constraints: Mapping[str, float]) -> None:
        for name, value in constraints.items():
            trial.set_constraint(name, value)
        self.study.tell(trial, values, state=self._optuna.trial.TrialState.PRUNED if values is None else None)
        self._told.append({"params": trial.params, "values": values, "constraints": constraints})

    def _shape(self, params: Mapping[str, Any]) -> Shape:
        family = params["family"]
        options = {name: values[params[f"{family}.{name}"]] for name, values in self.space[family].items()}
        return Shape(family, options, params["precision"])


def import_optuna() -> Any:
    """Return the package, whose own messages are off.

    Raises:
        CompressError: it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError:
        raise CompressError(
            "compress search needs the package optuna; install it with pip install 'compress[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
