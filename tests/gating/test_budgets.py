"""Budgets in a TOML file: strict keys, all faults at once, sizes as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compress.errors import CompressError
from compress.gating.budgets import GateBudget, Tolerance, read_budgets
from compress.requests.measuring import LIMITS, size_in_bytes
from tests.support import REPOSITORY


def write(folder: Path, text: str) -> Path:
    path = folder / "budgets.toml"
    path.write_text(text)
    return path


def test_a_file_of_budgets(tmp_path: Path) -> None:
    found = read_budgets(
        write(
            tmp_path,
            """
            [[budget]]
            model = "bilstm*"
            runtime = "onnxruntime"
            max_accuracy_drop = 1
            min_speedup = 10.5
            max_size = "30MB"

            [[budget]]
            batch_size = 32
            threads = 2
            max_memory = 500_000_000
            over_seeds = false

            [baseline]
            model = "bilstm*"
            max_drop = 2.0
            """,
        )
    )
    first, second = found.budget
    assert first == GateBudget(
        model="bilstm*", runtime="onnxruntime", max_accuracy_drop=1, min_speedup=10.5, max_size="30MB"
    )
    assert first.limits() == {"max_accuracy_drop": 1, "min_speedup": 10.5, "max_size": 30_000_000}
    assert second.limits() == {"max_memory": 500_000_000} and (second.batch_size, second.threads) == (32, 2)
    assert found.baseline == Tolerance(model="bilstm*", max_drop=2.0)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("30MB", 30_000_000),
        ("30 mb", 30_000_000),
        ("1.5 GB", 1_500_000_000),
        ("512KiB", 524_288),
        ("2MiB", 2_097_152),
        ("1GiB", 1_073_741_824),
        ("7", 7),
        ("7B", 7),
        (7, 7),
        (" 8 kB ", 8000),
    ],
)
def test_sizes_as_people_write_them(text: str | int, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1e9", "30 parsecs", "0", "0.0001kB", "1 2MB", "٣MB", "9" * 400])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        size_in_bytes(text)


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        confidence = 90
        [[budget]]
        modle = "x"
        max_accuracy_drop = "one"
        [[budget]]
        max_accuracy_drop = -1
        max_size = "big"
        threads = 0
        model = ""
        [[budget]]
        model = "bilstm"
        [[budget]]
        max_size = 1.5
        over_seeds = "yes"
        [baseline]
        max_drop = 101
        max_slowdown = 1.0
        """,
    )
    with pytest.raises(CompressError) as caught:
        read_budgets(path)
    message = str(caught.value)
    for fault in (
        "budgets.toml has 12 faults",
        "unknown key confidence",
        "unknown key budget[0].modle. Did you mean 'model'?",
        "budget[0].max_accuracy_drop = 'one' is not of type float",
        "budget[1]: max_accuracy_drop = -1 is not a number of percentage points",
        "budget[1]: max_size = 'big' is not a size",
        "budget[1]: threads = 0 must be at least 1",
        "budget[1]: model is empty",
        "budget[2]: no limit is given",
        "budget[3].max_size = 1.5 is not of type str or int",
        "budget[3].over_seeds = 'yes' is not of type bool",
        "baseline: max_drop = 101",
        "baseline: max_slowdown = 1.0 is not a share",
    ):
        assert fault in message, (fault, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no \\[\\[budget\\]\\]"),
        ("[budget]\nmax_size = 1", "budget = .* is not a list"),
        ("budget = [1]", r"budget\[0\] = 1 is not a table"),
        ("[[budget]]\nmax_accuracy_drop = 2026-11-20", "is not of type float"),
        ("[[budget]]\nmin_speedup = inf", "min_speedup = inf is not a number"),
        ("[[budget]]\nmin_speedup = nan", "min_speedup = nan is not a number"),
        ("[[budget]]\nmin_speedup = true", "is not of type float"),
        (
            "[[budget]]\nmin_speedup_with_tokenizer = 5",
            r"unknown key budget\[0\].min_speedup_with_tokenizer. It is called min_speedup now.* min_model_speedup",
        ),
        ("[[budget]]\n__class__ = 1\nmax_size = 1", "unknown key budget\\[0\\].__class__"),
        ("baseline = 3", "baseline = 3 is not a table"),
    ],
)
def test_hostile_files_are_the_users_mistake(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CompressError, match=message):
        read_budgets(write(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="none.toml does not exist"):
        read_budgets(tmp_path / "none.toml")


def test_the_documented_budget_file_is_read_and_has_every_limit(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "gate.md").read_text(encoding="utf-8")
    shown = page.split("```toml\n")[1].split("```")[0]
    assert len(read_budgets(write(tmp_path, shown)).budget) == 2
    assert [name for name in LIMITS if f"`{name}`" not in page] == []
