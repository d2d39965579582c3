"""optimum's own ONNX export and its int8 quantizer, in an environment of its own.

``ORTQuantizer`` with ``AutoQuantizationConfig.avx512_vnni``, ``arm64`` or ``avx2``, whichever fits the CPU: activations
are quantized as they come, weights per channel. On an x86 CPU without VNNI it is ``avx2``, whose weights are unsigned:
products of unsigned activations and signed weights can saturate there (tiny random models: correlation with float32
0.91 instead of 0.996).

Source: https://huggingface.co/docs/optimum-onnx/onnxruntime/usage_guides/quantization
"""

import platform
import tempfile
from pathlib import Path

from compress.benchmarking.competitors import link_model
from compress.benchmarking.competitors._optimum_client import (  # noqa: F401  constants of a competitor
    DEVICES,
    ENVIRONMENT,
    REQUIRES,
    export_onnx,
    fit_transformers_4,
    open_onnx,
)
from compress.host import describe_host
from compress.inference.runners import LoadedModel
from compress.models.model_dir import Model


def build(directory: Path, model: Model) -> None:
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    link_model(directory, model, weights=False)
    fit_transformers_4(directory)
    with tempfile.TemporaryDirectory() as exported:
        export_onnx(model, Path(exported))
        quantizer = ORTQuantizer.from_pretrained(Path(exported))
        has_vnni = any("vnni" in flag for flag in describe_host()["cpu_flags"])
        fitting = "arm64" if platform.machine() in {"aarch64", "arm64"} else "avx512_vnni" if has_vnni else "avx2"
        config = getattr(AutoQuantizationConfig, fitting)(is_static=False, per_channel=True)
        quantizer.quantize(save_dir=directory, quantization_config=config)


def start(directory: Path, *, threads: int, device: str) -> LoadedModel:
    return open_onnx(directory, "model_quantized.onnx", threads)
