"""What an export is asked for."""

from compress.models.model_dir import ModelDir
from compress.requests import OUTPUT, Model, Output, function, option, request
from compress.requests.groups import Written


@request
class Export(Written[ModelDir]):
    """Write a fused fp32 ONNX directory that other ONNX clients open."""

    stage = "compress.exporting.export:export"

    model: Model = option(help="The torch model to export.", metavar="DIR")
    output: Output = OUTPUT


export = function(Export)
