"""What ``compress.load(DIR).predict`` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.inference.predict import load
from tests.support.tagging import tagger
from tests.support.tiny import torch_directory, write

CPU = Compute("cpu", 1)


def test_texts_pairs_and_examples_are_taken() -> None:
    model = load(torch_directory("bert"), compute=CPU)
    (text,), (same,) = model.predict(["a good film"]), model.predict([Example("a good film")])
    assert text == same
    (pair,), (same,) = model.predict([("a film", "a plot")]), model.predict([Example("a film", "a plot")])
    assert pair == same and model.predict([]) == []


def test_a_text_that_was_cut_says_so() -> None:
    model = load(torch_directory("bert"), compute=CPU)
    texts = ["film " * 62, "film " * 63, ("film", "film " * 90), ""]
    assert [one.get("truncated") for one in model.predict(texts[:2] + texts[3:])] == [None, True, None]
    assert model.predict([texts[2]])[0]["truncated"] is True


def test_a_tagged_sentence_that_was_cut_says_so(tmp_path: Path) -> None:
    model = load(write(tmp_path / "tagger", tagger()), compute=CPU)
    short, long, empty = model.predict(["film " * 9, "film " * 99, ""])
    assert "truncated" not in short and long["truncated"] and long["tags"][-1] is None and empty["tags"] == []


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("a good film", "predict takes a list of texts"),
        ([("a", "b", "c")], "('a', 'b', 'c') is neither a text nor a tuple of two texts"),
        ([("a", None)], "('a', None) is neither a text"),
        ([1], "1 is neither a text"),
        ([b"a"], "b'a' is neither a text"),
        (["\ud800"], "'\\ud800' is neither a text nor a tuple of two texts that are UTF-8"),
        (["a", ("a", "b")], "some of these rows are texts and some are pairs"),
    ],
)
def test_what_is_no_text_is_refused(texts: Any, says: str) -> None:
    with pytest.raises(CompressError) as caught:
        load(torch_directory("bert"), compute=CPU).predict(texts)
    assert says in str(caught.value)


def test_a_tagger_refuses_pairs(tmp_path: Path) -> None:
    write(tmp_path / "tagger", tagger())
    with pytest.raises(CompressError, match="a tagger reads one text, .* and these rows are pairs"):
        load(tmp_path / "tagger", compute=CPU).predict([("a film", "a plot")])
