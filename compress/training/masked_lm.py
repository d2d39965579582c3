"""Masked language modelling: mask tokens, and build a model with the vocabulary head that a loss trained.

Devlin et al. 2019, "BERT" (arXiv:1810.04805), section 3.1: of the chosen tokens 80% become the mask token, 10% a random
one, and 10% stay as they are. The trained head is converted to the one of the student's family (``BertForMaskedLM`` and
so on), so that the directory opens in transformers as any masked language model. Its output matrix is the input
embeddings.
"""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from compress.errors import CompressError
from compress.models.batch import Batch
from compress.models.dummy_inputs import example_inputs
from compress.training.loss_modules import VocabularyHead, input_embeddings

TASK_KEYS = ("id2label", "label2id", "num_labels", "problem_type", "architectures")
TOLERANCE = 1e-4  # of the largest logit


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


def trained_head(loss_modules: nn.Module | None, student: PreTrainedModel) -> VocabularyHead | None:
    """Return the student's vocabulary head among the modules of the losses; None without one."""
    own = input_embeddings(student)
    modules = loss_modules.modules() if loss_modules else ()
    return next((one for one in modules if isinstance(one, VocabularyHead) and one.tied[0] is own), None)


@torch.no_grad()
def masked_lm(student: PreTrainedModel, head: VocabularyHead) -> PreTrainedModel:
    """Return the masked language model of the student's family with its body and this head, in eval mode.

    Raises:
        CompressError: the family has none, or one with a head of another form (MobileBERT).
    """
    kind = student.config.model_type
    config = _without_task(student)
    config.tie_word_embeddings = True
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise CompressError(f"transformers has no masked language model of the type {kind!r}; use another student")
    made: Any = AutoModelForMaskedLM.from_config(config).float().eval()  # type: ignore[no-untyped-call, unused-ignore]
    missing, _ = made.base_model.load_state_dict(student.base_model.state_dict(), strict=False)
    inside = {id(module) for module in made.base_model.modules()}
    outside = [module for module in made.modules() if id(module) not in inside]
    output = made.get_output_embeddings()
    dense = [module for module in outside if isinstance(module, nn.Linear) and module is not output]
    norms = [module for module in outside if isinstance(module, nn.LayerNorm)]
    same_form = [m.weight.shape for m in (*dense, *norms)] == [head.dense.weight.shape, head.norm.weight.shape]
    if same_form and not missing and output.bias is not None:
        dense[0].load_state_dict(head.dense.state_dict())
        norms[0].load_state_dict(head.norm.state_dict())
        output.bias.copy_(head.bias)
        inputs = example_inputs(student)
        student.train(False)
        expected = head(student(**inputs, output_hidden_states=True).hidden_states[-1]).cpu()
        got = made(**{name: value.cpu() for name, value in inputs.items()}).logits
        if not (got - expected).abs().max() > TOLERANCE * expected.abs().max():
            return cast(PreTrainedModel, made)
    raise CompressError(
        f"the masked language model of the type {kind!r} has a head of another form than BERT's, which is what is "
        "trained here; use a student of another family, or one without masked language modelling"
    )


def body_of(student: PreTrainedModel) -> PreTrainedModel:
    """Return the student's encoder, without class labels in its config."""
    body: Any = student.base_model
    body.config = _without_task(student)
    return cast(PreTrainedModel, body.eval())


def check_form(student: PreTrainedModel, *, with_head: bool) -> None:
    """Refuse, before it is trained, a student that cannot be written without classes, or with a head for masked tokens.

    Raises:
        CompressError: it has no body apart from its head, or its family has no such head.
    """
    if student.base_model is student:
        raise CompressError(
            f"a student of the type {student.config.model_type!r} has no encoder that could be pre-trained apart from "
            "a task; use the architecture transformer"
        )
    if with_head:
        masked_lm(student, VocabularyHead(student))


def _without_task(student: PreTrainedModel) -> Any:
    settings = {key: value for key, value in student.config.to_dict().items() if key not in TASK_KEYS}
    return type(student.config).from_dict(settings)
