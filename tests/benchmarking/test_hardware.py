"""Energy is what a counter says, counted on where it wraps; without a counter there is no figure."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compress.benchmarking import rounds
from compress.benchmarking.hardware import EnergyMeter


def domain(root: Path, number: str, name: str, microjoules: int, largest: int = 1_000_000_000) -> Path:
    """Write a domain as Linux shows it, and return the file of its counter."""
    zone = root / f"intel-rapl:{number}"
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{name}\n")
    (zone / "max_energy_range_uj").write_text(f"{largest}\n")
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    return zone / "energy_uj"


def open_cpu(root: Path) -> EnergyMeter:
    meter = EnergyMeter.open("cpu", powercap=root)
    assert meter is not None
    return meter


def test_joules_are_counted_from_the_opening(tmp_path: Path) -> None:
    counter = domain(tmp_path, "0", "package-0", 5_000_000)
    meter = open_cpu(tmp_path)
    assert meter.source == "RAPL" and meter.joules() == 0
    counter.write_text("7500000\n")
    assert meter.joules() == pytest.approx(2.5)
    counter.write_text("8000000\n")
    assert meter.joules() == pytest.approx(3.0)


def test_a_counter_that_wraps_is_counted_on(tmp_path: Path) -> None:
    counter = domain(tmp_path, "0", "package-0", 9_000_000, largest=10_000_000)
    meter = open_cpu(tmp_path)
    counter.write_text("500000\n")
    assert meter.joules() == pytest.approx(1.5)
    counter.write_text("200000\n")
    assert meter.joules() == pytest.approx(1.5 + 9.7)


def test_packages_are_added_and_what_lies_in_them_is_not(tmp_path: Path) -> None:
    counters = [domain(tmp_path, str(number), f"package-{number}", 0) for number in range(2)]
    inner = [domain(tmp_path, "0:0", "core", 0), domain(tmp_path, "0:1", "dram", 0), domain(tmp_path, "2", "psys", 0)]
    meter = open_cpu(tmp_path)
    for counter in counters:
        counter.write_text("1000000\n")
    for counter in inner:
        counter.write_text("900000000\n")
    assert meter.joules() == pytest.approx(2.0)


@pytest.mark.parametrize("broken", ["absent", "no-package", "unreadable", "not-a-number"])
def test_without_a_readable_counter_there_is_no_meter(broken: str, tmp_path: Path) -> None:
    if broken != "absent":
        counter = domain(tmp_path, "0", "psys" if broken == "no-package" else "package-0", 0)
        if broken == "unreadable":  # a directory fails to read for root too, which permissions do not
            counter.unlink()
            counter.mkdir()
        if broken == "not-a-number":
            counter.write_text("many")
    assert EnergyMeter.open("cpu", powercap=tmp_path) is None


def test_an_unknown_device_has_no_meter(tmp_path: Path) -> None:
    domain(tmp_path, "0", "package-0", 0)
    assert EnergyMeter.open("tpu", powercap=tmp_path) is None


class NVMLError(Exception):
    pass


def fake_nvml(millijoules: list[int], *, cards: int = 1, fails: str = "") -> SimpleNamespace:
    """Return what looks like pynvml, whose function ``fails`` raises."""

    def answer(name: str, value: object) -> object:
        if name == fails:
            raise NVMLError(name)
        return value

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: answer("init", None),
        nvmlDeviceGetCount=lambda: cards,
        nvmlDeviceGetHandleByIndex=lambda index: f"card {index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: answer("uuid", uuid),
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: answer("energy", millijoules.pop(0)),
    )


def test_a_card_counts_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([10_000, 12_500, 13_000]))
    meter = EnergyMeter.open("cuda")
    assert meter is not None and meter.source == "NVML"
    assert meter.joules() == pytest.approx(2.5)
    assert meter.joules() == pytest.approx(3.0)


@pytest.mark.parametrize("fails", ["init", "energy"])
def test_a_card_that_does_not_count_has_no_meter(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([0], fails=fails))
    assert EnergyMeter.open("cuda") is None


def test_without_nvml_there_is_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert EnergyMeter.open("cuda") is None


def test_of_several_cards_it_is_the_one_that_cuda_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    nvml = fake_nvml([1_000, 2_000], cards=4)
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: asked.append(uuid) or uuid
    cuda = SimpleNamespace(
        is_available=lambda: True, get_device_properties=lambda index: SimpleNamespace(uuid=f"abc-{index}")
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    meter = EnergyMeter.open("cuda")
    assert meter is not None and meter.joules() == 1.0 and asked == ["GPU-abc-0"]


def test_of_several_cards_none_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([0], cards=4))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert EnergyMeter.open("cuda") is None


def test_energy_is_counted_over_as_many_repeats_as_the_counter_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter of 0.1 s and turns of 0.2 s of four rows: three turns without a warm-up."""
    clock = iter(number * 0.2 for number in range(10))
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    readings = iter((10.0, 22.0))
    turn = {True: {}, False: {"latency_ms": [1.0] * 4}}  # by whether it warms up
    meter = SimpleNamespace(resolution_s=0.1, joules=lambda: next(readings))
    run = SimpleNamespace(worker=SimpleNamespace(ask=lambda request, warm_up=True, **_: turn[warm_up]))
    found = rounds.joules_per_row(run, rounds.Workload(1), [[row] for row in range(4)], meter)  # type: ignore[arg-type]
    assert found == 12 / 12
