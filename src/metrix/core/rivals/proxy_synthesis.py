"""Proxy Synthesis (Gu et al., AAAI 2021): new classes between those of the batch.

Each example x_i is mixed with one of another class, and their proxies p with the same λ ~ Beta(α, α):

    x̃ = λ x_i + (1-λ) x_j     p̃ = λ p_{y_i} + (1-λ) p_{y_j}

both brought to unit norm. x̃ belongs to a new class whose proxy is p̃. One and the same proxy loss is taken over
real and synthetic examples and proxies together: p̃ is one more negative for the real examples, x̃ for the real
proxies, and under proxy anchor p̃ is an anchor too.

The published form mixes neighbours of a shuffled batch. Batches here may come in the order of classes, so the
partner is drawn among the examples of other classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metrix.core.closed_form import inverse_norms, mixed_similarity
from metrix.core.comparison import Comparison, to_device
from metrix.core.loss import ProxyLoss
from metrix.core.objective import ONE_LOSS, EmbeddingLoss, EmbeddingObjective, Method
from metrix.core.rivals.base import Drawing, as_proxy_loss, draw_partners
from metrix.core.settings import check_generator
from metrix.core.spaces import LogUniform
from metrix.core.split_model import AnyModel
from metrix.core.validation import unit
from metrix.errors import check_number


class ProxySynthesis(EmbeddingObjective):
    """Proxy Synthesis: a proxy loss with synthetic classes beside the real ones.

    Args:
        loss: a loss with proxies.
        alpha: λ ~ Beta(alpha, alpha).
        lam_per: "batch" draws one λ for each step, as published, "pair" one for each synthetic class.
        ratio: μ, how many synthetic examples there are for each real one, at most 1.
        generator: of all random choices; None is torch's default one.

    >>> from metrix import losses
    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> ProxySynthesis(losses.ProxyAnchor(num_classes=2, dim=8))(embeddings, labels).backward()
    """

    kinds = "pos-neg+neg-neg"

    def __init__(
        self,
        loss: nn.Module,
        alpha: float = 0.4,
        lam_per: str = "batch",
        ratio: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.loss: ProxyLoss = as_proxy_loss(loss, "ProxySynthesis")
        self.drawing = Drawing(alpha, lam_per)
        self.ratio, self.generator = check_number("ratio", ratio, above=0, most=1), check_generator(generator)

    def parts(
        self,
        embeddings: Tensor,
        labels: Tensor,
        lam: float | Tensor | None = None,
        others: Tensor | None = None,
    ) -> EmbeddingLoss:
        """The loss with synthetic classes, and without; λ and partners are drawn unless given."""
        x = unit(embeddings)
        sets = self.loss.sets(x, labels)
        labels = sets.example_labels  # on the host, as those of proxies are
        j = draw_partners(labels, self.generator) if others is None else others
        if j is None:  # one class: nothing to put another one between
            found = self.loss.clean(sets)
            return EmbeddingLoss(found.value, found.value, found)
        count = max(1, int(self.ratio * len(x)))
        i, j = torch.arange(count), j[:count].cpu()
        of_examples, of_proxies = to_device([torch.stack([i, j]), torch.stack([labels[i], labels[j]])], x.device)
        share = self.drawing((count,), x, lam, self.generator)
        roles = {"examples": of_examples, "proxies": of_proxies}
        S = _extended(sets.similarity, sets.anchors, roles[self.loss.anchor_role], share)
        S = _extended(S.T, sets.candidates, roles[self.loss.candidate_role], share).T
        synthetic = torch.eye(count, dtype=torch.bool, device=x.device)
        Y = torch.block_diag(sets.labelled().positive, synthetic)  # type: ignore[no-untyped-call]
        valid = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        found = self.loss.conclude(self.loss.reduce(self.loss.row, Comparison(S, Y, valid)), len(S))
        with torch.no_grad():  # for the log only
            clean = self.loss.clean(sets)
        return EmbeddingLoss(found.value, clean.value, found)

    def explain(self, model: AnyModel | None = None) -> str:
        """How synthetic classes are computed: no model is needed."""
        return "Proxy Synthesis: one synthetic class for each example, from embeddings and proxies, closed form."

    def extra_repr(self) -> str:
        """The settings."""
        return f"ratio={self.ratio}"


def _extended(S: Tensor, vectors: Tensor, pairs: Tensor, lam: Tensor) -> Tensor:
    """Similarities (rows, columns) of unit `vectors` and, below, of their mixtures λ v_i + (1-λ) v_j, renormalised."""
    i, j = pairs
    products = (vectors.index_select(0, i) * vectors.index_select(0, j)).sum(1)
    norms = inverse_norms(products, lam).unsqueeze(1)
    mixed = mixed_similarity(S.index_select(0, i), S.index_select(0, j), lam.unsqueeze(1), norms)
    return torch.cat([S, mixed])


PROXY_SYNTHESIS = Method(
    "proxy-synthesis",
    "embeddings and proxies of two classes mixed into new classes",
    "Gu et al., AAAI 2021",
    make=ProxySynthesis,
    settings={name: name for name in ("alpha", "lam_per")},
    losses="proxies",
    mixup=("embed",),
    pairs=("pos-neg", "neg-neg"),
    usual_loss="proxy-anchor",
    defaults={
        "mixup": ("embed",),
        "pairs": ("pos-neg", "neg-neg"),
        "strength": 1.0,
        "alpha": 0.4,
        "lam_per": "batch",
    },
    fixed={
        "strength": ONE_LOSS,
        "pairs": "which pairs occur follows from the classes that are mixed",
        "hard_negatives": "the partner is drawn from all examples of other classes",
    },
    space={"alpha": LogUniform(0.1, 2.0)},
)
