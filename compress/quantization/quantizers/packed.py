"""Weights of 2, 3, 4 or 8 bits, packed: a small file and no faster model, because no processor has kernels for them.

Shen et al. 2020, "Q-BERT" (arXiv:1909.05840): groups of output neurons with a range each. Bits and groups are those
that the model was trained for with the modifier ``groupwise-quantization``. Activations are computed in float32.
The directory opens with ``compress.load``, which unpacks; transformers alone does not open it.
"""

from pathlib import Path

from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.models.packed_weights import WEIGHT_BITS, WEIGHT_GROUPS, forget_quantization, save_packed
from compress.quantization.fake_layers import quantized_modules

WRITES = "torch"


def quantize(model: PreTrainedModel, target: Path, *, bits: int | None = None, groups: int | None = None) -> None:
    """Write a model's config and packed weights into a directory.

    Args:
        bits: of all weights but the last layer's, for a model that was trained for none.
        groups: of such a model: how many groups of rows a weight has at most, 128 by default.

    Raises:
        CompressError: no bits, bits or groups beside those that the model was trained for, or bits outside 2 to 8.
    """
    trained = getattr(model.config, WEIGHT_BITS, None)
    if trained:
        for name, given in (("bits", bits), ("groups", groups)):
            if given is not None:
                raise CompressError(
                    f"{name} = {given} is not possible: the model was trained for its own; leave it out"
                )
        chosen, groups = dict(trained), int(getattr(model.config, WEIGHT_GROUPS))
    else:
        if bits is None:
            raise CompressError(
                "the model was not trained for few bits: train it with --student q-bert, use --method onnx-dynamic, or "
                "set the option bits"
            )
        groups = 128 if groups is None else groups
        if not 2 <= bits <= 8 or groups < 1:
            raise CompressError(f"bits = {bits} must be 2 to 8 and groups = {groups} at least 1")
        *names, _ = quantized_modules(model)
        chosen = dict.fromkeys(names, bits)
    save_packed(model, chosen, groups, target)
    forget_quantization(model.config)
    model.config.save_pretrained(target)
