"""Export stage: write the fused fp32 ONNX graph of a torch model, or a student for the native library."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]

from compress import plugins
from compress.data.tokenization import OFFSET_POSITIONS, maximum_length
from compress.data.windows import WINDOWS_KEY
from compress.errors import CompressError, first_line, interruptions, refuse, system_fault
from compress.exporting.native_formats import check_native, write_format
from compress.exporting.onnx_graph import drop_segments, operator_counts
from compress.inference.batching import open_runtime
from compress.inference.native.write import write_native
from compress.models.components import example_inputs
from compress.models.loading import CROSS_ENCODER, load_config
from compress.models.manifest import ONNX_NAME
from compress.models.model_dir import Model
from compress.models.modeling.families import PREFIX, PRUNABLE, PRUNED_FIELDS, stock_type
from compress.models.networks import NAMES
from compress.models.networks.small import SmallConfig
from compress.models.saving import describe_architecture, save_tokenizer, tokenizer_settings
from compress.requests.compression import Export
from compress.tasks import head_fields, of_config, of_network

PARITY = 1e-4
# Batch and length of what both models read; the last length is cut to what the model can read.
PARITY_SHAPES = ((1, 5), (3, 17), (8, 32), (2, 128))


class NoGraph(CompressError):
    """A model has no ONNX graph; it can be run in torch."""


def exporter_for(model: Model) -> plugins.Plugin:
    """Return the exporter of a model. Reads only ``config.json``.

    Raises:
        NoGraph: no exporter knows this kind of model, or its exporter refuses the config.
        CompressError: an exporter of another package is faulty, or the config is.
    """
    model_type = str(model.config.get("model_type", "")).removeprefix(PREFIX)
    for plugin in (plugins.find("exporters", name) for name in plugins.names("exporters")):
        module = plugin.load()
        if model_type in module.MODEL_TYPES:
            if hasattr(module, "refusal") and (reason := module.refusal(load_config(model.path))):
                raise NoGraph(f"{model.path} cannot be exported to ONNX: {reason}; use --runtime torch")
            return plugin
    raise NoGraph(
        f"{model.path} is a {model.config.get('model_type')!r} model, which compress cannot turn into ONNX; "
        "it can be run with --runtime torch. "
        f"ONNX works for {', '.join(sorted(PRUNABLE))} and for the students {', '.join(NAMES[:-1])} and {NAMES[-1]}"
    )


def has_exporter(model: Model) -> bool:
    with suppress(NoGraph):
        return bool(exporter_for(model))
    return False


def export(request: Export) -> Model:
    """Write a model's fused fp32 ONNX graph with a stock config, so that other ONNX clients open the directory.

    For another format the graph is made, unless the model is one, and left out.

    Raises:
        NoGraph: there is no exporter for the model.
        CompressError: the model is ONNX already, or the graph's logits differ from the model's by more than 1e-4; the
            native library does not run the model.
    """
    source, is_graph = Model.open(request.model).with_windows(request.windows), request.format == "onnx"
    if is_graph:
        refuse((source.is_onnx, f"{source.path} is an ONNX model already; use it as it is, or 'compress quantize' it"))
    else:
        check_native(source, request.format)
    with request.begin({"model": source}, keep=False) as stage:
        manifest, graph = source.manifest, stage.working if is_graph else stage.scratch / "onnx"
        origin = {"name": f"{source.name}-{request.format}", "data": manifest.data, "seeds": manifest.seeds}
        if source.is_onnx:
            graph = source.path
            found = {"architecture": manifest.architecture, "recipe": {}, "notes": {**manifest.notes}}
            origin["metrics"] = manifest.metrics
        else:
            graph.mkdir(exist_ok=True)
            found = write_onnx(source, graph)
        found["notes"] |= (
            write_native(graph) if is_graph else write_format(request.format, source, graph, stage.working)
        )
        found["recipe"]["format"] = request.format
        stage.finish(**origin, **found)
    return Model.open(stage.output)


def write_onnx(source: Model, working: Path) -> dict[str, dict[str, Any]]:
    """Write graph, stock config and tokenizer into a directory, compare logits, and return what a manifest says."""
    plugin = exporter_for(source)
    model, tokenizer = source.load(), source.tokenizer
    try:
        plugin.function(model, working / ONNX_NAME)
    except Exception as error:  # torch's exporter wraps whatever goes wrong in classes of its own
        if system_fault(error) or interruptions:  # such as a full disk, of which the command line says more
            raise
        cause = error.__cause__ or error
        raise CompressError(f"{source.path} cannot be exported to ONNX: {first_line(cause)}") from error
    if "token_type_ids" not in tokenizer.model_input_names:
        # ALBERT has segments that its tokenizer does not make: the torch model reads zeros, and so must the graph.
        drop_segments(working / ONNX_NAME)
    stock_config(model.config).save_pretrained(working)
    _write_tokenizer(tokenizer, working)
    notes = {
        "precision": "fp32",
        "largest logit difference from torch": check_parity(model, tokenizer, working),
        "operators": operator_counts(working / ONNX_NAME),
    }
    return {"architecture": describe_architecture(model), "recipe": {"exporter": plugin.name}, "notes": notes}


def _write_tokenizer(tokenizer: PreTrainedTokenizerFast, working: Path) -> None:
    """Write a tokenizer of the graph's inputs that clients of transformers 4 open as well."""
    graph = onnx.load(str(working / ONNX_NAME), load_external_data=False).graph
    save_tokenizer(tokenizer, working)
    with tokenizer_settings(working) as settings:
        settings["model_input_names"] = [argument.name for argument in graph.input]
        if settings.get("tokenizer_class") in {None, "TokenizersBackend"}:
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # transformers 4 has no TokenizersBackend
        if isinstance(settings.get("extra_special_tokens"), list):
            settings["additional_special_tokens"] = settings.pop("extra_special_tokens")  # it was a mapping there


