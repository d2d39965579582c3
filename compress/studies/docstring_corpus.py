"""Quickstart corpus: passages from the docstrings of installed packages, labelled with their subject.

The task is real and needs no download: *what is this text about?* The subject is that of the source module: graphs,
physics, networking, ... Sources are parsed, never imported. Names of packages are masked, passages deduplicated across
all subjects, and each source module belongs to one side only, so nothing that is tested on was seen in training or in
the pool. Few passages are labelled; the pool has all others.
"""

import importlib.util
import inspect
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.errors import refuse
from compress.files import write_atomically

STANDARD_LIBRARY = "python"
# Modules by subject, each with all that lies below it.
SUBJECTS: Mapping[str, Sequence[str]] = {
    "graphs": ("networkx",),
    "networking": tuple(
        f"{STANDARD_LIBRARY}.{name}"
        for name in (
            "asyncio cgi email ftplib http imaplib ipaddress mailbox mimetypes nntplib poplib selectors smtplib socket "
            "socketserver ssl telnetlib urllib webbrowser wsgiref xmlrpc"
        ).split()
    ),
    "neural networks": ("torch.nn", "torch.optim", "transformers.models"),
    "physics": ("sympy.physics", "sympy.vector", "sympy.diffgeom"),
}
MASK = "library"
SIZES = {"train": 300, "validation": 300, "test": 800}
_MODULE_CAP = 12  # labelled passages from one module, so that no module makes a set
_PASSAGE_WORDS = 16  # a passage ends with the sentence that makes it this long

# What follows a line that ends with a colon, or begins the file: 20 times as fast as a syntax tree of the source.
_DOCSTRING = re.compile(r'(?:\A(?:[ \t]*(?:#[^\n]*)?\n)*|:[ \t]*(?:#[^\n]*)?\n)[ \t]*[rR]?"""(.*?)"""', re.DOTALL)
# Markup -> its text: roles, links, citations and marks; at last the names of packages, with all that follows a dot.
_PLAIN_TEXT = (
    (re.compile(r":[a-z:+-]+:`~?([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+)\s*<[^`>]*>`_+|\[([^\]]+)\]\([^)]*\)|\[`?~?([^\]`]+)`?\]"), r"\1\2\3"),
    (re.compile(r"\s*\[[\w\d]+\]_"), ""),
    (re.compile(r"\\[a-z]+|``|`|\*\*|\$"), ""),
    # From the start of a word, because a search that may begin inside of one takes seconds longer.
    (
        re.compile(
            r"(?<!\w)\w*(?:torch|scipy|scikit|sklearn|pandas|numpy|sympy|networkx|matplotlib)\w*(?:-learn|-image)?"
            r"(?:\.\w+)*|\b(?:transformers|hugging ?face|hf|np|pd|nx|plt)\b(?:\.\w+)*",
            re.IGNORECASE,
        ),
        MASK,
    ),
)
_IDENTIFIER = re.compile(r"\b(?:\w*[a-z]\w*[A-Z]\w*|\w*_\w*|\w*\d\w*)\b")
_ABBREVIATIONS = (r"e\.g", r"i\.e", "etc", "cf", "vs", "al", "Fig", "Eq", "Ref", "resp", "[A-Z]")
_SENTENCE_END = re.compile(r"(?<=[.!?])" + "".join(rf"(?<!\b{one}\.)" for one in _ABBREVIATIONS) + r"\s+(?=[A-Z\"'(])")
_SKIPPED_FOLDERS = {*"tests testing test _vendor externals _external third_party benchmarks".split()}


@dataclass(frozen=True)
class Passage:
    """Masked sentences, their subject and the source module that they stand in."""

    text: str
    label: str
    module: str


