"""What predictions cost: the reader's price an hour over what was measured; no price is ever made up.

A price is that of the whole machine as it was measured. Throughput is that of the largest batch, tokenisation included.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from compress.benchmarking.results.files import Result
from compress.benchmarking.results.formatting import NONE, money, plural, shown_rate
from compress.benchmarking.results.schema import Measurement
from compress.data.label_encoding import finite_number
from compress.errors import CompressError
from compress.reporting.tables import setting_text

DEVICES = ("cpu", "cuda")

# (device, threads or None for any) -> price an hour.
Prices = Mapping[tuple[str, int | None], float]


@dataclass(frozen=True)
class PriceList:
    """What an hour of a machine costs: ``cpu=0.34``, ``cpu:8=0.34`` (with 8 threads) or ``cuda=2.5``; in a currency."""

    hourly: Sequence[str] = ()
    currency: str = ""


@dataclass(frozen=True)
class Offer:
    """A machine as measured, which a price can be typed for."""

    key: str
    title: str
    price_per_hour: float | None


@dataclass(frozen=True)
class CostRow:
    """A model on a machine; costs are in the currency of the prices, None without a price."""

    offer: str
    machine: str
    data: str
    model: str
    where: str
    batch_size: int
    predictions_per_hour: float
    cost_per_thousand: float | None
    cost_per_million: float | None
    energy_joules_per_row: float | None


@dataclass(frozen=True)
class Costs:
    """Machines, and what the teacher and the best models cost on each of them."""

    currency: str
    offers: list[Offer]
    rows: list[CostRow]

    @property
    def data_differ(self) -> bool:
        return len({row.data for row in self.rows}) > 1

    @property
    def has_energy(self) -> bool:
        return any(row.energy_joules_per_row is not None for row in self.rows)

    def cells(self, row: CostRow) -> list[str]:
        """Return what a row shows after machine and model: price, predictions an hour, both costs, energy."""
        offer = next(offer for offer in self.offers if offer.key == row.offer)
        costs = (offer.price_per_hour, row.cost_per_thousand, row.cost_per_million)
        price, thousand, million = (NONE if cost is None else money(cost, self.currency) for cost in costs)
        energy = NONE if row.energy_joules_per_row is None else f"{row.energy_joules_per_row:.3g} J"
        found = [price, shown_rate(row.predictions_per_hour), thousand, million]
        return [*found, energy] if self.has_energy else found


def parse_prices(texts: Iterable[str]) -> dict[tuple[str, int | None], float]:
    """Read prices an hour such as ``cpu=0.34``, ``cuda=2.5`` or, for a thread count, ``cpu:8=0.34``.

    Raises:
        CompressError: one of them is something else, or a machine is priced twice.
    """
    found: dict[tuple[str, int | None], float] = {}
    for text in texts:
        machine, _, amount = text.partition("=")
        device, colon, threads = machine.strip().partition(":")
        known = device in DEVICES and (
            not colon or (threads.isascii() and threads.isdigit() and len(threads) < 10 and int(threads) > 0)
        )
        price = finite_number(amount.strip())
        if not known or price is None or price <= 0:
            raise CompressError(
                f"--price {text!r} is not a price an hour; type a device, for a thread count a colon and its number, "
                "and the amount, such as --price cpu=0.34, --price cpu:8=0.34 or --price cuda=2.5"
            )
        key = (device, int(threads) if colon else None)
        if key in found:
            raise CompressError(f"--price {text!r} prices {machine.strip()} a second time; give each price once")
        found[key] = price
    return found


def costs_of(rows: Sequence[Result], best: Sequence[Measurement], prices: Prices, currency: str) -> Costs | None:
    """Return what the teacher in torch and the best models cost wherever they were measured.

    Args:
        rows: everything of the data, as long as its own rows; hosts, devices and thread counts may differ.
        best: the best lines of every section; each is followed over all thread counts of its device.

    Raises:
        CompressError: a price is for a device or thread count that was not measured.
    """
    heads = [row.small_batch for row in rows]
    measured = sorted({(line.device, line.threads) for line in heads})
    for device, threads in prices:
        if not any(device == d and threads in (None, t) for d, t in measured):
            named = device if threads is None else f"{device}:{threads}"
            there = ", ".join(f"{d}:{t}" for d, t in measured)
            raise CompressError(f"--price {named} is for a machine that was not measured; there is {there}")
    same = attrgetter("model_sha256", "model", "runtime")
    wanted = set(map(same, best))
    chosen = [(line, row) for line, row in zip(heads, rows, strict=True) if line.is_reference or same(line) in wanted]
    chosen = [(line, row) for line, row in chosen if line.padding == "longest" and line.length is None] or chosen
    chosen.sort(key=lambda one: (DEVICES.index(one[0].device), one[0].threads, not one[0].is_reference))
    offers, found = dict[str, Offer](), []
    for head, row in chosen:
        title = f"{head.host.get('cpu', 'unknown processor')}, {plural(head.threads, 'thread')}"
        if head.device == "cuda":
            title = str((head.host.get("gpu") or ["GPU"])[0])
        price = prices.get((head.device, head.threads), prices.get((head.device, None)))
        offer = Offer(f"{head.host_id}-{head.device}-{head.threads}", title, price)
        offers[offer.key] = offer
        line = row.large_batch
        per_hour = 3600 * line.throughput_with_tokenizer_rows_per_second
        found.append(
            CostRow(
                offer.key,
                offer.title,
                line.data,
                line.model,
                setting_text(line),
                line.batch_size,
                per_hour,
                None if price is None else 1e3 * price / per_hour,
                None if price is None else 1e6 * price / per_hour,
                line.energy_joules_per_row,
            )
        )
    return Costs(currency, list(offers.values()), found) if found else None
