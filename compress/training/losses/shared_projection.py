"""Distance between the student's weights and a learned projection of the teacher's; it reads no text at all.

Zhao et al. 2019, "Extreme Language Model Compression with Optimal Subwords and Shared Projections" (arXiv:1909.11687
version 1), section 3.3: ``sum || U theta_T V - theta_S ||^2`` (``down``), or ``sum || theta_T - U theta_S V ||^2``
(``up``). U and V are shared by all weights of one shape in all layers: here those of attention (queries, keys, values,
output), those that widen and those that narrow the feed-forward network. Biases, norms and embeddings are left out.
The mean over the entries of a matrix, then over all matrices, so that the loss does not grow with the model.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.models.batch import Batch, Outputs
from compress.models.components import attention_layers
from compress.models.modeling.families import FAMILIES, layers_of, stock_type
from compress.training.losses._common import zero

NEEDS: frozenset[str] = frozenset()
COMPUTES_IN = "run"  # its products are half of the work of a step


class SharedProjections(nn.Module):
    """U and V of each of the :func:`weights`' shapes; ``up`` projects the student's weights, ``down`` the teacher's."""

    def __init__(self, student: PreTrainedModel, teacher: PreTrainedModel, *, direction: str = "down") -> None:
        super().__init__()
        ours, theirs = len(attention_layers(student)), len(attention_layers(teacher))
        refuse(
            (
                direction not in {"down", "up"},
                f"shared-projection: direction = {direction!r} is not allowed; use 'down' or 'up'",
            ),
            (
                ours != theirs,
                f"the loss shared-projection compares layer by layer; the student has {ours} layers and the teacher "
                f"{theirs}: give the student depth = {theirs}, or leave the loss out",
            ),
        )
        self.layers = ours
        # From the side that is projected to the side that it is compared with; in a tuple, models are no part of this.
        self.sides = (teacher, student) if direction == "down" else (student, teacher)
        self.teacher = (teacher,)
        self.left, self.right = nn.ParameterDict(), nn.ParameterDict()
        sources, targets = (weights(side, 0) for side in self.sides)
        for shape, source in sources.items():
            (rows, columns), (wanted_rows, wanted_columns) = source[0].shape, targets[shape][0].shape
            self.left[shape] = nn.Parameter(nn.init.orthogonal_(torch.empty(wanted_rows, rows)))
            self.right[shape] = nn.Parameter(nn.init.orthogonal_(torch.empty(columns, wanted_columns)))

    def distances(self, layer: int) -> list[Tensor]:
        """Return the mean squared difference of each matrix of a layer counted from 0; the teacher's are constants."""
        sources, targets = (
            {
                shape: [matrix.detach() if side is self.teacher[0] else matrix for matrix in matrices]
                for shape, matrices in weights(side, layer).items()
            }
            for side in self.sides
        )
        return [
            # In the cheaper of both orders: a third of the products of the matrices that widen.
            (torch.linalg.multi_dot([self.left[shape], source, self.right[shape]]) - target).square().mean()
            for shape in sources
            for source, target in zip(sources[shape], targets[shape], strict=True)
        ]


def loss(
    student: Outputs, teacher: Outputs, batch: Batch, projections: SharedProjections, *, direction: str = "down"
) -> Tensor:
    """Return the mean squared distance over all matrices of the layers that are trained now."""
    trained = range(1, projections.layers + 1) if student.trained_layers is None else student.trained_layers
    distances = [distance for layer in trained for distance in projections.distances(layer - 1)]
    return torch.stack(distances).mean() if distances else zero(student)


learned = SharedProjections


def weights(model: PreTrainedModel, layer: int) -> dict[str, list[Tensor]]:
    """Return the weight matrices of a layer counted from 0, by the name of their shape."""
    attention, module = attention_layers(model)[layer], layers_of(model)[layer]
    neurons = FAMILIES[stock_type(model.config)].neurons
    return {
        "attention": [projection.weight for projection in (*attention.rows, attention.columns)],
        "widened": [module.get_parameter(f"{neurons.rows[0]}.weight")],
        "narrowed": [module.get_parameter(f"{neurons.columns}.weight")],
    }
