"""Table 1 of the paper: each loss is a row of five functions.

loss               anchor   pos/neg   τ      σ⁺            σ⁻            ρ⁺            ρ⁻
Contrastive        X        X         x      x             x             -x            [x-m]₊
LiftedStructure    X        X         [x]₊   log x         log x         e^{-x}        e^{x-m}
BinomialDeviance   X        X         x      log(1+x)      log(1+x)      e^{-β(x-m)}   e^{γ(x-m)}
MultiSimilarity    X        X         x      log(1+x)/β    log(1+x)/γ    e^{-β(x-m)}   e^{γ(x-m)}
ProxyAnchor        proxy    X         x      log(1+x)/β    log(1+x)/γ    e^{-β(x-m)}   e^{γ(x-m)}
NCA                X        X         x      -log x        log x         e^x           e^x
ProxyNCA           X        proxy     x      -log x        log x         e^x           e^x
ProxyNCAPlusPlus   X        proxy     x      -log x        log x         e^{2x/T}      e^{2x/T}

A loss has a class here, its name in `__all__` (which makes it one of `metrix.losses`) and an entry of `TABLE1`
(which makes it a choice of configurations and the command line).
"""

from __future__ import annotations

import torch
from torch import nn

from metrix.core.choices import by_name
from metrix.core.functions import Exponential, Hinge, Log, Log1p, identity, negated
from metrix.core.generic import Row, mean_nonzero, mean_over_anchors, mean_over_present
from metrix.core.loss import Loss, LossEntry, ProxyAnchorLoss, ProxyCandidateLoss
from metrix.core.settings import check_margin, check_scale, make_room
from metrix.core.spaces import PROXY_RATES, LogUniform, OneOf, Uniform
from metrix.errors import check_flag, check_name

__all__ = [
    "NCA",
    "BinomialDeviance",
    "Contrastive",
    "LiftedStructure",
    "MultiSimilarity",
    "ProxyAnchor",
    "ProxyNCA",
    "ProxyNCAPlusPlus",
]


def nca_row(temperature: float, include_positive: bool) -> Row:
    """The NCA rows: -log Σ⁺ e^{x/T} + log Σ⁻ e^{x/T}."""
    rho = Exponential(1.0 / check_scale("temperature", temperature))
    return Row(identity, Log(-1.0), Log(), rho, rho, check_flag("include_positive", include_positive))


def similarity_row(beta: float, gamma: float, margin: float, negative_margin: float, weighted: bool) -> Row:
    """The rows of log(1 + Σ e^…): multi-similarity and proxy anchor weighted by 1/β and 1/γ."""
    beta, gamma = check_scale("beta", beta), check_scale("gamma", gamma)
    return Row(
        tau=identity,
        sigma_pos=Log1p(1.0 / beta if weighted else 1.0),
        sigma_neg=Log1p(1.0 / gamma if weighted else 1.0),
        rho_pos=Exponential(-beta, check_margin("margin", margin)),
        rho_neg=Exponential(gamma, check_margin("negative_margin", negative_margin)),
    )


class Contrastive(Loss):
    """Contrastive, eq. contr: Σ_P -s(a,p) + Σ_N [s(a,n) - m]₊.

    Args:
        margin: m; negatives below this similarity have no loss.
        reduction: "sum" is the paper's, sums over pairs and the mean over anchors. "mean_nonzero" is the mean over
            positive terms plus the mean over the negative terms that are not zero, over the whole batch.

    >>> embeddings, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> Contrastive()(embeddings, labels)  # two anchors with a similar positive, one without any
    tensor(-0.6667)
    """

    _shown = ("margin", "reduction")

    def __init__(self, margin: float = 0.5, reduction: str = "sum") -> None:
        reductions = {"sum": mean_over_anchors, "mean_nonzero": mean_nonzero}
        reduction, margin = check_name("reduction", reduction, reductions), check_margin("margin", margin)
        super().__init__(Row(identity, identity, identity, negated, Hinge(margin)), reductions[reduction])
        self.margin, self.reduction = margin, reduction


class LiftedStructure(Loss):
    """Lifted structure: [ log Σ_P e^{-s(a,p)} + log Σ_N e^{s(a,n) - m} ]₊.

    Args:
        margin: m.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> LiftedStructure()(embeddings, labels).backward()
    """

    _shown = ("margin",)

    def __init__(self, margin: float = 1.0) -> None:
        margin = check_margin("margin", margin)
        super().__init__(Row(Hinge(), Log(), Log(), Exponential(-1.0), Exponential(1.0, margin)))
        self.margin = margin


