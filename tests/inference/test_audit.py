"""An audit of a cascade's promise: which texts it asks about, what it counts, and what the command says of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import compress
from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.manifest import Manifest
from compress.models.model_dir import CASCADE_NAME, MEMBERS, CascadeDir, open_model
from compress.models.output_dir import finish
from compress.requests.compression import export
from tests.support.tiny import GOOD, LABELS, PLAIN, classifier, cnn, write

CPU = Compute("cpu", threads=1)
TEXTS = [f"{GOOD[i % 8]} {PLAIN[i % 15]} {PLAIN[i * 7 % 15]} row {i}" for i in range(400)]


def joined(members: list[Path], folder: Path, recipe: dict[str, Any], threshold: float = 0.0) -> CascadeDir:
    for number, member in enumerate(members, 1):
        shutil.copytree(member, folder / MEMBERS / str(number))
    (folder / CASCADE_NAME).write_text(json.dumps({"members": ["fast", "exact"], "thresholds": [threshold]}))
    finish(folder, Manifest(stage="cascade", kind="cascade", labels=LABELS, recipe=recipe))
    found = open_model(folder)
    assert isinstance(found, CascadeDir)
    return found


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("members")
    made = []
    for name, model in (("fast", cnn(labels=LABELS)), ("exact", classifier("bert"))):
        write(folder / f"{name}-torch", model)
        made.append(export(folder / f"{name}-torch", folder / name).path)
    return made


@pytest.fixture(scope="module")
def cascade(members: list[Path], tmp_path_factory: pytest.TempPathFactory) -> CascadeDir:
    """Return one whose first member answers everything."""
    return joined(members, tmp_path_factory.mktemp("joined"), {"agree": 0.9})


@pytest.fixture(scope="module")
def labels(members: list[Path]) -> list[list[str]]:
    return [[one["label"] for one in load(member, compute=CPU).predict(TEXTS)] for member in members]


@pytest.fixture(scope="module")
def streams(labels: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return 80 texts or more that both members answer alike, some of them several times, and 20 that they do not."""
    equal = [one == last for one, last in zip(*labels, strict=True)]
    kept, shifted = ([one for one, same in zip(TEXTS, equal, strict=True) if same is which] for which in (True, False))
    return kept * -(-80 // len(kept)), shifted[:20]


def test_answers_stay_and_do_not_depend_on_order_or_batch(cascade: CascadeDir, labels: list[list[str]]) -> None:
    audits = [compress.AgreementAudit(cascade.path, 0.2, compute=CPU) for _ in range(3)]
    expected = load(cascade.path, compute=CPU).predict(TEXTS)
    assert audits[0].predict(TEXTS) == expected
    for text in TEXTS[::-1]:
        audits[1].predict(text)
    assert audits[2].predict(iter(TEXTS[:100])) == expected[:100]
    assert audits[2].predict([], probabilities=True) == []
    assert audits[2].predict([(TEXTS[100])], probabilities=True)[0]["probabilities"].keys() == set(LABELS)
    audits[2].predict(TEXTS[101:])
    assert len({(one.rows, one.same) for one in audits}) == 1 and 40 < audits[0].rows < 120
    other = compress.AgreementAudit(cascade.path, 0.2, seed=1, compute=CPU)
    other.predict(TEXTS)
    every = compress.AgreementAudit(cascade.path, 1.0, compute=CPU)
    every.predict(TEXTS)
    assert every.rows == len(TEXTS) and every.same == sum(one == last for one, last in zip(*labels, strict=True))
    chosen = [[one for one in TEXTS if audit._chooses(Example(one))] for audit in (audits[0], other)]
    assert chosen[0] != chosen[1] and len(chosen[0]) == audits[0].rows


def test_what_the_last_member_answers_is_not_counted(members: list[Path], tmp_path: Path) -> None:
    made = joined(members, tmp_path / "unsure", {"agree": 0.9}, threshold=1.0)
    audit = compress.AgreementAudit(made, 1.0, compute=CPU)
    audit.predict(TEXTS[:50])
    assert audit.rows == 0 and audit.holds and audit.evidence == 1.0


def test_a_shifted_stream_breaks_the_promise(cascade: CascadeDir, streams: tuple[list[str], list[str]]) -> None:
    kept, shifted = streams
    audit = compress.AgreementAudit(cascade.path, 1.0, compute=CPU)
    audit.predict(kept)
    assert audit.holds and audit.rows == audit.same == len(kept)
    audit.predict(shifted[:15])
    assert not audit.holds and audit.evidence >= 20 and audit.rows == len(kept) + 15
    audit.predict(kept)
    assert not audit.holds


def test_the_command_says_when_the_promise_is_broken(
    cascade: CascadeDir, streams: tuple[list[str], list[str]], tmp_path: Path, capfd: Any
) -> None:
    file, state = tmp_path / "texts.txt", tmp_path / "audit.json"
    kept, shifted = streams
    words = ["predict", "--model", str(cascade.path), "--data", str(file), "--format", "text", "--device", "cpu"]
    words += ["--threads", "1"]
    audited = [*words, "--audit", "99.99%", "--audit-file", str(state)]
    file.write_text("\n".join(kept))
    assert execute(words) == 0
    plain = capfd.readouterr().out
    assert execute(audited) == 0
    shown, count = capfd.readouterr(), f"{len(kept):,}"
    assert shown.out == plain
    assert f"audit: {count} of {count} answers of fast are those of exact, at least 90%" in shown.err
    assert json.loads(state.read_text())["holds"] is True
    file.write_text("\n".join(shifted))
    assert execute(audited) == 1
    assert "the promise is broken" in capfd.readouterr().err
    found = json.loads(state.read_text())
    assert (found["rows"], found["same"], found["holds"]) == (len(kept) + 20, len(kept), False)


def test_what_an_audit_refuses(cascade: CascadeDir, members: list[Path], tmp_path: Path, capsys: Any) -> None:
    state = tmp_path / "audit.json"

    def refused(says: str, model: Any = cascade, share: float = 0.5, file: Path | None = None) -> None:
        with pytest.raises(CompressError, match=says):
            compress.AgreementAudit(model, share, file=file, compute=CPU)

    refused("promises no agreement; audit a cascade", members[0])
    for number, recipe in enumerate(({"max_accuracy_drop": 1.0}, {"agree": "much"}, {"agree": 7.0})):
        refused("promises no agreement", joined(members, tmp_path / str(number), recipe))
    refused("an audit of 0 is none", share=0.0)
    refused("an audit of 1.5 is none", share=1.5)
    refused("the folder of .* is not there", file=tmp_path / "nowhere" / "audit.json")
    audit = compress.AgreementAudit(cascade, 1.0, file=state, compute=CPU)
    audit.predict(TEXTS[:5])
    audit.save()
    sound = json.loads(state.read_text())
    wrong: list[dict[str, Any]] = [{"cascade": "x"}, {"promised": 0.8}, {"rows": -1}, {"same": 9}, {"evidence": "a"}]
    for change in [*wrong, {"bets": [1.0]}, {"bets": None}, {"rows": True}]:
        state.write_text(json.dumps(sound | change))
        refused("is no audit of .* as it is now; give another file", file=state)
    state.write_text(json.dumps(sound))
    assert compress.AgreementAudit(cascade, 1.0, file=state, compute=CPU).rows == 5
    there = ["predict", "--model", str(cascade.path), "a text"]
    for words, says in (
        (["--audit-file", str(state)], "--audit-file changes nothing without --audit"),
        (["--audit", "2%", "--windows", "16,8"], "a cascade has windows of its own"),
        (["--audit", "0%"], "no share between 0% and 100%"),
    ):
        assert execute([*there, *words]) == 2
        assert says in capsys.readouterr().err
    assert json.loads(state.read_text()) == sound
