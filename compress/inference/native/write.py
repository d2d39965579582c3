"""Write the container that the native library reads, from the graph and the tokenizer of a small student.

Its form is in ``model_file.h``. What becomes of characters is asked of the installed ``tokenizers``, code point by code
point, so that ids are that library's; weights are those of the graph, so that logits are that graph's.
"""

from __future__ import annotations

import json
import struct
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compress.data.stored_tokenizer import PlainTokenizer
from compress.data.tokenization import maximum_length, shared_encoder
from compress.data.windows import windows_of
from compress.errors import Unavailable
from compress.inference.batching import open_runtime
from compress.inference.native import NativeRunner, native_core
from compress.models.graph_files import graph_file
from compress.models.loading import read_config
from compress.models.manifest import NATIVE_NAME
from compress.models.networks import NATIVE, TYPE, part
from compress.models.networks.small_graph import LARGEST_INT16, NETWORK, POOLING, in_pairs
from compress.tasks import labels_of, of_config

FORMAT_VERSION, HEADER_BYTES, ALIGNMENT, CHECKSUM_FACTOR = 1, 64, 64, 0x9E3779B97F4A7C14
# Names and how many of each, in the order of model_file.h.
NUMBERS = {
    **dict.fromkeys(("network", "is_int8", "labels", "max_length", "truncates_left", "tokenizer_size"), 1),
    **{"unknown_id": 1, "word_characters": 1, "special": 5, "table_rows": 1, "table_columns": 1, "features": 1},
    **{"dense": 1, "pooling": 1, "longest": 1, "buckets": 1, "factors": 8, "filters": 1, "width_count": 1},
    **{"widths": 8, "is_tagger": 1, "is_siamese": 1, "separator": 1, "around": 3, "second_filters": 1},
    **{"second_width": 1, "has_codes": 1, "padding": 1, "unused": 16},
}
SECTIONS = (
    *("label_ends", "label_names", "character_pages", "characters", "character_bytes", "trie", "trie_ids"),
    *("added_ends", "added_bytes", "added_ids", "special_ids", "remap", "table", "dense_weight", "dense_scale"),
    *("dense_bias", "classifier_weight", "classifier_bias", "second_weight", "second_scale", "second_bias"),
    *("codebooks", "recurrent_weight", "recurrent_scale", "table_scale"),
)
OTHER_SECTIONS = ("second_weight", "second_scale", "second_bias", "recurrent_weight", "recurrent_scale", "table_scale")
CODES, CODE_COLUMNS, DECODED_BYTES = 256, 8, 32768
REMOVED, STARTER, WORD, ALONE, SPACE, MARKED = range(6)
_CODE_POINTS, _PAGE, _SURROGATES = 0x110000, 128, range(0xD800, 0xE000)
_OVERLAY = 1
_NOBODY, _NEAR_THE_END = 2**32 - 1, 1024
_LARGEST_SUM, _LARGEST_INT8 = 2**31 - 1, 127
TOLERANCE = 1e-3  # of logits, as a share of the largest; of int8 networks each has its own
_CHECKED_LENGTHS = (2, 3, 5, 17, 128, 400)


def write_native(directory: Path, target: Path | None = None) -> dict[str, str]:
    """Write the container of an ONNX directory beside its graph, and return what a manifest notes of it.

    Where the library does not run the network or its tokenizer, is not installed, or gives other logits than the graph,
    nothing is written.

    Args:
        target: another directory to write it to.
    """
    windows = windows_of(read_config(directory), directory)
    if windows:
        return {"native": f"not written: it reads documents by windows of {windows}, and the library does not"}
    try:
        core, (content, tolerance) = native_core(), container(directory)
        core.Model(content)
    except (Unavailable, ValueError) as error:  # the latter says which number is out of range
        return {"native": f"not written: {error}"}
    target = target or directory
    (target / NATIVE_NAME).write_bytes(content)
    difference, share = _differences(target, directory)
    said = f"largest logit difference from the graph {difference:.2g}"
    if not share <= tolerance:
        (target / NATIVE_NAME).unlink()
    return {"native": said if share <= tolerance else f"not written: {said}"}


