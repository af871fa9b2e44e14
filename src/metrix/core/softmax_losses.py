"""Losses beyond the paper's Table 1 whose candidates are proxies: cross-entropy over classes, with margins.

loss                τ            σ⁺       σ⁻      ρ⁺                 ρ⁻
NormalizedSoftmax   x            -log x   log x   e^{x/T}            e^{x/T}, over the positive, too
CosFace             log(1+e^x)   -log x   log x   e^{s(x-m)}         e^{sx}
ArcFace             log(1+e^x)   -log x   log x   e^{s cos(θ+m)}     e^{sx}
SubCenterArcFace    log(1+e^x)   -log x   log x   e^{s cos(θ+m)}     e^{sx}, x to the nearest of a class's K proxies

x is a cosine and θ its angle.

With a margin, cross-entropy -log(e^p / (e^p + Σ e^n)) is log(1 + e^{log Σ e^n - p}): the positive is in the denominator
without being in the sum over negatives, and so has its margin there, too.

A mixed example is compared with the nearest proxy of each class, as a clean one is; which one that is depends on the
mixture, not on the two examples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from metrix.core.choices import by_name
from metrix.core.functions import ArcExponential, Exponential, Log, softplus
from metrix.core.generic import Function, Row
from metrix.core.loss import LossEntry, ProxyCandidateLoss, Sort
from metrix.core.settings import check_margin, check_scale, make_room
from metrix.core.spaces import PROXY_RATES, LogUniform, Uniform, WholeNumber
from metrix.core.table1 import nca_row
from metrix.errors import InvalidInput, check_number

__all__ = ["ArcFace", "CosFace", "NormalizedSoftmax", "SubCenterArcFace"]


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
        super().__init__(nca_row(temperature, include_positive=True), random_proxies(num_classes, dim))
        self.temperature = float(temperature)


class MarginSoftmax(ProxyCandidateLoss):
    """Base class of cross-entropy with a margin on the similarity to the proxy of the example's class.

    Args:
        rho_pos: ρ⁺, with the margin.
        num_classes: how many classes there are; labels lie below it.
        dim: of the embeddings.
        margin: m.
        scale: s.
        centers: K, proxies of each class.
    """

    _shown: tuple[str, ...] = ("margin", "scale")

    def __init__(
        self, rho_pos: Function, num_classes: int, dim: int, margin: float, scale: float, centers: int = 1
    ) -> None:
        rho_neg = Exponential(scale)
        row = Row(softplus, Log(-1.0), Log(), rho_pos, rho_neg)
        super().__init__(row, random_proxies(num_classes, dim, centers), centers=centers)
        self.margin, self.scale = margin, scale


class CosFace(MarginSoftmax):
    """Cross-entropy with a margin on the cosine: -log(e^{s(x_y - m)} / (e^{s(x_y - m)} + Σ_{c≠y} e^{s x_c})).

    Args:
        num_classes: how many proxies there are; labels lie below it.
        dim: of the embeddings.
        margin: m.
        scale: s.

    >>> loss = CosFace(num_classes=2, dim=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).backward()
    """

    def __init__(self, num_classes: int, dim: int, margin: float = 0.35, scale: float = 64.0) -> None:
        scale, margin = check_scale("scale", scale), check_margin("margin", margin)
        super().__init__(Exponential(scale, margin), num_classes, dim, margin, scale)


class ArcFace(MarginSoftmax):
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

    def __init__(self, num_classes: int, dim: int, margin: float = 0.5, scale: float = 64.0) -> None:
        scale, margin = check_scale("scale", scale), check_angle(margin)
        super().__init__(ArcExponential(scale, margin), num_classes, dim, margin, scale)


class SubCenterArcFace(MarginSoftmax):
    """ArcFace with several proxies for each class, the nearest of which counts: cos θ_c = max_k ⟨x, p_ck⟩.

    Args:
        num_classes: how many classes there are; labels lie below it.
        dim: of the embeddings.
        margin: m, in radians, below π.
        scale: s.
        centers: K, proxies of each class. `proxies` is (num_classes · K, dim), those of a class one after the other.

    >>> loss = SubCenterArcFace(num_classes=2, dim=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).backward()
    >>> loss.proxies.shape
    torch.Size([6, 8])
    """

    sort: Sort = "several"
    _shown = ("margin", "scale", "centers")

    def __init__(self, num_classes: int, dim: int, margin: float = 0.5, scale: float = 64.0, centers: int = 3) -> None:
        scale, margin = check_scale("scale", scale), check_angle(margin)
        super().__init__(ArcExponential(scale, margin), num_classes, dim, margin, scale, centers)


def check_angle(margin: float) -> float:
    """The margin, which must be an angle in radians from 0 to π."""
    angle = check_number("margin", margin)
    if not 0.0 <= angle < math.pi:
        raise InvalidInput(f"margin: expected an angle in radians from 0 to π, got {margin}")
    return angle


def random_proxies(num_classes: int, dim: int, centers: int = 1) -> Tensor:
    """Proxies of random directions: (num_classes · centers, dim)."""
    return torch.randn_like(make_room(num_classes=num_classes, centers=centers, dim=dim)).flatten(0, 1)


SOFTMAX_LOSSES: dict[str, LossEntry] = by_name(
    LossEntry(
        "normalized-softmax",
        "cross-entropy over cosines to a learnt proxy per class",
        "Zhai and Wu, BMVC 2019",
        NormalizedSoftmax,
        needs_pairs=False,
        space={"temperature": LogUniform(0.02, 0.5), "proxy_lr": PROXY_RATES},
    ),
    LossEntry(
        "cosface",
        "normalized softmax with a margin on the cosine",
        "Wang et al., CVPR 2018",
        CosFace,
        needs_pairs=False,
        space={"margin": Uniform(0.0, 0.6), "scale": LogUniform(8.0, 128.0), "proxy_lr": PROXY_RATES},
    ),
    LossEntry(
        "arcface",
        "normalized softmax with a margin on the angle",
        "Deng et al., CVPR 2019",
        ArcFace,
        needs_pairs=False,
        space={"margin": Uniform(0.0, 0.6), "scale": LogUniform(8.0, 128.0), "proxy_lr": PROXY_RATES},
    ),
    LossEntry(
        "subcenter-arcface",
        "ArcFace with the nearest of several proxies per class",
        "Deng et al., ECCV 2020",
        SubCenterArcFace,
        needs_pairs=False,
        space={
            "margin": Uniform(0.0, 0.6),
            "scale": LogUniform(8.0, 128.0),
            "proxy_lr": PROXY_RATES,
            "centers": WholeNumber(2, 5),
        },
    ),
)
