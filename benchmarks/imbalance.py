"""What helps a class that is rare: spam among messages, 13% of them and 1%.

    python benchmarks/imbalance.py --data-root DIR --work DIR -o RESULTS.jsonl [--only 13% 1%] [--model ngram ...]
        [--way plain ...] [--threads 1]

Messages of the SMS Spam Collection (Almeida et al. 2011), each text once, in five folds. A fold is the test of models
that the others train; 1,500 rows of those choose checkpoints and thresholds. For 1% spam is left out of train and
validation. The test keeps all of its spam, so that recall is of hundreds of rows, and spam counts so much less that it
is 1% of the rows. Figures are of the rows of all folds together, each judged once; a fold's five models differ.

``ngram`` and ``cnn`` learn from gold labels alone; ``teacher`` is a fine-tuned encoder, and ``distilled-ngram`` and
``distilled-cnn`` learn its logits on the training texts. Ways: plain; the checkpoint by macro-F1; class weights and
logit adjustment (of distilled students those of their teacher); and the plain model with the decision moved to where F1
of spam is highest, or 75% of it is found with 95% certainty, on the validation rows. What was made lies in the working
folder, and the same command goes on; a line takes the place of the one of the same spam, model and way.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from script import provenance, read_options, replace_line

from compress.data import Example, ExampleSource, row_key
from compress.errors import CompressError
from compress.evaluation.metrics import percentiles
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.progress import for_terminal
from compress.recipes import load_recipe
from compress.requests.compression import calibrate
from compress.requests.training import distill, finetune

FOLDS, VALIDATION_ROWS = 5, 1500
SHARES = {"13%": None, "1%": 0.01}
STEPS = 400  # of a student; those of recipes are for larger sets
TEACHER = {"epochs": 2.0, "min_steps": 130, "batch_size": 32, "evaluations": 5}
TRAINED: dict[str, dict[str, Any]] = {
    "plain": {},
    "by macro-F1": {"metric": "macro-f1"},
    "class weights": {"class_weights": "balanced"},
    "logit adjustment": {"logit_adjustment": 1.0},
}
MOVED = {"threshold of F1": "f1:spam", "threshold of recall": "recall=0.75:spam"}
MODELS = ["ngram", "cnn", "teacher", "distilled-ngram", "distilled-cnn"]
RESAMPLES = 2000
Rows = dict[str, list[Example]]


def main() -> None:
    options = read_options(
        __doc__,
        data_root=Path,
        work=Path,
        only=([*SHARES],),
        model=(MODELS,),
        way=([*TRAINED, *MOVED],),
        threads=1,
    )
    options.work.mkdir(parents=True, exist_ok=True)
    for model in options.model:
        for share in options.only:
            compare(share, model, options)


def compare(share: str, model: str, options: argparse.Namespace) -> None:
    """Make the models of all folds in every way, and write a line of each way."""
    rows = [split(options.data_root / "sms_spam" / "SMSSpamCollection", SHARES[share], fold) for fold in range(FOLDS)]
    gold = np.array([row.label == "spam" for fold in rows for row in fold["test"]])
    weights = np.ones(len(gold))
    if wanted := SHARES[share]:
        weights[gold] = wanted / (1 - wanted) * (~gold).sum() / gold.sum()
    answers: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for way in dict.fromkeys(["plain", *options.way]):
        try:
            made = [make(share, model, way, fold, rows[fold], options) for fold in range(FOLDS)]
        except CompressError as error:
            print(f"{share} {model}, {way}: {error}")
            if way == "plain":
                return
            continue
        chances = np.concatenate([spam_chances(*one, options) for one in zip(made, rows, strict=True)])
        answers[way] = chances, chances > 0.5
        line = {
            "spam": share,
            "model": model,
            "way": way,
            "folds": FOLDS,
            **{f"{role}_rows": [len(fold[role]) for fold in rows] for role in ("train", "validation")},
            **{f"{role}_spam": [spam_rows(fold[role]) for fold in rows] for role in ("train", "validation")},
            "rows": len(gold),
            "rows_spam": int(gold.sum()),
            **judged(answers[way], answers["plain"], gold, weights),
            **provenance(),
        }
        replace_line(options.output, line, "spam", "model", "way")


def spam_rows(rows: list[Example]) -> int:
    return sum(row.label == "spam" for row in rows)


def spam_chances(model: Model, rows: Rows, options: argparse.Namespace) -> np.ndarray:
    opened = load(model, compute=Compute("cpu", options.threads))
    return opened.predict_proba([row.text for row in rows["test"]])[:, 1]


def split(path: Path, share: float | None, fold: int) -> Rows:
    """Return train, validation and test of messages that are all different, with so much spam in the first two."""
    parted = (line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines())
    every = {row_key(row): row for row in (Example(text, None, label) for label, text in parted)}
    rows = [*every.values()]
    random.Random(0).shuffle(rows)
    others = [row for number, row in enumerate(rows) if number % FOLDS != fold]
    parts = {"validation": others[:VALIDATION_ROWS], "train": others[VALIDATION_ROWS:]}
    if share:
        for role, own in parts.items():
            ham, spam = ([row for row in own if (row.label == "spam") == which] for which in (False, True))
            kept = ham + spam[: round(share / (1 - share) * len(ham))]
            random.Random(fold).shuffle(kept)
            parts[role] = kept
    return {**parts, "test": rows[fold::FOLDS]}


def make(share: str, model: str, way: str, fold: int, rows: Rows, options: argparse.Namespace) -> Model:
    """Return the model of a way, made or as it was made before."""
    folder = options.work / f"{share.rstrip('%')}-{model}-{way.replace(' ', '-')}-{fold}"
    if folder.is_dir():
        return Model.open(folder)
    if way in MOVED:
        plain = make(share, model, "plain", fold, rows, options)
        return calibrate(plain, folder, validation=rows["validation"], decide_by=MOVED[way], threads=options.threads)
    data: dict[str, Any] = {"train": rows["train"], "validation": rows["validation"]}
    shared: dict[str, Any] = {"device": "cpu", "threads": options.threads, "progress": for_terminal()}
    if model == "teacher":
        recipe = load_recipe("teachers", "minilm-l6")
        recipe = replace(recipe, training=replace(recipe.training, **TEACHER))
        return finetune(recipe, folder, **data, **shared, **TRAINED[way])
    recipe = load_recipe("students", model.removeprefix("distilled-"))
    recipe = replace(recipe, training=replace(recipe.training, max_steps=STEPS))
    text = ExampleSource([Example(row.text) for row in rows["train"]], "the texts of train")
    if model in {"ngram", "cnn"}:
        asked = {**data, **shared, **TRAINED[way], "control": True}
        return distill(tokenizer(options), recipe, folder, unlabeled=text, **asked)
    teacher = make(share, "teacher", way, fold, rows, options)
    chosen = {"metric": "macro-f1"} if way == "by macro-F1" else {}
    return distill(teacher, recipe, folder, unlabeled=text, validation=rows["validation"], **shared, **chosen)


def tokenizer(options: argparse.Namespace) -> Path:
    """Return a model whose tokenizer and embeddings small students start from: the encoder with a head, as it comes."""
    folder = options.work / "start"
    if not folder.is_dir():
        recipe = load_recipe("teachers", "minilm-l6")
        recipe = replace(recipe, training=replace(recipe.training, epochs=1.0, min_steps=0, max_steps=1, batch_size=8))
        words = [Example(f"{word} {number}", None, word) for word in ("ham", "spam") for number in range(20)]
        held = [Example(f"{word} again {number}", None, word) for word in ("ham", "spam") for number in range(5)]
        finetune(recipe, folder, train=words, validation=held, device="cpu", threads=options.threads)
    return folder


def judged(
    own: tuple[np.ndarray, np.ndarray], plain: tuple[np.ndarray, np.ndarray], gold: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """Return figures of a model and their differences to the plain one, with 95% intervals over test rows."""
    generator = np.random.default_rng(0)
    figures, others = (measured(*one, gold, weights) for one in (own, plain))
    drawn: dict[str, list[tuple[float, float]]] = {name: [] for name in figures}
    for _ in range(RESAMPLES):
        some = generator.integers(0, len(gold), len(gold))
        mine, theirs = (measured(one[0][some], one[1][some], gold[some], weights[some]) for one in (own, plain))
        for name, values in drawn.items():
            values.append((mine[name], theirs[name]))
    found: dict[str, Any] = {}
    for name, values in drawn.items():
        pairs = np.array(values)
        bounds, changes = percentiles(pairs[:, 0]), percentiles(pairs[:, 0] - pairs[:, 1])
        found[name] = {"value": figures[name], "low": bounds[0], "high": bounds[1]}
        found[name]["to_plain"] = [figures[name] - others[name], *changes]
    return found


def measured(chances: np.ndarray, given: np.ndarray, gold: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Return accuracy, recall, precision and F1 of spam, macro-F1 and average precision of weighted rows."""
    hits, spam, said = (float(weights[one].sum()) for one in (gold & given, gold, given))
    total = float(weights.sum())
    ham_hits = total - spam - said + hits
    f1, ham_f1 = 2 * hits / max(spam + said, 1e-9), 2 * ham_hits / max(2 * total - spam - said, 1e-9)
    order = np.argsort(-chances, kind="stable")
    sure = weights[order] * gold[order]
    precision = np.cumsum(sure) / np.cumsum(weights[order])
    return {
        "accuracy": (hits + ham_hits) / total,
        "recall": hits / max(spam, 1e-9),
        "precision": hits / said if said else 0.0,
        "f1": f1,
        "macro_f1": (f1 + ham_f1) / 2,
        "average_precision": float((sure * precision).sum() / max(spam, 1e-9)),
    }


if __name__ == "__main__":
    main()
