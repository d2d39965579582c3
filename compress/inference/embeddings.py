"""Embeddings of texts: the mean of an encoder's last hidden states, of length 1, as it is before any fine-tuning.

Reimers and Gurevych 2019, "Sentence-BERT" (arXiv:1908.10084), section 3.
"""

from collections.abc import Sequence

import numpy as np

from compress.data import Example
from compress.data.tokenization import maximum_length
from compress.inference.batching import TokenArrays, logits_of
from compress.models.model_dir import Model
from compress.progress import Advance


def embeddings(encoder: Model, texts: Sequence[str], *, device: str, advance: Advance) -> np.ndarray:
    """Return ``[N, D]`` float32; ``advance`` by the texts of each batch."""
    import torch

    network, tokenizer = encoder.body().eval().to(device), encoder.tokenizer

    def run(arrays: TokenArrays) -> np.ndarray:
        inputs = {name: torch.from_numpy(arrays[name]).to(device) for name in names if name in arrays}
        with torch.inference_mode():
            states, mask = network(**inputs).last_hidden_state.float(), inputs["attention_mask"][..., None]
            return torch.nn.functional.normalize((states * mask).sum(dim=1), dim=-1).cpu().numpy()

    names = {"input_ids", "attention_mask", *tokenizer.model_input_names}
    rows, longest = [Example(text) for text in texts], maximum_length(tokenizer, encoder.config)
    return logits_of(rows, run, tokenizer, max_length=longest, advance=advance)
