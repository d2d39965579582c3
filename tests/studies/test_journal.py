"""A journal of others is checked; no two parts of a study share a name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from compress.errors import CompressError
from compress.models.output_dir import Busy, alone
from compress.studies.journal import JOURNAL_NAME, OutOfDate, Stages
from tests.support import forked


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '{"a": {"inputs": 1, "seconds": 1}}', "[" * 9000, '{"a": {}}'])
def test_a_damaged_journal_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL_NAME).write_text(text)
    with pytest.raises(CompressError, match="study.json is damaged.*choose another -o"), Stages.open(tmp_path, False):
        pass


def test_with_force_a_study_begins_again_beside_its_damaged_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / JOURNAL_NAME).write_text('{"a": ')
    with Stages.open(tmp_path, True) as stages:
        stages.make("a", {"of": "a"}, Path.mkdir)
    assert (tmp_path / "study.json.old").read_text() == '{"a": ' and "study.json.old now" in caplog.text
    assert opened(tmp_path) == {"a"}


def test_two_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    with Stages.open(tmp_path / "study", True) as stages:
        stages.make("a-int8", {"of": "a"}, Path.mkdir)
        stages.make("a-int8", {"of": "a"}, Path.mkdir)
        with pytest.raises(CompressError, match="two parts of the study are called a-int8"):
            stages.make("a-int8", {"of": "another"}, Path.mkdir)


@pytest.mark.parametrize("first", [False, True])
def test_a_command_that_replaces_stages_is_alone(tmp_path: Path, first: bool) -> None:
    with Stages.open(tmp_path / "study", first) as stages:
        with pytest.raises(Busy, match="another command is writing"), Stages.open(tmp_path / "study", True):
            pass
        stages.make("a", {}, Path.mkdir)
    with Stages.open(tmp_path / "study", True) as stages:
        assert [*stages.done()] == ["a"]


def opened(study: Path) -> set[str]:
    with Stages.open(study, False) as stages:
        return {*stages.done()}


def test_a_command_waits_for_one_that_replaces_stages(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as other:
        with Stages.open(tmp_path / "study", True) as stages:
            waiting = other.submit(opened, tmp_path / "study")
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            stages.make("a", {}, Path.mkdir)
        assert waiting.result(60) == {"a"}


def test_commands_share_the_stages_of_a_study(tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    given = {"seed": 0, "data": "a"}

    def slowly(path: Path) -> None:
        assert not begun.is_set()
        begun.set()
        assert goes_on.wait(60)
        path.mkdir()

    def first() -> None:
        with Stages.open(tmp_path / "study", False) as stages:
            stages.make("folder/slow", given, slowly)

    with ThreadPoolExecutor(1) as other:
        running = other.submit(first)
        assert begun.wait(60)
        with Stages.open(tmp_path / "study", False) as stages:
            hasty = replace(stages, waits=False)
            with pytest.raises(Busy):
                hasty.make("folder/slow", given, slowly)
            hasty = replace(stages, waits=False, _asked={})
            with pytest.raises(OutOfDate, match=r"makes .*slow from other .* names \(changed: data, of\); choose"):
                hasty.make("folder/slow", {"seed": 0, "of": "another"}, slowly)
            stages.make("quick", {}, Path.mkdir)
            assert [stage.seconds is not None for stage in stages.done().values()] == [False, True]
            threading.Timer(0.3, goes_on.set).start()
            assert stages.make("folder/slow", given, slowly) == tmp_path / "study" / "folder" / "slow"
            running.result(60)
            assert all(stage.seconds is not None for stage in stages.done().values())
    assert {path.name for path in (tmp_path / "study").rglob("*")} == {JOURNAL_NAME, "folder", "slow", "quick"}


def test_what_another_command_makes_comes_last(tmp_path: Path) -> None:
    """And is waited for; what somebody else writes without the study's lock fails."""

    def refused(path: Path) -> None:
        raise Busy("another command is writing")

    def making(name: str) -> Callable[[Stages], Path]:
        return lambda stages: stages.make(name, {}, refused if name == "written" else Path.mkdir)

    rows = {name: [making(name)] for name in ("busy", "free", "written")}
    rows["busy"].append(making("beside-it"))

    with Stages.open(tmp_path / "study", False) as stages, ExitStack() as other:
        other.enter_context(alone(tmp_path / "study" / "busy.stage"))
        threading.Timer(0.5, other.close).start()
        failed = stages.make_all(rows)
        busy, beside, free = (tmp_path / "study" / name for name in ("busy", "beside-it", "free"))
        assert stages.found(rows) == {"busy": [busy, beside], "free": [free]}
        assert [*failed] == ["written"] and [*stages.done()] == ["beside-it", "free", "written", "busy"]


