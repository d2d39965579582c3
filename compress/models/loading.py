"""Open networks and tokenizers of transformers from a directory: the only place that calls ``from_pretrained``.

Nothing is fetched, no code of the directory runs, and weights are read from safetensors alone. A network is built
without memory first: what its config asks for is compared with the weights that are there.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.data.stored_tokenizer import TOKENIZER_NAME, AnyTokenizer, make_safe
from compress.errors import refuse
from compress.files import faults_of, read_json_table
from compress.models.manifest import PACKED_NAME
from compress.models.model_files import (
    CONFIG_NAME,
    check_config_size,
    check_files,
    count_weights,
    read_config,
    weight_files,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_TRUSTED = {"trust_remote_code": False, "local_files_only": True}
# What a head of other labels, and weights that are shared by name only, may add to those of the files.
_FRESH_WEIGHTS = 2**26
_SHARED = 2
# Keys of config.json by which transformers would fetch or import something else.
_FOREIGN = {
    "quantization_config": "weights quantized by another library",
    "adapter_config": "an adapter without its model",
}
_ATTENTION = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


def check_foreign(directory: Path) -> None:
    """Refuse a model directory that cannot be opened without what it does not hold itself.

    Raises:
        CompressError: it needs code that transformers does not have, another library, a base model, or the network.
    """
    check_files(directory)
    raw = read_config(directory)
    refuse(
        (
            raw.get("auto_map") and not _knows(raw),
            f"{directory} needs Python code of its own (auto_map in its config.json), which is never run; use a model "
            "type that transformers has, or an ONNX export",
        ),
        *(
            (raw.get(key), f"{directory} holds {what} ({key}), which is not read; save it in float32 or bfloat16")
            for key, what in _FOREIGN.items()
        ),
        (
            (directory / "adapter_config.json").exists(),
            f"{directory} holds an adapter (adapter_config.json); merge it into its model and save it",
        ),
        (
            any("/" in str(raw.get(key)) for key in _ATTENTION),
            f"{directory / CONFIG_NAME} names kernels to fetch for its attention; delete that entry",
        ),
    )


def _knows(raw: Mapping[str, Any]) -> bool:
    """Tell whether transformers knows the model type of a config, now that all that it could know is registered."""
    from compress.models.modeling.registration import is_known

    return is_known(raw.get("model_type"))


def load_config(directory: Path, **changes: Any) -> "PretrainedConfig":
    """Return the config of a model directory as transformers reads it.

    Args:
        changes: fields to replace.

    Raises:
        CompressError: it is damaged, or needs what :func:`check_foreign` refuses.
    """
    from transformers import AutoConfig

    check_foreign(directory)
    _knows(read_config(directory))
    with faults_of(directory, "a model"):
        config: PretrainedConfig = AutoConfig.from_pretrained(directory, **changes, **_TRUSTED)
    # How a network answers and saves memory, and not what it answers: others are read by position, and need texts of
    # certain lengths.
    config.return_dict = True
    config.output_attentions = config.output_hidden_states = False
    if getattr(config, "chunk_size_feed_forward", 0):
        config.chunk_size_feed_forward = 0
    return config


def load_network(
    opener: Any, directory: Path, config: "PretrainedConfig | None" = None
) -> tuple["PreTrainedModel", Mapping[str, Any]]:
    """Return the network of a model directory in float32, and what transformers says of keys that did not fit.

    Args:
        opener: an Auto class of transformers.
        config: what to build, if it is not the config of the directory.

    Raises:
        CompressError: files are damaged, the config asks for more than they hold, weights are not finite, or the
            network does not run.
    """
    import torch

    from compress.models.components import example_inputs
    from compress.models.packed_weights import read_packed

    packed = read_packed(directory) if (directory / PACKED_NAME).is_file() else {}
    tensors, weights = len(packed), sum(weight.numel() for weight in packed.values())
    if not packed:
        tensors, weights = count_weights(weight_files(directory))
    check_config_size(read_config(directory), directory, tensors, weights)
    config = load_config(directory) if config is None else config
    with faults_of(directory, "a model"), torch.device("meta"):
        asked = sum(parameter.numel() for parameter in opener.from_config(config).parameters())
    refuse(
        (
            asked > _SHARED * weights + _FRESH_WEIGHTS,
            f"{directory / CONFIG_NAME} asks for {asked:,} weights, and the files hold {weights:,}; copy or make it "
            "again",
        )
    )
    with faults_of(directory, "a model"):
        if packed:
            model, found = opener.from_config(config).float().eval(), dict[str, Any]()
            model.load_state_dict(packed)
        else:
            model, found = opener.from_pretrained(
                directory,
                config=config,
                dtype="float32",
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # unfit() names them
                output_loading_info=True,
                **_TRUSTED,
            )
    for name, tensor in model.state_dict().items():
        odd = f"{directory} has weights that are not finite numbers ({name}); copy or make it again"
        refuse((tensor.is_floating_point() and not tensor.isfinite().all(), odd))
    # transformers refuses much that it has built when it runs.
    advice = f"correct its {CONFIG_NAME}, or copy the model again"
    with faults_of(directory, "a model", advice, verb="run as", own=False), torch.no_grad():
        model(**example_inputs(model, 1, 4))
    return model, found


def unfit(found: Mapping[str, Any]) -> list[str]:
    """Return the names of a network's weights that its files lack or have in another shape; these are random."""
    mismatched = [entry if isinstance(entry, str) else entry[0] for entry in found.get("mismatched_keys", ())]
    return sorted({*found.get("missing_keys", ()), *mismatched})


