"""A language model as teacher, played by a server that makes mistakes: every answer is paid once, and none is lost."""

from __future__ import annotations

import json
import logging
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModel

import compress
from compress.cli import main
from compress.data import Example
from compress.errors import CompressError
from compress.inference.language_model import AnswerStore, Asker, LanguageModel
from compress.labelling.label_dir import UNANSWERED_NAME, LabelDir
from compress.models.manifest import Manifest
from compress.models.output_dir import finish, model_card
from compress.recipes import load_recipe
from compress.requests.labelling import Asked
from tests.support.chat_server import KEY, ChatServer, serving
from tests.support.tiny import classifier, write
from tests.support.training_data import TRAINING

pytest.importorskip("openai")
TEXTS = [f"film number {number} {'x' * (number % 13 + 1)}" for number in range(20)]
LABELS = ("bad", "good")


@pytest.fixture(autouse=True)
def key_and_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("compress.labelling.language_model.SHARD_ROWS", 8)


def log_odds(text: str) -> float:
    return len(text) % 7 - 3.0


def chances(text: str) -> Mapping[str, float]:
    good = 1 / (1 + math.exp(-log_odds(text)))
    return {"good": good, "bad": 1 - good}


def labelled(server: ChatServer, output: Path, texts: Any = TEXTS, **options: Any) -> LabelDir:
    given = {"labels": LABELS, "base_url": server.url, **options}
    made: LabelDir = compress.label("openai:tiny", texts, output, **given)
    return made


def odds(made: LabelDir) -> list[float]:
    return [float(logits[1] - logits[0]) for _, logits in made]


def prices(folder: Path) -> Path:
    file = folder / "prices.toml"
    file.write_text("[tiny]\ninput = 100\noutput = 1000\n")  # 0.0068 USD a question or so
    return file


def test_logits_are_those_of_the_model_without_its_preference_for_places(tmp_path: Path) -> None:
    faults = [429, 500, "cut", "garbage", "slow"]
    with serving(chances, preference=[1.0, -1.0], faults=faults) as server:
        made = labelled(server, tmp_path / "labels", orders=2)
        assert made.rows == len(TEXTS) and made.manifest.labels == LABELS and made.teacher_name == "openai:tiny"
        np.testing.assert_allclose(odds(made), [*map(log_odds, TEXTS)], atol=1e-5)
        np.testing.assert_allclose(made.manifest.notes["preference"], [1, -1], atol=1e-4)
        assert len(server.asked) == 2 * len(TEXTS) + len(faults) - 1  # slow is no fault of an answer
        again = labelled(server, tmp_path / "again", orders=2)
        assert odds(again) == odds(made) and len(server.asked) == 2 * len(TEXTS) + len(faults) - 1


def test_a_student_learns_from_a_bare_encoder_and_the_labels(tmp_path: Path) -> None:
    body: Any = AutoModel.from_pretrained(write(tmp_path / "encoder", classifier("bert")))
    body.save_pretrained(tmp_path / "encoder")
    with serving(chances) as server:
        made = labelled(server, tmp_path / "labels")
    recipe = replace(load_recipe("students", "ngram"), training=TRAINING)
    rows = [{"text": text, "label": "good"} for text in ("a good film", "good")] + [
        {"text": "a bad film", "label": "bad"}
    ]
    student = compress.distill(tmp_path / "encoder", recipe, tmp_path / "student", labels=[made.path], validation=rows)
    assert student.labels == LABELS
    assert "openai:tiny" in json.dumps(student.manifest.recipe) + json.dumps(student.manifest.notes)