def test_what_is_left_for_the_end_is_all_of_what_it_needs(tmp_path: Path) -> None:
    """A stage that is made before the first call may be busy too; what failed beside a busy one is tried once more."""
    tries: list[str] = []

    def fails_once(path: Path) -> None:
        tries.append(path.name)
        if len(tries) == 1:
            raise ValueError("once")
        path.mkdir()

    def busy(stages: Stages) -> Path:
        return stages.make("busy", {}, Path.mkdir)

    def needing(stages: Stages) -> Path:
        busy(stages)
        return stages.make("of-it", {}, Path.mkdir)

    def frail(stages: Stages) -> Path:
        return stages.make("frail", {}, fails_once)

    with Stages.open(tmp_path / "study", False) as stages, ExitStack() as other:
        other.enter_context(alone(tmp_path / "study" / "busy.stage"))
        threading.Timer(0.5, other.close).start()
        rows = {"needing": [needing], "beside": [busy, frail]}
        failed = stages.make_all(rows)
        names = {name: [path.name for path in paths] for name, paths in stages.found(rows).items()}
    assert not failed and names == {"needing": ["of-it"], "beside": ["busy", "frail"]}


def test_what_was_made_from_something_else_is_left_out_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Stages.open(tmp_path / "study", False) as stages:
        stages.make("a", {"recipe": 1}, Path.mkdir)
    with Stages.open(tmp_path / "study", False) as stages:
        assert not stages.found({"a": [lambda now: now.make("a", {"recipe": 2}, Path.mkdir)]})
    assert "a is not measured: it was made from other data or settings" in caplog.text


def test_commands_that_end_stages_at_once_lose_none(tmp_path: Path) -> None:
    names, together = [f"stage-{number}" for number in range(8)], threading.Barrier(8)

    def make(name: str) -> None:
        with Stages.open(tmp_path / "study", False) as stages:
            together.wait(60)
            stages.make(name, {}, Path.mkdir)

    with ThreadPoolExecutor(8) as commands:
        [*commands.map(make, names)]
    assert opened(tmp_path / "study") == {*names}


def test_nothing_is_measured_beside_a_training(tmp_path: Path) -> None:
    def measured() -> bool:
        with Stages.open(tmp_path / "study", False) as stages, stages.measuring():
            return True

    with ThreadPoolExecutor(1) as other, Stages.open(tmp_path / "study", False) as stages:
        with stages.making():
            with stages.making():  # a third command
                waiting = other.submit(measured)
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
        assert waiting.result(60)


def test_a_study_that_could_not_begin_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), Stages.open(tmp_path / "new" / "study", False):
        raise KeyboardInterrupt
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_study_locks_nobody_out(tmp_path: Path) -> None:
    kills_itself = "import os, sys; from compress.studies.journal import Stages; "
    kills_itself += "study = Stages.open(sys.argv[1], False); study.__enter__(); os.kill(os.getpid(), 9)"
    done = forked.run(["-c", kills_itself, str(tmp_path / "study")])
    assert done.returncode == -9 and [path.name for path in (tmp_path / "study").iterdir()] == [".study.json.lock"]
    with Stages.open(tmp_path / "study", False) as stages:
        assert not stages.done()
