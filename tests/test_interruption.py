"""Interruptions that hit a library at a bad moment still end the command."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator

import pytest

from compress import errors


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    errors.interrupt_on_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    errors.interruptions.clear()


def test_one_that_is_dropped_while_an_object_is_deleted_comes_again(installed: None) -> None:
    class Interrupted:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted()
        for _ in range(100):
            time.sleep(0.1)  # which is not cut short
    assert errors.interruptions == [signal.SIGTERM]


def test_others_that_are_dropped_are_said(installed: None, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    Broken()
    assert "ValueError: broken" in capsys.readouterr().err and not errors.interruptions


def test_an_ignored_ctrl_c_stays_ignored(monkeypatch: pytest.MonkeyPatch, installed: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    errors.interrupt_on_signals()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
