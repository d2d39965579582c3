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
    Sentence,
    build_corpus,
    clean_sentence,
    deduplicate,
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

    Too short a sentence.
    See https://example.org for a longer explanation of what the median is.
    """


def test_sentences_of_a_docstring() -> None:
    assert list(sentences_of(DOCSTRING)) == [
        "Compute the median of the values along the given axis of an array.",
        "It is a wrapper of library that ignores missing values, e.g. those of a library, and it uses "
        "library where the input is a library.",
    ]


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
            Sentence(same.format("FirstName", 1), "torch", "torch.a"),
            Sentence(same.format("second_name", 2), "torch", "torch.b"),
            Sentence("Return True if it is.", "torch", "torch.a"),
            Sentence("return true if it is.", "numpy", "numpy.a"),
        ]
    )
    assert [(row.label, row.module) for row in kept] == [("torch", "torch.a")]


def test_modules_belong_to_one_side() -> None:
    sentences = [
        Sentence(f"{label} {module} {number}", label, f"{label}.{module}")
        for label in "abcd"
        for module in range(40)
        for number in range(10)
    ]
    sizes = {"train": 80, "validation": 40, "test": 100}
    sets = split_by_module(sentences, sizes=sizes, pool_size=800, seed=0)
    assert {role: len(rows) for role, rows in sets.items()} == {**sizes, "unlabeled": 800}
    modules = {role: {row.module for row in rows} for role, rows in sets.items()}
    assert not modules["test"] & modules["validation"]
    assert not (modules["test"] | modules["validation"]) & (modules["train"] | modules["unlabeled"])
    assert not {row.text for row in sets["train"]} & {row.text for row in sets["unlabeled"]}
    assert sets == split_by_module(sentences, sizes=sizes, pool_size=800, seed=0)
    assert sets != split_by_module(sentences, sizes=sizes, pool_size=800, seed=1)


def test_the_corpus_of_four_small_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstring_corpus, "CORPUS_LIBRARIES", ("networkx", "numpy", "sklearn", "pandas"))
    monkeypatch.setattr(docstring_corpus, "SIZES", {"train": 400, "validation": 200, "test": 400})
    loaded = set(sys.modules)
    paths = build_corpus(tmp_path / "one", seed=0)
    imported = set(sys.modules) - loaded
    assert not {"networkx", "sklearn", "pandas"} & imported, "sources are read, not imported"
    again = build_corpus(tmp_path / "two", seed=0)
    assert [path.read_bytes() for path in paths.values()] == [path.read_bytes() for path in again.values()]
    sources = {role: open_source(path, role=role, labelled=role != "unlabeled") for role, path in paths.items()}
    checked = check_roles(sources, drop_overlap=False)
    assert (checked.rows["train"], checked.rows["validation"], checked.rows["test"]) == (400, 200, 400)
    assert checked.rows["unlabeled"] > 4000
    test = read_examples(sources["test"])
    assert {row.label for row in test} == {"networkx", "numpy", "sklearn", "pandas"}
    first = json.loads(paths["test"].read_text(encoding="utf-8").splitlines()[0])
    assert list(first) == ["text", "label", "module"]
    names = ("numpy", "sklearn", "scikit", "networkx", "pandas")
    assert not [row.text for row in test if any(name in row.text.lower() for name in names)]


def test_too_few_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstring_corpus, "CORPUS_LIBRARIES", ("numpy", "no_such_one", "no_such_two", "pandas"))
    with pytest.raises(CompressError, match="only numpy, pandas is installed"):
        build_corpus(tmp_path / "corpus", seed=0)
    assert not (tmp_path / "corpus").exists()
