"""Operations are counted as the textbook counts them, and what cannot be counted has no figure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from compress.benchmarking import hardware
from compress.benchmarking.hardware import matmul_peak_tflops
from compress.models import components
from compress.models.components import count_flops
from tests.support.tiny import HEADS, LAYERS, UNEVEN, UNEVEN_NEURONS, bilstm, classifier, torch_directory

WIDTH, INNER, CLASSES = 32, 64, 2


def arrays(rows: int, length: int, padding: int = 0) -> dict[str, np.ndarray]:
    ids = np.ones((rows, length), dtype=np.int64)
    mask = np.ones_like(ids)
    mask[-1, length - padding :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def transformer(tokens: int, heads: list[int], neurons: list[int]) -> int:
    """Return 2 x multiply-adds: projections 4 D Dh, feed-forward 2 D F, both attention products T Dh each, a token."""
    size = WIDTH // HEADS
    units = zip(heads, neurons, strict=True)
    layers = sum(4 * WIDTH * size * h + 2 * WIDTH * n + 2 * tokens * size * h for h, n in units)
    return 2 * (tokens * layers + WIDTH * WIDTH + WIDTH * CLASSES)


WHOLE = ([HEADS] * LAYERS, [INNER] * LAYERS)
PRUNED = (
    [HEADS - len(UNEVEN[layer]) for layer in range(LAYERS)],
    [INNER - len(UNEVEN_NEURONS[layer]) for layer in range(LAYERS)],
)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("tokens", [5, 40])
def test_a_bert_has_the_operations_of_its_formula(rows: int, tokens: int) -> None:
    found = count_flops(torch_directory("bert").load(), arrays(rows, tokens, padding=2))
    assert found == transformer(tokens, *WHOLE)


def test_a_shared_layer_is_counted_at_each_of_its_uses() -> None:
    projection = 2 * 9 * 16 * WIDTH  # of the factorised embeddings
    heads, neurons = (remaining[:1] * LAYERS for remaining in PRUNED)
    for kind, units in (("albert", WHOLE), ("pruned-albert", (heads, neurons))):
        found = count_flops(torch_directory(kind).load(), arrays(2, 9))
        assert found == transformer(9, *units) + projection


@pytest.mark.parametrize("kind", ["pruned-roberta", "pruned-mpnet"])
def test_removed_heads_and_neurons_are_not_counted(kind: str) -> None:
    assert count_flops(torch_directory(kind).load(), arrays(2, 9)) == transformer(9, *PRUNED)


def test_attention_is_left_as_it_was() -> None:
    model = classifier("bert")
    before = model.config._attn_implementation
    count_flops(model, arrays(1, 5))
    assert model.config._attn_implementation == before != "eager"


def lstm_operations(tokens: int, width: int, state: int) -> int:
    return 2 * tokens * 2 * 4 * state * (width + state)


def test_an_lstm_has_the_flops_of_its_formula_without_padding() -> None:
    # Two rows of 9 tokens and one of 5; then the ReLU layer and the classifier of each row.
    found = count_flops(torch_directory("bilstm").load(), arrays(3, 9, padding=4))
    assert found == pytest.approx(lstm_operations(23, 48, 32) / 3 + 2 * (64 * 24 + 24 * 2))


def test_an_lstm_is_counted_whatever_kernel_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bilstm()
    expected = count_flops(model, arrays(2, 6))

    def opaque(inputs: Any) -> Any:  # as a fused kernel: nothing of it is seen
        zeros = torch.zeros(2, 2, 32)
        return inputs, (zeros, zeros)

    monkeypatch.setattr(model.lstm, "forward", opaque)
    assert count_flops(model, arrays(2, 6)) == expected


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize(("layers", "projection", "both"), [(1, 0, False), (2, 0, True), (2, 8, False)])
def test_the_formula_of_lstms_of_all_kinds(layers: int, projection: int, both: bool) -> None:
    """PyTorch's LSTM without a fused kernel is nothing but counted products."""
    from torch.utils.flop_counter import FlopCounterMode

    lstm = nn.LSTM(12, 16, num_layers=layers, proj_size=projection, bidirectional=both, batch_first=True)
    inputs = torch.zeros(3, 7, 12)
    counter = FlopCounterMode(display=False)
    with torch.backends.mkldnn.flags(enabled=False), torch.no_grad(), counter:
        lstm(inputs)
    assert components._lstm(lstm, inputs) == counter.get_total_flops() > 0


def test_what_the_counter_does_not_know_has_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier("bert")

    def fused(module: Any, inputs: torch.Tensor) -> torch.Tensor:
        # An operator that does the work of a product, and that the counter has no formula for.
        return torch.cdist(inputs, inputs).sum() * 0 + inputs

    handle = model.bert.encoder.layer[0].register_forward_hook(
        lambda module, args, out: (fused(module, out[0]), *out[1:]) if isinstance(out, tuple) else fused(module, out)
    )
    assert count_flops(model, arrays(1, 5)) is None
    handle.remove()
    assert count_flops(model, arrays(1, 5)) is not None


def test_the_peak_is_the_fastest_of_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((1e-3, 2e-3, 1.0))
    monkeypatch.setattr(hardware, "PEAK_SIZES", {"cpu": (100, 200, 300, 400)})
    timed = SimpleNamespace(blocked_autorange=lambda **_: SimpleNamespace(times=[next(seconds)]))
    monkeypatch.setattr("torch.utils.benchmark.Timer", lambda *given, **named: timed)
    # 2 n^3 operations: 2e6 in 1 ms, 1.6e7 in 2 ms, 5.4e7 in 1 s; the last took so long that 400 is not tried.
    assert matmul_peak_tflops("cpu", "float32", 1) == pytest.approx(1.6e7 / 2e-3 / 1e12)
    assert next(seconds, None) is None


@pytest.mark.slow
def test_the_peak_is_measured_and_leaves_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "PEAK_SIZES", {"cpu": (64, 128)})
    threads = torch.get_num_threads()
    assert 1e-6 < matmul_peak_tflops("cpu", "float32", threads + 1) < 100
    assert matmul_peak_tflops("cpu", "bfloat16", 1) > 1e-6
    assert torch.get_num_threads() == threads


def test_repeated_tokens_of_a_cnn_are_counted_as_often_as_others() -> None:
    model = torch_directory("cnn").load()
    repeated = arrays(1, 12)
    distinct = {**repeated, "input_ids": np.arange(12, dtype=np.int64)[None] + 5}
    assert count_flops(model, repeated) == count_flops(model, distinct)
    assert count_flops(model, arrays(1, 24)) > 1.5 * count_flops(model, repeated)  # type: ignore[operator]
