"""Random token ids to run a model on."""

from contextlib import suppress

import torch
from torch import Tensor
from transformers import PreTrainedModel


def example_inputs(model: PreTrainedModel, batch_size: int = 2, length: int = 8, seed: int = 0) -> dict[str, Tensor]:
    """Return random token ids and the mask ``[B, T]``; no token is padding."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary: int = getattr(model.config, "tokenizer_size", 128)  # CANINE reads code points: those of ASCII
    with suppress(NotImplementedError):
        vocabulary = getattr(model.config, "tokenizer_size", None) or len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    lowest = min(5, vocabulary - 1)  # 0 to 4 are padding and the other special tokens of every family
    input_ids = torch.randint(lowest, vocabulary, (batch_size, length), generator=generator)
    if getattr(model.config, "pairs", "") == "siamese":  # two texts, of different lengths
        input_ids[:, length // 3] = model.config.separator_token_id
    if model.config.is_encoder_decoder:  # it answers at the end of the text
        input_ids[:, -1] = model.config.eos_token_id
    device = next(model.parameters()).device
    return {"input_ids": input_ids.to(device), "attention_mask": torch.ones_like(input_ids, device=device)}
