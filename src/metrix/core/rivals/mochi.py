"""MoCHi (Kalantidis et al., NeurIPS 2020): synthetic negatives from the hardest real ones.

For an anchor a and its k most similar negatives N(a):

    neg-neg   h = λ n + (1-λ) n'    λ ~ U(0, 1)
    anc-neg   h = λ a + (1-λ) n     λ ~ U(0, 1/2): the negative prevails

each brought to unit norm. No gradient goes through h, and its label is always negative: h joins the real
negatives in the sum of the loss. The published form draws some pairs; the paper's comparison takes them all.

Only similarities are computed: with h constant, s(a, h) = (λ ⟨a, n⟩ + (1-λ) ⟨a, n'⟩) / ‖h‖ has a gradient for the
left side of each product alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from metrix.core.choices import find_several
from metrix.core.closed_form import inverse_norms, mixed_similarity
from metrix.core.compute.stream import sum_over_blocks
from metrix.core.generic import Totals, Weights
from metrix.core.loss import Loss
from metrix.core.objective import ONE_LOSS, EmbeddingLoss, EmbeddingObjective, Method, MixingSettings
from metrix.core.pairs import PAIR_KINDS, MixingPairs, mixing_pairs, rows_of
from metrix.core.rivals.base import Drawing, as_pair_loss
from metrix.core.sets import Sets
from metrix.core.settings import check_generator
from metrix.core.spaces import LogUniform
from metrix.core.split_model import AnyModel
from metrix.core.validation import unit
from metrix.errors import InvalidInput, check_integer

KINDS = ("neg-neg", "anc-neg")
HARDEST = 100  # negatives of an anchor that are mixed in the paper's comparison


class MoCHi(EmbeddingObjective):
    """MoCHi: a loss of pairs with synthetic negatives among its negatives.

    Args:
        loss: a loss of pairs.
        pairs: "neg-neg", "anc-neg" or, as published, both in each step.
        hard_negatives: how many of an anchor's most similar negatives are mixed.
        alpha: λ ~ Beta(alpha, alpha), which is uniform for 1; half of that for anc-neg.
        lam_per: "pair" draws one λ for each ordered pair of examples, "batch" one for each step.
        generator: of all random choices; None is torch's default one.

    >>> from metrix import losses
    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> MoCHi(losses.Contrastive(), pairs="anc-neg")(embeddings, labels).backward()
    """

    def __init__(
        self,
        loss: nn.Module,
        pairs: str | Sequence[str] = KINDS,
        hard_negatives: int = HARDEST,
        alpha: float = 1.0,
        lam_per: str = "pair",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.loss: Loss = as_pair_loss(loss, "MoCHi")
        self.pairs = find_several("pairs of MoCHi", pairs, {kind: PAIR_KINDS[kind] for kind in KINDS})
        self.hard_negatives = check_integer("hard_negatives", hard_negatives, least=1)
        self.drawing, self.generator = Drawing(alpha, lam_per, "MoCHi"), check_generator(generator)
        self.kinds = "+".join(self.pairs)

    def parts(self, embeddings: Tensor, labels: Tensor, lam: float | Tensor | None = None) -> EmbeddingLoss:
        """The loss with synthetic negatives, and without. `lam`, a number or a (n, n) tensor, is drawn by default."""
        x = unit(embeddings)
        sets = self.loss.sets(x, labels)
        n, G = len(x), sets.similarity  # taken with its graph before the clean loss, which is for the log only
        with torch.no_grad():
            clean, _ = self.loss.clean(sets)
        factors = {kind: self.drawing((n, n), x, lam, self.generator) for kind in self.pairs}
        value, left_out = self.loss.conclude(self._totals(sets, G, factors), n, x)
        return EmbeddingLoss(value, clean, left_out)

    def _totals(self, sets: Sets, G: Tensor, factors: dict[str, Tensor]) -> Totals:
        x, fixed = sets.anchors, G.detach()
        if "anc-neg" in factors:
            factors["anc-neg"] = factors["anc-neg"] / 2
        norms = {kind: inverse_norms(fixed, lam) for kind, lam in factors.items()}
        widest = PAIR_KINDS["neg-neg" if "neg-neg" in factors else "anc-neg"]
        mixing = list(mixing_pairs(widest, sets, self.hard_negatives, fixed))
        without = sets.negative.sum(1) == 0  # anchors that have nothing to mix
        blocks: list[MixingPairs | Tensor] = [*mixing, *([without.nonzero().flatten()] if bool(without.any()) else [])]
        row, reduce = self.loss.row, self.loss.reduce
        positive = sets.positive.to(G.dtype)
        negative = torch.ones_like(positive) if row.include_positive else sets.negative.to(G.dtype)

        def block_totals(block: MixingPairs | Tensor, G: Tensor, one_sided: Tensor) -> Totals:
            rows = block if isinstance(block, Tensor) else block.rows
            S, pos, neg = [rows_of(G, rows)], [rows_of(positive, rows)], [rows_of(negative, rows)]
            if not isinstance(block, Tensor):
                for kind, lam in factors.items():
                    of_kind = PAIR_KINDS[kind]
                    pairs = MixingPairs(rows, None if of_kind.with_anchor else block.left, block.right, of_kind)
                    left = pairs.of_left(one_sided, one_sided.diagonal())
                    synthetic = mixed_similarity(
                        left, pairs.of_right(one_sided), pairs.of_pair(lam), pairs.of_pair(norms[kind])
                    )
                    S.append(synthetic.flatten(1))
                    neg.append(pairs.valid().to(G.dtype).expand_as(synthetic).flatten(1))
                    pos.append(G.new_zeros(()).expand_as(neg[-1]))
            return reduce(row, torch.cat(S, 1), Weights(torch.cat(pos, 1), torch.cat(neg, 1)))

        return sum_over_blocks(block_totals, blocks, [G, x @ x.detach().T], self.loss.learnable())

    def explain(self, model: AnyModel | None = None) -> str:
        """How synthetic negatives are computed: no model is needed."""
        return (
            f"MoCHi: {self.kinds} negatives of the {self.hard_negatives} hardest of each anchor, closed form. "
            "Synthetic negatives enter a loss only through products of clean embeddings."
        )

    def extra_repr(self) -> str:
        """The settings."""
        return f"pairs={self.pairs}, hard_negatives={self.hard_negatives}"


def _build(loss: nn.Module, settings: MixingSettings, generator: torch.Generator | None) -> MoCHi:
    given = settings.hard_negatives or (HARDEST,)
    k = given[0]
    if len(given) != 1 or k is None:
        raise InvalidInput(f"hard_negatives with mixup_method 'mochi': expected one number, got {given}")
    return MoCHi(loss, settings.pairs, k, settings.alpha, settings.lam_per, generator)


MOCHI = Method(
    "mochi",
    "synthetic negatives mixed from the hardest ones, without gradient",
    "Kalantidis et al., NeurIPS 2020",
    build=_build,
    losses="pairs",
    mixup=("embed",),
    pairs=KINDS,
    usual_loss="contrastive",
    defaults={"mixup": ("embed",), "pairs": KINDS, "strength": 1.0, "alpha": 1.0},
    fixed={"strength": ONE_LOSS},
    space={"alpha": LogUniform(0.3, 4.0)},
)
