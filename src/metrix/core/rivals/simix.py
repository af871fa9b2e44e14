"""SiMix (Patel et al., CVPR 2022): similarity mixup, of two examples of one class.

    v = λ x_i + (1-λ) x_j     y_i = y_j, λ ~ Beta(α, α), uniform for α = 1

for all pairs of a class. v is one more example of that class: query, positive and negative as the real ones are, in one
loss with them. Only similarities are mixed, so v is not brought to unit norm:

    s(v, z) = λ s(x_i, z) + (1-λ) s(x_j, z)

for examples z, and likewise for another mixture in place of z. The products of the vectors v are these similarities.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metrix.core.baselines import RecallAtK
from metrix.core.comparison import to_device
from metrix.core.loss import Loss, LossValue
from metrix.core.objective import ONE_LOSS, EmbeddingLoss, EmbeddingObjective, Method
from metrix.core.rivals.base import Drawing, as_pair_loss
from metrix.core.settings import check_generator
from metrix.core.spaces import LogUniform
from metrix.core.split_model import AnyModel
from metrix.core.validation import check_labels, unit


class SiMix(EmbeddingObjective):
    """SiMix: a loss of similarities with mixtures of two examples of one class among its examples.

    Args:
        loss: `losses.RecallAtK`, as published, or a loss of pairs.
        alpha: λ ~ Beta(alpha, alpha), which is uniform for 1.
        lam_per: "pair" draws one λ for each pair of examples, as published, "batch" one for each step.
        generator: of all random choices; None is torch's default one.

    >>> from metrix import losses
    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> SiMix(losses.RecallAtK())(embeddings, labels).backward()
    """

    kinds = "pos-pos"

    def __init__(
        self,
        loss: nn.Module,
        alpha: float = 1.0,
        lam_per: str = "pair",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.loss: Loss | RecallAtK = loss if isinstance(loss, RecallAtK) else as_pair_loss(loss, "SiMix")
        self.drawing, self.generator = Drawing(alpha, lam_per), check_generator(generator)

    def parts(self, embeddings: Tensor, labels: Tensor, lam: float | Tensor | None = None) -> EmbeddingLoss:
        """The loss with virtual examples, and without. `lam`, a number or one for each pair, is drawn by default."""
        x = unit(embeddings)
        labels = check_labels(labels, x).cpu()
        i, j = (labels.unsqueeze(1) == labels.unsqueeze(0)).triu(1).nonzero().unbind(1)
        share = self.drawing((len(i),), x, lam, self.generator)
        left, right = (x.index_select(0, end) for end in to_device([i, j], x.device))
        virtual = torch.lerp(right, left, share.unsqueeze(1))
        with torch.no_grad():
            clean = self._of(x, labels).value
        found = self._of(torch.cat([x, virtual]), torch.cat([labels, labels[i]]))
        return EmbeddingLoss(found.value, clean, None if isinstance(self.loss, RecallAtK) else found)

    def _of(self, x: Tensor, labels: Tensor) -> LossValue:
        if isinstance(self.loss, RecallAtK):
            value = self.loss.of_vectors(x, labels)
            return LossValue(value, torch.zeros_like(value), 0)
        return self.loss.clean(self.loss.sets(x, labels))

    def explain(self, model: AnyModel | None = None) -> str:
        """How virtual examples are computed: no model is needed."""
        return "SiMix: one virtual example for each pair of a class, from similarities of clean embeddings."


SIMIX = Method(
    "simix",
    "similarities of two examples of a class mixed into one more example of it",
    "Patel et al., CVPR 2022",
    make=SiMix,
    settings={name: name for name in ("alpha", "lam_per")},
    losses="similarities",
    mixup=("embed",),
    pairs=("pos-pos",),
    usual_loss="recall-at-k",
    defaults={"mixup": ("embed",), "pairs": ("pos-pos",), "strength": 1.0, "alpha": 1.0},
    fixed={
        "strength": ONE_LOSS,
        "pairs": "both examples are of one class",
        "hard_negatives": "no negatives are mixed",
    },
    space={"alpha": LogUniform(0.3, 4.0)},
)
