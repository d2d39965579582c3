"""Weights of 2, 3, 4 or 8 bits, packed: a small file and no faster model, because no processor has kernels for them.

Shen et al. 2020, "Q-BERT" (arXiv:1909.05840): groups of output neurons with a range each. Bits and groups are those
that the model was trained for with the modifier ``groupwise-quantization``. Activations are computed in float32.
The directory opens with ``compress.load``, which unpacks; transformers alone does not open it.
"""

from pathlib import Path

from transformers import PreTrainedModel

from compress.errors import refuse
from compress.models.integer_rounding import WEIGHT_BITS, WEIGHT_GROUPS, forget_quantization, save_packed
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
    given = {"bits": bits, "groups": groups}
    groups = 128 if groups is None else groups
    refuse(
        *(
            (
                trained and value is not None,
                f"{name} = {value} is not possible: the model was trained for its own; leave it out",
            )
            for name, value in given.items()
        ),
        (
            not trained and bits is None,
            "the model was not trained for few bits: train it with --student q-bert, use --method onnx-dynamic, or "
            "set the option bits",
        ),
        (
            not trained and (not 2 <= (bits or 0) <= 8 or groups < 1),
            f"bits = {bits} must be 2 to 8 and groups = {groups} at least 1",
        ),
    )
    if trained:
        chosen, groups = dict(trained), int(getattr(model.config, WEIGHT_GROUPS))
    else:
        *names, _ = quantized_modules(model)
        chosen = dict.fromkeys(names, int(bits or 0))
    save_packed(model, chosen, groups, target)
    forget_quantization(model.config)
    model.config.save_pretrained(target)
