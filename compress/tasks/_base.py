"""What all tasks have: labels, metrics, losses, predictions, and what calibration and cascades mean."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

from compress.arrays import np, torch
from compress.data.examples import Example, infer_labels
from compress.data.tokenization import TokenRows, by_sentence, word_counts
from compress.errors import CompressError, did_you_mean, refuse, some_of
from compress.evaluation.metrics import CLASS_METRICS, Array, Metric, log_probabilities, probabilities, score
from compress.evaluation.ranking import RANK_METRICS, queries_of

NO_LABEL = -100  # of an answer without a gold label, in training


class Task(str, ABC):
    """A task by its name in manifests. What is defined here holds for one class a text; others say what differs.

    N answers (texts, or words), C classes.

    Attributes:
        fallback: configs and rows that no other task reads are of this one.
        problem_type: what transformers calls it in a config; None where it has no name.
        auto_class: name of the class of transformers that opens its models.
        pipeline: what the Hugging Face hub calls it.
        by_word: a model answers each word of a text, ``[B, T, C]``, instead of the whole text, ``[B, C]``.
        has_classes: answers are classes, else scores.
        no_label: label of a row without one, in training.
        label_probabilities: a prediction can list the probabilities of all labels.
        native_answers: the native library makes predictions of logits, and not this class: of ``one`` label, or of
            ``several``; empty where it makes none.
        native_spans: what the native library finds entities of ASCII text by, and leaves other text to this class.
        native_forms: those of ``compress export --format`` without a graph that it can take.
        metrics: the first is the default.
        baselines: those of this package that can answer it; others name tasks in ``TASKS``.
        pair_baselines: more of them, for pairs of texts.
        unfit_losses: what a loss reads (its ``NEEDS``) that this task cannot give, and why, as a sentence without
            subject about ``{loss}`` and ``{model}``.
        no_calibration, no_cascade, no_few_shot, no_search, no_selection: why these stages refuse its models or rows;
            empty where they take them.
        accepts_by: what calibration can find thresholds of acceptance for.
        decides_by: from where on calibration can let an answer be given.
        right_share: the metric that is the share of right decisions.
        asks: what a language model is asked for (:mod:`compress.inference.questions`); empty where it cannot be asked.
    """

    fallback: ClassVar[bool] = False
    problem_type: ClassVar[str | None] = None
    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"
    pipeline: ClassVar[str] = "text-classification"
    by_word: ClassVar[bool] = False
    has_classes: ClassVar[bool] = True
    no_label: ClassVar[float | tuple[float, ...]] = NO_LABEL
    label_probabilities: ClassVar[bool] = False
    native_answers: ClassVar[Literal["one", "several", ""]] = "one"
    native_spans: tuple[Any, ...] = ()
    native_forms: ClassVar[tuple[str, ...]] = ("native", "c")
    metrics: ClassVar[tuple[Metric, ...]] = (*CLASS_METRICS, *RANK_METRICS)
    baselines: ClassVar[tuple[str, ...]] = ()
    pair_baselines: ClassVar[tuple[str, ...]] = ()
    unfit_losses: ClassVar[Mapping[str, str]] = {}
    no_calibration: ClassVar[str] = "only classifiers have probabilities to calibrate"
    no_cascade: ClassVar[str] = "only classifiers have a confidence"
    no_few_shot: ClassVar[str] = "--few-shot is for rows of one class each; fine-tune without it"
    no_search: ClassVar[str] = ""
    no_selection: ClassVar[str] = "--select is for texts of one class each; use --rows N, which are spread evenly"
    accepts_by: ClassVar[tuple[str, ...]] = ("overall", "class")
    decides_by: ClassVar[tuple[str, ...]] = ("probability",)
    right_share: ClassVar[str] = "accuracy"
    asks: ClassVar[str] = ""

    # Models and rows

    def of_model(self, config: Mapping[str, Any]) -> Task:
        """Return the task of the model of a ``config.json``, for a task whose predictions follow from its labels."""
        return self

    def reads_config(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a ``config.json`` is of a model of this task."""
        return self.fallback

    def check_config(self, config: Mapping[str, Any], source: object) -> None:
        """Refuse a config of a model that cannot be read; ``source`` is what messages call it."""

    def reads_rows(self, rows: Sequence[Example]) -> bool:
        """Tell whether the labels of rows are of this task."""
        return self.fallback

    def new_labels(self, train: Sequence[Example], validation: Sequence[Example]) -> tuple[str, ...]:
        """Return the labels of a new model, in order, and warn of labels that may mean something else.

        Raises:
            CompressError: no model can be trained on them.
        """
        labels = infer_labels([*train, *validation]) or ()
        if len(labels) < 2:
            raise CompressError(f"train has only one class, {labels[0]!r}; give rows of two or more classes")
        return labels

    @abstractmethod
    def gold(self, rows: Sequence[Example], labels: Sequence[str], name: str) -> list[Any]:
        """Return the label of each row as a model counts it; ``labels`` are the model's, in order.

        Raises:
            CompressError: for a label that the model does not know, naming its value and row of the set ``name``.
        """

    def column(self, gold: Sequence[Any]) -> Array:
        """Return what :meth:`gold` gave as metrics read it, ``[N]``."""
        return np.array([*itertools.chain.from_iterable(gold)] if self.by_word else gold)

    def auto_model(self) -> Any:
        """Return the class of transformers that opens models of this task."""
        import transformers

        return getattr(transformers, self.auto_class)

    def head_settings(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return what a config says of a head with these labels."""
        return {
            "id2label": dict(enumerate(labels)),
            "label2id": {label: index for index, label in enumerate(labels)},
            "problem_type": self.problem_type,
        }

    # Texts and their answers

    def row(self, text: Example) -> Example:
        """Return plain text as a row that models of the task read."""
        return text

    def answer_counts(self, rows: Sequence[Example]) -> list[int] | None:
        """Return how many answers each row has; None where each has one."""
        return word_counts(rows) if self.by_word else None

    def clusters(self, rows: Sequence[Example], metric: Metric) -> Array | None:
        """Return the row or query of each answer, ``[N]``, which is drawn as a whole; None where each is by itself.

        Raises:
            CompressError: the metric ranks the rows of queries, and there is nothing to rank.
        """
        if metric.ranks:
            return queries_of(rows, metric.name)
        return np.repeat(np.arange(len(rows)), word_counts(rows)) if self.by_word else None

    def by_row(self, answers: Array, rows: Sequence[Example]) -> Array | list[Array]:
        """Return answers ``[N, ...]`` for each row."""
        return by_sentence(answers, word_counts(rows)) if self.by_word else answers

    def stacked(self, logits: Sequence[Array]) -> Array | list[Array]:
        """Return the logits of single rows in the form of :meth:`by_row`."""
        return [*logits] if self.by_word else np.stack(logits)

    # Training

    def taught(self, rows: Sequence[Any], tokens: TokenRows, cut: Sequence[bool]) -> tuple[Any, TokenRows, Any]:
        """Return those of the training rows that teach something, their tokens, and whether each was cut."""
        return rows, tokens, cut

    def hard_loss(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the losses of the answers with a gold label, and which ones have one: ``[]``, ``[N]``.

        The loss of an answer is multiplied by the weight of its label, of ``weights`` ``[C]``.
        """
        total = torch.nn.functional.cross_entropy(logits, labels, weights, ignore_index=NO_LABEL, reduction="sum")
        return total, labels != NO_LABEL

    def class_weights(
        self, asked: Literal["balanced"] | Mapping[str, float], gold: Array, labels: Sequence[str]
    ) -> Array:
        """Return the weight of each class, ``[C]``: as asked by name, others 1, or balanced by gold answers ``[N]``.

        Raises:
            CompressError: a name is no label.
        """
        if isinstance(asked, str):
            return self.balanced_weights(gold, len(labels))
        unknown = next((name for name in asked if name not in labels), None)
        refuse(
            (
                unknown is not None,
                f"class_weights names {unknown!r}, and the classes are {some_of(labels)}."
                f"{did_you_mean(str(unknown), labels)}",
            )
        )
        return np.array([asked.get(label, 1.0) for label in labels], float)

    def balanced_weights(self, gold: Array, classes: int) -> Array:
        """Return weights by which all classes that occur count the same, and their mean over the answers is 1.

        As scikit-learn's ``compute_class_weight("balanced")``.
        """
        counts = np.bincount(gold.astype(int), minlength=classes)
        return np.where(counts > 0, len(gold) / (np.maximum(counts, 1) * (counts > 0).sum()), 1.0)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of every answer with its label, ``[N]``."""
        return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")

    def divergence(self, student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return how far probabilities are from a teacher's, both softened, of logits ``[N, C]``: ``[]``.

        It is ``T**2 KL(p_teacher || p_student)`` with ``p = softmax(z / T)``, the mean over N.
        """
        ours, theirs = (
            torch.nn.functional.log_softmax(logits.float() / temperature, dim=-1) for logits in (student, teacher)
        )
        return temperature**2 * torch.nn.functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)

    def own_labels(self, logits: torch.Tensor) -> torch.Tensor:
        """Return what logits predict, as labels of the training, ``[N]`` or ``[N, C]``."""
        return logits.detach().argmax(dim=-1)

    def pseudo_labels(self, logits: Sequence[Array]) -> list[Any]:
        """Return what a teacher predicts of each row, in the form of :meth:`gold`."""
        return cast(list[Any], self.predictions(np.stack(logits)).tolist())

    def constant_score(self, gold: Array, labels: Sequence[str], metric: str | None) -> float:
        """Return the best metric of one class for all rows: the most frequent one, or the last, of which F1 is.

        It is minus infinity where all labels are of one class, so that this is right, and of what ranks rows.
        """
        gold, found = gold[gold != NO_LABEL], self.metric(metric, labels)
        if len(np.unique(gold)) == 1 or found.of_probabilities:
            return -np.inf
        constant = (np.full_like(gold, label) for label in (np.bincount(gold).argmax(), len(labels) - 1))
        one_text = np.zeros(len(gold))
        return max(score(one, gold, metric=found, classes=len(labels), sentences=one_text) for one in constant)

    # Judging

    def metric(self, name: str | None = None, labels: Sequence[str] = ()) -> Metric:
        """Return a metric by name, or the default; with the labels of a model it can be computed.

        Raises:
            CompressError: it is unknown, of another task, or of the last of two labels and there are more.
        """
        known = {metric.name: metric for metric in self.metrics}
        key = (name or next(iter(known))).replace("_", "-")
        if key not in known:
            raise CompressError(
                f"metric {name!r} does not fit {self}; choose one of {', '.join(known)} with --metric."
                f"{did_you_mean(key, known)}"
            )
        if known[key].of_last and self.has_classes and labels and len(labels) != 2:
            many = "mean-average-precision" if known[key].of_probabilities else "macro-f1"
            raise CompressError(f"metric {key!r} needs two labels, not {len(labels)}; use --metric {many}")
        return known[key]

    def evaluate(
        self,
        logits: np.typing.ArrayLike,
        gold: np.typing.ArrayLike,
        labels: Sequence[str],
        metric: str | None = None,
        clusters: Array | None = None,
    ) -> float:
        """Return a metric as a fraction (0.89, not 89) of logits ``[N, C]`` and gold labels or scores ``[N]``."""
        return self.score(np.asarray(logits), np.asarray(gold), self.metric(metric, labels), clusters)

    def score(self, logits: Array, gold: Array, metric: Metric, clusters: Array | None = None) -> float:
        """Return a metric of logits ``[N, C]`` and gold ``[N]``."""
        judged, classes = self.judged(logits, metric, clusters), logits.shape[-1]
        return score(judged, gold, metric=metric, classes=classes, sentences=clusters)

    def judged(self, logits: Array, metric: Metric, clusters: Array | None = None) -> Array:
        """Return what a metric reads of logits ``[N, C]`` (:meth:`compress.evaluation.metrics.Metric.reads`)."""
        chances = self.probabilities(logits) if metric.of_probabilities else None
        return metric.reads(self.predictions(logits, clusters), chances)

    def predictions(self, logits: np.typing.ArrayLike, clusters: Array | None = None) -> Array:
        """Return what logits ``[N, C]`` predict ``[N]``: class indices as int64, or scores as float64.

        Args:
            clusters: the row of each word, ``[N]``, where a task answers words; by default all are of one row.
        """
        return np.asarray(np.asarray(logits).argmax(axis=1), dtype=np.int64)

    def probabilities(self, logits: Array) -> Array | None:
        """Return the probabilities of the classes ``[N, C]``, float64; None where there are none."""
        return probabilities(logits)

    def sureness(self, chances: Array) -> Array:
        """Return the probability that each prediction is right, of probabilities ``[N, C]``: ``[N]``."""
        return np.asarray(chances.max(axis=1))

    def decisions(self, chances: Array, predicted: Array, gold: Array) -> tuple[Array, Array, Array | None]:
        """Return the confidence of each decision, whether it is right, and its row, where a row has several of them."""
        return self.sureness(chances), predicted == gold, None

    def members(self, gold: Array, classes: int) -> Array:
        """Return whether each answer ``[N]`` is, or has, each class, ``[N, C]`` bool."""
        return np.eye(classes, dtype=bool)[gold]

    def surprise(self, logits: Array, gold: Array) -> Array:
        """Return the negative log-likelihood of each gold answer, in nats, ``[N]``; its gradient by the logits is that
        of :meth:`probabilities` minus :meth:`members`.
        """
        return np.asarray(-log_probabilities(logits)[np.arange(len(gold)), gold])

    def held(self, answers: Array, index: int) -> Array:
        """Tell which answers ``[N]`` are, or have, the class ``index``, ``[N]``."""
        return np.asarray(answers == index)

    def margins(self, logits: Array, index: int) -> Array:
        """Return by how much logits ``[N, C]`` are for the class ``index``: it is given above 0, ``[N]``."""
        return np.asarray(logits[:, index] - np.delete(logits, index, axis=1).max(axis=1))

    def flips(
        self, predicted: Array, reference: Array, gold: Array, chances: Array | None, reference_chances: Array | None
    ) -> tuple[Array, Array, Array]:
        """Return how each answer changed, below 0 for the worse, and which ones were lost and won, ``[N]`` each.

        A row is lost that the reference has right and the model wrong. The change is that of the probability of the
        gold label, in points.
        """
        assert chances is not None and reference_chances is not None
        rows = np.arange(len(gold))
        change = np.round(100 * (chances[rows, gold] - reference_chances[rows, gold]), 4)
        return change, (reference == gold) & (predicted != gold), (reference != gold) & (predicted == gold)

    def differ(self, logits: Array, others: Array) -> bool:
        """Tell whether two logits ``[N, C]`` of the same rows are different answers."""
        return not np.array_equal(self.predictions(logits), self.predictions(others))

    def mean_logits(self, logits: Array, shares: Array) -> Array:
        """Return the logits ``[N, C]``, of mean 0, of the weighted mean of probabilities; of logits ``[M, N, C]``."""
        with np.errstate(invalid="ignore"):  # words without an answer
            log_chances = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
            mean = np.logaddexp.reduce(log_chances + np.log(shares)[:, None, None], axis=0)
        return np.asarray(mean - mean.mean(axis=-1, keepdims=True))

    def logits(self, chances: Array) -> Array:
        """Return logits whose :meth:`probabilities` are these, between 0 and 1, ``[N, C]``: their logarithms, centred.

        Whoever gave them, equal probabilities have equal logits.
        """
        found = np.log(chances)
        return np.asarray(found - found.mean(axis=-1, keepdims=True))

    def prior(self, gold: Array, classes: int) -> Array:
        """Return the logits of an answer that is best without reading: logarithms of the classes' shares, ``[C]``."""
        counts = np.bincount(gold.astype(int), minlength=classes) + 1
        return np.asarray(np.log(counts / counts.sum()))

    # Predictions that users see

    @abstractmethod
    def described(
        self,
        rows: Sequence[Example],
        logits: Array,
        labels: Sequence[str],
        thresholds: Array | None = None,
        all_labels: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Yield the prediction of each row as ``compress predict`` prints it.

        Args:
            thresholds: the probability from which a prediction of each class is accepted, ``[C]``.
            all_labels: whether to list the probabilities of all labels.
        """
