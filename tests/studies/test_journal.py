"""A journal of others is checked; no two parts of a study share a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from compress.errors import CompressError
from compress.studies.journal import JOURNAL_NAME, Stages


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '{"a": {"fingerprint": 1, "seconds": 1}}', "[" * 9000, '{"a": {}}'])
def test_a_damaged_journal_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL_NAME).write_text(text)
    with pytest.raises(CompressError, match="study.json is damaged.*choose another -o"):
        Stages.open(tmp_path, False)


def test_two_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    stages = Stages.open(tmp_path / "study", True)
    stages.make("a-int8", {"of": "a"}, Path.mkdir)
    stages.make("a-int8", {"of": "a"}, Path.mkdir)
    with pytest.raises(CompressError, match="two parts of the study are called a-int8"):
        stages.make("a-int8", {"of": "another"}, Path.mkdir)
