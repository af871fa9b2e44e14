"""The losses as the tests know them: one row each, with its literal twin; every test file takes its losses from here.

A loss of the library without a row here fails `tests/test_losses_table.py`. A new one needs a row of `TABLE` (or of
`BASELINES`, if it is not of the generic form) and then is in the parity tests, the laws, the fast paths, the numerics
and the tests of several processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metrix import losses
from metrix.core.pairs import PAIR_KINDS
from tests.parity import literal

Roles = Literal["pairs", "pairs and proxies", "proxy anchors", "proxy candidates"]


@dataclass(frozen=True)
class LossCase:
    """A loss of the generic form with the parameters that it is tested with.

    Attributes:
        make: The loss, for a number of classes and a dimension.
        five: The literal τ, σ⁺, σ⁻, ρ⁺, ρ⁻ of a made loss; None for a reduction that eq. generic does not have,
            whose twin is written out in a test of its own.
        roles: Who plays anchor, and who positive and negative: examples both, proxies one of the two, or all both.
        centers: Proxies of a class.
        include_positive: Whether positives are in the negative sum too.
        log_of_sums: Whether an anchor without a positive, or without a negative, is undefined.
        true_gradient: Whether the gradient is that of the value; some losses treat parts of it as constants.
        tolerance: Of comparisons; an angle has half the digits of its cosine, where that is near 1.
    """

    make: Callable[[int, int], nn.Module]
    five: Callable[[Any], tuple[Callable[[Tensor], Tensor], ...]] | None
    roles: Roles = "pairs"
    centers: int = 1
    include_positive: bool = False
    log_of_sums: bool = False
    true_gradient: bool = True
    tolerance: float = 1e-9

    def build(self, num_classes: int, dim: int, seed: int = 0) -> Any:
        """The loss in float64, its proxies the same each time."""
        torch.manual_seed(seed)
        return self.make(num_classes, dim).double()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of mixing pairs that it has; with proxies as candidates, only examples of two classes mix."""
        return ("pos-neg", "anc-neg") if self.roles == "proxy candidates" else tuple(PAIR_KINDS)

    @property
    def defined_kinds(self) -> tuple[str, ...]:
        """The kinds of mixing pairs for which the mixed loss is defined on any batch with positives and negatives."""
        return tuple(k for k in self.kinds if not (self.log_of_sums and k in ("pos-pos", "neg-neg")))

    def factor_rows(self, kind: str, n: int, num_classes: int) -> int:
        """How many rows λ has: one for each proxy where proxies are mixed, else one for each of n examples."""
        return num_classes if self.roles == "proxy anchors" and kind == "anc-neg" else n

    def literal_clean(self, loss: Any, f: Tensor, labels: Tensor, anchors: int | None = None) -> Tensor | None:
        """eq. generic in loops; the first `anchors` of the examples are anchors, or all."""
        assert self.five is not None
        if self.roles == "pairs":
            return literal.clean_pairs(self.five(loss), f, labels, self.include_positive, anchors)
        if self.roles == "pairs and proxies":
            proxies = F.normalize(loss.proxies, dim=1)
            number, n = len(proxies), len(f)
            everybody = list(range(n if anchors is None else anchors)) + list(range(n, n + number))
            labels = torch.cat([labels, torch.arange(number) // self.centers])
            return literal.clean_pairs(self.five(loss), torch.cat([f, proxies]), labels, anchors=everybody)
        return self.literal_of_proxies(loss, f, labels, F.normalize(loss.proxies, dim=1))

    def literal_of_proxies(self, loss: Any, f: Tensor, labels: Tensor, proxies: Tensor) -> Tensor | None:
        """eq. generic in loops, with proxies of unit norm that need not be the loss's own."""
        assert self.five is not None
        if self.roles == "proxy anchors":
            return literal.clean_proxy_anchor(self.five(loss), f, labels, proxies)
        return literal.clean_proxy_candidates(self.five(loss), f, labels, proxies, self.include_positive, self.centers)

    def literal_mixed(
        self,
        loss: Any,
        f: Tensor,
        labels: Tensor,
        f_lam: Callable[[int, int, float], Tensor],
        lam: Tensor,
        kind: str,
        k: int | None = None,
        renormalise: bool = True,
        anchors: int | None = None,
    ) -> Tensor | None:
        """eq. loss-mixed in loops; f_lam(i, j, λ) is the mixed embedding of two examples."""
        assert self.five is not None
        five = self.five(loss)
        if self.roles in ("pairs", "pairs and proxies"):
            return literal.mixed_pairs(five, f, labels, f_lam, lam, kind, k, self.include_positive, anchors)
        proxies = F.normalize(loss.proxies, dim=1)
        if self.roles == "proxy candidates":
            return literal.mixed_proxy_candidates(
                five, f, labels, proxies, f_lam, lam, self.include_positive, k, self.centers
            )

        def mix_with_proxy(c: int, n: int, share: float) -> Tensor:
            v = share * proxies[c] + (1 - share) * f[n]
            return F.normalize(v, dim=0) if renormalise else v

        return literal.mixed_proxy_anchor(five, f, labels, proxies, f_lam, mix_with_proxy, lam, kind, k)


class LearnableExponential(nn.Module):
    """A user's ρ⁺ with a parameter: e^{-a s}."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, s: Tensor) -> Tensor:
        return torch.exp(-self.scale * s)


def _learnable(num_classes: int, dim: int) -> nn.Module:
    return losses.GenericLoss(rho_pos=LearnableExponential(), rho_neg=torch.exp, sigma_pos=torch.log1p)


def _literal_learnable(loss: Any) -> tuple[Callable[[Tensor], Tensor], ...]:
    return (
        (lambda x: x),
        (lambda x: torch.log(1 + x)),
        (lambda x: x),
        (lambda x: torch.exp(-loss.rho_pos.scale * x)),
        torch.exp,
    )


TABLE: dict[str, LossCase] = {
    "contrastive": LossCase(
        lambda c, d: losses.Contrastive(0.2),
        lambda loss: literal.contrastive(0.2),
    ),
    "contrastive, mean_nonzero": LossCase(lambda c, d: losses.Contrastive(0.2, reduction="mean_nonzero"), None),
    "lifted-structure": LossCase(
        lambda c, d: losses.LiftedStructure(1.0), lambda loss: literal.lifted_structure(1.0), log_of_sums=True
    ),
    "binomial-deviance": LossCase(
        lambda c, d: losses.BinomialDeviance(18.0, 75.0, 0.77),
        lambda loss: literal.binomial_deviance(18.0, 75.0, 0.77),
    ),
    "multi-similarity": LossCase(
        lambda c, d: losses.MultiSimilarity(),
        lambda loss: literal.multi_similarity(18.0, 75.0, 0.77),
    ),
    "nca": LossCase(lambda c, d: losses.NCA(), lambda loss: literal.nca(), log_of_sums=True),
    "nca, include_positive": LossCase(
        lambda c, d: losses.NCA(0.2, include_positive=True),
        lambda loss: literal.nca(0.2),
        include_positive=True,
        log_of_sums=True,
    ),
    "circle": LossCase(
        lambda c, d: losses.Circle(), lambda loss: literal.circle(0.4, 80.0), log_of_sums=True, true_gradient=False
    ),
    "supcon": LossCase(
        lambda c, d: losses.SupCon(0.2), lambda loss: literal.supcon(0.2), include_positive=True, log_of_sums=True
    ),
    "nt-xent": LossCase(lambda c, d: losses.NTXent(0.2), lambda loss: literal.nt_xent(0.2), log_of_sums=True),
    "nt-xent, pairs": LossCase(lambda c, d: losses.NTXent(0.2, reduction="pairs"), None, log_of_sums=True),
    "tuplet-margin": LossCase(
        lambda c, d: losses.TupletMargin(0.1, 16.0),
        lambda loss: literal.tuplet_margin(0.1, 16.0),
        log_of_sums=True,
        tolerance=1e-6,
    ),
    "potential-field": LossCase(
        lambda c, d: losses.PotentialField(c, d, 0.8, 3.0),
        lambda loss: literal.potential_field(0.8, 3.0),
        roles="pairs and proxies",
        centers=2,
    ),
    "potential-field, no proxies": LossCase(
        lambda c, d: losses.PotentialField(c, d, centers=0), lambda loss: literal.potential_field(0.2, 4.0)
    ),
    "generic": LossCase(_learnable, _literal_learnable),
    "proxy-anchor": LossCase(
        losses.ProxyAnchor,
        lambda loss: literal.multi_similarity(32.0, 32.0, 0.1),
        roles="proxy anchors",
    ),
    "proxy-anchor, two margins": LossCase(
        lambda c, d: losses.ProxyAnchor(c, d, negative_margin=-0.1),
        lambda loss: literal.multi_similarity(32.0, 32.0, 0.1, -0.1),
        roles="proxy anchors",
    ),
    "proxy-anchor, original": LossCase(losses.ProxyAnchor.original, None, roles="proxy anchors"),
    "proxy-nca": LossCase(losses.ProxyNCA, lambda loss: literal.nca(), roles="proxy candidates", log_of_sums=True),
    "proxy-nca++": LossCase(
        losses.ProxyNCAPlusPlus,
        lambda loss: literal.nca(1 / 18),
        roles="proxy candidates",
        include_positive=True,
        log_of_sums=True,
    ),
    "normalized-softmax": LossCase(
        losses.NormalizedSoftmax,
        lambda loss: literal.nca(0.05),
        roles="proxy candidates",
        include_positive=True,
        log_of_sums=True,
    ),
    "cosface": LossCase(
        losses.CosFace, lambda loss: literal.cosface(0.35, 64.0), roles="proxy candidates", log_of_sums=True
    ),
    "arcface": LossCase(
        losses.ArcFace, lambda loss: literal.arcface(0.5, 64.0), roles="proxy candidates", log_of_sums=True
    ),
    "subcenter-arcface": LossCase(
        losses.SubCenterArcFace,
        lambda loss: literal.arcface(0.5, 64.0),
        roles="proxy candidates",
        centers=3,
        log_of_sums=True,
    ),
    "proxy-nca++, table 1": LossCase(
        lambda c, d: losses.ProxyNCAPlusPlus(c, d, include_positive=False),
        lambda loss: literal.nca(1 / 18),
        roles="proxy candidates",
        log_of_sums=True,
    ),
}

LITERAL = [name for name, case in TABLE.items() if case.five is not None]
PAIR_LOSSES = [name for name, case in TABLE.items() if case.roles == "pairs"]
# those with one proxy for each class
PROXY_LOSSES = [
    name for name, case in TABLE.items() if case.roles in ("proxy anchors", "proxy candidates") and case.centers == 1
]
WITH_KINDS = [(name, kind) for name, case in TABLE.items() for kind in case.kinds]
LITERAL_WITH_KINDS = [(name, kind) for name, kind in WITH_KINDS if TABLE[name].five is not None]
DEFINED_WITH_KINDS = [(name, kind) for name, case in TABLE.items() for kind in case.defined_kinds]

# losses that are not of the generic form, for a number of classes and a dimension
BASELINES: dict[str, Callable[[int, int], nn.Module]] = {
    "triplet": lambda c, d: losses.Triplet(),
    "triplet, all": lambda c, d: losses.Triplet(mining="all"),
    "margin": lambda c, d: losses.Margin(),
    "margin, by class": lambda c, d: losses.Margin(num_classes=c),
    "epshn": lambda c, d: losses.EPSHN(),
    "soft-triple": lambda c, d: losses.SoftTriple(c, d, centers=3),
    "recall-at-k": lambda c, d: losses.RecallAtK((1, 2, 4), temperature=0.1),
}
