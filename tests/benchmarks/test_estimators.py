"""The script that compares estimators of a speed-up, on records whose disturbances are known."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from compress.inference.speedup_intervals import speedup
from tests.support import REPOSITORY, module_from

SCRIPT = REPOSITORY / "benchmarks" / "speed" / "estimators.py"
SPEEDS_MS = {"teacher": 20.0, "int8": 5.0, "bilstm": 0.5}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_from(SCRIPT)


def recorded(script: ModuleType, *, rounds: int, interrupted: bool = False, seed: int = 0) -> Any:
    """Return records whose CPU time varies by 2%; a loop beside them takes half the wall time of calls above 1 ms."""
    generator = np.random.default_rng(seed)
    records = {}
    for copy in script.COPIES:
        cpu = SPEEDS_MS[copy.model] * (1 + copy.handicap) * generator.lognormal(0, 0.02, (copy.processes, rounds, 10))
        wall = np.where(interrupted & (cpu > 1), 2 * cpu, cpu)
        records[copy.name] = list(np.stack([wall, cpu], axis=1))
    return records


@pytest.fixture(scope="module")
def quiet(script: ModuleType) -> Any:
    """What is found without disturbances."""
    return script.evaluate([recorded(script, rounds=12)])


def test_the_chosen_estimator_is_what_benchmarks_report(script: ModuleType) -> None:
    records = recorded(script, rounds=12)
    for _, _, a, b in script.pairs_of(records):
        assert script.estimate(script.ESTIMATORS[script.CHOSEN], a, b) == pytest.approx(speedup(a[1], b[1]))


def test_every_estimator_finds_known_ratios(script: ModuleType, quiet: Any) -> None:
    assert set(quiet) == {*script.ESTIMATORS, f"{script.CHOSEN}, until precise"}
    for name, one in quiet.items():
        figures = script.summarise(one, one)
        assert figures["speedup"]["teacher and int8"] == pytest.approx(4, rel=0.03), name
        assert figures["speedup"]["int8 and x3"] == pytest.approx(1 / 3, rel=0.03), name
        assert 0 < figures["process_spread"] < 0.01, name
        assert figures["coverage"] > 0.9 and figures["decided"] == 1, name
        assert figures["equal_pairs"] == 3 + 15 + 21 and figures["slower_pairs"] == 6 * 2 + 7 * 2


def test_wall_time_makes_a_short_call_look_faster_beside_a_loop_and_cpu_time_does_not(
    script: ModuleType, quiet: Any
) -> None:
    busy = script.evaluate([recorded(script, rounds=12, interrupted=True, seed=1)])
    for name in script.ESTIMATORS:
        bias = script.summarise(busy[name], quiet[name])["bias"]["teacher and bilstm"]
        if name.startswith("CPU"):
            assert abs(bias) < 0.02, name
        elif name != "wall, uninterrupted calls":
            assert bias == pytest.approx(1, rel=0.05), name


def test_measuring_stops_at_the_round_at_which_a_benchmark_would(script: ModuleType) -> None:
    a, b = recorded(script, rounds=36)["teacher x1"][:2]
    assert script.until_precise(a, b)[1] == 5
    generator = np.random.default_rng(0)
    scattered = a * generator.lognormal(0, 1, a.shape)
    figure, rounds = script.until_precise(scattered, b)
    assert rounds == 36 and figure.half_width > 0.05


def test_the_gate_is_counted_over_pairs_and_budgets(script: ModuleType) -> None:
    outcomes = script.gate([recorded(script, rounds=12)], {"teacher and int8": 4.0, "teacher and bilstm": 40.0})
    pairs = 3 * 6 + 3 * 7
    assert outcomes["0.5"] == {"within": pairs} and outcomes["2.0"] == {"worse": pairs}
    assert all(sum(counted.values()) == pairs for counted in outcomes.values())


def test_kept_records_are_read_and_joined_as_they_were(script: ModuleType, tmp_path: Path) -> None:
    segments = [recorded(script, rounds=3, seed=seed) for seed in range(4)]
    script.save(tmp_path / "kept.npz", segments)
    joined = script.joined(script.load(tmp_path / "kept.npz"), 2)
    assert len(joined) == 2
    expected = np.concatenate([segments[2]["int8 x1.1"][1], segments[3]["int8 x1.1"][1]], axis=1)
    np.testing.assert_array_equal(joined[1]["int8 x1.1"][1], expected)
