"""Competitors: one contract for every one that is installed, and a reason from those that cannot."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from compress import plugins
from compress.benchmarking import competitors
from compress.benchmarking.candidates import open_candidates, plan_competitors
from compress.benchmarking.worker_main import import_required
from compress.data.examples import Example
from compress.errors import Unavailable
from compress.inference.batching import logits_of
from compress.inference.torch_run import TorchRun
from compress.models.model_dir import Model
from tests.support import REPOSITORY
from tests.support.tiny import bilstm, classifier, examples, pruned, torch_directory, write

ROOT = REPOSITORY
COMPETITORS = plugins.names("competitors")
# Labels out of alphabetical order: a competitor that sorts classes is found out.
LABELS = ("zebra", "apple", "mango")
# Share of rows predicted as by float32, on tiny random models whose classes lie close together; 1 means float32 too.
AGREEMENT = {
    "ctranslate2-int8": 0.9,
    "openvino-int8": 0.9,
    "optimum-int8": 0.9,
    "optimum-onnx": 1.0,
    "torch-dynamic-int8": 0.85,
    "torchao-int8": 0.9,
    "transformers-pipeline": 1.0,
}
ISOLATED = {"optimum-int8", "optimum-onnx", "torchao-int8"}
STOCK_ONLY = {"ctranslate2-int8", "optimum-int8", "optimum-onnx"}
ELSEWHERE = """
import json, sys
from pathlib import Path
import numpy as np
from compress import plugins
from compress.benchmarking import competitors
from compress.models.model_dir import Model
from compress.errors import Unavailable
from compress.data.examples import Example
name, model, rows, folder = sys.argv[1:]
competitor = plugins.find("competitors", name).load()
if name == "torchao-int8":
    import torch

    torch.compiler.set_stance("force_eager")  # compiling takes minutes
try:
    competitors.build(competitor, Path(folder) / "built", Model(Path(model)), [], None)
except Unavailable as error:
    print("UNAVAILABLE", error)
    raise SystemExit