def load_tokenizer(directory: Path, **options: Any) -> Any:
    """Return the tokenizer of a model directory as transformers reads it.

    Raises:
        CompressError: it is damaged.
    """
    from transformers import AutoTokenizer

    definition = directory / TOKENIZER_NAME
    model = read_json_table(definition).get("model") if definition.is_file() else None
    refuse(
        (
            isinstance(model, dict) and any(isinstance(model.get(key), str) for key in ("vocab", "merges")),
            f"{definition} names a file in place of its vocabulary, which is not read; copy it again",
        )
    )
    with faults_of(directory, "a tokenizer", "copy the tokenizer's files again"):
        tokenizer = AutoTokenizer.from_pretrained(directory, **options, **_TRUSTED)
        if hasattr(tokenizer, "backend_tokenizer"):
            make_safe(tokenizer.backend_tokenizer, directory)
    return tokenizer


def check_opened_tokenizer(tokenizer: AnyTokenizer, directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse a tokenizer that batches cannot be made with, or whose ids the model has no embeddings for."""
    from compress.data.tokenization import maximum_length

    of, longest = f"the tokenizer of {directory}", tokenizer.model_max_length
    refuse(
        (
            not hasattr(tokenizer, "backend_tokenizer"),
            f"{directory} has a tokenizer in Python alone ({type(tokenizer).__name__}); save it as tokenizer.json, "
            "which the package tokenizers reads",
        ),
        (
            tokenizer.pad_token_id is None,
            f"{of} has no padding token, so that texts of several lengths make no batch; set pad_token in its "
            "tokenizer_config.json and pad_token_id in its config.json",
        ),
        (
            not isinstance(longest, int | float) or not 1 <= longest < math.inf,
            f"{of} has model_max_length = {str(longest)[:40]!r}; give a number of tokens in its tokenizer_config.json",
        ),
    )
    with faults_of(directory, "a tokenizer", "copy the tokenizer's files again"):
        tokenizer.backend_tokenizer.encode("a word \N{CUNEIFORM SIGN A}")  # which hardly any vocabulary has
        added = tokenizer.backend_tokenizer.num_special_tokens_to_add(False)
    read, embeddings = maximum_length(tokenizer, config), config.get("tokenizer_size", config.get("vocab_size"))
    largest = max(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    refuse(
        (
            read <= added,
            f"{directory} reads {read} tokens (model_max_length in its tokenizer_config.json), and {added} are "
            "special ones, so that none is left for a text; correct that",
        ),
        (
            embeddings is not None and largest >= embeddings,
            f"{of} knows the id {largest}, and the model has {embeddings} embeddings; copy the tokenizer that belongs "
            "to these weights",
        ),
    )
