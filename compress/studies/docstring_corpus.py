"""Quickstart corpus: sentences from the docstrings of installed libraries, labelled with the library.

The task is real and needs no download: *which library does this sentence come from?* Sources are parsed,
never imported. Names of libraries are masked, sentences deduplicated across all of them, and each source
module belongs to one side only, so nothing that is tested on was seen in training or in the pool.
"""

import ast
import importlib.util
import inspect
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.errors import CompressError

CORPUS_LIBRARIES = ("torch", "transformers", "scipy", "sklearn", "pandas", "numpy", "sympy", "networkx")
MASK = "library"
SIZES = {"train": 2000, "validation": 640, "test": 2000}
POOL_SIZE = 36_000
_MODULE_CAP = 12  # labelled sentences from one module, so that no module makes a set
_LEAST_LIBRARIES = 4

_NAMES = re.compile(
    r"\w*(?:torch|scipy|scikit|sklearn|pandas|numpy|sympy|networkx|matplotlib)\w*(?:-learn|-image)?(?:\.\w+)*"
    r"|\b(?:transformers|hugging ?face|hf|np|pd|nx|plt)\b(?:\.\w+)*",
    re.IGNORECASE,
)
_ROLE = re.compile(r":[a-z:+-]+:`~?([^`<]*?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+)\s*<[^`>]*>`_+|\[([^\]]+)\]\([^)]*\)|\[`?~?([^\]`]+)`?\]")
_CITATION = re.compile(r"\s*\[[\w\d]+\]_")
_MARKS = re.compile(r"\\[a-z]+|``|`|\*\*|\$")
_IDENTIFIER = re.compile(r"\b(?:\w*[a-z]\w*[A-Z]\w*|\w*_\w*|\w*\d\w*)\b")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|cf|vs|al|Fig|Eq|Ref|resp|[A-Z])\.$")
_SKIPPED_FOLDERS = {
    "tests",
    "testing",
    "test",
    "_vendor",
    "externals",
    "_external",
    "third_party",
    "benchmarks",
}


@dataclass(frozen=True)
class Sentence:
    """A masked sentence, its library and the source module that it stands in."""

    text: str
    label: str
    module: str