def test_the_server_is_that_of_the_environment_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the package openai: texts must not go to another server than a user thinks."""
    with serving(chances) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/")
        assert labelled(server, tmp_path / "labels", ["one text"], base_url=None).rows == len(server.asked) == 1
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
        assert labelled(server, tmp_path / "named", ["another"]).rows == 1 and len(server.asked) == 2


def test_equal_texts_are_asked_once_and_a_slash_is_no_other_server(tmp_path: Path) -> None:
    with serving(chances) as server:
        assert labelled(server, tmp_path / "labels", ["one text"] * 12 + ["another"]).rows == 13
        assert len(server.asked) == 2
        labelled(server, tmp_path / "again", ["one text"], base_url=f"{server.url}/")
        assert len(server.asked) == 2


def test_refusals_are_asked_again(tmp_path: Path) -> None:
    """They cost nothing, and an account may have been empty."""
    empty = {TEXTS[18], TEXTS[19]}
    with serving(lambda text: {"": "REFUSE"} if text in empty else chances(text)) as server:
        assert labelled(server, tmp_path / "labels").rows == 18
        empty.clear()
        assert labelled(server, tmp_path / "again").rows == 20
        assert len(server.asked) == 22


def test_the_limit_of_an_answer_takes_its_other_name(tmp_path: Path) -> None:
    with serving(chances, unknown={"max_tokens": "use 'max_completion_tokens' instead"}) as server:
        labelled(server, tmp_path / "labels", TEXTS[:3], concurrency=1)
    assert [("max_tokens" in one, one.get("max_completion_tokens")) for one in server.asked] == [
        (True, None),
        *[(False, 16)] * 3,
    ]


def test_servers_without_log_probabilities_vote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = "Logprobs and top_logprobs are not enabled for this model"
    with serving(chances, unknown={"logprobs": words}) as server, caplog.at_level(logging.INFO, "compress"):
        made = labelled(server, tmp_path / "labels", concurrency=1)
    assert "takes no top_logprobs" in caplog.text
    sure = math.log(0.95 / 0.05)
    wanted = [sure if log_odds(text) > 0 else -sure for text in TEXTS[:20] if log_odds(text)]
    np.testing.assert_allclose(
        [one for one, text in zip(odds(made), TEXTS, strict=False) if log_odds(text)], wanted, rtol=1e-5
    )


def test_rows_without_an_answer_are_kept_apart(tmp_path: Path) -> None:
    odd = {TEXTS[3]: "I cannot say", TEXTS[14]: "REFUSE"}
    with serving(lambda text: {"": odd[text]} if text in odd else chances(text)) as server:
        made = labelled(server, tmp_path / "labels")
        parts = [labelled(server, tmp_path / f"part{one}", shard=(one, 2)).path for one in (1, 2)]
    assert made.rows == len(TEXTS) - 2 and made.manifest.notes["unanswered"] == 2
    assert [row.text for row, _ in made] == [text for text in TEXTS if text not in odd]
    rows = [json.loads(line) for line in (made.path / UNANSWERED_NAME).read_text().splitlines()]
    assert [(row["row"], row["text"], row["reason"]) for row in rows] == [
        (4, TEXTS[3], "malformed"),
        (15, TEXTS[14], "refused"),
    ]
    assert rows[1]["answer"] == "the text breaks our rules"
    merged = compress.merge_labels(parts, tmp_path / "merged")
    assert [(row.text, logits.tolist()) for row, logits in merged] == [
        (row.text, logits.tolist()) for row, logits in made
    ]
    assert merged.manifest.notes["unanswered"] == 2
    assert (merged.path / UNANSWERED_NAME).read_bytes() == (made.path / UNANSWERED_NAME).read_bytes()


def test_a_shard_may_be_without_any_answer(tmp_path: Path) -> None:
    last = TEXTS[16:]
    with serving(lambda text: {"": "?"} if text in last else chances(text)) as server:
        made = labelled(server, tmp_path / "labels")
    assert made.rows == 16 == len([*LabelDir.open(made.path)])


def test_a_text_that_always_fails_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.inference.language_model.RETRIES", 1)
    with serving(lambda text: {"": "FAIL"} if text == TEXTS[3] else chances(text)) as server:
        made = labelled(server, tmp_path / "labels")
    assert made.rows == len(TEXTS) - 1
    (row,) = map(json.loads, (made.path / UNANSWERED_NAME).read_text().splitlines())
    assert (row["row"], row["text"], row["reason"]) == (4, TEXTS[3], "failed") and "answers 500" in row["answer"]
    often = [f"{text} {number}" for number in range(5) for text in TEXTS]
    with serving(lambda text: {"": "FAIL"} if text[-1] in "123" and len(text) % 2 else chances(text)) as server:
        with pytest.raises(CompressError, match=r"2\d of \d\d texts failed, so that no more are asked: .* answers 500"):
            labelled(server, tmp_path / "often", often, concurrency=1)
        assert len(server.asked) < 2 * len(often)


def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with serving() as server:
        gone = server.url
    begun = time.monotonic()
    with pytest.raises(CompressError, match=r"does not answer \(ConnectError\); check that the server runs"):
        compress.label("openai:tiny", TEXTS, tmp_path / "labels", labels=LABELS, base_url=gone)
    assert time.monotonic() - begun < 10  # and not a minute of retries


def test_the_manifest_says_what_the_answers_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [*TEXTS, *TEXTS[:5]]  # equal texts are paid once
    with serving(chances) as server:
        options = {"prices": prices(tmp_path), "orders": 2}
        made = labelled(server, tmp_path / "labels", texts, **options)
        read = sum(sum(len(one["content"]) for one in asked["messages"]) // 4 for asked in server.asked)
        cost = {
            "questions": 40,
            "input_tokens": read,
            "cached_tokens": 0,
            "output_tokens": 80,
            "usd": round(read / 1e4 + 0.08, 6),
        }
        assert made.manifest.notes["bought"] == cost
        again = labelled(server, tmp_path / "again", texts, **options)  # by the answers that are there
        parts = [labelled(server, tmp_path / f"part{one}", shard=(one, 2), **options).path for one in (1, 2)]
        assert len(server.asked) == 40
    assert again.manifest.notes["bought"] == cost
    merged = compress.merge_labels(parts, tmp_path / "merged").manifest.notes["bought"]
    assert merged == cost  # equal texts in two parts are paid once
    assert made.origin["cost"] == f"40 questions, {read:,} tokens read and 80 written, {cost['usd']:.4f} USD"
    for damaged in ("dear", {"questions": 40}, {**cost, "usd": "dear"}):
        foreign = replace(made, manifest=replace(made.manifest, notes={**made.manifest.notes, "bought": damaged}))
        with pytest.raises(CompressError, match="say what they cost in another form"):
            _ = foreign.origin
    note = {"labels_of": [made.origin]}
    card = model_card(Manifest(stage="distill", notes=note))
    assert f"* labels: openai:tiny, {made.origin['cost']}" in card
    finish(write(tmp_path / "student", classifier("bert")), Manifest(stage="distill", notes=note))
    assert run(["show", str(tmp_path / "student")]) == 0
    assert f"learned from: openai:tiny ({made.origin['cost']})" in capsys.readouterr().out


def test_a_dry_run_says_what_the_bill_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = [*(f"{text:20}" for text in TEXTS), *(f"{text:20}" for text in TEXTS[:5])]
    with serving(chances) as server, caplog.at_level(logging.INFO, "compress"):
        options: dict[str, Any] = {"prices": prices(tmp_path), "concurrency": 16}
        labelled(server, tmp_path / "some", texts[:4], **options)
        caplog.clear()
        said = labelled(server, tmp_path / "none", texts, dry_run=True, **options)
        labelled(server, tmp_path / "labels", texts, **options)
    assert (said.questions, said.answered) == (25, 9) and said.measured  # five of which are asked for another row
    found = re.search(r"tiny: 16 questions \(9 more from the cache\), .* (\d+) written, (.*) USD", caplog.text)
    assert found and int(found[1]) == said.output_tokens and float(found[2]) == pytest.approx(said.usd, rel=0.01)


def test_the_bill_has_what_was_under_way_at_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(chances, faults=[*["slow"] * 7, 403]) as server, caplog.at_level(logging.INFO, "compress"):
        with pytest.raises(CompressError, match="answers 403"):
            labelled(server, tmp_path / "labels")
        asked = len(server.asked)
        assert f"tiny: {asked} questions (0 more from the cache)" in caplog.text
        labelled(server, tmp_path / "labels")
    assert len(server.asked) == len(TEXTS) + 1  # what was under way is kept


def test_a_budget_ends_the_work_and_more_goes_on_with_it(tmp_path: Path) -> None:
    with serving(chances) as server:
        options = {"prices": prices(tmp_path), "concurrency": 2}
        made = labelled(server, tmp_path / "labels", budget=0.13, **options)
        asked = len(server.asked)
        assert made.rows in (8, 16) and asked < len(TEXTS)
        times = {path.name: path.stat().st_mtime_ns for path in made.path.glob("shard*.parquet")}
        whole = labelled(server, tmp_path / "labels", budget=10.0, **options)
        assert whole.rows == len(TEXTS) and len(server.asked) == len(TEXTS)
        assert all(
            (whole.path / name).stat().st_mtime_ns == time_ns for name, time_ns in times.items()
        )  # not made again
        straight = labelled(server, tmp_path / "straight", **options)
    shards = sorted(path.name for path in whole.path.glob("shard*"))
    assert all((whole.path / name).read_bytes() == (straight.path / name).read_bytes() for name in shards)


def test_cost_is_never_above_the_budget(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(chances) as server,
        caplog.at_level(logging.INFO, "compress"),
        pytest.raises(CompressError, match="8 at a time"),
    ):
        labelled(server, tmp_path / "labels", prices=prices(tmp_path), budget=0.05)
    paid = sum(
        len(one["messages"][0]["content"] + one["messages"][1]["content"]) // 4 * 1e-4 + 2e-3 for one in server.asked
    )
    assert 0.01 < paid <= 0.05


def test_a_dry_run_asks_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(chances) as server:
        texts = tmp_path / "texts.txt"
        texts.write_text("\n".join(TEXTS))
        words = ["label", "--teacher", "openai:tiny", "--unlabeled", str(texts), "-o", str(tmp_path / "labels")]
        words += ["--labels", "bad,good", "--base-url", server.url, "--prices", str(prices(tmp_path)), "--dry-run"]
        assert run(words) == 0 and not server.asked
        assert "20 questions, 0 of them answered already" in capsys.readouterr().out
        labelled(server, tmp_path / "some", TEXTS[:5])
        assert run(words) == 0 and len(server.asked) == 5
    assert "5 of them answered already" in (said := capsys.readouterr().out) and "as earlier answers were" in said
    assert not (tmp_path / "labels").exists()


def run(words: list[str]) -> int:
    try:
        main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_teacher_is_judged_before_the_text_is_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = [f"{text} {number}" for text in TEXTS for number in range(3)]
    rows = [{"text": text, "label": "good" if log_odds(text) > 0 else "bad"} for text in texts]
    with serving(chances) as server, caplog.at_level(logging.INFO, "compress"):
        with pytest.raises(CompressError, match="not certainly 0.99"):
            labelled(server, tmp_path / "labels", validation=rows, min_score=0.99)
        assert len(server.asked) == 60
        labelled(server, tmp_path / "labels", validation=rows, min_score=0.9)
    assert "accuracy 1.0000 (0.9398 to 1.0000) on 60 rows" in caplog.text and len(server.asked) == 60 + len(TEXTS)


def wrong_rows(end: str = "") -> list[dict[str, str]]:
    return [{"text": f"{text}{end}", "label": "bad" if log_odds(f"{text}{end}") > 0 else "good"} for text in TEXTS]


def test_resumed_work_is_judged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.labelling.language_model.PILOT_ROWS", 2)
    with serving(chances, faults=[None] * 20 + [403] * 50) as server:
        with pytest.raises(CompressError, match="answers 403"):
            labelled(server, tmp_path / "labels", concurrency=1, orders=2)
        server.faults.clear()
        server.asked.clear()
        with pytest.raises(CompressError, match="not certainly"):
            labelled(server, tmp_path / "labels", orders=2, validation=wrong_rows(" !"), min_score=0.9)
        assert len(server.asked) == 2 * len(TEXTS)  # and nothing of the text


def test_interrupted_judging_says_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupts(replies: Any, advance: Any) -> Iterator[Any]:
        yield next(replies)
        raise KeyboardInterrupt

    monkeypatch.setattr("compress.inference.language_model.each", interrupts)
    with serving(chances) as server, caplog.at_level(logging.INFO, "compress"), pytest.raises(KeyboardInterrupt):
        labelled(server, tmp_path / "labels", validation=wrong_rows(" !"), concurrency=1)
    assert re.search(r"tiny: [1-9]\d* questions \(0 more from the cache\)", caplog.text)


def test_a_dry_run_looks_at_the_labels_of_validation(tmp_path: Path) -> None:
    rows = [{"text": "a film", "label": "so so"}]
    with serving(chances) as server, pytest.raises(CompressError, match="so so"):
        labelled(server, tmp_path / "labels", validation=rows, dry_run=True)
    assert not server.asked


def test_the_cost_of_labels_is_that_of_the_bill(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Judged rows are paid too; equal texts once, also in another shard of a run that goes on."""
    rows = [{"text": f"{text} !", "label": "good" if log_odds(f"{text} !") > 0 else "bad"} for text in TEXTS]
    options: dict[str, Any] = {"prices": prices(tmp_path), "validation": rows, "concurrency": 1}
    with serving(chances, faults=[None] * 35 + [403]) as server, caplog.at_level(logging.INFO, "compress"):
        with pytest.raises(CompressError, match="answers 403"):
            labelled(server, tmp_path / "labels", [*TEXTS, *TEXTS[:5]], **options)
        resumed = labelled(server, tmp_path / "labels", [*TEXTS, *TEXTS[:5]], **options).manifest.notes["bought"]
        caplog.clear()
    with serving(chances) as server, caplog.at_level(logging.INFO, "compress"):
        straight = labelled(server, tmp_path / "straight", [*TEXTS, *TEXTS[:5]], **options).manifest.notes["bought"]
    assert resumed == straight and straight["questions"] == 40
    assert f"tiny: 40 questions (5 more from the cache), {straight['input_tokens']:,} tokens read" in caplog.text


