"""compress predict"""

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import click

from compress.cli import options
from compress.errors import CompressError

CHUNK_ROWS = 2048


@click.command()
@click.option("--model", required=True, metavar="DIR", help="Any model directory, torch or ONNX.")
@click.option("--data", metavar="FILE", help="Texts to classify, instead of TEXT.")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@options.columns
@options.device
@options.threads
@options.verbosity
def command(
    model: str,
    data: str | None,
    texts: tuple[str, ...],
    device: str,
    threads: int,
    quiet: bool,
    progress: Any,
    **chosen: Any,
) -> None:
    """Classify texts, one JSON line each.

    A line holds the label and its probability, or the score of a regression. A tagger of words reads a text as words
    with spaces between them, and a line holds the words, their tags and probabilities.
    """
    if bool(data) == bool(texts):
        raise CompressError("predict needs either TEXT arguments or --data FILE")
    from compress.data import Example
    from compress.inference.compute import Compute
    from compress.inference.predict import predictor

    rows: Iterable[Any] = [Example(text) for text in texts]
    if data:
        pool = options.open_pool([data], chosen)
        assert pool is not None
        rows = pool
    predict = predictor(model, compute=Compute(device, threads))
    for chunk in _chunks(iter(rows)):
        for example, prediction in zip(chunk, predict(chunk), strict=True):
            pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
            click.echo(json.dumps({**prediction, "text": example.text, **pair}, ensure_ascii=False))


def _chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
        yield chunk
