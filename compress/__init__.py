"""Distil, prune and quantize text classifiers, and measure accuracy, speed and size against the teacher.

``import compress`` is light: torch and transformers are imported by the function that needs them.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from compress.errors import CompressError, MissingPackage

if TYPE_CHECKING:
    from compress.benchmarking.results.files import Results
    from compress.data import LabelledData
    from compress.gating.check import check
    from compress.inference.predict import load
    from compress.labelling.import_labels import LabelValues, import_labels
    from compress.labelling.parts import merge_labels
    from compress.models.compute import Compute
    from compress.models.model_dir import Model
    from compress.models.modeling.registration import register_models
    from compress.pruning.head_study import HeadStudy, head_study
    from compress.pruning.prune import PruningData, prune
    from compress.pruning.scoring import head_importance
    from compress.quantization.candidates import Quantization
    from compress.quantization.quantize import quantize
    from compress.recipes import Pruning
    from compress.requests.benchmarking import benchmark, replay
    from compress.requests.calibration import calibrate, cascade
    from compress.requests.exporting import export
    from compress.requests.labelling import label
    from compress.requests.reporting import report
    from compress.requests.searching import search
    from compress.requests.studying import run
    from compress.requests.training import distill, finetune, pretrain

__version__ = "0.1.0"

# Nothing is sent anywhere that was not asked for. These libraries report what is done with them to their makers unless
# told before they are imported; every way in imports this module first, and child processes inherit the environment.
_SILENCED = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",  # of datasets
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
}
for _variable, _value in _SILENCED.items():
    os.environ[_variable] = os.environ.get(_variable) or _value  # a user's own choice stays
# OpenVINO and NNCF have no variable: they report through a package of its own, and do without where it is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

# Public name -> the module that defines it; imported on first use.
_LAZY = {
    "Compute": "compress.models.compute",
    "HeadStudy": "compress.pruning.head_study",
    "LabelValues": "compress.labelling.import_labels",
    "LabelledData": "compress.data",
    "Model": "compress.models.model_dir",
    "Pruning": "compress.recipes",
    "PruningData": "compress.pruning.prune",
    "Quantization": "compress.quantization.candidates",
    "Results": "compress.benchmarking.results.files",
    "benchmark": "compress.requests.benchmarking",
    "calibrate": "compress.requests.calibration",
    "cascade": "compress.requests.calibration",
    "check": "compress.gating.check",
    "distill": "compress.requests.training",
    "export": "compress.requests.exporting",
    "finetune": "compress.requests.training",
    "head_importance": "compress.pruning.scoring",
    "head_study": "compress.pruning.head_study",
    "import_labels": "compress.labelling.import_labels",
    "label": "compress.requests.labelling",
    "load": "compress.inference.predict",
    "merge_labels": "compress.labelling.parts",
    "pretrain": "compress.requests.training",
    "prune": "compress.pruning.prune",
    "quantize": "compress.quantization.quantize",
    "register_models": "compress.models.modeling.registration",
    "replay": "compress.requests.benchmarking",
    "report": "compress.requests.reporting",
    "run": "compress.requests.studying",
    "search": "compress.requests.searching",
}

__all__ = [
    "CompressError",
    "Compute",
    "HeadStudy",
    "LabelValues",
    "LabelledData",
    "Model",
    "Pruning",
    "PruningData",
    "Quantization",
    "Results",
    "__version__",
    "benchmark",
    "calibrate",
    "cascade",
    "check",
    "distill",
    "export",
    "finetune",
    "head_importance",
    "head_study",
    "import_labels",
    "label",
    "load",
    "merge_labels",
    "pretrain",
    "prune",
    "quantize",
    "register_models",
    "replay",
    "report",
    "run",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'compress' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        raise MissingPackage(error) from None
    globals()[name] = value
    return value
