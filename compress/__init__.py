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
    from compress.inference.audit import AgreementAudit
    from compress.inference.predict import load, predict
    from compress.models.compute import Compute
    from compress.models.model_dir import Model
    from compress.models.modeling.registration import register_models
    from compress.pruning.scoring import head_importance
    from compress.requests.compression import calibrate, cascade, export, head_study, prune, quantize
    from compress.requests.labelling import close_labels, import_labels, label, merge_labels
    from compress.requests.measuring import audit, benchmark, check, replay, report
    from compress.requests.training import distill, finetune, pretrain, run, search

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
    "AgreementAudit": "compress.inference.audit",
    "Compute": "compress.models.compute",
    "LabelledData": "compress.data",
    "Model": "compress.models.model_dir",
    "Results": "compress.benchmarking.results.files",
    "audit": "compress.requests.measuring",
    "benchmark": "compress.requests.measuring",
    "calibrate": "compress.requests.compression",
    "cascade": "compress.requests.compression",
    "check": "compress.requests.measuring",
    "close_labels": "compress.requests.labelling",
    "distill": "compress.requests.training",
    "export": "compress.requests.compression",
    "finetune": "compress.requests.training",
    "head_importance": "compress.pruning.scoring",
    "head_study": "compress.requests.compression",
    "import_labels": "compress.requests.labelling",
    "label": "compress.requests.labelling",
    "load": "compress.inference.predict",
    "merge_labels": "compress.requests.labelling",
    "predict": "compress.inference.predict",
    "pretrain": "compress.requests.training",
    "prune": "compress.requests.compression",
    "quantize": "compress.requests.compression",
    "register_models": "compress.models.modeling.registration",
    "replay": "compress.requests.measuring",
    "report": "compress.requests.measuring",
    "run": "compress.requests.training",
    "search": "compress.requests.training",
}

__all__ = [
    "AgreementAudit",
    "CompressError",
    "Compute",
    "LabelledData",
    "Model",
    "Results",
    "__version__",
    "audit",
    "benchmark",
    "calibrate",
    "cascade",
    "check",
    "close_labels",
    "distill",
    "export",
    "finetune",
    "head_importance",
    "head_study",
    "import_labels",
    "label",
    "load",
    "merge_labels",
    "predict",
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
