"""Hide tokens for masked language modelling.

Devlin et al. 2019, "BERT" (arXiv:1810.04805), section 3.1: of the chosen tokens 80% become the mask token, 10% a random
one, and 10% stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from compress.errors import CompressError
from compress.models.batch import NO_TARGET, Batch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


MASKED, RANDOM = 0.8, 0.1


class Masker:
    """Masks a ``share`` of the tokens of every batch anew, from torch's global generator, which checkpoints keep."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, share: float) -> None:
        """Prepare for one vocabulary.

        Raises:
            CompressError: the tokenizer has no mask token.
        """
        if tokenizer.mask_token_id is None:
            raise CompressError(
                "a phase masks tokens, and this tokenizer has no mask token; use a teacher whose tokenizer has one, or "
                "a student without masking"
            )
        self.share = share
        self.mask_id = int(tokenizer.mask_token_id)
        self.size = len(tokenizer)
        self.special_ids = torch.tensor(sorted(tokenizer.all_special_ids))

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with masked ``input_ids`` and the hidden ids as ``targets`` ``[B, T]``."""
        ids = batch.input_ids
        text = (batch.attention_mask == 1) & ~torch.isin(ids, self.special_ids.to(ids.device))
        draw, kind = torch.rand(ids.shape, device=ids.device), torch.rand(ids.shape, device=ids.device)
        chosen = text & (draw < self.share)
        random_ids = torch.randint(self.size, ids.shape, device=ids.device)
        hidden = torch.where(kind < MASKED, self.mask_id, torch.where(kind < MASKED + RANDOM, random_ids, ids))
        return replace(
            batch,
            input_ids=torch.where(chosen, hidden, ids),
            targets=torch.where(chosen, ids, torch.full_like(ids, NO_TARGET)),
        )
