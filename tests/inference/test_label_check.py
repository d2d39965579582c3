"""Labels that mean something else than a model's classes are refused, and nothing else is."""

import numpy as np
import pytest

from compress.errors import CompressError
from compress.inference.predict import check_label_meaning

GOLD = np.arange(300) % 3
NAMES = ("bad", "good", "none")


def noisy(predicted: np.ndarray) -> np.ndarray:
    """Return predictions of which every tenth is of another class."""
    return np.where(np.arange(len(predicted)) % 10 == 0, (predicted + 1) % 3, predicted)


def test_labels_of_other_classes_are_refused() -> None:
    with pytest.raises(CompressError, match=r"predicts 10\.0% of test right, less than by chance with 3 .*label-map"):
        check_label_meaning(noisy((GOLD + 2) % 3), GOLD, NAMES, "test")


def test_another_order_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_label_meaning(noisy(GOLD), GOLD, NAMES, "test")
    assert not caplog.messages
    check_label_meaning(noisy(np.array([1, 0, 2])[GOLD]), GOLD, NAMES, "test")
    assert caplog.messages == [
        "the model predicts 33.3% of test right; if bad is good, good is bad, it would be 90.0%: --label-map FILE "
        "says it"
    ]


def test_a_model_of_nearly_one_answer_is_no_other_order(caplog: pytest.LogCaptureFixture) -> None:
    """It says the rare class of all but every fourth row: swapped, it would be right on less than always the other."""
    check_label_meaning(
        (np.arange(300) % 4 > 0).astype(int), (np.arange(300) % 10 == 1).astype(int), ("ham", "spam"), "test"
    )
    assert not caplog.messages


@pytest.mark.parametrize("share", [1, 3, 30])
def test_a_model_that_always_says_the_same_is_not_refused(share: int) -> None:
    gold = (np.arange(300) % share == 0).astype(int)  # a model that says yes is right on 100%, 33% and 3%
    check_label_meaning(np.ones(300, int), gold, ("no", "yes"), "test")


def test_few_rows_are_not_certain() -> None:
    check_label_meaning(np.array([1, 1, 0]), np.array([0, 0, 1]), ("no", "yes"), "test")


def test_words_without_an_answer_are_wrong() -> None:
    predicted = np.array([-1] * 60 + [0] * 20)
    with pytest.raises(CompressError, match=r"predicts 25\.0% of test right"):
        check_label_meaning(predicted, np.zeros(80, int), ("no", "yes"), "test")
