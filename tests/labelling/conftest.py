"""Shards of a few rows, so that little text has several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compress.labelling import label as label_module

SHARD = 8


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = label_module.plan_for
    monkeypatch.setattr(
        label_module, "plan_for", lambda *given, **named: replace(plan(*given, **named), shard_rows=SHARD)
    )