def build_corpus(directory: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write ``train``, ``validation``, ``test`` (JSON Lines) and ``unlabeled`` (text); return their paths.

    The same installed versions and seed give the same bytes. The labelled rows hold ``text``, ``label`` and
    ``module`` and are balanced over the libraries; the pool comes from the modules that train is drawn from.

    Raises:
        CompressError: with fewer than four of the libraries installed.
    """
    found = {name: path for name in CORPUS_LIBRARIES if (path := _package_directory(name)) is not None}
    if len(found) < _LEAST_LIBRARIES:
        raise CompressError(
            f"The quickstart's corpus needs the sources of {_LEAST_LIBRARIES} of {', '.join(CORPUS_LIBRARIES)}, "
            f"but only {', '.join(found) or 'none'} is installed: pip install scipy scikit-learn pandas."
        )
    sentences = deduplicate(sentence for name, path in found.items() for sentence in read_package(name, path))
    sets = split_by_module(sentences, sizes=SIZES, pool_size=POOL_SIZE, seed=seed)
    directory.mkdir(parents=True, exist_ok=True)
    paths = {}
    for role, rows in sets.items():
        paths[role] = directory / ("unlabeled.txt" if role == "unlabeled" else f"{role}.jsonl")
        with paths[role].open("w", encoding="utf-8", newline="\n") as stream:
            for row in rows:
                line = row.text if role == "unlabeled" else json.dumps(vars(row), ensure_ascii=False)
                stream.write(line + "\n")
    return paths


def _package_directory(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def read_package(name: str, directory: Path) -> Iterator[Sentence]:
    """Yield the docstring sentences of a package's sources, files in name order."""
    for path in sorted(directory.rglob("*.py")):
        inside = path.relative_to(directory)
        if _SKIPPED_FOLDERS & set(inside.parts[:-1]) or inside.name.startswith("test_"):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        if '"""' not in source:
            continue
        module = ".".join((name, *inside.with_suffix("").parts))
        for docstring in _docstrings(source):
            for text in sentences_of(docstring):
                yield Sentence(text, name, module)


def _docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a source: its module's, classes' and functions', in order."""
    try:
        nodes: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        return
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if docstring := ast.get_docstring(node, clean=False):
                yield docstring
        # Only statements: expressions hold no docstrings, and walking them would take most of the time.
        body = getattr(node, "body", [])
        nodes += [child for child in reversed(body) if isinstance(child, ast.stmt)]


def sentences_of(docstring: str) -> Iterator[str]:
    """Yield the masked prose sentences of a docstring.

    Prose stands at the outer margin: parameter tables, code and doctests are indented or start with ``>>>``.
    """
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = paragraph.split("\n")
        if any(line[:1] in (" ", "\t", ">", ".", "|", "+", "-", "=", "*", "#", "@", ":") for line in lines):
            continue
        yield from filter(_is_prose, _split(clean_sentence(" ".join(lines))))


def clean_sentence(text: str) -> str:
    """Return text without markup, with the names of libraries (and dotted names below them) masked."""
    text = _ROLE.sub(r"\1", text)
    text = _LINK.sub(lambda match: next(group for group in match.groups() if group), text)
    text = _MARKS.sub("", _CITATION.sub("", text))
    return " ".join(_NAMES.sub(MASK, text).split())


def _split(text: str) -> Iterator[str]:
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if not _ABBREVIATION.search(text[start : match.start()]):
            yield text[start : match.start()]
            start = match.end()
    yield text[start:]


def _is_prose(text: str) -> bool:
    words = text.split()
    if not 8 <= len(words) <= 40 or text[-1] not in ".!?" or not text[0].isupper():
        return False
    plain = sum(bool(re.fullmatch(r"[(\"']?[A-Za-z][a-z'-]*[,.;:)\"'!?]*", word)) for word in words)
    return plain >= 0.75 * len(words) and "=" not in text and "http" not in text


def deduplicate(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Return the sentences whose wording is new; identifiers and numbers do not make it new.

    A wording that several libraries share cannot be told apart and is dropped altogether.
    """
    first: dict[str, Sentence] = {}
    shared: set[str] = set()
    for sentence in sentences:
        key = " ".join(re.findall(r"[a-z]+", _IDENTIFIER.sub("", sentence.text).casefold()))
        known = first.setdefault(key, sentence)
        if known.label != sentence.label:
            shared.add(key)
    return [sentence for key, sentence in first.items() if key not in shared]


def split_by_module(
    sentences: Sequence[Sentence], *, sizes: Mapping[str, int], pool_size: int, seed: int
) -> dict[str, list[Sentence]]:
    """Return ``train``, ``validation``, ``test`` (balanced over labels) and ``unlabeled``.

    Whole modules go to test, then to validation, until each has its share; all others are for fitting:
    train is drawn from them, and the rest of them is the pool.
    """
    labels = sorted({sentence.label for sentence in sentences})
    sets: dict[str, list[Sentence]] = {"train": [], "validation": [], "test": [], "unlabeled": []}
    for label in labels:
        chance = random.Random(f"{seed}:{label}")
        modules: dict[str, list[Sentence]] = {}
        for sentence in sentences:
            if sentence.label == label:
                modules.setdefault(sentence.module, []).append(sentence)
        order = sorted(modules)
        chance.shuffle(order)
        for role in ("test", "validation"):
            quota, rows = sizes[role] // len(labels), list[Sentence]()
            while order and len(rows) < quota:
                module = modules[order.pop()]
                rows += chance.sample(module, min(len(module), _MODULE_CAP))
            sets[role] += rows[:quota]
        rest = [sentence for name in order for sentence in modules[name]]
        chance.shuffle(rest)
        quota = sizes["train"] // len(labels)
        sets["train"] += rest[:quota]
        sets["unlabeled"] += rest[quota : quota + pool_size // len(labels)]
    for role, rows in sets.items():
        random.Random(f"{seed}:{role}").shuffle(rows)
    return sets
