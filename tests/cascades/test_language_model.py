"""A cascade whose last member is a language model: local answers where they are sure, and its answers for the rest."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compress
from compress.cascades import cascade as stage
from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.evaluation.metrics import confidence
from compress.inference import runners
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.inference.runners import Speed, load_runner, served_bytes
from compress.models.manifest import Manifest
from compress.models.model_dir import CASCADE_NAME, CascadeDir, Model
from compress.models.output_dir import finish
from compress.requests.compression import cascade, export
from tests.support.chat_server import KEY, ChatServer, serving
from tests.support.tiny import GOOD, LABELS, PLAIN, cnn, write

pytest.importorskip("openai")
CPU = Compute("cpu", threads=1)
PLACE: dict[str, Any] = {"device": "cpu", "threads": 1}
ASKED = tuple(reversed(LABELS))  # in another order than the model's


def texts(count: int, kind: str) -> list[str]:
    return [f"{GOOD[i % 8]} {PLAIN[i % 15]} {PLAIN[i * 7 % 15]} {kind} {i}" for i in range(count)]


@pytest.fixture(autouse=True)
def key_and_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("compress.inference.language_model.RETRIES", 1)

    def times(directories: Mapping[str, Path], rows: Any, **options: Any) -> list[Speed]:
        assert [*directories] == ["fast"]  # a server is not timed in turns with models
        return [Speed("fast", "native", 1, 1, 0.01, 1.0, 1.0, 1.0)]

    monkeypatch.setattr(stage, "time_side_by_side", times)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("models")
    made = export(write(folder / "fast-torch", cnn(labels=LABELS)), folder / "fast")
    finish(made.path, Manifest(stage="export", name="fast", labels=LABELS))
    return Model.open(made.path)


@pytest.fixture(scope="module")
def sure(fast: Model) -> dict[str, tuple[str, bool]]:
    """What the fast model says of each text, and whether it is among the half that it is surest of."""
    every = [*texts(200, "row"), *texts(60, "new")]
    found = load(fast, compute=CPU).predict(every)
    middle = np.median([one["probability"] for one in found])
    return {text: (one["label"], one["probability"] > middle) for text, one in zip(every, found, strict=True)}


def is_early(fast: Model, made: CascadeDir, given: list[str]) -> list[bool]:
    """Tell which texts the fast model answers."""
    logits = load_runner(fast, CPU).logits([*map(Example, given)])
    return [bool(one) for one in confidence(logits) >= made.thresholds[0]]


def other(label: str) -> str:
    return next(one for one in LABELS if one != label)


def chances_of(sure: Mapping[str, tuple[str, bool]]) -> Any:
    """The language model agrees where the fast one is sure, and says something else elsewhere."""

    def chances(text: str) -> Mapping[str, float]:
        label, is_sure = sure[text]
        said = label if is_sure else other(label)
        return {one: 0.9 if one == said else 0.1 / (len(LABELS) - 1) for one in LABELS}

    return chances


def joined(server: ChatServer, fast: Model, output: Path, **options: Any) -> CascadeDir:
    given = {"labels": ASKED, "base_url": server.url, "agree": 0.9, "validation": texts(200, "row"), **options}
    return cascade([fast, "openai:tiny"], output, **given, **PLACE)


def prices(folder: Path) -> Path:
    file = folder / "prices.toml"
    file.write_text("[tiny]\ninput = 100\noutput = 1000\n")
    return file


def test_local_answers_where_they_are_sure_and_its_answers_for_the_rest(
    fast: Model, sure: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "prompt.txt").write_text("Films, for parents.")
    with serving(chances_of(sure), preference=[1.0, -1.0]) as server, caplog.at_level(logging.DEBUG):
        options = {"prompt": tmp_path / "prompt.txt", "orders": 2}
        made = joined(server, fast, tmp_path / "joined", **options)
        assert len(server.asked) == 2 * 200
        again = joined(server, fast, tmp_path / "again", **options)
        assert len(server.asked) == 2 * 200 and again.thresholds == made.thresholds  # bought once
        model, new = compress.load(made.path), texts(60, "new")
        found = model.predict(new)
        asked = {one["messages"][1]["content"] for one in server.asked[400:]}
        early = is_early(fast, made, new)
        assert 0 < len(asked) < 60 and asked == {
            text for text, is_early in zip(new, early, strict=True) if not is_early
        }
        assert server.asked[-1]["messages"][0]["content"].startswith("Films, for parents.")
    for text, one in zip(new, found, strict=True):
        label, is_sure = sure[text]
        assert one["label"] == (other(label) if text in asked and not is_sure else label)
    assert [model.predict(text) for text in new] == found  # by the cache: the server is gone
    kept = made.manifest.recipe["language_model"]
    assert kept == json.loads((made.path / CASCADE_NAME).read_text())["language_model"]
    assert (kept["name"], kept["base_url"], tuple(kept["labels"])) == ("tiny", server.url, ASKED)
    assert served_bytes(made) == made.size_bytes  # which has no container of its own
    assert kept["prompt"] == "Films, for parents." and made.member_names == ("fast", "openai:tiny")
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    assert KEY not in caplog.text


def test_commands_take_it_or_say_why_not(
    fast: Model, sure: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(texts(200, "row")))
    (tmp_path / "new.txt").write_text("\n".join(texts(60, "new")))
    with serving(chances_of(sure)) as server:
        words = ["cascade", "--model", str(fast.path), "--model", "openai:tiny", "--base-url", server.url]
        words += ["--agree", "90%", "--validation", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "joined")]
        assert execute([*words, "--threads", "1"]) == 0, capsys.readouterr().err
        there = str(tmp_path / "joined")
        said = capsys.readouterr()
        assert "openai:tiny" in said.out and "tiny: 200 questions" in said.err
        assert "'compress benchmark' measures" not in said.out  # which it refuses
        words = ["predict", "--model", there, "--data", str(tmp_path / "new.txt"), "--audit", "99.9999999%"]
        assert execute([*words, "--audit-file", str(tmp_path / "audit.json")]) == 0
        said = capsys.readouterr()
        assert len(said.out.splitlines()) == 60 and "questions" in said.err and "nothing says that this" in said.err
        assert json.loads((tmp_path / "audit.json").read_text())["rows"] == 60 - (
            is_early(fast, CascadeDir(tmp_path / "joined", fast.manifest), texts(60, "new")).count(False)
        )
    assert execute(["show", there]) == 0
    for command in (["export"], ["quantize"], ["calibrate", "--validation", str(tmp_path / "texts.txt")]):
        assert execute([*command, "--model", there, "-o", str(tmp_path / "out")]) == 2
        assert "is a cascade of models" in capsys.readouterr().err
    with pytest.raises(CompressError, match="asks a language model on a server, which is not measured; give members"):
        rows = [{"text": text, "label": LABELS[0]} for text in texts(8, "row")]
        compress.benchmark(fast.path.parent / "fast-torch", [there], rows, output=tmp_path / "results.jsonl")


def test_texts_without_a_label_say_why(
    fast: Model, sure: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On validation rows they are left out; predictions of them have no label."""
    unsure = [text for text in texts(60, "new") if not sure[text][1]]
    odd = {unsure[0]: "REFUSE", unsure[1]: "I cannot say", unsure[2]: "FAIL", texts(200, "row")[7]: "REFUSE"}
    known = chances_of(sure)
    with serving(lambda text: {"": odd[text]} if text in odd else known(text)) as server:
        made = joined(server, fast, tmp_path / "joined")
        model = compress.load(made.path)
        found = [{key: one.get(key) for key in ("label", "unanswered")} for one in model.predict(unsure)]
        assert np.isnan(model.predict_proba(unsure[:3])).all()
        (tmp_path / "new.txt").write_text("\n".join(unsure))
        assert execute(["predict", "--model", str(made.path), "--data", str(tmp_path / "new.txt")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[0])["label"] is None and "3 texts got no label" in said.err
    assert all(one["label"] and not one["unanswered"] for one in found[3:])
    assert [one["label"] for one in found[:3]] == [None] * 3
    reasons = ("refused: the text breaks our rules", "malformed: I cannot say", f"failed: {server.url} answers 500")
    assert all(str(one["unanswered"]).startswith(why) for one, why in zip(found, reasons, strict=False))
    figures = json.loads((made.path / stage.FOLDER / stage.CONTENT_NAME).read_text())
    assert figures["validation"]["rows"] == 199


def test_a_server_that_is_gone_is_an_error(
    fast: Model, sure: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compress.inference.language_model.RETRIES", 3)  # all faults may be of one text
    with serving(chances_of(sure), faults=[429, "cut", 500]) as server:
        made = joined(server, fast, tmp_path / "joined")
    (tmp_path / "new.txt").write_text("\n".join(texts(60, "new")))
    assert execute(["predict", "--model", str(made.path), "--data", str(tmp_path / "new.txt")]) == 2
    said = capsys.readouterr()
    assert not said.out and "does not answer (ConnectError); check that the server runs" in said.err


def test_what_is_loaded_answers_again_when_the_server_is_well(fast: Model, sure: Any, tmp_path: Path) -> None:
    known, is_down = chances_of(sure), False
    with serving(lambda text: {"": "FAIL"} if is_down else known(text)) as server:
        model = compress.load(joined(server, fast, tmp_path / "joined").path)
        new = texts(60, "new")
        is_down = True
        for _ in range(5):
            with pytest.raises(CompressError, match="texts in a row failed, so that no more are asked"):
                model.predict(new)
        is_down = False
        assert all(one["label"] for one in model.predict(new))


def test_what_is_loaded_answers_after_an_interruption(
    fast: Model, sure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(chances_of(sure)) as server:
        model = compress.load(joined(server, fast, tmp_path / "joined", concurrency=1).path)
        bought, new = len(server.asked), texts(60, "new")

        def interrupts(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("compress.inference.language_model.each", interrupts)
            with pytest.raises(KeyboardInterrupt):
                model.predict(new)
        assert len(server.asked) < bought + 10  # and not all that wait
        assert all(one["label"] for one in model.predict(new))


def test_a_budget_ends_it_before_anything_is_written(fast: Model, sure: Any, tmp_path: Path) -> None:
    with serving(chances_of(sure)) as server:
        options = {"prices": prices(tmp_path), "budget": 0.05}
        with pytest.raises(CompressError, match="budget ends before all .*; repeat the command, or give a larger"):
            joined(server, fast, tmp_path / "joined", **options)
        asked = len(server.asked)
        assert 0 < asked < 200 and not (tmp_path / "joined").exists()
        joined(server, fast, tmp_path / "joined", prices=options["prices"], budget=10.0)
        assert len(server.asked) == 200


def test_the_page_says_what_a_thousand_texts_cost(fast: Model, sure: Any, tmp_path: Path) -> None:
    """Texts are of different lengths, and those that it answers cost more than others."""
    with serving(chances_of(sure)) as server:
        made = joined(server, fast, tmp_path / "joined", prices=prices(tmp_path), orders=2)
        asked = [(one["messages"][0]["content"], one["messages"][1]["content"]) for one in server.asked]
        assert not joined(server, fast, tmp_path / "without", orders=2).manifest.notes
    rows = texts(200, "row")
    usd = dict.fromkeys(rows, 0.0)
    for system, text in asked:
        usd[text] += (100 * (len(system + text) // 4) + 1000 * 2) / 1e6
    left = [text for text, early in zip(rows, is_early(fast, made, rows), strict=True) if not early]
    found = made.manifest.notes["usd_per_1000_texts"]
    assert 0 < len(left) < 200 and found == {
        "alone": pytest.approx(5 * sum(usd.values())),
        "cascade": pytest.approx(5 * sum(usd[text] for text in left)),
    }
    said = f"A thousand texts like these cost {found['cascade']:.4f} USD in place of {found['alone']:.4f}"
    assert any(sentence.startswith(said) for sentence in stage.cascade_verdict(made))


def test_a_dry_run_says_what_would_be_asked(
    fast: Model, sure: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(texts(200, "row")))
    words = ["cascade", "--model", str(fast.path), "--model", "openai:tiny", "--agree", "90%", "--dry-run"]
    with serving(chances_of(sure)) as server:
        words += ["--base-url", server.url, "--validation", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "joined")]
        assert execute(words) == 0 and not server.asked
    assert "200 rows: 200 questions, 0 of them answered already" in capsys.readouterr().out
    assert not (tmp_path / "joined").exists()


def test_a_model_that_labels_nothing_is_refused(fast: Model, sure: Any, tmp_path: Path) -> None:
    with (
        serving(lambda text: {"": "I cannot say"}) as server,
        pytest.raises(CompressError, match="gave no label to the"),
    ):
        joined(server, fast, tmp_path / "joined", agree=0.5, validation=texts(15, "row"))
    assert not (tmp_path / "joined").exists()


def test_texts_without_a_label_are_paid_too(fast: Model, sure: Any, tmp_path: Path) -> None:
    silent, known = texts(200, "row")[7], chances_of(sure)
    with serving(lambda text: {"": "I cannot say"} if text == silent else known(text)) as server:
        made = joined(server, fast, tmp_path / "joined", prices=prices(tmp_path))
        paid = [len("".join(part["content"] for part in one["messages"])) // 4 for one in server.asked]
    alone = made.manifest.notes["usd_per_1000_texts"]["alone"]
    assert alone == pytest.approx(1000 * np.mean([(100 * read + 1000 * 2) / 1e6 for read in paid]))


def test_nothing_is_bought_for_a_model_that_is_gone(
    fast: Model, sure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "time_side_by_side", runners.time_side_by_side)
    shutil.copytree(fast.path, tmp_path / "gone")
    model = Model.open(tmp_path / "gone")
    shutil.rmtree(model.path)
    with serving(chances_of(sure)) as server, pytest.raises(CompressError, match="gone"):
        cascade(
            [model, "openai:tiny"],
            tmp_path / "joined",
            base_url=server.url,
            agree=0.9,
            validation=texts(200, "row"),
            **PLACE,
        )
    assert not server.asked


def test_servers_that_nobody_named_get_no_key(
    fast: Model, sure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cascade of somebody else may name a server of theirs."""
    with serving(chances_of(sure)) as server:
        made = joined(server, fast, tmp_path / "joined")
        bought = len(server.asked)
        monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "another"))
        with pytest.raises(CompressError, match=f"sends texts to {server.url}, which no command here has asked before"):
            compress.load(made.path).predict("a film")
        assert len(server.asked) == bought
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/")
        assert compress.load(made.path).predict(texts(60, "new")) and len(server.asked) > bought


@pytest.mark.parametrize(
    "change", [{"name": 3}, {"preference": [1.0]}, {"orders": 99}, {"labels": ["a", "b"]}, {"base_url": "ftp://x"}]
)
def test_damaged_questions_are_refused(change: dict[str, Any], fast: Model, sure: Any, tmp_path: Path) -> None:
    refuse_questions(change, "", fast, sure, tmp_path)


def test_what_no_member_says_is_named(fast: Model, sure: Any, tmp_path: Path) -> None:
    said = (
        "cascade.json says budget, dry_run of a language model, of which it has name, base_url.*make the cascade again"
    )
    refuse_questions({"dry_run": True, "budget": 5.0}, said, fast, sure, tmp_path)


def refuse_questions(change: dict[str, Any], said: str, fast: Model, sure: Any, tmp_path: Path) -> None:
    with serving(chances_of(sure)) as server:
        made = joined(server, fast, tmp_path / "joined")
        shutil.copytree(made.path, tmp_path / "copy")
        kept = json.loads((made.path / CASCADE_NAME).read_text())
        kept["language_model"] |= change
        damaged = CascadeDir(tmp_path / "copy", made.manifest)
        (damaged.path / CASCADE_NAME).write_text(json.dumps(kept))
        with pytest.raises(CompressError, match=said or None):
            load_runner(damaged, CPU)


@pytest.mark.parametrize(
    ("models", "options", "says"),
    [
        (["fast", "openai:tiny"], {"labels": ("a", "b")}, "the members of a cascade have the same labels"),
        (["openai:tiny", "fast"], {}, "give it once, as the last --model"),
        (["openai:tiny"], {}, "give a model before the language model too"),
        (["fast", "fast"], {"orders": 2}, "--orders needs openai:MODEL as the last --model"),
        (["fast", "openai:tiny"], {"prices": None, "budget": 1.0}, "--prices"),
        (["fast", "openai:tiny"], {"prompt": "empty"}, "empty.txt is empty; write what the labels mean"),
        (["fast", "openai:tiny"], {"agree": 0.99}, "--validation has 9 rows, and 99% is not certain below 299 without"),
    ],
)
def test_refusals(models: list[str], options: dict[str, Any], says: str, fast: Model, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    options = {name: tmp_path / "empty.txt" if value == "empty" else value for name, value in options.items()}
    given = [fast.path if name == "fast" else name for name in models]
    url = {"base_url": "http://127.0.0.1:1/v1"} if "openai:tiny" in models else {}
    with pytest.raises(CompressError, match=says):
        cascade(given, tmp_path / "out", validation=texts(9, "row"), **{"agree": 0.9, **url, **options}, **PLACE)
    assert not (tmp_path / "out").exists()