def test_a_server_that_hangs_is_tried_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.inference.language_model.TIMEOUT_S", 0.05)
    for patient, tries in ((False, 2), (True, 3)):
        monkeypatch.setattr("compress.inference.language_model.RETRIES", 2)
        with serving(chances, faults=["stuck"] * 9) as server:
            model = LanguageModel("tiny", server.url, patient=patient)
            answer = model.ask([{"role": "user", "content": "a film"}], {}, 9)
            assert answer.failed and answer.refusal.endswith(f"no answer in {tries} tries of 0.05 s")
            assert len(server.asked) == tries


def test_a_server_that_wants_a_key_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with serving(chances) as server, pytest.raises(CompressError, match="OPENAI_API_KEY is not set: type export OPEN"):
        labelled(server, tmp_path / "labels")


def test_a_budget_may_end_before_the_text(tmp_path: Path) -> None:
    options = {"prices": prices(tmp_path), "budget": 0.05, "validation": wrong_rows(" !")}
    with serving(chances) as server, pytest.raises(CompressError, match="larger --budget"):
        labelled(server, tmp_path / "labels", **options)


@pytest.mark.parametrize("said", ['{"labels": ' + "[" * 100_000, '{"labels": "joy"}', "\ud800"])
def test_odd_answers_are_malformed(said: str, tmp_path: Path) -> None:
    with serving(says=lambda text: said if text == TEXTS[0] else '{"labels": []}') as server:
        made = labelled(server, tmp_path / "labels", labels=("joy", "love"), answer="labels")
    assert made.rows == len(TEXTS) - 1


