"""A function over many items in processes: order, errors, ends."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from functools import partial

import pytest

from compress.data.parallel import in_processes
from tests.support import REPOSITORY


@pytest.mark.parametrize("processes", [1, 3])
def test_results_are_in_order(processes: int) -> None:
    found = list(in_processes(partial(pow, 2), range(40), processes=processes))
    assert found == [2**number for number in range(40)]


def test_it_computes_in_other_processes_as_many_as_there_are_items() -> None:
    found = set(in_processes(_process, range(2), processes=8))
    assert os.getpid() not in found and 1 <= len(found) <= 2
    assert list(in_processes(_process, [0], processes=8)) == [os.getpid()]


def _process(item: int) -> int:
    print("on standard output, which is no answer")
    return os.getpid()


def test_an_error_is_that_of_the_function() -> None:
    with pytest.raises(ValueError, match="math domain error"):
        list(in_processes(math.sqrt, [4.0, -1.0, 9.0], processes=2))


class _TwoWords(Exception):
    """Pickle makes it again of its message alone, which is one argument too few."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def _refuse(item: int) -> int:
    raise _TwoWords("not", str(item))


def test_an_error_that_no_process_can_be_sent_says_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="_TwoWords: not 1"):
        list(in_processes(_refuse, [1, 2], processes=2))


def test_a_process_that_the_system_ends_is_an_error_and_no_hang() -> None:
    with pytest.raises(MemoryError):
        list(in_processes(os._exit, [0, 0, 0], processes=2))


def test_nothing_goes_on_after_it() -> None:
    """Neither processes nor threads, if not all results are taken; and a script needs no guard of its main module."""
    script = """
import math, subprocess, sys
from compress.data.parallel import in_processes
print("main")
results = in_processes(math.factorial, range(50), processes=2)
print(next(results), next(results))
results.close()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("main\n1 1\n", "", 0)
