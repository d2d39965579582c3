"""The search space, and which of its shapes is tried next. Every point of it is a student recipe, or what is removed
from the teacher, and a precision.

The values of an option are in order, so that a sampler may count them. Phases, losses and training are those of a
committed recipe, whose own shape is among them, and a search begins with it: what the recipe does not name is an
option's first value, or all that the teacher has.

The next shape is chosen by a multi-objective tree-structured Parzen estimator: Ozaki et al. 2020, "Multiobjective
Tree-Structured Parzen Estimator for Computationally Expensive Optimization Problems" (GECCO), through Akiba et al.
2019, "Optuna" (arXiv:1907.10902). It learns from the first rung alone, which all students reach: figures of different
schedules do not compare. A file keeps what it was told, so that a search goes on after a stop.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from compress.errors import CompressError
from compress.models import networks
from compress.models.manifest import keep, kept
from compress.recipes import Choice, StudentRecipe, Vocabulary, load_recipe
from compress.recipes.student import UNPUBLISHED

Precision = Literal["fp32", "int8"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
QUANTIZER = "onnx-dynamic"  # it needs neither training for it nor rows to calibrate on
STARTUP_TRIALS = 8  # that are drawn at random before the estimator has enough to learn from
VOCABULARY = "vocabulary"  # an option of the recipe and not of its architecture; 0 is the teacher's own


@dataclass(frozen=True)
class Family:
    """Students of one architecture, or the teacher without parts of it.

    Args:
        recipe: the committed student whose phases and training they have; empty for pruned ones.
        options: options of the architecture, each with its values.
        shares: options that are shares of what the teacher has.
    """

    recipe: str
    options: Mapping[str, tuple[Any, ...]]
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def first(self) -> Mapping[str, Any]:
        """The options of its committed recipe, or what is removed from the teacher first."""
        return load_recipe("students", self.recipe).architecture.options if self.recipe else FIRST_PRUNED


PRUNED = "pruned"
FIRST_PRUNED = {"layers": "", "heads": "50%", "ffn": "50%"}

# A learned vocabulary makes the file smaller, and texts a little longer.
_TRANSFORMER = Family(
    "minilm-3",
    {VOCABULARY: (0, 8000, 4000)},
    {
        "depth": (0.17, 0.33, 0.5, 0.67),
        "hidden_size": (0.25, 0.5, 0.75, 1.0),
        "ffn_size": (0.25, 0.5, 0.75, 1.0),
    },
)
# What compress prune removes; the empty text is nothing of a part.
_SHARES = ("", "25%", "50%", "75%")
_PRUNED = Family("", {"layers": ("", "17%", "33%", "50%"), "heads": _SHARES, "ffn": _SHARES})
_NETWORKS = {name: networks.part(name) for name in networks.NAMES}
_RANKED = [
    (1, "transformer", _TRANSFORMER),
    *((network.RANK, name, Family(name, network.SPACE)) for name, network in _NETWORKS.items()),
]
# In the order in which a search trains their committed recipes.
FAMILIES: Mapping[str, Family] = {name: family for _, name, family in sorted(_RANKED, key=itemgetter(0))} | {
    PRUNED: _PRUNED
}


@dataclass(frozen=True)
class Shape:
    """A student as it is timed: a family, its options, and the precision of its weights."""

    family: str
    options: Mapping[str, Any]
    precision: Precision = "fp32"

    @property
    def is_pruned(self) -> bool:
        """Whether it is the teacher without parts of it, and not a student of its own."""
        return self.family == PRUNED

    @property
    def key(self) -> str:
        """A name of these values, which files carry."""
        values = json.dumps([self.family, self.options, self.precision], sort_keys=True)
        return f"{self.family}-{hashlib.sha256(values.encode()).hexdigest()[:12]}"

    @property
    def name(self) -> str:
        """What people read: ``ngram int8, embedding_size 64, longest 3``."""
        values = (f"{name} {_shown(value)}" for name, value in self.options.items() if value != "")
        return ", ".join([f"{self.family} {self.precision}", *values])

    def recipe(self) -> StudentRecipe:
        base: StudentRecipe = load_recipe("students", FAMILIES[self.family].recipe)
        options = {key: value for key, value in self.options.items() if key != VOCABULARY}
        size = self.options.get(VOCABULARY, 0)
        return replace(
            base,
            description=f"The student {base.name} in another shape, found by compress search.",
            architecture=Choice(base.architecture.name, options={**base.architecture.options, **options}),
            vocabulary=Vocabulary(size) if size else base.vocabulary,
            name="best",
            **UNPUBLISHED,
        )


def space_for(config: Mapping[str, Any]) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return the values of every option of every family, for a teacher with this ``config.json``.

    A teacher that is no transformer has no layers to start from or to remove; its students are of the other families.
    """
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, family in FAMILIES.items():
        first = family.first
        own = {name: _of_teacher(config, name, shares, first.get(name)) for name, shares in family.shares.items()}
        if all(own.values()) and (family.recipe or _of_teacher(config, "depth", (1.0,), None)):
            found[name] = {**own, **family.options}
    return found


def committed(space: Mapping[str, Mapping[str, tuple[Any, ...]]]) -> list[Shape]:
    """Return each family's committed recipe as a point of the space, in int8, and a pruned teacher: the beginning."""
    found = []
    for name, options in space.items():
        family, first = FAMILIES[name], FAMILIES[name].first
        chosen = {key: values[-1 if key in family.shares else 0] for key, values in options.items()}
        for key in first.keys() & options.keys():
            value = tuple(first[key]) if isinstance(first[key], list) else first[key]
            chosen[key] = value if value in options[key] else options[key][len(options[key]) // 2]
        found.append(Shape(name, chosen, "int8"))
    return found


# Option -> the names that configs have for the teacher's own, and for what its values are multiples of.
_TEACHERS_OWN: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "depth": (("num_hidden_layers", "n_layers"), ()),
    "hidden_size": (("hidden_size", "dim"), ("num_attention_heads", "n_heads")),
    "ffn_size": (("intermediate_size", "hidden_dim"), ()),
}


def _of_teacher(
    config: Mapping[str, Any], option: str, shares: tuple[float, ...], committed: int | None
) -> tuple[int, ...]:
    """Return the different values that shares of the teacher's own stand for; none where it has no such thing.

    Args:
        committed: the recipe's own value, which is one of them where it is less than the teacher's.
    """
    whole, step = (next((config[name] for name in names if name in config), 0) for names in _TEACHERS_OWN[option])
    if not isinstance(whole, int) or whole < 1:
        return ()
    step = step if isinstance(step, int) and step > 0 else 1
    own = {committed} if committed and committed < whole else set()
    return tuple(sorted({max(1, round(share * whole / step)) * step for share in shares} | own))


def _shown(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


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
