"""Real data and the real teacher through the same commands. Skipped, saying why, where they are absent."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from compress import plugins
from compress.cli import execute
from compress.data import Example, open_source, read_examples, row_key
from compress.evaluation.metrics import probabilities as softmax
from compress.inference import native
from compress.inference.batching import logits_of, open_runtime
from compress.inference.compute import Compute
from compress.inference.native import NativeRunner
from compress.inference.predict import load as load_classifier
from compress.inference.runners import LoadedModel
from compress.inference.torch_run import TorchRun
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import Model
from compress.models.saving import save_model
from compress.recipes import Choice, Phase, StudentRecipe, Training
from compress.requests.compression import export, prune, quantize
from compress.studies.data import find_set
from compress.surgery.remove_vocabulary import cut_vocabulary, fallbacks
from tests.support.tiny import classifier, cnn, load, tokenizer, write
from tests.support.training_data import distilled, finetuned

pytestmark = pytest.mark.shared
TRAINING = Training(
    epochs=1.0, max_steps=12, batch_size=16, learning_rate=1e-3, evaluations=2, precision="float32", max_length=48
)
STUDENT = StudentRecipe(
    description="tiny",
    architecture=Choice("bilstm", options={"embedding_size": 16, "hidden_size": 8, "dense_size": 8}),
    phases=(Phase((Choice("logit-mse"),)),),
    training=TRAINING,
)
# Set -> training split, test split, task, classes, pairs.
SETS: dict[str, tuple[str, str, str, int, bool]] = {
    "banking77": ("train", "test", "classification", 77, False),
    "glue/MRPC": ("train", "dev", "classification", 2, True),
    "glue/STS-B": ("train", "dev", "regression", 1, True),
}


def read(root: Path, name: str, split: str) -> list[Example]:
    role = "train" if split == "train" else "validation"
    return read_examples(open_source(find_set(root, name, split), role=role, labelled=True))


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A tiny random encoder; it reads letters, so that no word is unknown to it."""
    body: Any = classifier("bert").bert
    body.save_pretrained(tmp_path / "encoder")
    tokens: PreTrainedTokenizerFast = tokenizer()
    tokens.save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.mark.parametrize("name", SETS)
def test_a_set_goes_through_every_stage(name: str, shared_data: Path, encoder: Path, tmp_path: Path) -> None:
    train_split, test_split, task, classes, pairs = SETS[name]
    every = read(shared_data, name, train_split)
    held = read(shared_data, name, test_split)
    if classes == 77:  # two rows of each class, so that all are there
        by_class = itertools.groupby(sorted(every, key=lambda e: e.label or ""), key=lambda e: e.label)
        train = [row for _, group in by_class for row in itertools.islice(group, 2)]
        held = sorted(held, key=row_key)[:80]
    else:
        train, held = every[:160], held[:80]
    known = {row.label for row in train}
    validation = [row for row in held if task == "regression" or row.label in known]
    options: dict[str, Any] = {"overlap": "drop", "device": "cpu", "threads": 1}
    teacher = finetuned(encoder, tmp_path / "teacher", train=train, validation=validation, training=TRAINING, **options)
    assert teacher.task == task and len(teacher.labels) == classes
    assert (train[0].text_pair is not None) == pairs

    header = "sentence1\tsentence2\n" if pairs else "text\n"
    pool = tmp_path / "pool.tsv"
    lines = ["\t".join([row.text, *([row.text_pair] if row.text_pair else [])]) for row in every[200:300]]
    pool.write_text(header + "".join(line.replace('"', "'") + "\n" for line in lines), encoding="utf-8")
    command = ["label", "--teacher", str(teacher.path), "--unlabeled", str(pool), "-o", str(tmp_path / "labels"), "-q"]
    assert execute(command) == 0
    labels = LabelDir.open(tmp_path / "labels")
    assert {logits.shape for _, logits in labels} == {(classes,)} and labels.rows == 100

    student = distilled(
        teacher, STUDENT, tmp_path / "student", labels=[labels], train=train, validation=validation, **options
    )
    small = prune(
        teacher,
        tmp_path / "small",
        train=train,
        validation=validation,
        overlap="drop",
        device="cpu",
        threads=1,
        heads="50%",
        examples=64,
        measure=classes == 77,
    )
    assert sum(small.manifest.architecture["heads_per_layer"]) == 4
    int8 = quantize(small, tmp_path / "int8", threads=1)
    for made in (student, small, int8):
        assert made.task == task and made.labels == teacher.labels
        answers = load_classifier(made, compute=Compute(device="cpu", threads=1)).predict(validation[:5])
        expected = {"score"} if task == "regression" else {"label", "probability"}
        assert all(set(answer) - {"truncated", "unread_tokens"} == expected for answer in answers)


