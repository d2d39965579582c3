"""torchao int8: weights per channel, activations per token as they come, and ``torch.compile``.

``quantize_(model, Int8DynamicActivationInt8WeightConfig())`` and a compiled model, as torchao's README recommends;
without the compiler each layer is several small operations and slower than float. Compiling needs a C++ compiler
and happens at the start, for a single row and for several, with free lengths: it takes minutes.

It has an environment of its own although it would install beside this package: transformers imports torchao wherever
it is installed, which would add to the memory and the load time of every other model measured.

Source: https://github.com/pytorch/ao (README, "Inference")
"""

from pathlib import Path
from typing import Any

from compress.benchmarking.competitors import token_runner
from compress.data.examples import Example
from compress.errors import Unavailable
from compress.inference.runners import LoadedModel
from compress.inference.torch_run import TorchRun, open_torch

REQUIRES = {
    "torchao": "torchao==0.18.0",
    "transformers.models.auto.tokenization_auto": "transformers==5.23.0",
    "torch": "torch==2.13.0",
}
ENVIRONMENT = "torchao"
DEVICES = ("cpu",)
TAGS = True


def start(directory: Path, *, threads: int, device: str) -> LoadedModel:
    from torch._inductor.exc import InvalidCxxCompiler
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model: Any = open_torch(directory, threads=threads, device=device)
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    model.compile(dynamic=True)
    run = TorchRun(model)
    runner = token_runner(directory, run, run.names)
    try:
        for rows in (1, 2):
            run(runner.prepare([Example("a first text")] * rows))
    except InvalidCxxCompiler:
        raise Unavailable(
            "the competitor torchao-int8 is compiled by a C++ compiler; type apt-get install g++"
        ) from None
    return runner
