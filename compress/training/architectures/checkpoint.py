"""A student that starts from a pretrained checkpoint: a published compact model, or what ``compress pretrain`` made.

Turc et al. 2019, "Well-Read Students Learn Better" (arXiv:1908.08962), is the case for it: a compact student that was
pre-trained by itself learns more from a teacher than one that was cut from it. Such as ``google/mobilebert-uncased``
(Sun et al. 2020), or a TinyBERT or DistilBERT of the general kind. Its classification head starts at random.
"""

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.models.model_dir import Model
from compress.tasks import labels_of, of_network


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    model: str,
) -> PreTrainedModel:
    """Return the checkpoint with a head of the teacher's labels.

    Args:
        model: a model directory or a hub name. It must read the token ids of the teacher's tokenizer.

    Raises:
        CompressError: no such model, one without torch weights, another vocabulary, or weights missing beside the head.
    """
    encoder = Model.open(model, classifier=False)
    encoder.check_trainable()
    encoder.check_vocabulary(tokenizer)
    return encoder.with_head(labels_of(teacher.config.to_dict()), of_network(teacher))
