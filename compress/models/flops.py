"""Count the floating-point operations (FLOPs) of one forward pass."""

import re
from typing import Any

import numpy as np

# Names of operators that do the work of a matrix product; one of them that the counter does not know spoils the count.
_HEAVY = re.compile(r"mm|matmul|linear|conv|attention|einsum|lstm|gru|rnn|cdist|\bdot")


def count_flops(model: Any, arrays: dict[str, np.ndarray]) -> float | None:
    """Return the FLOPs of one row of a batch, padding included.

    Args:
        model: a torch model, on the CPU.
        arrays: int64 token arrays ``[B, T]`` by input name, as a runtime takes them.

    Returns:
        Multiplications and additions of a row, on average; an LSTM reads no padding and is counted without. None
        where the model does something that cannot be counted.
    """
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    from compress.models.modeling import input_names

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
    unknown = [str(one) for one in operators if one not in counter.flop_registry and _HEAVY.search(str(one))]
    if any(not (lstms and re.search("lstm|rnn", one)) for one in unknown):
        return None
    by_module = counter.get_flop_counts()
    # How much of an LSTM the counter saw depends on the kernel that ran: its formula takes the place of all of it.
    seen = sum(sum(by_module.get(f"{type(model).__name__}.{name}", {}).values()) for name in lstms)
    return float(counter.get_total_flops() - seen + sum(recurrent)) / rows


def _lstm(module: Any, inputs: Any) -> int:
    """Return the FLOPs of an LSTM: of each token and direction, four gates of its input and its last state."""
    tokens = len(inputs.data) if hasattr(inputs, "batch_sizes") else inputs.shape[0] * inputs.shape[1]
    directions, state = 1 + module.bidirectional, module.proj_size or module.hidden_size
    widths = [module.input_size] + (module.num_layers - 1) * [directions * state]
    products = sum(module.hidden_size * (4 * (width + state) + module.proj_size) for width in widths)
    return int(2 * tokens * directions * products)


def _recording(operators: set[Any]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators.add(function._overloadpacket)
            return function(*args, **(kwargs or {}))

    return Recording()  # type: ignore[no-untyped-call]