def stock_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return a config that every client of transformers knows: in an ONNX directory the graph holds the shapes.

    A pruned model gets that of its family without the fields of pruning; a small student, which has no stock
    counterpart, gets that of its teacher's family, with its own labels and vocabulary.
    """
    if isinstance(config, SmallConfig):
        family = config.base_model_type.removeprefix(PREFIX)
        family = family if family in CONFIG_MAPPING_NAMES else "bert"
        offset = (getattr(config, "pad_token_id", None) or 0) + 1 if family in OFFSET_POSITIONS else 0
        settings: dict[str, Any] = {
            "vocab_size": config.tokenizer_size,
            "max_position_embeddings": (config.max_position_embeddings or 512) + offset,
            **head_fields(config),
            "pad_token_id": getattr(config, "pad_token_id", None),
        }
    else:
        family = stock_type(config)
        ours = {"model_type", "auto_map", *CROSS_ENCODER, *PRUNED_FIELDS, "pooling"}
        ours |= {"architectures", "transformers_version"}
        settings = {name: value for name, value in config.to_dict().items() if name not in ours}
    stock = AutoConfig.for_model(family, **settings)
    task = of_config(config.to_dict())
    stock.problem_type = stock.problem_type or task.problem_type  # type: ignore[assignment]
    if windows := getattr(config, WINDOWS_KEY, None):
        setattr(stock, WINDOWS_KEY, windows)
    stock.architectures = [task.auto_model()._model_mapping[type(stock)].__name__]
    return stock


def check_parity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, working: Path) -> float:
    """Return the largest difference of logits between a torch model and its graph, over several padded batches.

    A tagger's logits of padding do not count: nobody reads them, and attention without any key in its window
    (ModernBERT's local layers, far behind the end of a text) is undefined.

    Raises:
        CompressError: it is more than 1e-4 (relative to the largest logit, where that is above 1).
    """
    run = open_runtime(working, threads=1)
    limit = maximum_length(tokenizer, model.config.to_dict())
    worst = 0.0
    for rows, length in PARITY_SHAPES:
        inputs = padded_example(model, rows, min(length, limit))
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        found = run({name: tensor.numpy() for name, tensor in inputs.items()})
        read = inputs["attention_mask"].numpy() == 1 if of_network(model).by_word else ...
        difference = float(np.abs(found[read] - expected[read]).max())
        refuse(
            (
                not difference <= PARITY * max(1.0, float(np.abs(expected).max())),
                f"the ONNX graph of a {model.config.model_type!r} model gives logits that differ by {difference:.2g} "
                f"from torch at {rows} x {length} tokens, more than {PARITY:g}; it was not written. "
                "Please report this with the model's config.json",
            )
        )
        worst = max(worst, difference)
    return worst


def padded_example(model: PreTrainedModel, rows: int, length: int) -> dict[str, Any]:
    """Return token ids and mask ``[rows, length]`` where every second row is half padding."""
    inputs = example_inputs(model, rows, length)
    inputs["attention_mask"][1::2, (length + 1) // 2 :] = 0
    inputs["input_ids"][inputs["attention_mask"] == 0] = getattr(model.config, "pad_token_id", None) or 0
    return inputs
