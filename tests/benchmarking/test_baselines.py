"""Baselines: one contract for all, and what each must be in closed form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compress import plugins
from compress.benchmarking.baselines import _linear_head
from compress.data.examples import Example
from compress.errors import CompressError, Unavailable
from compress.evaluation.metrics import as_sets, probabilities
from compress.models.model_dir import Model
from compress.tasks import default, find_task
from tests.support.tiny import BAD, GOOD, LABELS, examples, torch_directory

BASELINES = default().baselines
START_ALONE = """
import sys
from pathlib import Path
from compress import plugins
from compress.data.examples import Example
runner = plugins.find("baselines", sys.argv[1]).load().start(Path(sys.argv[2]), threads=1, device="cpu")
runner.run(runner.prepare([Example("the film is good")]))
print("torch" in sys.modules or "transformers" in sys.modules)
"""


@pytest.fixture(scope="module")
def teacher() -> Model:
    return torch_directory("bert")


def gold(rows: list[Example]) -> np.ndarray:
    return np.array([LABELS.index(str(row.label)) for row in rows])


def pairs(count: int = 40) -> list[Example]:
    """Return pairs whose label is that of their first text; the other one is of the other class."""
    rows = examples(count)
    return [Example(row.text, rows[i ^ 1].text, row.label) for i, row in enumerate(rows)]


def fitted(name: str, folder: Path, rows: list[Example], answers: np.ndarray, task: str, classes: int) -> object:
    module = plugins.find("baselines", name).load()
    (folder / name).mkdir(parents=True)
    module.fit(folder / name, rows, answers, find_task(task), classes, torch_directory("bert"))
    return module.start(folder / name, threads=1, device="cpu")


@pytest.mark.parametrize("make", [examples, pairs], ids=["texts", "pairs"])
@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_answers_row_by_row(name: str, make, tmp_path: Path) -> None:
    rows = make(40)
    runner = fitted(name, tmp_path, rows, gold(rows), "classification", 2)
    answers = runner.run(runner.prepare(rows))
    assert answers.shape == (40, 2) and answers.dtype == np.float32
    backwards = runner.run(runner.prepare(rows[::-1]))[::-1]
    np.testing.assert_allclose(backwards, answers, atol=1e-5)
    alone = np.concatenate([runner.run(runner.prepare([row])) for row in rows[:5]])
    np.testing.assert_allclose(alone, answers[:5], atol=1e-5)
    assert plugins.find("baselines", name).load().RUNTIME in {"numpy", "scikit-learn"}


@pytest.mark.parametrize("name", BASELINES)
def test_an_empty_text_and_unknown_words_have_an_answer(name: str, tmp_path: Path) -> None:
    rows = examples(40)
    runner = fitted(name, tmp_path, rows, gold(rows), "classification", 2)
    assert np.isfinite(runner.run(runner.prepare([Example(""), Example("qqq 好 🙂")]))).all()


@pytest.mark.parametrize("name", BASELINES)
def test_a_class_without_rows_is_possible_and_never_chosen(name: str, tmp_path: Path) -> None:
    rows = examples(40)
    runner = fitted(name, tmp_path, rows, gold(rows) * 2, "classification", 4)  # 0 and 2 of four classes
    answers = runner.run(runner.prepare(rows))
    assert answers.shape == (40, 4) and np.isfinite(answers).all()
    assert set(answers.argmax(axis=1)) <= {0, 2}


@pytest.mark.parametrize("name", BASELINES)
def test_regression_gives_one_score(name: str, tmp_path: Path) -> None:
    rows = examples(300)
    scores = gold(rows) * 3.0 + 1
    runner = fitted(name, tmp_path, rows, scores, "regression", 1)
    answers = runner.run(runner.prepare(rows))
    assert answers.shape == (300, 1)
    if name == "majority":
        np.testing.assert_allclose(answers, scores.mean(), rtol=1e-6)
    else:
        assert np.corrcoef(answers[:, 0], scores)[0, 1] > 0.9


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_writes_no_pickle_and_the_same_files_again(name: str, tmp_path: Path) -> None:
    rows = examples(40)
    for folder in ("one", "other"):
        fitted(name, tmp_path / folder, rows, gold(rows), "classification", 2)
    files = sorted((tmp_path / "one" / name).iterdir())
    assert {file.suffix for file in files} <= {".json", ".safetensors"}
    assert all(file.read_bytes() == (tmp_path / "other" / name / file.name).read_bytes() for file in files)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_runs_without_torch(name: str, tmp_path: Path) -> None:
    rows = examples(40)
    fitted(name, tmp_path, rows, gold(rows), "classification", 2)
    command = [sys.executable, "-c", START_ALONE, name, str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_majority_is_the_frequencies_with_one_row_added(tmp_path: Path) -> None:
    runner = fitted("majority", tmp_path, [], np.array([0, 0, 0, 2, 2]), "classification", 3)
    found = runner.run(runner.prepare([Example("a"), Example("b")]))
    np.testing.assert_allclose(np.exp(found), [[4 / 8, 1 / 8, 3 / 8]] * 2, rtol=1e-6)
    assert runner.parameters == 3


@pytest.mark.parametrize("name", ["tfidf", "static-embedding"])
def test_words_that_decide_are_learnt(name: str, tmp_path: Path) -> None:
    rows = examples(300)
    runner = fitted(name, tmp_path, rows, gold(rows), "classification", 2)
    words = [Example(f"the film is {word}") for word in (*BAD, *GOOD)]
    found = runner.run(runner.prepare(words)).argmax(axis=1)
    assert (found == [0] * len(BAD) + [1] * len(GOOD)).mean() > 0.9


@pytest.mark.parametrize("name", ["tfidf", "static-embedding"])
def test_two_rows_are_enough(name: str, tmp_path: Path) -> None:
    rows = examples(2)
    runner = fitted(name, tmp_path, rows, gold(rows), "classification", 2)
    assert (runner.run(runner.prepare(rows)).argmax(axis=1) == gold(rows)).all()


def test_tfidf_of_rows_without_words_is_refused(tmp_path: Path) -> None:
    rows = [Example(" ", None, LABELS[index % 2]) for index in range(6)]
    with pytest.raises(CompressError, match="no word"):
        fitted("tfidf", tmp_path, rows, gold(rows), "classification", 2)


def test_tfidf_read_back_counts_as_scikit_learn_does(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    rows = [*examples(12), Example("not good !", None, LABELS[0])]
    runner = fitted("tfidf", tmp_path, rows, gold(rows), "classification", 2)
    reference = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True)
    expected = reference.fit_transform([row.text for row in rows]).toarray()
    np.testing.assert_allclose(runner.prepare(rows).toarray(), expected, atol=1e-6)
    words = json.loads((tmp_path / "tfidf" / "vocabulary.json").read_text(encoding="utf-8"))
    assert {"not good", "good !", "!"} <= set(words)
    assert runner.parameters == 2 * len(words) + 2 + len(words)


def test_a_static_embedding_is_the_mean_of_the_teachers_pieces(tmp_path: Path, teacher: Model) -> None:
    from compress.benchmarking.baselines.static_embedding import _open

    rows = pairs(40)
    fitted("static-embedding", tmp_path, rows, gold(rows), "classification", 2)
    pooling = _open(tmp_path / "static-embedding")
    table = teacher.load().get_input_embeddings().weight.detach().numpy()
    tokenizer = teacher.tokenizer
    one, other = (
        table[tokenizer(text, add_special_tokens=False)["input_ids"]].mean(axis=0)
        for text in (rows[0].text, rows[0].text_pair)
    )
    expected = np.concatenate((one, other, np.abs(one - other), one * other))
    np.testing.assert_allclose(pooling.features(pooling.tokenize(rows[:1]))[0], expected, atol=1e-6)


def test_a_long_text_is_cut_as_the_teacher_cuts_it(tmp_path: Path) -> None:
    rows = examples(40)
    runner = fitted("static-embedding", tmp_path, rows, gold(rows), "classification", 2)
    assert [len(ids) for ids in runner.prepare([Example("good " * 500)])[0]] == [64]  # positions of the tiny teacher


def test_too_few_embeddings_give_no_static_baseline(tmp_path: Path) -> None:
    rows = examples(40)
    with pytest.raises(Unavailable, match="embeddings for"):
        plugins.find("baselines", "static-embedding").load().fit(
            tmp_path / "x", rows, gold(rows), "classification", 2, torch_directory("bilstm")
        )


def test_a_head_of_several_labels_has_a_regression_for_each(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(1)
    held = generator.random((90, 5)) < [0.3, 0.5, 0.2, 0.0, 1.0]  # the last two are of no row, and of all
    features = generator.normal(size=(90, 4)) + held[:, :4]
    task = find_task("multi-label")
    found = _linear_head.fit_linear_head(features, as_sets(held), task, 5)(features)
    regressions = [
        [
            LogisticRegression(C=c, solver="liblinear").fit(features, one).decision_function(features)
            for one in held.T[:3]
        ]
        for c in _linear_head.STRENGTHS
    ]
    assert any(np.allclose(found[:, :3], np.transpose(each), atol=1e-4) for each in regressions)
    assert set(found[:, 3]) == {-50.0} and set(found[:, 4]) == {50.0}


@pytest.mark.parametrize("classes", [2, 3])
def test_a_head_gives_the_probabilities_of_scikit_learn(classes: int, tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(1)
    answers = np.arange(90) % classes
    features = generator.normal(size=(90, 4)) + np.eye(classes, 4)[answers]
    head = _linear_head.fit_linear_head(features, answers, find_task("classification"), classes)
    head.save(tmp_path)
    found = _linear_head.Head.load(tmp_path)(features)
    candidates = [LogisticRegression(C=c, max_iter=1000).fit(features, answers) for c in _linear_head.STRENGTHS]
    assert any(np.allclose(probabilities(found), each.predict_proba(features), atol=1e-4) for each in candidates)


def test_a_single_class_is_certain() -> None:
    head = _linear_head.fit_linear_head(np.ones((5, 2)), np.full(5, 1), find_task("classification"), 3)
    assert (np.exp(head(np.ones((1, 2))))[0] > 0.999).tolist() == [False, True, False]


def test_the_search_for_a_strength_draws_the_same_rows_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_linear_head, "SEARCH_ROWS", 30)
    generator = np.random.default_rng(2)
    features, answers = generator.normal(size=(200, 3)), np.arange(200) % 2
    one, other = (_linear_head.fit_linear_head(features, answers, find_task("classification"), 2) for _ in range(2))
    np.testing.assert_array_equal(one.weights, other.weights)


def test_a_head_is_read_back_for_any_memory_order(tmp_path: Path) -> None:
    weights = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    _linear_head.Head(weights, np.zeros(3, dtype=np.float32)).save(tmp_path)
    np.testing.assert_array_equal(_linear_head.Head.load(tmp_path).weights, weights)


# Of pairs


def similar(count: int = 60) -> list[Example]:
    """Return pairs with the share of the second text's words that the first has."""
    rows = examples(count)
    return [
        Example(row.text, f"{rows[(i * 7) % count].text} {'' if i % 3 else row.text}".strip())
        for i, row in enumerate(rows)
    ]


