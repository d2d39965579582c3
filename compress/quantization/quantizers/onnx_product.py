"""Dynamic int8 with tables of codes: eight columns of a small network's table share a byte, for an eighth of its size.

Product quantization (Jégou et al. 2011, doi:10.1109/TPAMI.2010.57): the values of each eight columns become those of
256 centres, found by k-means, in which a token counts by the square root of how often it occurs. All else is as in
:mod:`compress.quantization.quantizers.onnx_dynamic`. The graph keeps its size and its speed; the container of the
native library stores the codes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compress import plugins
from compress.errors import refuse
from compress.exporting.onnx_graph import write_graph
from compress.models.networks import NATIVE, TYPE, part
from compress.models.networks.small_graph import NETWORK

WRITES = "onnx"
CENTRES, COLUMNS = 256, 8
ROUNDS = 12
ROWS_AT_ONCE = 2**16  # whose distances to all centres are in memory


def quantize(source: Path, target: Path, *, counts: Sequence[int], reduce_range: bool = False) -> None:
    """Read an fp32 graph of a small network and write its int8 version.

    Args:
        source, target: ``model.onnx`` files.
        counts: how often each token occurs in text like that which the model will read.
        reduce_range: as of ``onnx-dynamic``.

    Raises:
        CompressError: the graph is of another network.
    """
    plugins.find("quantizers", "onnx-dynamic").function(source, target, reduce_range=reduce_range)
    model = onnx.load(str(target))
    config: dict[str, Any] = json.loads(next((one.value for one in model.metadata_props if one.key == NETWORK), "{}"))
    name = str(config.get("model_type", "")).removeprefix(TYPE)
    coded = [one for one in NATIVE if part(one, "native").HAS_CODES]
    refuse((name not in coded, f"only the tables of {', '.join(coded)} have codes; use --method onnx-dynamic"))
    network = part(name, "native")
    stored = {one.name: one for one in model.graph.initializer}
    table = numpy_helper.to_array(stored[f"{network.TABLE}.int8"])
    weights = {key: numpy_helper.to_array(one) for key, one in stored.items()}
    for key in [key for key in weights if key.endswith(".int8")]:
        weights[key.removesuffix(".int8")] = weights[key]
    # Where the container has each number; 0 is a column that it adds.
    weights[network.TABLE] = 1 + np.arange(table.size).reshape(table.shape)
    arrays = network.layout(config, weights, False)[1]
    places, rows = arrays["table"], arrays["remap"].astype(int)
    shares = np.full(len(places), 0.5)
    np.add.at(shares, rows[: len(counts)], np.array(counts, float)[: len(rows)])
    values = np.concatenate([[0], table.ravel()]).astype(np.float32)[places]
    rounded = np.concatenate([[0], table.ravel()])
    for begin in range(0, values.shape[1], COLUMNS):
        some = slice(begin, begin + COLUMNS)
        rounded[places[:, some]] = centres(values[:, some], np.sqrt(shares))
    stored[f"{network.TABLE}.int8"].CopyFrom(
        numpy_helper.from_array(rounded[1:].reshape(table.shape).astype(np.int8), f"{network.TABLE}.int8")
    )
    write_graph(model, target)


def centres(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return for each row of values ``[R, columns]`` the nearest of 256 whole centres, by weighted k-means.

    One is zero, because a row of zeros stands for what is beyond a text.
    """
    drawn = np.random.default_rng(0).choice(
        len(values), min(CENTRES - 1, len(values)), replace=False, p=weights / weights.sum()
    )
    found, near = np.pad(values[drawn], ((1, 0), (0, 0))), np.zeros(len(values), int)
    parts = 1 + len(values) // ROWS_AT_ONCE
    for _ in range(ROUNDS):
        size = np.square(found).sum(axis=1)
        near = np.concatenate([(size - 2 * some @ found.T).argmin(axis=1) for some in np.array_split(values, parts)])
        mass = np.bincount(near, weights, len(found))
        for column in range(values.shape[1]):
            sums = np.bincount(near, weights * values[:, column], len(found))
            found[1:, column] = np.where(mass > 0, sums / np.maximum(mass, 1e-9), found[:, column])[1:]
    return np.asarray(np.rint(found)[near])
