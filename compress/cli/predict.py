"""compress predict"""

import json
import sys
from collections.abc import Iterator
from itertools import count

import click

from compress.cli import Command, options
from compress.cli.printing import say
from compress.data import Example, TextSource
from compress.data.examples import batched
from compress.data.truncation import READS_NO_MORE, Truncation
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.progress import Progress, logger

CHUNK_ROWS = 2048


@click.command(cls=Command)
@click.option("--model", required=True, metavar="DIR", help="Any model directory, torch or ONNX.")
@click.option("--data", metavar="FILE", help="Texts to classify, instead of TEXT.")
@click.option("--probabilities", is_flag=True, help="Print the probabilities of all labels of a classifier.")
@click.argument("texts", nargs=-1, metavar="[TEXT]... | -")
@options.pool_columns
@options.placing
@options.verbosity
def command(
    model: str,
    data: str | None,
    probabilities: bool,
    texts: tuple[str, ...],
    columns: options.Names,
    compute: Compute,
    progress: Progress,
) -> None:
    """Classify texts, one JSON line each; - reads them from standard input, one a line.

    A line holds the label and its probability, or the score of a regression. Of a model that was calibrated with
    --accept-at it also says whether the prediction is accepted. A tagger of words reads a text as words
    with spaces between them, and a line holds the words, their tags and probabilities. A text that is longer than the
    model reads is answered by a part of it, and its line says so: "truncated": true. There is a line for every row, in
    order: an empty text is a text.
    """
    if bool(data) == bool(texts):
        raise CompressError("predict needs either TEXT arguments or --data FILE")
    options.check_idle("--data FILE", data, *options.COLUMNS)
    if broken := [text for text in texts if not _is_utf8(text)]:
        raise CompressError(f"the text {broken[0]!r} is not UTF-8; convert it, or give it in a file with --data")
    if "-" in texts and len(texts) > 1:
        raise CompressError("- stands for all lines of standard input; give it alone")
    from compress.inference.predict import load

    given = _lines_of_standard_input() if texts == ("-",) else texts
    rows = options.open_pool([data], columns, keep_empty=True) if data else map(Example, given)
    classifier = load(model, compute=compute)
    truncation = Truncation()
    for chunk in batched(rows, CHUNK_ROWS):
        found = classifier.predict(chunk, probabilities=probabilities)
        cut = sum("truncated" in prediction for prediction in found)
        truncation.add_counts(classifier.max_length, len(chunk), cut)
        for example, prediction in zip(chunk, found, strict=True):
            pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
            say(json.dumps({**prediction, "text": example.text, **pair}, ensure_ascii=False))
    if said := truncation.sentence(READS_NO_MORE):
        logger.info("%s", said)
    if isinstance(rows, TextSource):
        logger.info("read: %s", rows.describe())  # with the rows that were skipped, which is known by now


def _lines_of_standard_input() -> Iterator[str]:
    for number, line in zip(count(1), sys.stdin.buffer, strict=False):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise CompressError(f"line {number:,} of standard input is not UTF-8; convert it") from None


def _is_utf8(text: str) -> bool:
    return text == text.encode(errors="ignore").decode()
