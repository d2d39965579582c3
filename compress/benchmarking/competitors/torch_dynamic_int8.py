"""PyTorch's own dynamic int8: ``quantize_dynamic`` on every linear and LSTM layer.

Weights are int8, activations are quantized as they come. Linear layers have one scale a row of the matrix, not the one
scale a matrix of the tutorial, because that stays closer to float32 (on a MiniLM fine-tuned on SST-2, 98.5% of 200
rows predicted alike instead of 94%). Nothing is written: PyTorch keeps such models as pickles only, so they are
quantized at every start.

Source: https://docs.pytorch.org/tutorials/intermediate/dynamic_quantization_bert_tutorial.html
"""

import warnings
from pathlib import Path

from compress.benchmarking.competitors import TOKENIZERS, token_runner
from compress.inference.runners import LoadedModel
from compress.inference.torch_run import TorchRun, open_torch

REQUIRES = {"torch.ao.quantization": "torch>=2.13,<3", **TOKENIZERS}
DEVICES = ("cpu",)
TAGS = True


def start(directory: Path, *, threads: int, device: str) -> LoadedModel:
    import torch
    from torch.ao.quantization import default_dynamic_qconfig, per_channel_dynamic_qconfig, quantize_dynamic

    model = open_torch(directory, threads=threads, device=device)
    scales = {torch.nn.Linear: per_channel_dynamic_qconfig, torch.nn.LSTM: default_dynamic_qconfig}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated in favour of torchao, which is another competitor
        quantized = quantize_dynamic(model, scales, dtype=torch.qint8)  # type: ignore[no-untyped-call,unused-ignore]
    run = TorchRun(quantized)
    return token_runner(directory, run, run.names)
