"""Which shape is tried next: a multi-objective tree-structured Parzen estimator, in a study of Optuna.

Ozaki et al. 2020, "Multiobjective Tree-Structured Parzen Estimator for Computationally Expensive Optimization Problems"
(GECCO), through Akiba et al. 2019, "Optuna" (arXiv:1907.10902). It learns from the first rung alone, which all students
reach: figures of different schedules do not compare. The study is a file, so that a search goes on after a stop.
"""

import sqlite3
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from compress.errors import CompressError
from compress.searching.space import PRECISIONS, Shape, committed

STARTUP_TRIALS = 8  # that are drawn at random before the estimator has enough to learn from


class ShapeSampler:
    """Asks for shapes and is told what they are worth.

    Args:
        path: the study's SQLite file.
        space: the values of every option of every family.

    Raises:
        CompressError: Optuna is not installed.
    """

    def __init__(self, path: Path, space: Mapping[str, Mapping[str, tuple[Any, ...]]], seed: int) -> None:
        self.space, self.seed = space, seed
        self._optuna = import_optuna()
        # A connection of its own and not a URL, in which a path's ? and % would mean something.
        storage = self._optuna.storages.RDBStorage(
            "sqlite://", engine_kwargs={"creator": lambda: sqlite3.connect(path, check_same_thread=False)}
        )
        self.study = self._optuna.create_study(
            storage=storage, study_name="search", directions=["maximize", "maximize"], load_if_exists=True
        )
        if not self._started():
            for shape in committed(space):
                self.study.enqueue_trial(self._parameters(shape), skip_if_exists=True)

    def ask(self) -> tuple[Any, Shape]:
        """Return a trial and its shape: that which an earlier start was stopped in, or a new one."""
        state = self._optuna.trial.TrialState
        # Seeded anew for each: what is drawn depends on no state that a stop would lose.
        self.study.sampler = self._optuna.samplers.TPESampler(
            seed=(self.seed + 7919 * self._started()) % 2**32, n_startup_trials=STARTUP_TRIALS, multivariate=False
        )
        running = self.study.get_trials(deepcopy=False, states=(state.RUNNING,))
        trial = self._optuna.trial.Trial(self.study, running[0]._trial_id) if running else self.study.ask()
        family = trial.suggest_categorical("family", list(self.space))
        options = {
            name: values[trial.suggest_int(f"{family}.{name}", 0, len(values) - 1)]
            for name, values in self.space[family].items()
        }
        return trial, Shape(family, options, trial.suggest_categorical("precision", list(PRECISIONS)))

    def tell(self, trial: Any, values: tuple[float, float] | None, excess: Mapping[str, float]) -> None:
        """Say what a shape is worth.

        Args:
            values: the logarithm of its speed-up, and its metric; None where it was not trained.
            excess: by how much it is beyond each limit, below 0 where it is within.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a start that was killed here has said already is kept
            for name, value in excess.items():
                trial.set_constraint(name, value)
        if values is None:
            self.study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
        else:
            self.study.tell(trial, values)

    def told(self) -> list[Shape]:
        """Return the shapes of all trials that have ended, in order, each once."""
        found: dict[str, Shape] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.is_finished():
                family = trial.params["family"]
                names = self.space[family].items()
                options = {name: values[trial.params[f"{family}.{name}"]] for name, values in names}
                shape = Shape(family, options, trial.params["precision"])
                found.setdefault(shape.key, shape)
        return list(found.values())

    def close(self) -> None:
        """Close the file."""
        self.study._storage.remove_session()
        with suppress(AttributeError):
            self.study._storage._backend.engine.dispose()

    def _started(self) -> int:
        waiting = self._optuna.trial.TrialState.WAITING
        return sum(trial.state != waiting for trial in self.study.get_trials(deepcopy=False))

    def _parameters(self, shape: Shape) -> dict[str, Any]:
        own = self.space[shape.family]
        numbers = {f"{shape.family}.{name}": own[name].index(value) for name, value in shape.options.items()}
        return {"family": shape.family, **numbers, "precision": shape.precision}


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
