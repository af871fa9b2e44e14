"""SoftTriple: several centres for each class."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metrix.core.baselines.base import Baseline
from metrix.core.settings import check_margin, check_scale, check_weight, make_room
from metrix.core.validation import check_labels, unit
from metrix.errors import ShapeError


class SoftTriple(Baseline):
    """SoftTriple: cross entropy over classes that have K centres each.

    S_c = Σ_k softmax_k(s_ck/γ) s_ck is the similarity to class c, the loss is
    -log softmax(λ(S - δ 1_y))_y + τ Σ_c Σ_{j<k} √(2 + 1e-5 - 2 w_cj·w_ck) / (C K (K - 1)), whose second
    part draws centres of a class that are not needed together.

    Args:
        num_classes: C; labels lie below it.
        dim: of the embeddings.
        centers: K, centres of each class.
        la: λ, scale of similarities.
        gamma: γ, temperature of the softmax over the centres of a class.
        tau: τ, weight of the second part.
        margin: δ.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> SoftTriple(num_classes=2, dim=8)(embeddings, labels).backward()
    """

    not_generic = (
        "each class has several centres in a softmax of their own, so it is no sum over positives plus a sum over "
        "negatives; losses.ProxyNCAPlusPlus, which has one for each class, can be"
    )
    of_one_dim = True
    _shown = ("la", "gamma", "tau", "margin")

    def __init__(
        self,
        num_classes: int,
        dim: int,
        centers: int = 10,
        la: float = 20.0,
        gamma: float = 0.1,
        tau: float = 0.2,
        margin: float = 0.01,
    ) -> None:
        super().__init__()
        self.la, self.gamma = check_scale("la", la), check_scale("gamma", gamma)
        self.tau, self.margin = check_weight("tau", tau), check_margin("margin", margin)
        # Only the direction of a centre counts, and Adam's steps are as long as the learning rate, so the length
        # of centres says how fast they turn: the authors' 1/√(C·K) would make them tumble where classes are many.
        self.centers = nn.Parameter(make_room(num_classes=num_classes, centers=centers, dim=dim).normal_())

    def labels(self, labels: Tensor, x: Tensor) -> Tensor:
        """Labels checked against the classes that have centres."""
        dim = self.centers.shape[2]
        if x.shape[1] != dim:
            raise ShapeError(
                f"embeddings of dimension {x.shape[1]} for centres of dimension {dim}: give the loss dim={x.shape[1]}"
            )
        return check_labels(labels, x, len(self.centers), "classes with centres")

    def of_unit(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy and the regulariser."""
        classes, k, dim = self.centers.shape
        w = unit(self.centers.reshape(classes * k, dim)).to(x.dtype)
        s = (x @ w.T).view(len(x), classes, k)  # similarity to every centre
        S = (torch.softmax(s / self.gamma, dim=2) * s).sum(2)  # to every class
        labels = labels.to(x.device)
        at_own = F.one_hot(labels, classes).to(S.dtype)
        loss = F.cross_entropy(self.la * (S - self.margin * at_own), labels)
        if self.tau > 0 and k > 1:
            loss = loss + self.tau * self.spread(w.view(classes, k, dim))
        return loss, torch.ones((), device=x.device)

    def spread(self, w: Tensor) -> Tensor:
        """Half the mean distance between two centres of one class, from unit centres (classes, K, d)."""
        classes, k, _ = w.shape
        j, i = torch.triu_indices(k, k, offset=1, device=w.device)
        products = (w @ w.transpose(1, 2))[:, j, i]
        # 1e-5 is the authors': the root has no derivative where two centres have met
        return (2.0 + 1e-5 - 2.0 * products).sqrt().sum() / (classes * k * (k - 1))
