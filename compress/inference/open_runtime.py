"""Open a model directory in a runtime of this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compress import plugins
from compress.errors import CompressError
from compress.inference.batching import Run
from compress.inference.padding import exact_batches
from compress.inference.threads import default_threads
from compress.models.manifest import ONNX_NAME
from compress.models.model_files import read_config


def open_runtime(
    directory: Path,
    runtime: str = "",
    *,
    threads: int = 0,
    device: str = "cpu",
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Return a function from token arrays to logits.

    Args:
        directory: a model directory that the runtime opens.
        runtime: a name from ``compress list runtimes``; by default :func:`runtime_for`.
        threads: CPU threads; 0 for :func:`default_threads`.
        device: ``cpu`` or ``cuda``.
        config: the ``config.json`` of the model, where it does not lie in the directory yet.
        options: what this runtime alone takes, such as ``precision`` of ``torch``.

    Raises:
        CompressError: the runtime does not work on that device, or cannot open the directory.
    """
    plugin = plugins.find("runtimes", runtime or runtime_for(directory))
    module: Any = plugin.load()
    if device not in module.DEVICES:
        instead = "" if "cpu" in module.DEVICES else ", or --runtime torch --device cpu"
        raise CompressError(
            f"device {device!r} is not one that {plugin.name} runs on here; use --device "
            f"{' or '.join(module.DEVICES)}{instead}"
        )
    run: Run = plugin.function(directory, threads=threads or default_threads(), device=device, **options)
    precision = options.get("precision", getattr(module, "PRECISION", ""))
    return exact_batches(run, read_config(directory) if config is None else config, precision)


def runtime_for(directory: Path) -> str:
    """Return ``onnxruntime`` for a directory with an ONNX graph, else ``torch``."""
    return "onnxruntime" if (directory / ONNX_NAME).is_file() else "torch"
