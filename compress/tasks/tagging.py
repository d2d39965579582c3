"""Each word of a text has one of several classes, its tag.

A word has the logits of its first subword token (:mod:`compress.data.tokenization`), and none where it was cut off:
metrics count it as wrong, and it teaches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from compress.arrays import np
from compress.data.examples import Example, LabelIndex, row_name
from compress.data.tokenization import NO_ANSWER, TokenRows, by_sentence, word_counts
from compress.data.words import split_words
from compress.errors import CompressError, refuse
from compress.evaluation.entities import OUTSIDE
from compress.evaluation.metrics import CLASS_METRICS, Array, Metric, probabilities
from compress.tasks._base import NO_LABEL, Task

ENDING = "ForTokenClassification"  # of the names of classes that answer every token


class Tagging(Task):
    auto_class = f"AutoModel{ENDING}"
    pipeline = "token-classification"
    by_word = True
    metrics: ClassVar[tuple[Metric, ...]] = CLASS_METRICS
    native_answers = ""
    native_forms = ("native",)
    baselines = ("word-majority",)
    unfit_losses = {
        "mixed": "reads texts in two vocabularies (the loss {loss}), whose words do not begin at the same subword "
        "tokens, and {model} tags words; use a student without that loss"
    }
    no_search = (
        "tags words, and a search compares classifiers of texts; use 'compress distill' with --student bilstm-tagger "
        "or minibert-3"
    )

    def reads_config(self, config: Mapping[str, Any]) -> bool:
        return any(name.endswith(ENDING) for name in config.get("architectures") or ())

    def reads_rows(self, rows: Sequence[Example]) -> bool:
        tagged = sum(row.tags is not None for row in rows)
        refuse(
            (
                0 < tagged < len(rows),
                f"{tagged:,} of {len(rows):,} rows have a tag for each word and the others do not: give data of one "
                "kind.",
            )
        )
        return bool(tagged)

    def new_labels(self, train: Sequence[Example], validation: Sequence[Example]) -> tuple[str, ...]:
        tags = {tag for row in (*train, *validation) for tag in row.tags or ()}
        refuse((tags == {OUTSIDE}, "train has no entity in any row, but O or an empty list alone; give rows with some"))
        return super().new_labels(train, validation)

    def gold(self, rows: Sequence[Example], labels: Sequence[str], name: str) -> list[list[int]]:
        index, found = LabelIndex(labels), []
        for number, row in enumerate(rows, 1):
            if row.tags is None or len(row.tags) != len(row.words):
                raise CompressError(
                    f"{row_name(number, row, name)} has {len(row.tags or ())} tags for {len(row.words)} words, but the "
                    "model tags words: give CoNLL, or JSON Lines with the lists words and tags, or spans as entities."
                )
            found.append([index.of(row, tag, number, name) for tag in row.tags])
        return found

    def row(self, text: Example) -> Example:
        """Find the words of a text; of a pair, which no tagger reads, nothing."""
        if text.text_pair is not None:
            return text
        return replace(text, text=" ".join(split_words(text.text)), given=text.given or text.text)

    def taught(self, rows: Sequence[Any], tokens: TokenRows, cut: Sequence[bool]) -> tuple[Any, TokenRows, Any]:
        """Leave out words that were cut off or that the teacher did not answer, and rows without any other."""
        kept, kept_cut, kept_tokens = list[Any](), list[bool](), TokenRows({key: [] for key in tokens})
        for index, row in enumerate(rows):
            answered = None if row.logits is None else np.isfinite(row.logits).all(axis=1)
            starts = [s if s and (answered is None or answered[s - 1]) else 0 for s in tokens["words"][index]]
            words = [start - 1 for start in starts if start]
            if not words:
                continue
            labels = row.label if isinstance(row.label, list) else [NO_LABEL] * len(row.example.words)
            logits = None if row.logits is None else row.logits[words]
            kept.append(replace(row, logits=logits, label=[labels[word] for word in words]))
            kept_cut.append(cut[index])
            for key, values in tokens.items():
                kept_tokens[key].append((np.array(starts) > 0).astype(np.int64) if key == "words" else values[index])
        return kept, kept_tokens, kept_cut

    def pseudo_labels(self, logits: Sequence[Array]) -> list[Any]:
        return [np.where(tags == NO_ANSWER, NO_LABEL, tags).tolist() for tags in map(self.predictions, logits)]

    def predictions(self, logits: np.typing.ArrayLike, clusters: Array | None = None) -> Array:
        """A word without an answer, whose logits are not numbers, is predicted to be -1, which no tag is."""
        values = np.asarray(logits)
        return np.where(np.isnan(values).all(axis=1), NO_ANSWER, values.argmax(axis=1)).astype(np.int64)

    def probabilities(self, logits: Array) -> Array:
        """Of a word without an answer all tags are as likely."""
        return probabilities(np.where(np.isnan(logits).all(axis=1, keepdims=True), 0.0, logits))

    def described(
        self,
        rows: Sequence[Example],
        logits: Array,
        labels: Sequence[str],
        thresholds: Array | None = None,
        all_labels: bool = False,
    ) -> Iterator[dict[str, Any]]:
        for row, words in zip(rows, by_sentence(probabilities(logits), word_counts(rows)), strict=True):
            best = [None if np.isnan(word).any() else int(word.argmax()) for word in words]
            yield {
                "words": list(row.words),
                "tags": [None if tag is None else labels[tag] for tag in best],
                "probabilities": [
                    None if tag is None else round(float(word[tag]), 4) for word, tag in zip(words, best, strict=True)
                ],
            }


TASK = Tagging("tagging")
