"""The quickstart's corpus: masked prose, no wording or module on two sides, the same bytes each time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from compress.data import check_roles, open_source, read_examples
from compress.errors import CompressError
from compress.studies import docstring_corpus
from compress.studies.docstring_corpus import (
    Passage,
    build_corpus,
    clean_sentence,
    deduplicate,
    passages_of,
    read_module,
    sentences_of,
    split_by_module,
)

DOCSTRING = """Compute the median of the values along the given axis of an array.

    It is a wrapper of :func:`numpy.median` that ignores missing values, e.g. those of
    a `pandas.DataFrame`, and it uses **PyTorch** where the input is a :class:`~torch.Tensor`.

    Parameters
    ----------
    axis : int
        The axis along which the median of all the values is computed.

    >>> median([1, 2, 3])
    2

    .. note:: This directive is not a sentence of prose at all.

    Too short.
    See https://example.org for a longer explanation of what the median is.
    """


def test_sentences_of_a_docstring() -> None:
    assert list(sentences_of(DOCSTRING)) == [
        "Compute the median of the values along the given axis of an array.",
        "It is a wrapper of library that ignores missing values, e.g. those of a library, and it uses "
        "library where the input is a library.",
    ]


def test_a_passage_ends_with_the_sentence_that_makes_it_long_enough() -> None:
    docstring = """Return the shortest path. It has the fewest edges of all paths between both nodes.

    Weights are ignored, so that each edge counts as one. An edge may be passed once.
    """
    assert list(passages_of(docstring)) == [
        "Return the shortest path. It has the fewest edges of all paths between both nodes. "
        "Weights are ignored, so that each edge counts as one."
    ], "the last sentence alone is too short"


SOURCE = '''# A licence.
"""The docstring of a module, which begins its file and has more than sixteen words, so that it is a passage."""

TABLE = """A string that is no docstring is not read, though it has as many words as any passage would need."""


class Node(
    object,
):  # a comment
    r"""The docstring of a class, raw because of a formula, which has more than sixteen words, too, of course."""

    def name(self) -> str:
        """Too short."""
        return "also: \\n"
'''


def test_docstrings_of_a_module_and_of_what_lies_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("shop/cart/items.py", "shop/cart/tests/test_items.py", "shop/till.py", "shop/other.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE)
    monkeypatch.setattr(docstring_corpus, "_package_directory", lambda name: tmp_path / name)
    below = list(read_module("shopping", "shop.cart"))
    assert [(row.text[:24], row.label, row.module) for row in below] == [
        ("The docstring of a modul", "shopping", "shop.cart.items"),
        ("The docstring of a class", "shopping", "shop.cart.items"),
    ]
    assert {row.module for row in read_module("shopping", "shop.till")} == {"shop.till"}
    assert not list(read_module("shopping", "shop.of_another_version"))


@pytest.mark.parametrize(
    "name",
    [
        "torch",
        "PyTorch",
        "torch.nn.Linear",
        "libtorch",
        "NumPy",
        "np.ndarray",
        "scikit-learn",
        "sklearn.svm.SVC",
        "pd.NA",
        "SymPy",
        "Transformers",
        "Hugging Face",
        "`networkx.Graph`",
        ":mod:`scipy.linalg <x>`",
    ],
)
def test_library_names_are_masked(name: str) -> None:
    assert clean_sentence(f"Works as in {name}, or so.") == "Works as in library, or so."


def test_words_that_only_look_like_names_stay() -> None:
    assert clean_sentence("A transformer of concatenated inputs.") == "A transformer of concatenated inputs."


def test_wordings_are_new_and_shared_ones_go() -> None:
    same = "Returns the {} of the tensor along axis {} if it is given."
    kept = deduplicate(
        [
            Passage(same.format("FirstName", 1), "torch", "torch.a"),
            Passage(same.format("second_name", 2), "torch", "torch.b"),
            Passage("Return True if it is.", "torch", "torch.a"),
            Passage("return true if it is.", "numpy", "numpy.a"),
        ]
    )
    assert [(row.label, row.module) for row in kept] == [("torch", "torch.a")]


def test_modules_belong_to_one_side() -> None:
    passages = [
        Passage(f"{label} {module} {number}", label, f"{label}.{module}")
        for label in "abcd"
        for module in range(40)
        for number in range(10)
    ]
    sizes = {"train": 80, "validation": 40, "test": 100}
    sets = split_by_module(passages, sizes=sizes, seed=0)
    assert {role: len(sets[role]) for role in sizes} == sizes and len(sets["unlabeled"]) > 800
    modules = {role: {row.module for row in rows} for role, rows in sets.items()}
    assert not modules["test"] & modules["validation"]
    assert not (modules["test"] | modules["validation"]) & (modules["train"] | modules["unlabeled"])
    assert not {row.text for row in sets["train"]} & {row.text for row in sets["unlabeled"]}
    assert sets == split_by_module(passages, sizes=sizes, seed=0)
    assert sets != split_by_module(passages, sizes=sizes, seed=1)


SMALL = {
    "graphs": ("networkx",),
    "networking": ("python.email", "python.http", "python.asyncio"),
    "tables": ("pandas.core", "pandas.io"),
}


def test_a_corpus_of_three_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstring_corpus, "SUBJECTS", SMALL)
    monkeypatch.setattr(docstring_corpus, "SIZES", {"train": 60, "validation": 60, "test": 150})
    loaded = set(sys.modules)
    paths = build_corpus(tmp_path / "one", seed=0)
    assert not {"networkx", "pandas"} & (set(sys.modules) - loaded), "sources are read, not imported"
    again = build_corpus(tmp_path / "two", seed=0)
    assert [path.read_bytes() for path in paths.values()] == [path.read_bytes() for path in again.values()]
    sources = {role: open_source(path, role=role, labelled=role != "unlabeled") for role, path in paths.items()}
    checked = check_roles(sources, overlap="refuse")
    assert (checked.rows["train"], checked.rows["validation"], checked.rows["test"]) == (60, 60, 150)
    assert checked.rows["unlabeled"] > 2500
    test = read_examples(sources["test"])
    assert {row.label for row in test} == set(SMALL)
    first = json.loads(paths["test"].read_text(encoding="utf-8").splitlines()[0])
    assert list(first) == ["text", "label", "module"]
    assert not [row.text for row in test if any(name in row.text.lower() for name in ("networkx", "pandas", "numpy"))]


def test_a_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstring_corpus, "SUBJECTS", {**SMALL, "physics": ("no_such_one.physics",)})
    with pytest.raises(CompressError, match="but no_such_one is not installed: pip install 'compress.quickstart.'"):
        build_corpus(tmp_path / "corpus", seed=0)
    assert not (tmp_path / "corpus").exists()
