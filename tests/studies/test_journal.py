"""A journal of others is checked; no two parts of a study share a name."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from compress.errors import CompressError
from compress.studies.journal import JOURNAL_NAME, Stages


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '{"a": {"fingerprint": 1, "seconds": 1}}', "[" * 9000, '{"a": {}}'])
def test_a_damaged_journal_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL_NAME).write_text(text)
    with pytest.raises(CompressError, match="study.json is damaged.*choose another -o"), Stages.open(tmp_path, False):
        pass


def test_two_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    with Stages.open(tmp_path / "study", True) as stages:
        stages.make("a-int8", {"of": "a"}, Path.mkdir)
        stages.make("a-int8", {"of": "a"}, Path.mkdir)
        with pytest.raises(CompressError, match="two parts of the study are called a-int8"):
            stages.make("a-int8", {"of": "another"}, Path.mkdir)


def test_a_study_has_one_command_at_a_time(tmp_path: Path) -> None:
    with Stages.open(tmp_path / "study", False) as stages:
        with pytest.raises(CompressError, match="another command is writing"), Stages.open(tmp_path / "study", True):
            pass
        stages.make("a", {}, Path.mkdir)
    with Stages.open(tmp_path / "study", False) as stages:
        assert [*stages.done] == ["a"]


def test_a_study_that_could_not_begin_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), Stages.open(tmp_path / "new" / "study", False):
        raise KeyboardInterrupt
    assert not any(tmp_path.iterdir())


def test_a_killed_study_locks_nobody_out(tmp_path: Path) -> None:
    kills_itself = "import os, sys; from compress.studies.journal import Stages; "
    kills_itself += "study = Stages.open(sys.argv[1], False); study.__enter__(); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", kills_itself, str(tmp_path / "study")], check=False)
    assert done.returncode == -9 and [path.name for path in (tmp_path / "study").iterdir()] == [".study.json.lock"]
    with Stages.open(tmp_path / "study", False) as stages:
        assert not stages.done
