"""Whether gold rows fit a model: labels that mean something else than its classes are refused before the work."""

from collections.abc import Sequence

from compress.data import Example, encode_gold
from compress.data.tokenization import one_column
from compress.evaluation.label_check import check_labels
from compress.evaluation.metrics import predictions
from compress.inference.compute import Compute
from compress.inference.predict import Reader
from compress.models.model_dir import ModelDir

CHECKED_ROWS = 64


def check_gold(model: ModelDir, rows: Sequence[Example], name: str, compute: Compute) -> None:
    """Refuse rows whose labels mean something else than the classes of a model; looks at a few, spread evenly.

    Raises:
        CompressError: see :func:`compress.evaluation.label_check.check_labels`.
    """
    if rows and model.task != "regression":
        some = rows[:: -(-len(rows) // CHECKED_ROWS)]
        gold = one_column(encode_gold(some, model.labels, task=model.task, name=name))
        predicted = predictions(Reader.open(model, compute).logits(some), model.task)
        check_labels(predicted, gold.astype(int), model.labels, name)
