"""Mask tokens for masked language modelling.

Devlin et al. 2019, "BERT" (arXiv:1810.04805), section 3.1: of the chosen tokens 80% become the mask token, 10% a random
one, and 10% stay as they are.
"""

from dataclasses import replace

import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from compress.errors import CompressError
from compress.models.batch import Batch


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
        self.collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=share)
        self.special_ids = torch.tensor(sorted(tokenizer.all_special_ids))

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with masked ``input_ids`` and the original ids as ``targets`` ``[B, T]``."""
        ids = batch.input_ids.cpu()  # where transformers draws
        special = (batch.attention_mask.cpu() == 0) | torch.isin(ids, self.special_ids)
        masked, targets = self.collator.torch_mask_tokens(ids.clone(), special)
        device = batch.input_ids.device
        return replace(batch, input_ids=masked.to(device), targets=targets.to(device))