def _differences(target: Path, directory: Path) -> np.ndarray:
    """Return the largest difference of logits between a container and the graph of a directory, over random ids.

    And as a share of the largest logit of its row, or of 1.
    """
    native, graph = NativeRunner(target), open_runtime(directory, threads=1)
    tokens = int(read_config(directory)["vocab_size"])
    end = native.core.ids("")[0][-1]  # of a text: where a siamese network divides a pair
    generator, found = np.random.default_rng(0), list[tuple[float, float]]()
    for length in _CHECKED_LENGTHS:
        ids = generator.integers(tokens, size=(1, length))
        ids[0, length // 2] = end
        expected = graph({"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        difference = float(np.abs(native.logits_of_ids(ids[0]) - expected).max())
        found.append((difference, difference / max(1.0, float(np.abs(expected).max()))))
    worst: np.ndarray = np.array(found).max(axis=0)  # of what is no number it is none
    return worst


class _Weights(dict[str, np.ndarray]):
    """The weights of a graph by name; what is not there has another name because it was quantized."""

    def __missing__(self, name: str) -> np.ndarray:
        raise Unavailable(f"its weights are quantized in a way that has no native kernels: {name} is not there")


def container(directory: Path) -> tuple[bytes, float]:
    """Return the container of an ONNX directory, and by what share of the largest its logits may be off.

    Raises:
        Unavailable: the library does not run its network or its tokenizer, and why.
    """
    graph = onnx.load(str(graph_file(directory)), load_external_data=False)
    config = json.loads(next((one.value for one in graph.metadata_props if one.key == NETWORK), "{}"))
    name = str(config.get("model_type", "")).removeprefix(TYPE)
    if name not in NATIVE:
        raise Unavailable(f"native kernels are there for {', '.join(NATIVE)}, as 'compress export' writes them")
    network = part(name, "native")
    stored = {one.name: numpy_helper.to_array(one) for one in graph.graph.initializer}
    is_int8 = f"{network.TABLE}.int8" in stored
    weights = _Weights(stored | ({network.TABLE: stored[f"{network.TABLE}.int8"]} if is_int8 else {}))
    is_siamese = config["pairs"] == "siamese"
    if "scales" in weights:  # siamese: states are those of the graph before it scales them
        scales = weights["scales"]
        factors = np.concatenate([scales, scales, scales**2, scales])
        weights["dense.weight"] = weights["dense.weight"] * factors[:, None]
    tokenizer = PlainTokenizer.read(directory, segments=False)
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    unknown = definition["model"]["vocab"].get(definition["model"]["unk_token"])
    if unknown is None:
        raise Unavailable("its tokenizer has no unknown token")
    special, of_tokenizer = special_ids(tokenizer), tokenizer_sections(definition)
    numbers, arrays = network.layout(config, weights, is_int8)
    labels = [label.encode() for label in labels_of(config)]
    classifier, bias = _classifier(graph.graph, weights)
    wide = -arrays["dense"].shape[1] % 16  # columns of zeros, up to a multiple of 16
    dense = np.pad(arrays["dense"], ((0, 0), (0, wide)))
    integers = is_int8 and numbers.get("pooling") == POOLING["max"] and not is_siamese and "second_weight" not in arrays
    table = np.ascontiguousarray(arrays["table"])
    at_once = max(numbers.get("longest", 1), *numbers.get("widths", ()), 1) * (table.shape[1] + CODE_COLUMNS)
    codes, codebooks = table_codes(table) if table.dtype == np.int8 and at_once <= DECODED_BYTES else (None, ())
    sections = {
        **_joined("label", "names", labels),
        **of_tokenizer,
        "special_ids": np.array(sum(special, []), np.uint32),
        "remap": arrays["remap"].astype(np.uint32),
        "table": table if codes is None else codes,
        "codebooks": np.array(codebooks, np.int8),
        **_dense_sections(dense, numbers, integers=integers),
        "dense_bias": np.pad(weights["dense.bias"], (0, wide)),
        "classifier_weight": np.pad(classifier.T, ((0, 0), (0, wide))).astype(np.float32),
        "classifier_bias": bias.astype(np.float32),
        **{name: arrays[name] for name in OTHER_SECTIONS if name in arrays},
    }
    numbers |= {
        "network": network.NETWORK,
        "is_int8": is_int8,
        "labels": len(labels),
        "max_length": maximum_length(tokenizer, read_config(directory)),
        "truncates_left": tokenizer.truncation_side == "left",
        "tokenizer_size": len(arrays["remap"]),
        "unknown_id": unknown,
        "word_characters": definition["model"]["max_input_chars_per_word"],
        "special": [len(ids) for ids in special],
        "table_rows": len(table),
        "table_columns": table.shape[1],
        "features": len(dense),
        "dense": dense.shape[1],
        "width_count": len(numbers.get("widths", ())),
        "has_codes": codes is not None,
        "is_tagger": of_config(config).by_word,
        "is_siamese": is_siamese,
        "separator": config["separator_token_id"],
        "around": config["special_tokens"],
    }
    return packed(numbers, sections), network.TOLERANCE if is_int8 else TOLERANCE


def packed(numbers: Mapping[str, Any], sections: Mapping[str, np.ndarray]) -> bytes:
    """Return a container of its numbers and sections (``model_file.h``); those that are not given are empty."""
    values: list[int] = []
    for name, count in NUMBERS.items():
        given = [*map(int, np.atleast_1d(numbers.get(name, 0)))]
        if len(given) > count:
            raise Unavailable(f"it has {len(given)} {name}, and native kernels are there for {count}")
        values += given + [0] * (count - len(given))
    begin = HEADER_BYTES + 4 * len(values) + 16 * len(SECTIONS)
    places, contents = list[int](), bytearray()
    for name in SECTIONS:
        contents += bytes(-(begin + len(contents)) % ALIGNMENT)
        content = np.ascontiguousarray(sections.get(name, ())).tobytes()
        places += [begin + len(contents), len(content)]
        contents += content
    contents += bytes(-(begin + len(contents)) % ALIGNMENT)
    body = struct.pack(f"<{len(values)}I{len(places)}Q", *values, *places) + contents
    sizes = (len(SECTIONS), HEADER_BYTES + len(body))
    header = struct.pack("<8sIIQQ", b"COMPRESS", FORMAT_VERSION, *sizes, checksum(np.frombuffer(body, np.uint64)))
    return header.ljust(HEADER_BYTES, b"\0") + body


def table_codes(table: np.ndarray) -> tuple[np.ndarray | None, Sequence[np.ndarray]]:
    """Return codes ``[R, G]`` uint8 and codebooks ``[G, 256, 8]`` of a table int8 ``[R, columns]``, without loss.

    There are none where eight columns have more than 256 different values, as in most tables of as many rows.
    """
    padded = np.pad(table, ((0, 0), (0, -table.shape[1] % CODE_COLUMNS)))
    words = padded.view(f"<i{CODE_COLUMNS}")
    codes, codebooks = np.empty(words.shape, np.uint8), list[np.ndarray]()
    for number, column in enumerate(words.T if len(table) > CODES else ()):
        values, codes[:, number] = np.unique(column, return_inverse=True)
        if len(values) > CODES:
            return None, ()
        codebooks.append(np.pad(values, (0, CODES - len(values))).view(np.int8).reshape(CODES, CODE_COLUMNS))
    return (codes, codebooks) if codebooks else (None, ())


def checksum(words: np.ndarray) -> int:
    """Return Fletcher's two sums over words of 64 bits in one number, modulo 2**64."""
    return (int(words.sum()) + CHECKSUM_FACTOR * int(np.cumsum(words).sum())) % 2**64


def special_ids(tokenizer: PlainTokenizer) -> list[list[int]]:
    """Return the special tokens before and after a text, and before, between and after the texts of a pair.

    Raises:
        Unavailable: texts of a pair are read in another order.
    """
    found: list[list[int]] = []
    for texts, layout in enumerate(shared_encoder(tokenizer).layouts):
        if [one.text for one in layout if one.text is not None] != [*range(texts + 1)]:
            raise Unavailable("its tokenizer reads the texts of a pair in another order")
        found.append([])
        for one in layout:
            if one.text is None:
                found[-1] += np.frombuffer(one.special, np.int64).tolist()
            else:
                found.append([])
    return found


def tokenizer_sections(definition: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tables of BERT's tokenizer, from the JSON of ``tokenizers``.

    Raises:
        Unavailable: it is another tokenizer.
    """
    kinds = [(definition[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        raise Unavailable("its tokenizer is not BERT's")
    added = definition["added_tokens"]
    if any(token[key] for token in added for key in ("single_word", "lstrip", "rstrip", "normalized")):
        raise Unavailable("its tokenizer finds added tokens in another way than BERT's")
    settings = {key: value for key, value in definition["normalizer"].items() if key != "type"}
    return {
        **_characters(**settings),
        **_trie(definition["model"]),
        **_joined("added", "bytes", [token["content"].encode() for token in added]),
        "added_ids": np.array([token["id"] for token in added], np.uint32),
    }


@cache
def _characters(**settings: Any) -> dict[str, np.ndarray]:
    """Return what every code point becomes with a ``BertNormalizer`` of these settings."""
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    normalize, split = BertNormalizer(**settings).normalize_str, BertPreTokenizer().pre_tokenize_str
    strips = settings["lowercase"] if settings["strip_accents"] is None else settings["strip_accents"]
    pool, places = bytearray(), dict[bytes, int]()
    entries = np.full(_CODE_POINTS, WORD, np.uint32)
    entries[[*_SURROGATES]] = REMOVED
    for start in range(0, _CODE_POINTS, _PAGE):
        page = [] if start in _SURROGATES else [*map(chr, range(start, start + _PAGE))]
        text = "".join(page)
        if normalize(text) == text and len(split(text)) < 2 and not any(map(unicodedata.combining, page)):
            continue  # most pages are parts of words, as they are
        for code, character in enumerate(page, start):
            kind, content = _entry(character, normalize(character), split, strips=strips)
            at = int.from_bytes(content[:3], "little")
            if len(content) > 3 or kind == MARKED:
                at = places.setdefault(content, len(pool))
                pool += content if at == len(pool) else b""
            entries[code] = kind | len(content) << 3 | at << 8
    pages, page_of = np.unique(entries.reshape(-1, _PAGE), axis=0, return_inverse=True)
    return {
        "character_pages": page_of.ravel().astype(np.uint16),
        "characters": pages,
        "character_bytes": np.frombuffer(bytes(pool), np.uint8),
    }


def _entry(character: str, text: str, split: Callable[[str], list[Any]], *, strips: bool) -> tuple[int, bytes]:
    """Return what a character is that becomes a text, and the bytes of that; none where it stays as it is."""
    if not text:
        is_mark = unicodedata.category(character) == "Mn"  # may be short for several
        orders = all(map(_combining_class, unicodedata.normalize("NFD", character)))
        return (STARTER if strips and is_mark and not orders else REMOVED), b""
    pieces = split(text)
    if not pieces:
        return SPACE, b""
    word = text.strip(" ")
    if len(pieces) > 1 or pieces[0][0] != word:
        raise Unavailable(f"its tokenizer makes several words of {character!r}")
    if strips and any(map(_combining_class, word)):
        return MARKED, b"".join(bytes((_combining_class(one), len(one.encode()))) + one.encode() for one in word)
    is_alone = word != text or len(split(f"a{word}")) > 1  # Chinese characters get spaces around them
    return (ALONE if is_alone else WORD), b"" if word == character else word.encode()


def _combining_class(character: str) -> int:
    """Return the canonical combining class of a character; 0 where ``tokenizers`` knows it as none, being older."""
    from tokenizers.normalizers import NFD

    found = unicodedata.combining(character)
    before, after = ("\u0334", character) if found > _OVERLAY else (character, "\u0345")  # of class 1, of 240
    return found if found and NFD().normalize_str(after + before) == before + after else 0


def _trie(model: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the vocabulary as a double array (Aoe 1989): one root for words, one for what continues them."""
    prefix = model["continuing_subword_prefix"].encode()
    roots: list[dict[int, Any]] = [{}, {}]
    for token, id in model["vocab"].items():
        text = token.encode()
        for root, tail in ((0, text), (1, text.removeprefix(prefix) if text.startswith(prefix) else None)):
            if tail is not None:
                node = roots[root]
                for byte in tail:
                    node = node.setdefault(byte, {})
                node[-1] = id
    used = bytearray(b"\1\1" + bytes(2**20))
    bases, parents, ids = dict[int, int](), dict[int, int](), dict[int, int]()
    waiting, last = [*enumerate(roots)], 1
    while waiting:
        cell, node = waiting.pop()
        if -1 in node:
            ids[cell] = node.pop(-1)
        if not node:
            continue
        least = min(node)
        # A node of many children goes near the end, where there is room; one of a single child fills a gap.
        first = used.index(0, max(last - _NEAR_THE_END if len(node) > 1 else 0, least))
        while any([used[first - least + byte] for byte in node]):
            first = used.index(0, first + 1)
        bases[cell] = first - least
        for byte, child in node.items():
            place = first - least + byte
            used[place], parents[place] = 1, cell
            waiting.append((place, child))
            last = max(last, place)
        used += bytes(2**20 if last + 2**10 > len(used) else 0)
    cells = np.full((last + 257, 2), (0, _NOBODY), np.uint32)
    cells[[*bases], 0], cells[[*parents], 1] = [*bases.values()], [*parents.values()]
    token_ids = np.full(len(cells), -1, np.int32)
    token_ids[[*ids]] = [*ids.values()]
    return {"trie": cells, "trie_ids": token_ids}


def _joined(name: str, what: str, texts: Sequence[bytes]) -> dict[str, np.ndarray]:
    ends = np.cumsum([len(text) for text in texts], dtype=np.uint32)
    return {f"{name}_ends": ends, f"{name}_{what}": np.frombuffer(b"".join(texts), np.uint8)}


def _classifier(graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return weights ``[D, C]`` and bias ``[C]`` of the last layer with the calibration of its logits, if any."""
    weight, bias = weights["classifier.weight"], weights["classifier.bias"]
    last = max(number for number, one in enumerate(graph.node) if "classifier.bias" in one.input)
    for node in graph.node[last + 1 :]:
        values = weights[node.input[1]]
        weight, bias = (weight * values, bias * values) if node.op_type == "Mul" else (weight, bias + values)
    return weight, bias


def _dense_sections(weight: np.ndarray, numbers: Mapping[str, Any], *, integers: bool) -> dict[str, np.ndarray]:
    """Return the weights ``[S, D]`` of a layer: as int16 where it reads maxima of sums of int8, else as float32.

    Each output has a scale, as large as it may be: no sum leaves int32, and no weight int16.
    """
    if not integers:
        return {"dense_weight": weight.astype(np.float32)}
    most = _LARGEST_INT8 * max(numbers["widths"])
    sums, largest = (np.maximum(values, 1e-30) for values in (np.abs(weight).sum(axis=0), np.abs(weight).max(axis=0)))
    factors = np.minimum((_LARGEST_SUM / most - len(weight)) / sums, LARGEST_INT16 / largest)
    return {"dense_weight": in_pairs(np.rint(weight * factors)), "dense_scale": (1 / factors).astype(np.float32)}
