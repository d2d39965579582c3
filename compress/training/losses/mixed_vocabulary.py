"""Teach small embeddings in a vocabulary of their own by letting the teacher read text that mixes both vocabularies.

Zhao et al. 2019 and 2021 (arXiv:1909.11687, version 1 "dual training", version 2 "Extremely Small BERT Models from
Mixed-Vocabulary Training"): some words are cut by the student's vocabulary, and their pieces enter the teacher as the
student's embeddings through a learned affine map to the teacher's width. The authors train by masked language
modelling, and version 1 the teacher too. Here the teacher is frozen and is to say of the mixed text what it says of the
whole text: ``T**2 KL(p_whole || p_mixed)`` over the classes, the mean over rows, because a fine-tuned classifier has no
head for masked tokens. What learns is the student's embeddings and the map.
"""

from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.models.batch import Batch, Outputs
from compress.models.components import input_embeddings

NEEDS = frozenset({"logits", "classes", "mixed"})
COMPUTES_IN = "run"  # the teacher reads the mixed text; what it says is compared in float32


class MixedReader(nn.Module):
    """The teacher's logits ``[B, C]`` for mixed ids ``[B, M]``.

    Ids below the number of the teacher's embeddings are its own; from there on they are the student's, moved up by it.
    The teacher's own weights take no gradient from now on.
    """

    def __init__(self, student: PreTrainedModel, teacher: PreTrainedModel) -> None:
        super().__init__()
        # In a tuple models are not registered as submodules.
        self.models = (student, teacher.train(False).requires_grad_(False))
        ours, theirs = input_embeddings(student), input_embeddings(teacher)
        self.projection = nn.Linear(ours.embedding_dim, theirs.embedding_dim)

    def forward(self, mixed_ids: Tensor, mixed_mask: Tensor) -> Tensor:
        student, teacher = self.models
        ours, theirs = input_embeddings(student), input_embeddings(teacher)
        offset = theirs.num_embeddings
        projected: Tensor = self.projection(ours((mixed_ids - offset).clamp(min=0)))
        embedded = projected.where((mixed_ids >= offset)[..., None], theirs(mixed_ids.clamp(max=offset - 1)))
        logits: Tensor = teacher(inputs_embeds=embedded, attention_mask=mixed_mask).logits
        return logits.float()


def loss(student: Outputs, teacher: Outputs, batch: Batch, reader: MixedReader, *, temperature: float = 2.0) -> Tensor:
    """Return ``T**2`` times the divergence between the teacher's predictions on whole and on mixed text."""
    assert batch.mixed_ids is not None and batch.mixed_mask is not None  # the recipe has a vocabulary
    return batch.task.divergence(reader(batch.mixed_ids, batch.mixed_mask), teacher.logits, temperature)


learned = MixedReader
