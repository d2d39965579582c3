"""How much arithmetic a model does, and how fast this device can do it at best.

Counted are matrix products, attention and convolutions, two operations for a multiplication and its addition; the rest
is small beside them. PyTorch's own counter sees every one of those as it runs, except an LSTM's, which are counted by
their formula. A model with anything else that the counter does not know has no count: None is better than too few.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

PEAK_PRECISIONS = ("float32", "bfloat16", "float16")
# Large enough to fill the device, small enough for a few seconds in all.
PEAK_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
PEAK_REPEATS = 5
PEAK_SECONDS = 0.5

# Names of operators that do the work of a matrix product; one of them that the counter does not know spoils the count.
_HEAVY = re.compile(r"mm|matmul|linear|conv|attention|einsum|lstm|gru|rnn|cdist|\bdot")


def count_flops(model: Any, arrays: dict[str, np.ndarray]) -> float | None:
    """Return the operations of one row of a batch, padding included.

    Args:
        model: a torch model, on the processor.
        arrays: int64 token arrays ``[B, T]`` by input name, as a runtime takes them.

    Returns:
        Multiplications and additions of a row, on average; an LSTM reads no padding and is counted without. None
        where the model does something that cannot be counted.
    """
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    from compress.modeling import input_names

    lstms = {name: module for name, module in model.named_modules() if isinstance(module, nn.LSTM)}
    # What a transformer computes for a row depends on the padded length alone, so that one row says it.
    rows = len(arrays["input_ids"]) if lstms else 1
    inputs = {name: torch.from_numpy(arrays[name][:rows]) for name in input_names(model) if name in arrays}
    counter, operators, recurrent = FlopCounterMode(display=False), set[Any](), list[int]()
    hooks = [m.register_forward_pre_hook(lambda m, args: recurrent.append(_lstm(m, args[0]))) for m in lstms.values()]
    implementation = model.config._attn_implementation
    try:
        # The processor's fused attention is unknown to the counter; eager attention does the same two products.
        model.config._attn_implementation = "eager"
        with torch.no_grad(), counter, _recording(operators):
            model(**inputs)
    finally:
        model.config._attn_implementation = implementation
        for hook in hooks:
            hook.remove()
    if any(o not in counter.flop_registry and _HEAVY.search(str(o)) and not (lstms and _in_lstm(o)) for o in operators):
        return None
    by_module = counter.get_flop_counts()
    # How much of an LSTM the counter saw depends on the kernel that ran: its formula takes the place of all of it.
    seen = sum(sum(by_module.get(f"{type(model).__name__}.{name}", {}).values()) for name in lstms)
    return float(counter.get_total_flops() - seen + sum(recurrent)) / rows


def _lstm(module: Any, inputs: Any) -> int:
    """Return the operations of an LSTM: of each token and direction, four gates of its input and its last state."""
    packed = hasattr(inputs, "batch_sizes")
    tokens = len(inputs.data) if packed else inputs.shape[0] * inputs.shape[1]
    directions = 2 if module.bidirectional else 1
    state = module.proj_size or module.hidden_size
    products = 0
    for layer in range(module.num_layers):
        width = module.input_size if layer == 0 else directions * state
        products += 4 * module.hidden_size * (width + state) + module.proj_size * module.hidden_size
    return 2 * tokens * directions * products


def _in_lstm(operator: Any) -> bool:
    return "lstm" in str(operator) or "rnn" in str(operator)


def _recording(operators: set[Any]) -> Any:
    """Return a context in which every operator that runs is put into the set."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators.add(function._overloadpacket)
            return function(*args, **(kwargs or {}))

    return Recording()


def matmul_peak_tflops(device: str, precision: str, threads: int) -> float:
    """Return the fastest product of two square matrices on this device, measured, in 10^12 operations a second.

    It is a ceiling that was reached here, not one of a data sheet: random matrices of several sizes, each repeated
    after a warm-up, timed by CUDA events on a card. In float32 TF32 is off.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        precision: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        threads: processor threads; does not matter on a card.

    Raises:
        ValueError: another device or precision.
    """
    if device not in PEAK_SIZES or precision not in PEAK_PRECISIONS:
        allowed = ", ".join(PEAK_PRECISIONS)
        raise ValueError(f"there is no peak of {precision} on {device}; use {allowed} on cpu or cuda")
    import torch

    threads_before, tf32_before = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    best = 0.0
    try:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = False
        for size in PEAK_SIZES[device]:
            left, right = (torch.randn(size, size, device=device).to(getattr(torch, precision)) for _ in range(2))
            seconds = _fastest(partial(torch.matmul, left, right), device)
            best = max(best, 2 * size**3 / seconds / 1e12)
            if seconds > PEAK_SECONDS:
                break  # larger ones take eight times as long, and this one filled the device
    finally:
        torch.set_num_threads(threads_before)
        torch.backends.cuda.matmul.allow_tf32 = tf32_before
    return best


def _fastest(work: Callable[[], Any], device: str) -> float:
    """Return the fastest of several repeats after a first one, in seconds."""
    seconds = list[float]()
    time_once = _seconds_on_card if device == "cuda" else _seconds
    time_once(work)
    while len(seconds) < PEAK_REPEATS and sum(seconds) < PEAK_SECONDS:
        seconds.append(time_once(work))
    return min(seconds)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _seconds_on_card(work: Callable[[], Any]) -> float:
    """Time ten in a row by events, so that the launches hide behind the work."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / 10