def encoder(folder: Path) -> str:
    import transformers

    body = transformers.AutoModel.from_pretrained(torch_directory("bert").path)
    body.save_pretrained(folder)
    torch_directory("bert").tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", default().pair_baselines)
def test_a_baseline_of_pairs_answers_row_by_row_in_the_order_of_its_score(name: str, tmp_path: Path) -> None:
    rows, module = similar(), plugins.find("baselines", name).load()
    own = {"encoder": encoder(tmp_path / "encoder")} if name == "cosine" else {}
    module.fit(
        tmp_path, rows, np.array([float(row.text in row.text_pair) for row in rows]), find_task("regression"), 1,
        torch_directory("bert"), **own,
    )  # fmt: skip
    runner = module.start(tmp_path, threads=1, device="cpu")
    answers = runner.run(runner.prepare(rows))
    assert answers.shape == (60, 1) and answers.dtype == np.float32
    alone = np.concatenate([runner.run(runner.prepare([row])) for row in rows])
    np.testing.assert_allclose(alone, answers, atol=1e-5)
    same = [row.text in row.text_pair for row in rows]
    assert answers[same].mean() > answers[np.invert(same)].mean()


def test_bm25_is_its_formula(tmp_path: Path) -> None:
    module = plugins.find("baselines", "bm25").load()
    rows = [Example("cat", "a cat sat"), Example("cat dog", "a dog"), Example("bird", "the dog and the cat ran")]
    module.fit(tmp_path, rows, np.array([1.0, 0.0, 0.5]), find_task("regression"), 1, torch_directory("bert"))
    found = module._scorer(tmp_path)([Example("Cat bird", "a cat, a CAT"), Example("emu", "emu"), Example("cat", "")])
    rarity = np.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    length = 1.2 * (0.25 + 0.75 * 4 / (11 / 3))
    unknown = np.log(1 + 3.5 / 0.5) * 2.2 / (1 + 1.2 * (0.25 + 0.75 / (11 / 3)))
    assert found[:, 0] == pytest.approx([rarity * 2 * 2.2 / (2 + length), unknown, 0])


def test_the_cosine_is_that_of_mean_pooled_states(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel

    place, module, rows = encoder(tmp_path / "encoder"), plugins.find("baselines", "cosine").load(), similar(6)
    (tmp_path / "made").mkdir()
    gold = np.arange(6.0)
    module.fit(tmp_path / "made", rows, gold, find_task("regression"), 1, torch_directory("bert"), encoder=place)
    prepare, cosines, _ = module._open(tmp_path / "made")
    network, tokenizer = AutoModel.from_pretrained(place).eval(), torch_directory("bert").tokenizer
    for row, found in zip(rows, cosines(prepare(rows)), strict=True):
        with torch.inference_mode():
            one, other = (
                network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)
                for text in (row.text, row.text_pair)
            )
        assert found[0] == pytest.approx(float(torch.cosine_similarity(one, other, dim=0)), abs=1e-5)


def test_an_encoder_that_nothing_names_is_said(tmp_path: Path) -> None:
    module = plugins.find("baselines", "cosine").load()
    with pytest.raises(Unavailable, match="is named or found; name it with 'compress benchmark --encoder'"):
        module.fit(tmp_path, similar(), np.arange(60.0), find_task("regression"), 1, torch_directory("bert"))