runner = competitor.start(Path(folder) / "built", threads=1, device="cpu")
batches = json.loads(Path(rows).read_text())
np.savez(Path(folder) / "logits", *[runner.run(runner.prepare([Example(*row) for row in batch])) for batch in batches])
print("PARAMETERS", runner.parameters)
"""


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Put the number of threads back, which is a setting of the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_loading_model2vec_leaves_torch_out() -> None:
    """Its worker would count torch's memory as the model's."""
    load = "plugins.find('competitors', 'model2vec').load()"
    code = f"import sys; from compress import plugins; {load}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def skip_if_missing(name: str) -> None:
    competitor = plugins.find("competitors", name).load()
    try:
        if not getattr(competitor, "ENVIRONMENT", ""):
            import_required(competitor)
        competitors.interpreter(competitor)
    except Unavailable as error:
        pytest.skip(str(error))


def pairs(count: int) -> list[Example]:
    rows = examples(count)
    return [Example(row.text, rows[-1 - i].text) for i, row in enumerate(rows)]


def answers(name: str, model: Model, batches: Sequence[list[Example]], folder: Path) -> tuple[list[np.ndarray], int]:
    """Return what a competitor makes of each batch, and its number of parameters."""
    competitor = plugins.find("competitors", name).load()
    if getattr(competitor, "ENVIRONMENT", ""):
        return elsewhere(competitors.interpreter(competitor), name, model, batches, folder)
    train = pairs(300) if batches[0][0].text_pair is not None else examples(300)
    gold = np.arange(300) % len(model.labels)
    competitors.build(competitor, folder / "built", model, train, gold)
    runner = competitor.start(folder / "built", threads=1, device="cpu")
    return [runner.run(runner.prepare(batch)) for batch in batches], runner.parameters


def elsewhere(
    python: str, name: str, model: Model, batches: Sequence[list[Example]], folder: Path
) -> tuple[list[np.ndarray], int]:
    """Do the same in the environment of an isolated competitor, which finds this package and nothing else of ours."""
    (folder / "path").mkdir()
    (folder / "path" / "compress").symlink_to(ROOT / "compress")
    rows = folder / "rows.json"
    rows.write_text(json.dumps([[[row.text, row.text_pair] for row in batch] for batch in batches]))
    done = subprocess.run(
        [python, "-c", ELSEWHERE, name, str(model.path), str(rows), str(folder)],
        env={**os.environ, "PYTHONPATH": str(folder / "path"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    word, _, rest = done.stdout.strip().splitlines()[-1].partition(" ")
    if word == "UNAVAILABLE":
        raise Unavailable(rest)
    stored = np.load(folder / "logits.npz")
    return [stored[key] for key in stored.files], int(rest)


def expected(model: Model, rows: list[Example]) -> np.ndarray:
    loaded = model.load()
    loaded.config._attn_implementation = "eager"
    return logits_of(rows, TorchRun(loaded), model.tokenizer, max_length=64)


def test_every_competitor_that_runs_the_model_has_a_bound() -> None:
    assert set(AGREEMENT) == set(COMPETITORS) - {"model2vec"}


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", AGREEMENT)
def test_a_competitor_gives_the_models_own_logits(name: str, family: str, tmp_path: Path) -> None:
    skip_if_missing(name)
    model = Model.open(write(tmp_path / "model", classifier(family, labels=LABELS), family))
    rows = examples(30)
    batches = [rows, rows[::-1], *([row] for row in rows[:3])]
    (forwards, backwards, *alone), parameters = answers(name, model, batches, tmp_path)
    assert forwards.shape == (30, 3) and forwards.dtype == np.float32
    assert parameters == model.parameters
    reference = expected(model, rows)
    assert len(np.unique(reference.argmax(axis=1))) > 1
    assert (forwards.argmax(axis=1) == reference.argmax(axis=1)).mean() >= AGREEMENT[name]
    assert np.corrcoef(forwards.ravel(), reference.ravel())[0, 1] > 0.95
    # Dynamic int8 with one scale a tensor depends on what else is in the batch, never on its order.
    np.testing.assert_allclose(backwards[::-1], forwards, atol=1e-4)
    if AGREEMENT[name] == 1.0:
        np.testing.assert_allclose(forwards, reference, atol=1e-4)
        np.testing.assert_allclose(np.concatenate(alone), forwards[:3], atol=1e-4)


@pytest.mark.parametrize("name", AGREEMENT)
def test_a_competitor_reads_pairs_and_truncates_long_ones(name: str, tmp_path: Path) -> None:
    skip_if_missing(name)
    model = Model.open(write(tmp_path / "model", classifier("bert", labels=LABELS)))
    rows = [*pairs(12), Example("good " * 80, "bad " * 80)]
    (found,), _ = answers(name, model, [rows], tmp_path)
    reference = expected(model, rows)
    assert np.corrcoef(found.ravel(), reference.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("name", AGREEMENT)
def test_a_regression_model_gives_one_score(name: str, tmp_path: Path) -> None:
    skip_if_missing(name)
    model = Model.open(write(tmp_path / "model", classifier("distilbert", labels=("score",)), "distilbert"))
    rows = examples(20)
    (found,), _ = answers(name, model, [rows], tmp_path)
    assert found.shape == (20, 1)
    assert np.corrcoef(found[:, 0], expected(model, rows)[:, 0])[0, 1] > 0.9


@pytest.mark.parametrize("kind", ["pruned", "bilstm"])
@pytest.mark.parametrize("name", AGREEMENT)
def test_a_model_of_our_own_runs_or_the_reason_is_said(name: str, kind: str, tmp_path: Path) -> None:
    skip_if_missing(name)
    model = Model.open(write(tmp_path / "model", pruned("bert") if kind == "pruned" else bilstm()))
    if name in STOCK_ONLY or (name == "openvino-int8" and kind == "bilstm"):
        with pytest.raises(Unavailable) as error:
            answers(name, model, [examples(4)], tmp_path)
        assert len(str(error.value)) > 20 and "\n" not in str(error.value)
        return
    rows = examples(30)
    (found,), _ = answers(name, model, [rows], tmp_path)
    assert np.corrcoef(found.ravel(), expected(model, rows).ravel())[0, 1] > 0.9


def test_model2vec_learns_what_words_decide(tmp_path: Path) -> None:
    skip_if_missing("model2vec")
    model = Model.open(write(tmp_path / "model", classifier("bert")))
    rows = examples(40)
    (found, backwards), _ = answers("model2vec", model, [rows, rows[::-1]], tmp_path)
    assert found.shape == (40, 2)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(backwards[::-1], found, atol=1e-5)
    assert (found.argmax(axis=1) == np.arange(40) % 2).mean() > 0.8
    folder = tmp_path / "built"
    # What was distilled came back: its columns are principal components, the first with the largest variance.
    variances = load_file(folder / "static" / "model.safetensors")["embeddings"].astype(np.float32).var(axis=0)
    assert (np.diff(variances) <= 1e-2 * variances.max()).all() and variances[0] > 2 * variances[-1]
    assert {file.suffix for file in folder.rglob("*") if file.is_file()} <= {".json", ".safetensors", ".md"}


def test_model2vec_needs_an_encoder(tmp_path: Path) -> None:
    skip_if_missing("model2vec")
    build = plugins.find("competitors", "model2vec").load().build
    with pytest.raises(Unavailable, match="encoder"):
        build(tmp_path / "b", Model.open(write(tmp_path / "lstm", bilstm())), examples(6), np.arange(6) % 2)


@pytest.mark.parametrize("name", COMPETITORS)
def test_a_competitor_states_its_requirements(name: str) -> None:
    competitor = plugins.find("competitors", name).load()
    assert competitor.REQUIRES and set(competitor.DEVICES) <= {"cpu", "cuda"} and "cpu" in competitor.DEVICES
    assert isinstance(getattr(competitor, "NEEDS_TRAIN", False), bool)
    teacher = open_candidates(torch_directory("bert"), [], [])
    entries, left_out = plan_competitors([name], teacher, Path("nowhere"), device="tpu", has_train=True)
    assert entries == [] and left_out == [{"name": name, "reason": "it does not run on tpu"}]


def test_isolated_competitors_are_known() -> None:
    assert {
        name for name in COMPETITORS if getattr(plugins.find("competitors", name).load(), "ENVIRONMENT", "")
    } == ISOLATED


def test_the_extra_installs_what_competitors_require() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    modules = [plugins.find("competitors", name).load() for name in COMPETITORS]
    required = {
        r for competitor in modules if not getattr(competitor, "ENVIRONMENT", "") for r in competitor.REQUIRES.values()
    }
    assert [requirement for requirement in sorted(required) if f'"{requirement}"' not in setup] == []


@pytest.mark.parametrize("name", COMPETITORS)
def test_a_missing_library_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    competitor = plugins.find("competitors", name).load()
    library, requirement = next(iter(competitor.REQUIRES.items()))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Unavailable, match=f"{library} cannot be imported.*type pip install '{re.escape(requirement)}'"):
        import_required(competitor)


def test_the_interpreter_of_a_competitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESS_COMPETITORS", str(tmp_path))
    assert competitors.interpreter(plugins.find("competitors", "torch-dynamic-int8").load()) == sys.executable
    isolated = plugins.find("competitors", "optimum-onnx").load()
    with pytest.raises(Unavailable, match="benchmarks/competitor_environments.py"):
        competitors.interpreter(isolated)
    (tmp_path / isolated.ENVIRONMENT).mkdir()
    installed = tmp_path / isolated.ENVIRONMENT / competitors.INSTALLED_NAME
    installed.write_text("transformers==4.0.0\n")
    with pytest.raises(Unavailable, match="does not have"):
        competitors.interpreter(isolated)
    installed.write_text("\n".join(isolated.REQUIRES.values()) + "\n")
    assert competitors.interpreter(isolated) == str(tmp_path / isolated.ENVIRONMENT / "bin" / "python")


def test_the_tokenizer_of_transformers_5_is_rewritten_for_4(tmp_path: Path) -> None:
    from compress.benchmarking.competitors._optimum_client import fit_transformers_4

    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<x>"]}))
    fit_transformers_4(tmp_path)
    assert json.loads(path.read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<x>"],
    }
    path.write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    fit_transformers_4(tmp_path)
    assert json.loads(path.read_text()) == {"tokenizer_class": "BertTokenizer"}


@pytest.mark.parametrize(("rows", "picked"), [(2, [0, 1]), (450, [0, 1, 3, 4]), (67_349, [0, 224, 448, 673])])
def test_calibration_texts_come_from_everywhere(rows: int, picked: list[int]) -> None:
    from compress.benchmarking.competitors.openvino_int8 import CALIBRATION_ROWS, spread

    found = [int(example.text) for example in spread([Example(str(row)) for row in range(rows)])]
    assert found[:4] == picked and len(found) == min(rows, CALIBRATION_ROWS) and found[-1] >= rows * 0.99 - 1
