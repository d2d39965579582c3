"""What passes between a model, its teacher and a loss. Shapes: B batch, T tokens, C classes,
D hidden width, L layers, H heads, d width of a head."""

from dataclasses import dataclass, field

from torch import Tensor

from compress.tasks import Task, default

NO_TARGET = -100


@dataclass(frozen=True)
class Balance:
    """How the loss on gold labels makes up for classes that are rare: numbers of each class, none where not asked.

    ``weights`` multiply the loss of an answer by that of its gold label (:meth:`compress.tasks.Task.hard_loss`).
    ``shift`` is added to the logits in training only, ``tau log prior`` (Menon et al. 2021, "Long-tail learning via
    logit adjustment", arXiv:2007.07314, equation 10).
    """

    weights: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One batch of tokenised text, padded on the right.

    For tagging, ``words`` ``[B, T]`` is true where a word starts, and every word is a row of what losses read:
    :meth:`answers` takes the words' out of a model's logits, so that B is then the number of words.

    ``labels`` is ``[B]``, as the ``task`` reads them: class indices (``-100`` where a row has no gold label), or float
    targets (``nan``) for regression; ``None`` when no row has one. ``targets`` ``[B, T]`` are the ids of the tokens
    that masking chose, ``-100`` elsewhere; ``None`` when the text is whole. ``mixed_ids`` ``[B, M]`` is the same text
    in a mixture of two vocabularies (:mod:`compress.training.build_student`), with its ``mixed_mask``. ``rows``
    ``[B]`` are the numbers of the rows in what is taught. ``balance`` is how gold labels count.
    """

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None = None
    labels: Tensor | None = None
    targets: Tensor | None = None
    mixed_ids: Tensor | None = None
    mixed_mask: Tensor | None = None
    rows: Tensor | None = None
    words: Tensor | None = None
    task: Task = field(default_factory=default)
    balance: Balance = Balance()

    def answers(self, logits: Tensor) -> Tensor:
        """Return a model's logits ``[B, C]``; of ``[B, T, C]`` those where words start, ``[W, C]``."""
        return logits if self.words is None else logits[self.words]

    def inputs(self) -> dict[str, Tensor]:
        """Return the tensors that a model's ``forward`` takes."""
        segments = {} if self.token_type_ids is None else {"token_type_ids": self.token_type_ids}
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask, **segments}


@dataclass(frozen=True)
class Outputs:
    """What a forward pass gave.

    ``logits`` ``[B, C]``; ``hidden`` (L+1) x ``[B, T, D]`` with the embeddings first; ``queries``, ``keys`` and
    ``values`` L x ``[B, H, T, d]``, from which :mod:`compress.training.losses._common` makes attention scores.
    ``first`` ``[B, L+1, D]`` are the hidden states of the first token alone, where these were cached.
    ``trained_layers`` are the layers of a student, counted from 1, that losses read; ``None`` is all.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    queries: tuple[Tensor, ...] = ()
    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    first: Tensor | None = None
    trained_layers: tuple[int, ...] | None = None

    @property
    def layers(self) -> int:
        """How many layers the hidden states, the cached first states or the attention come from."""
        if self.first is not None:
            return self.first.shape[1] - 1
        return len(self.hidden) - 1 if self.hidden else len(self.queries)
