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
from metrix.core.comparison import Comparison, Comparisons, Rows, pick
from metrix.core.compute.blocks import rows_in_block
from metrix.core.loss import Loss
from metrix.core.objective import ONE_LOSS, EmbeddingLoss, EmbeddingObjective, Method
from metrix.core.pairs import PAIR_KINDS, PairPlan, mixing_pairs
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
        hard_negatives: int | Sequence[int] | None = HARDEST,
        alpha: float = 1.0,
        lam_per: str = "pair",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.loss: Loss = as_pair_loss(loss, "MoCHi")
        self.pairs = find_several("pairs of MoCHi", pairs, {kind: PAIR_KINDS[kind] for kind in KINDS})
        if isinstance(hard_negatives, Sequence) and not isinstance(hard_negatives, str | bytes):
            if len(hard_negatives) != 1 or hard_negatives[0] is None:
                raise InvalidInput(f"hard_negatives: expected one number with MoCHi, got {hard_negatives}")
            hard_negatives = hard_negatives[0]
        hard_negatives = HARDEST if hard_negatives is None else hard_negatives
        self.hard_negatives = check_integer("hard_negatives", hard_negatives, least=1)
        self.drawing, self.generator = Drawing(alpha, lam_per), check_generator(generator)
        self.kinds = "+".join(self.pairs)

    def parts(self, embeddings: Tensor, labels: Tensor, lam: float | Tensor | None = None) -> EmbeddingLoss:
        """The loss with synthetic negatives, and without. `lam`, a number or a (n, n) tensor, is drawn by default."""
        x = unit(embeddings)
        sets = self.loss.sets(x, labels)
        factors = {kind: self.drawing((len(x), len(x)), x, lam, self.generator) for kind in self.pairs}
        found = self.loss.conclude(self.loss.over(self._compare(sets, factors)), len(x))
        with torch.no_grad():  # for the log only
            clean = self.loss.clean(sets)
        return EmbeddingLoss(found.value, clean.value, found)

    def _compare(self, sets: Sets, factors: dict[str, Tensor]) -> Comparisons:
        """Anchors with the examples and, after them, the synthetic negatives of each kind."""
        if "anc-neg" in factors:
            factors["anc-neg"] = factors["anc-neg"] / 2
        kinds = {name: PAIR_KINDS[name] for name in factors}
        widest = max(kinds.values(), key=lambda kind: not kind.with_anchor)
        width = min(self.hard_negatives, len(sets.candidates))
        size = rows_in_block(max(len(sets.candidates), widest.pairs_of_anchor(width, width)), sets.anchors.device)
        n = len(sets.anchors)
        blocks: list[Rows] = [None] if size >= n else [slice(at, min(at + size, n)) for at in range(0, n, size)]
        G, x = sets.similarity, sets.anchors
        fixed = G.detach()
        norms = {name: inverse_norms(fixed, lam) for name, lam in factors.items()}

        def compare(rows: Rows, G: Tensor, one_sided: Tensor) -> Comparison:
            labelled = sets.labelled(rows)
            some, towards = pick(G, rows), pick(one_sided, rows)
            S, valid = [some], [labelled.valid]
            own = one_sided.diagonal()[slice(None) if rows is None else rows]
            for name, kind in kinds.items():
                plan = PairPlan(rows, None, None, None, None)  # type: ignore[arg-type]
                pairs = mixing_pairs(kind, plan, sets, self.hard_negatives, some)
                lam, norm = (pick(m[name], rows) if kind.with_anchor else m[name] for m in (factors, norms))
                synthetic = mixed_similarity(
                    pairs.of_left(towards, own), pairs.of_right(towards), pairs.of_pair(lam), pairs.of_pair(norm)
                )
                S.append(synthetic.flatten(1))
                valid.append(pairs.valid.expand_as(synthetic).flatten(1))
            counts = torch.cat(valid, 1)
            Y = torch.cat([labelled.Y, *(torch.zeros_like(v) for v in valid[1:])], 1)
            return Comparison(torch.cat(S, 1), Y, counts)

        return Comparisons(blocks, [G, x @ x.detach().T], compare)

    def explain(self, model: AnyModel | None = None) -> str:
        """How synthetic negatives are computed: no model is needed."""
        return (
            f"MoCHi: {self.kinds} negatives of the {self.hard_negatives} hardest of each anchor, closed form. "
            "Synthetic negatives enter a loss only through products of clean embeddings."
        )

    def extra_repr(self) -> str:
        """The settings."""
        return f"pairs={self.pairs}, hard_negatives={self.hard_negatives}"


MOCHI = Method(
    "mochi",
    "synthetic negatives mixed from the hardest ones, without gradient",
    "Kalantidis et al., NeurIPS 2020",
    make=MoCHi,
    settings={name: name for name in ("pairs", "hard_negatives", "alpha", "lam_per")},
    losses="pairs",
    mixup=("embed",),
    pairs=KINDS,
    usual_loss="contrastive",
    defaults={"mixup": ("embed",), "pairs": KINDS, "strength": 1.0, "alpha": 1.0},
    fixed={"strength": ONE_LOSS},
    space={"alpha": LogUniform(0.3, 4.0)},
)