class BinomialDeviance(Loss):
    """Binomial deviance: log(1 + Σ_P e^{-β(s-m)}) + log(1 + Σ_N e^{γ(s-m)}).

    Args:
        beta: β, scale of positives.
        gamma: γ, scale of negatives.
        margin: m, the similarity that both are compared with.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> BinomialDeviance()(embeddings, labels).backward()
    """

    _shown = ("beta", "gamma", "margin")

    def __init__(self, beta: float = 2.0, gamma: float = 50.0, margin: float = 0.5) -> None:
        super().__init__(similarity_row(beta, gamma, margin, margin, weighted=False))
        self.beta, self.gamma, self.margin = float(beta), float(gamma), float(margin)


class MultiSimilarity(Loss):
    """Multi-similarity, eq. MS: 1/β log(1 + Σ_P e^{-β(s-m)}) + 1/γ log(1 + Σ_N e^{γ(s-m)}).

    Args:
        beta: β, scale of positives.
        gamma: γ, scale of negatives.
        margin: m, the similarity that both are compared with.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> MultiSimilarity()(embeddings, labels).backward()
    """

    _shown = ("beta", "gamma", "margin")

    def __init__(self, beta: float = 18.0, gamma: float = 75.0, margin: float = 0.77) -> None:
        super().__init__(similarity_row(beta, gamma, margin, margin, weighted=True))
        self.beta, self.gamma, self.margin = float(beta), float(gamma), float(margin)


class NCA(Loss):
    """NCA: -log Σ_P e^{s/T} + log Σ_N e^{s/T}.

    Args:
        temperature: T.
        include_positive: sum over positives in the second term, too; Table 1 does not.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> NCA()(embeddings, labels).backward()
    """

    _shown = ("temperature", "include_positive")

    def __init__(self, temperature: float = 1.0, include_positive: bool = False) -> None:
        super().__init__(nca_row(temperature, include_positive))
        self.temperature, self.include_positive = float(temperature), include_positive


class ProxyAnchor(ProxyAnchorLoss):
    """Proxy anchor: eq. MS with a learnable proxy per class as the anchor.

    The defaults are those of Table 1; `ProxyAnchor.original` is the loss as its authors train it.

    Args:
        num_classes: how many proxies there are; labels lie below it.
        dim: of the embeddings.
        beta: β, scale of positives.
        gamma: γ, scale of negatives.
        margin: m of the positives.
        negative_margin: m of the negatives, e^{γ(s - m)}; None is `margin`, the original method has -`margin`.
        reduction: "mean" over all proxies; "present" averages the positive part over the proxies whose class is in
            the batch.
        weighted: with the factors 1/β and 1/γ of Table 1, which the original does not have.

    >>> loss = ProxyAnchor(num_classes=2, dim=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).backward()
    >>> loss.proxies.grad.shape
    torch.Size([2, 8])
    """

    _shown = ("beta", "gamma", "margin", "negative_margin", "reduction", "weighted")

    def __init__(
        self,
        num_classes: int,
        dim: int,
        beta: float = 32.0,
        gamma: float = 32.0,
        margin: float = 0.1,
        negative_margin: float | None = None,
        reduction: str = "mean",
        weighted: bool = True,
    ) -> None:
        reductions = {"mean": mean_over_anchors, "present": mean_over_present}
        reduction, weighted = check_name("reduction", reduction, reductions), check_flag("weighted", weighted)
        margin = check_margin("margin", margin)
        negative_margin = margin if negative_margin is None else check_margin("negative_margin", negative_margin)
        row = similarity_row(beta, gamma, margin, negative_margin, weighted)
        proxies = nn.init.kaiming_normal_(make_room(num_classes=num_classes, dim=dim), mode="fan_out")
        super().__init__(row, proxies, reductions[reduction])
        self.beta, self.gamma, self.margin, self.negative_margin = float(beta), float(gamma), margin, negative_margin
        self.reduction, self.weighted = reduction, weighted

    @classmethod
    def original(cls, num_classes: int, dim: int, alpha: float = 32.0, margin: float = 0.1) -> ProxyAnchor:
        """The loss as its authors train it: β = γ = `alpha`, margins ±`margin`, no weights, proxies present."""
        return cls(num_classes, dim, alpha, alpha, margin, -margin, reduction="present", weighted=False)


