"""compress predict, which the light installation has: its options are declared here, and need no pydantic."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from compress.cli import Command, values
from compress.cli.printing import say, set_up_messages
from compress.data.formats.text_files import FORMATS
from compress.errors import CompressError, ExitCode, refuse
from compress.files import text_limit_bytes, too_long
from compress.inference.predict import predictions
from compress.models.compute import MOST_THREADS, Compute
from compress.progress import logger

if TYPE_CHECKING:
    from compress.inference.audit import AgreementAudit
    from compress.models.model_dir import Prediction

BLOCK_BYTES = 2**16
_COMMA = "\x1f"  # in JSON never a part of a text, where it would be escaped


@click.command(cls=Command)
@click.argument("texts", nargs=-1, metavar="[TEXT]... | -")
@click.option("--model", required=True, metavar="DIR", help="Any model directory, torch or ONNX.")
@click.option("--data", metavar="FILE", help="Texts to classify, instead of TEXT.")
@click.option("--probabilities", is_flag=True, help="Print the probabilities of all labels of a classifier.")
@click.option("--label-column", metavar="NAME", help="Column of the label or score.")
@click.option("--text-column", metavar="NAME", help="Column of the text; from 0 without a header; or data.text.")
@click.option("--text-pair-column", metavar="NAME", help="Column of the second text of a pair.")
@click.option(
    "--format", type=click.Choice([*FORMATS]), metavar="FORMAT", help="csv, tsv, tsv-unquoted, jsonl, text, ..."
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to compute; auto is cuda where there is one.",
)
@click.option(
    "--threads",
    type=values.Whole(0, MOST_THREADS),
    default=0,
    show_default=True,
    help="CPU threads; 0 is one for each core that no other program keeps busy.",
)
@click.option(
    "--windows", metavar="SIZE,STRIDE[,POOLING]", help="Read long documents by windows, such as 256,128,mean."
)
@click.option(
    "--audit",
    type=values.Read(values.percent),
    metavar="SHARE",
    help="Ask the last member of a cascade made with --agree about so many of the texts that another answers, such as "
    "2%, and say at the end whether the promise is broken: exit code 1.",
)
@click.option("--audit-file", metavar="FILE", help="Go on with the audit in this JSON file, and keep it there.")
@click.option("-v", "--verbose", is_flag=True, help="Print more.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def command(
    texts: tuple[str, ...],
    model: str,
    data: str | None,
    probabilities: bool,
    audit: float | None,
    audit_file: str | None,
    verbose: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Classify texts, one JSON line each; - reads them from standard input, one a line.

    A line holds the label or labels with probabilities, or the score of a regression. Of a model that was calibrated
    with --accept-at it also says whether the prediction is accepted. Of a tagger of words it holds the
    words, their tags and probabilities; of one of entities a list of these, each with its label, text, place in
    characters and probability. A text that is longer than the model reads is answered by a part of it, and its line
    says how many tokens were not read: "truncated": true, "unread_tokens": 38. There is a line for every row, in
    order: an empty text is a text.
    """
    set_up_messages(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    broken = next((one for one in texts if one != one.encode(errors="ignore").decode()), None)
    refuse(
        (len(texts) > 1 and "-" in texts, "- stands for all lines of standard input; give it alone"),
        (bool(audit_file and not audit), "--audit-file changes nothing without --audit SHARE; add it, such as 2%"),
        (bool(audit and given["windows"]), "a cascade has windows of its own; leave --windows out"),
        (broken is not None, f"the text {broken!r} is not UTF-8; convert it, or give it in a file with --data"),
    )
    chunks: Iterable[list[Any]] | None = _standard_input() if texts == ("-",) else [[*texts]] if texts else None
    asked = _audit(model, audit, audit_file, given) if audit else None
    answers = predictions(model, chunks, data, probabilities=probabilities, audit=asked, **given)
    try:
        _print(answers)
    finally:
        if asked:
            asked.save()
    if asked:
        logger.log(logging.INFO if asked.holds else logging.WARNING, "%s", asked.sentence)
        click.get_current_context().exit(ExitCode.DONE if asked.holds else ExitCode.BROKEN)


def _audit(model: str, share: float, file: str | None, given: Mapping[str, Any]) -> AgreementAudit:
    from compress.inference.audit import AgreementAudit

    return AgreementAudit(model, share, file=file, compute=Compute(given["device"], given["threads"]))


def _print(answers: Iterable[list[Prediction]]) -> None:
    for found in answers:
        written = json.dumps(found, ensure_ascii=False, separators=(_COMMA, ": "))[1:-1]
        if "[{" in written:  # objects in a line, or a text that reads like them
            say("\n".join(json.dumps(one, ensure_ascii=False) for one in found))
        else:
            say(written.replace(f"}}{_COMMA}{{", "}\n{").replace(_COMMA, ", "))
        sys.stdout.flush()


def _standard_input() -> Iterator[list[str]]:
    """Yield the lines that have come so far, as soon as there is one."""
    rest, number, longest = b"", 0, text_limit_bytes()
    stream: Any = sys.stdin.buffer
    while block := stream.read1(BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > longest:
            raise too_long(f"line {number + len(lines) + 1:,} of standard input", longest)
        if lines:
            yield _decoded(lines, number)
            number += len(lines)
    if rest:
        yield _decoded([rest], number)


def _decoded(lines: list[bytes], before: int) -> list[str]:
    if not before:
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    found = list[str]()
    try:
        for line in lines:
            found.append(line.decode().rstrip("\r"))
    except UnicodeDecodeError:
        raise CompressError(f"line {before + len(found) + 1:,} of standard input is not UTF-8; convert it") from None
    return found
