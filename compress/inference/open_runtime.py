"""Open a model directory in a runtime of this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from compress import plugins
from compress.errors import CompressError
from compress.files import fault_of
from compress.inference.batching import Run, exact_batches
from compress.inference.threads import default_threads
from compress.models.graph_files import graph_file
from compress.models.model_files import CONFIG_NAME, read_config, sigmoid_of
from compress.tasks import labels_of, of_config


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
    config = read_config(directory) if config is None else config
    precision = options.get("precision", getattr(module, "PRECISION", ""))
    return _Answers(exact_batches(run, config, precision), directory, config)


class _Answers:
    """A run function whose logits have the form that the config says; what else it has is its own."""

    def __init__(self, run: Run, directory: Path, config: Mapping[str, Any]) -> None:
        self._run, self._directory = run, directory
        self._labels, self._by_word = len(labels_of(config)), of_config(config).by_word
        self._sigmoid = graph_file(directory).is_file() and sigmoid_of(config)  # of torch it is part of the network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def __call__(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        try:  # no context manager, whose time shows beside that of a small student
            logits = self._run(arrays)
        except Exception as error:
            fault = fault_of(error, self._directory, "run on these texts", "copy it again", own=False)
            if fault is error:
                raise
            raise fault from error
        rows, length = arrays["input_ids"].shape
        expected = (rows, length, self._labels) if self._by_word else (rows, self._labels)
        if logits.shape != expected or logits.dtype.kind != "f":
            raise CompressError(
                f"{self._directory} answers {rows} texts of {length} tokens with {logits.dtype} {[*logits.shape]}, and "
                f"its {CONFIG_NAME} asks for float logits {[*expected]}: copy the files of one model"
            )
        return (1 + np.tanh(logits / 2)) / 2 if self._sigmoid else logits


def runtime_for(directory: Path) -> str:
    """Return ``onnxruntime`` for a directory with an ONNX graph, else ``torch``."""
    return "onnxruntime" if graph_file(directory).is_file() else "torch"