class ProxyNCA(ProxyCandidateLoss):
    """ProxyNCA: the NCA row with learnable proxies as positives and negatives.

    Args:
        num_classes: how many proxies there are; labels lie below it.
        dim: of the embeddings.
        temperature: T.
        include_positive: sum over the positive proxy in the second term, too; Table 1 does not.

    >>> loss = ProxyNCA(num_classes=2, dim=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).backward()
    """

    _shown = ("temperature", "include_positive")

    def __init__(self, num_classes: int, dim: int, temperature: float = 1.0, include_positive: bool = False) -> None:
        super().__init__(nca_row(temperature, include_positive), small_proxies(num_classes, dim))
        self.temperature, self.include_positive = float(temperature), include_positive


class ProxyNCAPlusPlus(ProxyCandidateLoss):
    """ProxyNCA++: ProxyNCA with a low temperature and, as published, all proxies in the denominator.

    T divides squared distances of unit vectors, ‖x - p‖² = 2 - 2s, as its authors define it: logits are (2/T)·s, that
    is 18·s with their T = 1/9.

    Args:
        num_classes: how many proxies there are; labels lie below it.
        dim: of the embeddings.
        temperature: T, of squared distances.
        include_positive: sum over the positive proxy in the second term, too; False is the form of Table 1.

    >>> loss = ProxyNCAPlusPlus(num_classes=2, dim=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).backward()
    """

    _shown = ("temperature", "include_positive")

    def __init__(self, num_classes: int, dim: int, temperature: float = 1 / 9, include_positive: bool = True) -> None:
        half = check_scale("temperature", temperature) / 2
        super().__init__(nca_row(half, include_positive), small_proxies(num_classes, dim))
        self.temperature, self.include_positive = float(temperature), include_positive


def small_proxies(num_classes: int, dim: int) -> torch.Tensor:
    """Proxies of random directions, shorter than 1 so that they turn fast: (num_classes, dim)."""
    return make_room(num_classes=num_classes, dim=dim).normal_() / 8


TABLE1: dict[str, LossEntry] = by_name(
    LossEntry(
        "contrastive",
        "positives attract, negatives repel within a margin",
        "Hadsell et al., CVPR 2006",
        Contrastive,
        space={"margin": Uniform(0.1, 0.9), "reduction": OneOf(("sum", "mean_nonzero"))},
    ),
    LossEntry(
        "lifted-structure",
        "a hinge on soft extremes of positives and negatives",
        "Hermans et al., 2017",
        LiftedStructure,
        space={"margin": Uniform(0.2, 2.0)},
    ),
    LossEntry(
        "binomial-deviance",
        "soft thresholds on positives and negatives",
        "Yi et al., ICPR 2014",
        BinomialDeviance,
        space={"beta": LogUniform(0.5, 10.0), "gamma": LogUniform(5.0, 100.0), "margin": Uniform(0.1, 0.9)},
    ),
    LossEntry(
        "multi-similarity",
        "soft thresholds, each pair weighted against the others",
        "Wang et al., CVPR 2019",
        MultiSimilarity,
        space={"beta": LogUniform(1.0, 40.0), "gamma": LogUniform(20.0, 100.0), "margin": Uniform(0.1, 0.9)},
    ),
    LossEntry(
        "nca",
        "positives against negatives in a softmax",
        "Goldberger et al., NIPS 2004",
        NCA,
        space={"temperature": LogUniform(0.03, 1.0)},
    ),
    LossEntry(
        "proxy-anchor",
        "multi-similarity with a learnt proxy per class as the anchor",
        "Kim et al., CVPR 2020",
        ProxyAnchor,
        needs_pairs=False,
        space={
            "beta": LogUniform(8.0, 64.0),
            "gamma": LogUniform(8.0, 64.0),
            "margin": Uniform(0.0, 0.5),
            "proxy_lr": PROXY_RATES,
        },
    ),
    LossEntry(
        "proxy-nca",
        "NCA with learnt proxies as positives and negatives",
        "Movshovitz-Attias et al., ICCV 2017",
        ProxyNCA,
        needs_pairs=False,
        space={"temperature": LogUniform(0.03, 1.0), "proxy_lr": PROXY_RATES},
    ),
    LossEntry(
        "proxy-nca++",
        "ProxyNCA with a low temperature and all proxies below",
        "Teh et al., ECCV 2020",
        ProxyNCAPlusPlus,
        needs_pairs=False,
        space={"temperature": LogUniform(0.06, 2.0), "proxy_lr": PROXY_RATES},
    ),
)
