"""Losses beyond the paper's Table 1 whose candidates are examples; they take mixup as those of Table 1 do.

loss             τ            σ⁺       σ⁻      ρ⁺                     ρ⁻
Circle           log(1+e^x)   log x    log x   e^{γ w⁺(1-m-x)}        e^{γ w⁻(x-m)}
SupCon           x            x / |P|  log x   -x/T                   e^{x/T}, over positives, too
NTXent           log(1+e^x)   each     log x   -x/T                   e^{x/T}
TupletMargin     log(1+e^x)   each     log x   -s cos(θ-m)            e^{sx}
PotentialField   x            x        x       -(δ / max(d, δ))^α     (δ / min(d, δ))^α

x is a cosine, θ its angle and d = √(2-2x) the distance; w⁺ = [1+m-x]₊ and w⁻ = [x+m]₊ are constants to the gradient.

The positive part of SupCon is a mean over positives. That of mixed examples is the mean weighted by their labels.

NTXent and TupletMargin have a term for each positive, with a denominator of its own: 1/|P| Σ_p τ(ρ⁺(s_p) + σ⁻(Σ_N ρ⁻)).
That is eq. generic for an anchor with one positive at a time, so mixed examples have their place: the mean over them is
weighted by their labels Y, the sum in the denominator by 1-Y. With one positive for each anchor NTXent is SupCon.

PotentialField compares examples and proxies with one another, all in the role of anchors. Mixed examples have the
clean examples as anchors: proxies live among the embeddings and are not mixed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from metrix.core.choices import by_name
from metrix.core.distributed.ranks import WHOLE, Division
from metrix.core.functions import (
    ArcLinear,
    Attraction,
    CircleExponential,
    Exponential,
    Linear,
    Log,
    Repulsion,
    identity,
    softplus,
)
from metrix.core.generic import Reduction, Row, mean_over_anchors, mean_over_positives
from metrix.core.loss import AnyLabels, Loss, LossEntry, LossValue, Sort, check_proxies_fit
from metrix.core.relations import GradedLabels
from metrix.core.sets import Sets
from metrix.core.settings import check_margin, check_scale
from metrix.core.softmax_losses import check_angle, random_proxies
from metrix.core.spaces import PROXY_RATES, LogUniform, Uniform, WholeNumber
from metrix.core.validation import check_labels, unit
from metrix.errors import InvalidInput, check_integer, check_name, check_number

__all__ = ["Circle", "NTXent", "PotentialField", "SupCon", "TupletMargin"]


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
        gamma, margin = check_scale("gamma", gamma), check_margin("margin", margin)
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
        temperature = check_scale("temperature", temperature)
        scale = 1.0 / temperature
        row = Row(identity, identity, Log(), Linear(-scale), Exponential(scale), True, mean_positive=True)
        super().__init__(row)
        self.temperature = temperature


class NTXent(Loss):
    """NT-Xent (InfoNCE): the mean over positives p of -log(e^{s_p/T} / (e^{s_p/T} + Σ_N e^{s_n/T})).

    With T = 1 and one positive for each anchor this is the N-pairs loss of unit embeddings.

    Args:
        temperature: T.
        reduction: "anchors" is the mean over the positives of an anchor, then over anchors; "pairs" the mean over all
            pairs of an anchor and a positive, as in pytorch-metric-learning.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> NTXent()(embeddings, labels).backward()
    """

    _shown = ("temperature", "reduction")

    def __init__(self, temperature: float = 0.07, reduction: str = "anchors") -> None:
        temperature = check_scale("temperature", temperature)
        scale = 1.0 / temperature
        row = Row(softplus, identity, Log(), Linear(-scale), Exponential(scale), each_positive=True)
        super().__init__(row, _reduction(reduction))
        self.temperature, self.reduction = temperature, reduction


class TupletMargin(Loss):
    """Tuplet margin: the mean over positives p of log(1 + Σ_N e^{s(cos θ_n - cos(θ_p - m))}).

    Args:
        margin: m, in radians, below π.
        scale: s.
        reduction: "anchors" is the mean over the positives of an anchor, then over anchors; "pairs" the mean over all
            pairs of an anchor and a positive, as in pytorch-metric-learning.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> TupletMargin()(embeddings, labels).backward()
    """

    _shown = ("margin", "scale", "reduction")

    def __init__(self, margin: float = 0.1, scale: float = 64.0, reduction: str = "anchors") -> None:
        scale, margin = check_scale("scale", scale), check_angle(margin)
        pos, neg = ArcLinear(-scale, -margin), Exponential(scale)
        super().__init__(Row(softplus, identity, Log(), pos, neg, each_positive=True), _reduction(reduction))
        self.margin, self.scale, self.reduction = margin, scale, reduction


def _reduction(name: str) -> Reduction:
    reductions = {"anchors": mean_over_anchors, "pairs": mean_over_positives}
    return reductions[check_name("reduction", name, reductions)]


class PotentialField(Loss):
    """Potential field (PFML): every example and proxy attracts those of its class and repels all others.

    The energy of a point is -Σ_P (δ / max(d, δ))^α + Σ_N (δ / min(d, δ))^α over all other points at distance d: forces
    fade with the distance, positives nearer than δ and negatives farther than δ feel none. The loss is the mean energy
    of all points. It is the published one, a sum, times a constant: δ^α over the number of points.

    Args:
        num_classes: how many classes there are; labels lie below it.
        dim: of the embeddings.
        radius: δ, from 0.001: nearer vectors cannot be told apart in float32.
        decay: α, up to 64.
        centers: M, proxies of each class, 0 for none; the authors take 15 on CUB and Cars, 2 on SOP. `proxies` is
            (num_classes · M, dim), those of a class one after the other.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> PotentialField(num_classes=2, dim=8)(embeddings, labels).backward()
    """

    sort: Sort = "several"
    _shown = ("radius", "decay", "per_class")

    def __init__(self, num_classes: int, dim: int, radius: float = 0.2, decay: float = 4.0, centers: int = 2) -> None:
        radius = check_number("radius", radius, above=0, least=1e-3, most=2)  # a distance of unit vectors
        decay = check_number("decay", decay, above=0, most=64)  # a force of (1/2)^-decay is felt at half the radius
        super().__init__(Row(identity, identity, identity, Attraction(radius, decay), Repulsion(radius, decay)))
        self.radius, self.decay, self.per_class = radius, decay, check_integer("centers", centers, least=0)
        self.proxies = nn.Parameter(random_proxies(num_classes, dim, centers)) if self.per_class else None
        if not self.per_class:
            self.sort = "pairs"

    def sets(self, embeddings: Tensor, labels: AnyLabels, division: Division = WHOLE) -> Sets:
        """Anchors, P(a) and N(a) among the examples; `clean` adds the proxies."""
        if self.proxies is not None:
            if isinstance(labels, GradedLabels):
                raise InvalidInput(
                    "labels: expected one class for each example, got graded labels, which say nothing of several "
                    "proxies for a class; give PotentialField centers=0, or choose another loss"
                )
            check_proxies_fit(self.proxies, embeddings)
            of = f"classes with {self.per_class} proxies"
            labels = check_labels(labels, embeddings, len(self.proxies) // self.per_class, of)
        return super().sets(embeddings, labels, division)

    def clean(self, sets: Sets, mined: Tensor | None = None) -> LossValue:
        """The clean loss of examples and proxies."""
        if self.proxies is None:
            return super().clean(sets, mined)
        if mined is not None or sets.own is None:
            raise InvalidInput(
                "PotentialField with proxies: expected all pairs of a batch, got those of a miner or other candidates; "
                "leave indices_tuple and ref_emb out, or give it centers=0"
            )
        return super().clean(self._with_proxies(sets, self.proxies))

    def _with_proxies(self, sets: Sets, proxies: Tensor) -> Sets:
        """The sets with all proxies among the candidates; each process has its share of them among the anchors."""
        assert sets.own is not None, "anchors are examples"
        p, examples = unit(proxies).to(sets.candidates.dtype), len(sets.candidates)
        classes = torch.arange(len(p)) // self.per_class
        rank, size = sets.ranks.rank, sets.ranks.size
        share = slice(len(p) * rank // size, len(p) * (rank + 1) // size)
        candidates = torch.cat([sets.candidates, p])
        alone = sets.anchors is sets.candidates
        whole = replace(
            sets,
            anchors=candidates if alone else torch.cat([sets.anchors, p[share]]),
            candidates=candidates,
            anchor_labels=torch.cat([sets.anchor_labels, classes[share]]),
            candidate_labels=torch.cat([sets.candidate_labels, classes]),
            own=torch.cat([sets.own, examples + torch.arange(len(p))[share]]),
        )
        there = sets.on_device()  # copied for the mixed loss, too; the numbers of proxies are made there
        numbers = torch.arange(len(p), device=p.device)
        added = numbers[share] // self.per_class, numbers // self.per_class, examples + numbers[share]
        whole._on_device = [torch.cat([x, y]) for x, y in zip(there, added, strict=True) if x is not None]
        return whole


PAIR_LOSSES: dict[str, LossEntry] = by_name(
    LossEntry(
        "circle",
        "pairs weighted by how far they are from their optimum",
        "Sun et al., CVPR 2020",
        Circle,
        space={"margin": Uniform(0.1, 0.7), "gamma": LogUniform(16.0, 256.0)},
    ),
    LossEntry(
        "supcon",
        "the mean of positives against all in a softmax",
        "Khosla et al., NeurIPS 2020",
        SupCon,
        space={"temperature": LogUniform(0.03, 0.5)},
    ),
    LossEntry(
        "nt-xent",
        "each positive against all negatives in a softmax",
        "Sohn, NIPS 2016",
        NTXent,
        space={"temperature": LogUniform(0.03, 0.5)},
    ),
    LossEntry(
        "tuplet-margin",
        "NT-Xent with slack on the angle to the positive",
        "Yu and Tao, ICCV 2019",
        TupletMargin,
        space={"margin": Uniform(0.0, 0.5), "scale": LogUniform(8.0, 128.0)},
    ),
    LossEntry(
        "potential-field",
        "examples and learnt proxies attract and repel, less with the distance",
        "Bhatnagar and Ahuja, CVPR 2025",
        PotentialField,
        needs_pairs=False,
        space={
            "radius": LogUniform(0.05, 1.0),
            "decay": LogUniform(1.0, 8.0),
            "centers": WholeNumber(1, 5),
            "proxy_lr": PROXY_RATES,
        },
    ),
)