def build_corpus(directory: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write ``train``, ``validation``, ``test`` (JSON Lines) and ``unlabeled`` (text); return their paths.

    The same installed versions and seed give the same bytes. The labelled rows hold ``text``, ``label`` and
    ``module`` and are balanced over the subjects; the pool comes from the modules that train is drawn from.

    Raises:
        CompressError: one of the packages is not installed.
    """
    packages = {module.split(".")[0] for modules in SUBJECTS.values() for module in modules}
    missing = sorted(name for name in packages if _package_directory(name) is None)
    refuse(
        (
            missing,
            f"The quickstart's corpus is read from the sources of {', '.join(sorted(packages))}, but "
            f"{', '.join(missing)} is not installed: pip install 'compress[quickstart]', or pip install "
            f"{' '.join(missing)}.",
        )
    )
    passages = deduplicate(
        passage
        for subject, modules in SUBJECTS.items()
        for module in modules
        for passage in read_module(subject, module)
    )
    sets = split_by_module(passages, sizes=SIZES, seed=seed)
    directory.mkdir(parents=True, exist_ok=True)
    paths = {}
    for role, rows in sets.items():
        paths[role] = directory / ("unlabeled.txt" if role == "unlabeled" else f"{role}.jsonl")
        lines = [row.text if role == "unlabeled" else json.dumps(vars(row), ensure_ascii=False) for row in rows]
        write_atomically(paths[role], "".join(f"{line}\n" for line in lines))
    return paths


def _package_directory(name: str) -> Path | None:
    if name == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def read_module(subject: str, name: str) -> Iterator[Passage]:
    """Yield the docstring passages of a module's source, or of all sources below it, files in name order.

    Nothing for a module that this version of its package lacks.
    """
    package, *inner = name.split(".")
    directory = _package_directory(package)
    if directory is None:
        return
    path = directory.joinpath(*inner)
    for source_path in [path.with_suffix(".py")] if not path.is_dir() else sorted(path.rglob("*.py")):
        inside = source_path.relative_to(directory)
        if _SKIPPED_FOLDERS & set(inside.parts[:-1]) or inside.name.startswith("test_") or not source_path.is_file():
            continue
        source = source_path.read_text(encoding="utf-8", errors="replace")
        module = ".".join((package, *inside.with_suffix("").parts))
        for docstring in _DOCSTRING.findall(source):
            for text in passages_of(docstring):
                yield Passage(text, subject, module)


def passages_of(docstring: str) -> Iterator[str]:
    """Yield the prose of a docstring in passages of a few sentences; what is left at the end is too short."""
    sentences: list[str] = []
    for sentence in sentences_of(docstring):
        sentences.append(sentence)
        if sum(len(text.split()) for text in sentences) >= _PASSAGE_WORDS:
            yield " ".join(sentences)
            sentences.clear()


def sentences_of(docstring: str) -> Iterator[str]:
    """Yield the masked prose sentences of a docstring.

    Prose stands at the outer margin: parameter tables, code and doctests are indented or start with ``>>>``.
    """
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = paragraph.split("\n")
        if any(line[:1] in (" ", "\t", ">", ".", "|", "+", "-", "=", "*", "#", "@", ":") for line in lines):
            continue
        yield from filter(_is_prose, _SENTENCE_END.split(clean_sentence(" ".join(lines))))


def clean_sentence(text: str) -> str:
    """Return text without markup, with the names of packages (and dotted names below them) masked."""
    for pattern, plain in _PLAIN_TEXT:
        text = pattern.sub(plain, text)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    words = text.split()
    if not 4 <= len(words) <= 40 or text[-1] not in ".!?" or not text[0].isupper():
        return False
    plain = sum(bool(re.fullmatch(r"[(\"']?[A-Za-z][a-z'-]*[,.;:)\"'!?]*", word)) for word in words)
    return plain >= 0.75 * len(words) and "=" not in text and "http" not in text


def deduplicate(passages: Iterable[Passage]) -> list[Passage]:
    """Return the passages whose wording is new; identifiers and numbers do not make it new.

    A wording that several subjects share cannot be told apart and is dropped altogether.
    """
    first: dict[str, Passage] = {}
    shared: set[str] = set()
    for passage in passages:
        key = " ".join(re.findall(r"[a-z]+", _IDENTIFIER.sub("", passage.text).casefold()))
        if first.setdefault(key, passage).label != passage.label:
            shared.add(key)
    return [passage for key, passage in first.items() if key not in shared]


def split_by_module(passages: Sequence[Passage], *, sizes: Mapping[str, int], seed: int) -> dict[str, list[Passage]]:
    """Return ``train``, ``validation``, ``test`` (balanced over labels) and ``unlabeled``.

    Whole modules go to test, then to validation, until each has its share; all others are for fitting:
    train is drawn from them, and the rest of them is the pool.
    """
    labels = sorted({passage.label for passage in passages})
    sets: dict[str, list[Passage]] = {"train": [], "validation": [], "test": [], "unlabeled": []}
    for label in labels:
        chance = random.Random(f"{seed}:{label}")
        modules: dict[str, list[Passage]] = {}
        for passage in passages:
            if passage.label == label:
                modules.setdefault(passage.module, []).append(passage)
        order = sorted(modules)
        chance.shuffle(order)
        quotas = {role: size // len(labels) for role, size in sizes.items()}
        for role in ("test", "validation"):
            rows: list[Passage] = []
            while order and len(rows) < quotas[role]:
                module = modules[order.pop()]
                rows += chance.sample(module, min(len(module), _MODULE_CAP))
            sets[role] += rows[: quotas[role]]
        rest = [passage for name in order for passage in modules[name]]
        chance.shuffle(rest)
        sets["train"] += rest[: quotas["train"]]
        sets["unlabeled"] += rest[quotas["train"] :]
    for role, rows in sets.items():
        random.Random(f"{seed}:{role}").shuffle(rows)
    return sets