@pytest.mark.parametrize("given", ["", ", validation=[('a', 'x'), ('b', 'y')]"], ids=["text", "validation"])
def test_an_interruption_ends_the_process_while_the_server_hangs(tmp_path: Path, given: str) -> None:
    options = f"labels=('x', 'y'), base_url={{!r}}{given}"
    # A process of a background job would ignore the signal.
    code = "import compress, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += f"compress.label('openai:tiny', ['a', 'b'], {str(tmp_path / 'labels')!r}, {options})"
    with serving(chances, faults=["stuck"] * 50) as server:
        command = [sys.executable, "-c", code.format(server.url)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            while not server.asked and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            try:
                errors = process.communicate(timeout=60)[1]  # it would not end where it waited for answers
            finally:
                process.kill()
    assert server.asked and b"KeyboardInterrupt" in errors and not (tmp_path / "labels").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_no_more_is_asked_after_it_ended(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts with orders left ask no more, and what is paid is kept, however slow the disk is."""
    kept, is_slow = list[str](), AnswerStore.put

    def put(store: AnswerStore, key: str, *rest: Any) -> None:
        time.sleep(0.1)
        is_slow(store, key, *rest)
        kept.append(key)

    monkeypatch.setattr(AnswerStore, "put", put)
    with serving(chances) as server:
        asked = Asked(labels=("good", "bad"), base_url=server.url, orders=2, concurrency=4)
        asker = Asker("tiny", asked)
        with pytest.raises(error), asker.pool() as pool:
            answers = [pool.apply_async(asker.ask, (Example(f"text {number}"),)) for number in range(400)]
            answers[0].get()
            raise error
        bought = len(server.asked)
        assert 2 <= bought < 800 and (error is KeyboardInterrupt or len(kept) == bought)
        time.sleep(0.5)
        assert len(server.asked) <= bought + 4 * (error is KeyboardInterrupt)  # which waits for none that is sent
        assert asker.said([Example("later")])[0].said  # what is loaded answers again


def everything_written(folder: Path) -> Iterator[bytes]:
    yield from (path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_the_key_is_in_no_file_log_or_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    with serving(chances) as server, caplog.at_level(logging.DEBUG):
        labelled(server, tmp_path / "labels", TEXTS[:5])
        monkeypatch.setenv("OPENAI_API_KEY", "wrong-key-5678")
        with pytest.raises(CompressError, match=r"answers 401 for tiny: Incorrect API key: \*\*\*") as caught:
            labelled(server, tmp_path / "more", TEXTS[5:])
    for key in (KEY, "wrong-key-5678"):
        assert not any(key.encode() in content for content in everything_written(tmp_path))
        assert key not in caplog.text and key not in str(caught.value)
    assert not any(TEXTS[0].encode() in content for content in everything_written(tmp_path / "cache"))


def test_errors_of_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.inference.language_model.RETRIES", 1)
    monkeypatch.setattr("compress.inference.language_model.time.sleep", lambda seconds: None)
    with serving(chances, faults=["garbage"] * 100) as server, pytest.raises(CompressError, match="no chat completion"):
        labelled(server, tmp_path / "labels")
    with serving(chances, faults=[500] * 100) as server, pytest.raises(CompressError, match="answers 500 for tiny"):
        labelled(server, tmp_path / "labels")
    for said, why in (("REFUSE", "refused: 'the text breaks our rules'"), ("no idea", "malformed: 'no idea'")):
        with serving(lambda text, said=said: {"": said}) as server:
            with pytest.raises(CompressError, match=f"20 texts in a row got no label of tiny.*{why}"):
                labelled(server, tmp_path / f"labels {said}")
            with pytest.raises(CompressError, match="no row of .* got a label"):
                labelled(server, tmp_path / f"few {said}", TEXTS[:5])
    with pytest.raises(CompressError, match="does not answer"):  # the server is gone
        labelled(server, tmp_path / "gone", ["another text"])
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["cache"]


@pytest.mark.parametrize(
    ("answer", "labels", "said", "logits"),
    [
        ("labels", ("joy", "love"), '{"labels": ["love"]}', [math.log(0.05 / 0.95), math.log(0.95 / 0.05)]),
        ("score", (), '{"score": 3.5}', [3.5]),
    ],
)
def test_other_answers(answer: str, labels: tuple[str, ...], said: str, logits: list[float], tmp_path: Path) -> None:
    with serving(says=lambda text: said) as server:
        made = labelled(server, tmp_path / "labels", TEXTS[:3], labels=labels, answer=answer)
        assert server.asked[0]["response_format"]["json_schema"]["schema"]["required"] == [answer]
    for _, found in made:
        np.testing.assert_allclose(found, logits, rtol=1e-5)


def test_entities(tmp_path: Path) -> None:
    with serving(says=lambda text: '{"spans": [{"text": "Oslo", "label": "LOC"}]}') as server:
        made = labelled(server, tmp_path / "labels", ["Fly to Oslo, now"], labels=("LOC",), answer="spans")
    ((row, logits),) = made
    assert made.manifest.labels == ("B-LOC", "I-LOC", "O") and list(row.words) == ["Fly", "to", "Oslo", ",", "now"]
    assert logits.argmax(axis=1).tolist() == [2, 2, 0, 2, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"teacher": "openai:tiny", "threads": 2}, "--threads needs a model directory as teacher"),
        ({"teacher": "openai:tiny", "engine": "ray"}, "--engine needs a model directory as teacher"),
        ({"teacher": "teacher", "orders": 2}, "--orders needs openai:MODEL as teacher"),
        ({"teacher": "openai:tiny", "budget": 1.0}, "--prices"),
        ({"teacher": "openai:tiny", "labels": LABELS}, "OPENAI_API_KEY"),
        ({"teacher": "openai:"}, "names no model"),
        ({"teacher": "openai:tiny", "labels": LABELS, "base_url": "localhost:80"}, "no URL"),
        ({"teacher": "openai:tiny", "labels": LABELS, "base_url": "http://me:secret@x/v1"}, "holds a user or a key"),
        ({"teacher": "openai:tiny", "labels": ("bad", ""), "base_url": "http://x"}, "without a name"),
        ({"teacher": "openai:tiny", "base_url": "http://127.0.0.1:1/v1"}, "2 labels or more"),
        (
            {"teacher": "openai:other", "labels": LABELS, "base_url": "http://x", "prices": "prices.toml"},
            "no prices of other",
        ),
    ],
)
def test_refusals(options: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.chdir(tmp_path)
    prices(tmp_path)
    given = dict(options)
    with pytest.raises(CompressError, match=said):
        compress.label(given.pop("teacher"), TEXTS, tmp_path / "labels", **given)
    assert not (tmp_path / "labels").exists()
