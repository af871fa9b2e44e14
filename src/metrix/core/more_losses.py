"""Losses beyond the paper's Table 1 that are rows of five functions, too, and so take mixup.

loss                anchor   pos/neg   τ            σ⁺       σ⁻      ρ⁺                 ρ⁻
Circle              X        X         log(1+e^x)   log x    log x   e^{γ w⁺(1-m-x)}    e^{γ w⁻(x-m)}
SupCon              X        X         x            x / |P|  log x   -x/T               e^{x/T}, over positives, too
NormalizedSoftmax   X        proxy     x            -log x   log x   e^{x/T}            e^{x/T}, over the positive, too
CosFace             X        proxy     log(1+e^x)   -log x   log x   e^{s(x-m)}         e^{sx}
ArcFace             X        proxy     log(1+e^x)   -log x   log x   e^{s cos(θ+m)}     e^{sx}

x is a cosine and θ its angle; w⁺ = [1+m-x]₊ and w⁻ = [x+m]₊ are constants to the gradient.

With a margin, cross-entropy -log(e^p / (e^p + Σ e^n)) is log(1 + e^{log Σ e^n - p}): the positive is in the denominator
without being in the sum over negatives, and so has its margin there, too.

The positive part of SupCon is a mean over positives. That of mixed examples is the mean weighted by their labels.

Not rows of this form, since each positive has a denominator of its own: NT-Xent, N-pairs and tuplet margin. With one
positive for each anchor, as with two views of each image, NT-Xent is SupCon. Sub-centre ArcFace compares with the
nearest of several proxies of a class, and a mixed example has as many nearest ones as classes.
"""

from __future__ import annotations

import math

import torch

from metrix.core.choices import by_name
from metrix.core.functions import ArcExponential, CircleExponential, Exponential, Linear, Log, identity, softplus
from metrix.core.generic import Row
from metrix.core.loss import Loss, LossEntry, ProxyCandidateLoss
from metrix.core.table1 import nca_row, new_proxies
from metrix.errors import InvalidInput, check_number

__all__ = ["ArcFace", "Circle", "CosFace", "NormalizedSoftmax", "SupCon"]


class Circle(Loss):
    """Circle: log(1 + Σ_P e^{γ [1+m-s]₊ (1-m-s)} · Σ_N e^{γ [s+m]₊ (s-m)}).

    No gradient goes through the factors [·]₊, which weigh a pair by its distance from the optimum: 1 + m of positives
    and -m of negatives. So the gradient, and its own, are not those of the value.

    Args:
        margin: m.
        gamma: γ, the scale.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> Circle()(embeddings, labels).backward()
    """

    _shown = ("margin", "gamma")

    def __init__(self, margin: float = 0.4, gamma: float = 80.0) -> None:
        gamma = check_number("gamma", gamma, above=0)
        pos, neg = CircleExponential(gamma, margin, True), CircleExponential(gamma, margin, False)
        super().__init__(Row(softplus, Log(), Log(), pos, neg))
        self.margin, self.gamma = margin, gamma


class SupCon(Loss):
    """Supervised contrastive: -1/|P| Σ_P s/T + log Σ_{P ∪ N} e^{s/T}.

    With one positive for each anchor this is NT-Xent.

    Args:
        temperature: T.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> SupCon()(embeddings, labels).backward()
    """

    _shown = ("temperature",)

    def __init__(self, temperature: float = 0.1) -> None:
        scale = 1.0 / check_number("temperature", temperature, above=0)
        row = Row(identity, identity, Log(), Linear(-scale), Exponential(scale), True, mean_positive=True)
        super().__init__(row)
        self.temperature = temperature


class NormalizedSoftmax(ProxyCandidateLoss):
    """Cross-entropy over cosines to a proxy for each class: -s_y/T + log Σ_c e^{s_c/T}.

    Args:
        num_classes: how many proxies there are; labels lie below it.
        dim: of the embeddings.
        temperature: T.

    >>> loss = NormalizedSoftmax(num_classes=2, dim=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).backward()
    """

    _shown = ("temperature",)

    def __init__(self, num_classes: int, dim: int, temperature: float = 0.05) -> None:
        super().__init__(nca_row(temperature, include_positive=True), torch.randn_like(new_proxies(num_classes, dim)))
        self.temperature = temperature


class CosFace(ProxyCandidateLoss):
    """Cross-entropy with a margin on the cosine: -log(e^{s(x_y - m)} / (e^{s(x_y - m)} + Σ_{c≠y} e^{s x_c})).

    Args:
        num_classes: how many proxies there are; labels lie below it.
        dim: of the embeddings.
        margin: m.
        scale: s.

    >>> loss = CosFace(num_classes=2, dim=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).backward()
    """

    _shown = ("margin", "scale")

    def __init__(self, num_classes: int, dim: int, margin: float = 0.35, scale: float = 64.0) -> None:
        scale = check_number("scale", scale, above=0)
        row = Row(softplus, Log(-1.0), Log(), Exponential(scale, margin), Exponential(scale))
        super().__init__(row, torch.randn_like(new_proxies(num_classes, dim)))
        self.margin, self.scale = margin, scale


class ArcFace(ProxyCandidateLoss):
    """Cross-entropy with a margin on the angle: CosFace with cos(θ_y + m) in place of cos θ_y - m.

    Where θ_y + m would exceed π, cos θ_y - m sin m takes its place, which keeps falling.

    Args:
        num_classes: how many proxies there are; labels lie below it.
        dim: of the embeddings.
        margin: m, in radians, below π.
        scale: s.

    >>> loss = ArcFace(num_classes=2, dim=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).backward()
    """

    _shown = ("margin", "scale")

    def __init__(self, num_classes: int, dim: int, margin: float = 0.5, scale: float = 64.0) -> None:
        scale = check_number("scale", scale, above=0)
        if not 0.0 <= check_number("margin", margin) < math.pi:
            raise InvalidInput(f"margin: expected an angle in radians from 0 to π, got {margin}")
        row = Row(softplus, Log(-1.0), Log(), ArcExponential(scale, margin), Exponential(scale))
        super().__init__(row, torch.randn_like(new_proxies(num_classes, dim)))
        self.margin, self.scale = margin, scale


MORE_LOSSES: dict[str, LossEntry] = by_name(
    LossEntry("circle", "pairs weighted by how far they are from their optimum", "Sun et al., CVPR 2020", Circle),
    LossEntry(
        "supcon",
        "the mean of positives against all in a softmax",
        "Khosla et al., NeurIPS 2020",
        SupCon,
    ),
    LossEntry(
        "normalized-softmax",
        "cross-entropy over cosines to a learnt proxy per class",
        "Zhai and Wu, BMVC 2019",
        NormalizedSoftmax,
        needs_pairs=False,
    ),
    LossEntry(
        "cosface",
        "normalized softmax with a margin on the cosine",
        "Wang et al., CVPR 2018",
        CosFace,
        needs_pairs=False,
    ),
    LossEntry(
        "arcface",
        "normalized softmax with a margin on the angle",
        "Deng et al., CVPR 2019",
        ArcFace,
        needs_pairs=False,
    ),
)