def test_runtimes_agree_on_the_tokens_of_real_reviews_that_were_not_read(shared_data: Path, tmp_path: Path) -> None:
    """Of whole reviews, each also ten times over, in torch, in ONNX Runtime, and in C."""
    with gzip.open(shared_data / "imdb" / "train.tsv.gz", "rt", encoding="utf-8") as file:
        reviews = [line.split("\t")[3].strip() for line in itertools.islice(file, 1, 100)]
    texts = [*reviews, *(review * 10 for review in reviews)]
    torch_model = write(tmp_path / "torch", cnn())
    exported = export(torch_model, tmp_path / "onnx")
    compute = Compute(device="cpu", threads=1)
    in_c = load_classifier(exported, compute=compute)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "native_runner", lambda *_: None)
        graph = load_classifier(exported, compute=compute)
        found = [model.predict(texts) for model in (load_classifier(torch_model, compute=compute), graph, in_c)]
    assert isinstance(in_c.runner, NativeRunner) and isinstance(graph.runner, LoadedModel)
    unread = [[one.get("unread_tokens", 0) for one in some] for some in found]
    assert unread[0] == unread[1] == unread[2] and min(unread[0]) >= 0 and max(unread[0]) > 1000
    assert [one.get("truncated", False) for one in found[0]] == [tokens > 0 for tokens in unread[2]]


def test_the_real_teacher_reads_sst2_as_published(
    shared_data: Path, shared_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = find_set(shared_data, "glue/SST-2", "dev")
    gold = [row.label for row in read(shared_data, "glue/SST-2", "dev")]
    model = shared_models / "minilm-l6-sst2"
    assert execute(["predict", "--model", str(model), "--data", str(dev), "-q"]) == 0
    answers = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    labels = Model.open(model).labels
    assert len(answers) == 872
    assert (
        sum(
            answer == label or labels.index(answer) == _index(label)
            for answer, label in zip(answers, gold, strict=True)
        )
        == 776
    )


def test_int8_of_the_real_teacher_answers_each_text_by_itself(
    shared_data: Path, shared_models: Path, tmp_path: Path
) -> None:
    """By a range for the whole batch 17 of 872 labels were others alone, and a probability changed by 0.44."""
    rows = read(shared_data, "glue/SST-2", "dev")[::3]
    int8 = quantize(shared_models / "minilm-l6-sst2", tmp_path / "int8", threads=1)
    runner = LoadedModel.open(int8, 0, ())
    runner.start(lambda model: open_runtime(model.path, threads=1))

    def probabilities(order: Sequence[int], batch_rows: int) -> np.ndarray:
        batches = [list(order[start : start + batch_rows]) for start in range(0, len(order), batch_rows)]
        found = np.empty((len(rows), 2))
        for batch in batches:
            found[batch] = softmax(runner.run(runner.prepare([rows[row] for row in batch])))
        return found

    alone = probabilities(range(len(rows)), 1)
    for batched in (
        probabilities(np.random.default_rng(0).permutation(len(rows)).tolist(), 32),
        probabilities(range(len(rows)), len(rows)),
    ):
        assert (batched.argmax(axis=1) == alone.argmax(axis=1)).all()
        assert np.abs(batched - alone).max() < 1e-3
    exact = load_classifier(shared_models / "minilm-l6-sst2", compute=Compute("cpu", 1)).predict(rows)
    changed = sum(int8.labels[best] != one["label"] for best, one in zip(alone.argmax(axis=1), exact, strict=True))
    assert changed <= 2


def _index(label: str | None) -> int:
    return int(label) if label is not None and label.isdigit() else -1


def test_a_narrower_student_of_the_real_teacher_starts_nearer(shared_data: Path, shared_models: Path) -> None:
    """TinyBERT's width of the MiniLM teacher: before any training, by the correlation of its logits."""
    from transformers import AutoModelForSequenceClassification

    teacher, tokens = load(shared_models / "minilm-l6-sst2")
    rows = read(shared_data, "glue/SST-2", "dev")[:50]
    torch.manual_seed(0)
    student = plugins.find("architectures", "transformer").function(
        teacher, tokens, rows, depth=6, hidden_size=312, ffn_size=1200
    )
    fresh = AutoModelForSequenceClassification.from_config(student.config)

    def margins(model: Any) -> np.ndarray:
        logits = logits_of(rows, TorchRun(model.eval()), tokens, max_length=64)
        return logits[:, 1] - logits[:, 0]

    expected = margins(teacher)
    started, random = (abs(np.corrcoef(margins(model), expected)[0, 1]) for model in (student, fresh))
    assert started > 0.5 > random


def test_the_real_teacher_with_the_vocabulary_of_2000_sentences(
    shared_data: Path, shared_models: Path, tmp_path: Path
) -> None:
    """It is 39% smaller, answers the sentences alike to the bit, and splits one word in eight of others differently."""
    teacher, tokens = load(shared_models / "minilm-l6-sst2")
    smaller, _ = load(shared_models / "minilm-l6-sst2")
    source = open_source(find_set(shared_data, "imdb-sentences", "unlabeled"), role="unlabeled", labelled=False)
    corpus = list(itertools.islice(source, 2000))
    cut_tokens, cut = cut_vocabulary(smaller, tokens, corpus)
    assert (cut.pieces_before, cut.pieces_after, cut.corpus_pieces) == (30_522, 7_570, 5_655)
    assert cut.parameters == (30_522 - 7_570) * 384
    save_model(smaller, cut_tokens, tmp_path)
    before = (shared_models / "minilm-l6-sst2" / "model.safetensors").stat().st_size
    assert round((tmp_path / "model.safetensors").stat().st_size / before, 3) == 0.612

    dev = read(shared_data, "glue/SST-2", "dev")
    kept = cut_tokens.get_vocab().keys()
    covered = corpus[:300] + [row for row in dev if kept >= set(tokens.tokenize(row.text))]
    assert len(covered) == 300 + 99
    logits = [
        logits_of(covered, TorchRun(model.eval()), own, max_length=128)
        for model, own in ((teacher, tokens), (smaller, cut_tokens))
    ]
    assert np.array_equal(*logits)
    found = fallbacks(tokens, cut_tokens, dev)
    assert (found["texts"], found["texts_changed"]) == (872, 872 - 99)
    assert (found["words"], found["words_changed"], found["words_unknown"]) == (18_248, 2_398, 0)


def test_shallow_students_have_the_shapes_of_their_recipes(shared_models: Path) -> None:
    from compress import recipes

    teacher, tokens = load(shared_models / "minilm-l6-sst2")
    for name, depth, width in (("minilm-3", 3, 384), ("tinybert-4", 4, 312)):
        recipe = recipes.load_recipe("students", name)
        made = plugins.find("architectures", "transformer").function(
            teacher, tokens, [Example("a film .")] * 8, **recipe.architecture.options
        )
        assert (made.config.num_hidden_layers, made.config.hidden_size) == (depth, width)
        assert isinstance(made.config.id2label, dict) and made.config.id2label == teacher.config.id2label
