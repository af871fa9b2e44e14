"""i-Mix (Lee et al., ICLR 2021), for metric learning as in the paper's comparison.

An anchor x_i is mixed with a negative x_j, and the mixed one, v, is the anchor of the whole clean batch:

    v = f(λ x_i + (1-λ) x_j)     λ ~ Beta(α, α), λ ← max(λ, 1-λ)

Every example is a class of its own, so v has the label λ for x_i, 1-λ for x_j and 0 for any other x. In the
published form the loss of v is λ CE(s/T, i) + (1-λ) CE(s/T, j) over the similarities s(v, x); in the paper's
comparison it is the generic loss with those labels: contrastive.

The method knows no classes and takes the classmates of x_i and x_j for negatives. Here classes are known, so
classmates are left out, or share the label of their class. Without classmates both are the published form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from metrix.core.choices import find_several
from metrix.core.closed_form import Interpolated
from metrix.core.comparison import Comparison, Comparisons, Products, Rows, pick, to_device
from metrix.core.compute.blocks import rows_in_block
from metrix.core.compute.derivatives import without_autocast
from metrix.core.distributed.ranks import Batch, Gathering
from metrix.core.functions import Exponential, Linear, Log, identity
from metrix.core.generic import Row
from metrix.core.loss import Loss, LossValue
from metrix.core.metrix import MixingObjective
from metrix.core.mixed import Mixture
from metrix.core.mixup import MIXUP_TYPES, MixtureOptions, route_for
from metrix.core.objective import Method
from metrix.core.rivals.base import Drawing, as_pair_loss, draw_partners
from metrix.core.sets import Sets
from metrix.core.settings import check_generator, check_scale, check_weight
from metrix.core.spaces import LogUniform
from metrix.core.split_model import AnyModel, SplitModel
from metrix.errors import InvalidInput, check_integer, check_name

TARGETS = ("instances", "classes")


class IMix(MixingObjective):
    """i-Mix: mixed anchors against a clean batch, with labels interpolated over instances.

    Args:
        loss: a loss of pairs; the paper's comparison has Contrastive.
        mixup: a mixup type; "input" is the published one.
        strength: weight of the mixed loss beside the clean one.
        alpha: λ ~ Beta(alpha, alpha), then the larger of λ and 1-λ.
        lam_per: "pair" draws one λ for each anchor, "batch" one for each step.
        targets: "instances" leaves out the classmates of the two mixed examples, "classes" gives them the labels of
            their classes.
        temperature: T of the published cross-entropy over instances (0.2 there); None takes the loss's own form.
        generator: of all random choices; None is torch's default one.
        memory_budget: bytes that the activations of mixed examples may take at a time.

    >>> from metrix import losses
    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> IMix(losses.Contrastive(), mixup="embed")(embeddings, labels).backward()
    """

    def __init__(
        self,
        loss: nn.Module,
        mixup: str | Sequence[str] = "input",
        strength: float = 0.4,
        alpha: float = 1.0,
        lam_per: str = "pair",
        targets: str = "instances",
        temperature: float | None = None,
        generator: torch.Generator | None = None,
        memory_budget: int = 2**28,
    ) -> None:
        super().__init__()
        self.loss: Loss = as_pair_loss(loss, "IMix")
        types = find_several("mixup", mixup, MIXUP_TYPES)
        if len(types) > 1:
            raise InvalidInput(f"mixup: expected one type with IMix, got {types}")
        check_name("targets", targets, TARGETS)
        if temperature is not None:
            temperature = check_scale("temperature", temperature)
        if temperature is not None and targets == "classes":
            raise InvalidInput("temperature with targets='classes': cross-entropy has one class for each instance")
        self.drawing = Drawing(alpha, lam_per)
        self.mixup, self.targets, self.temperature = types[0], targets, temperature
        self.strength, self.generator = check_weight("strength", strength), check_generator(generator)
        self.memory_budget = check_integer("memory_budget", memory_budget, least=1)

    @property
    def mixup_types(self) -> tuple[str, ...]:
        """The mixup type."""
        return (self.mixup,)

    def draw_step(self) -> tuple[str, str]:
        """The mixup type and the kind of mixing pairs, the same in every step."""
        return self.mixup, "anc-neg"

    def mixed_of(
        self, model: SplitModel | None, source: Tensor, batch: Batch, sets: Sets, mixup: str, kind: str
    ) -> LossValue:
        """The loss of mixed anchors."""
        gather = Gathering(batch.division)  # partners are drawn from all of the batch
        mixture = MIXUP_TYPES[mixup].mixture(model, source, MixtureOptions(True, self.memory_budget, gather))
        with without_autocast(batch.embeddings):
            found = self.mixed(mixture, sets)
        return found._replace(value=gather.tie(found.value))

    def mixed(
        self, mixture: Mixture, sets: Sets, lam: float | Tensor | None = None, others: Tensor | None = None
    ) -> LossValue:
        """The loss of the mixed anchors; λ and partners, which are on the host, are drawn unless given."""
        x, own, device = sets.examples, sets.own, sets.examples.device
        assert own is not None, "anchors are examples"
        partners = draw_partners(sets.on_host()[1], self.generator) if others is None else others
        share = self.drawing((len(x),), x, lam, self.generator)
        alone = partners is None  # one class: no negatives
        i, j = to_device([own, own if partners is None else partners[own]], device)
        share = torch.maximum(share, 1.0 - share).index_select(0, i)
        if alone:
            V = x.index_select(0, i)
        elif isinstance(mixture, Interpolated):
            u = mixture.vectors
            mixed = torch.lerp(u.index_select(0, j), u.index_select(0, i), share.unsqueeze(1))
            V = _normalised(mixed, u.detach().square().sum(1).max())
        else:
            V = mixture.embed(i, j, share).to(x.dtype)
        products = Products.of(V, x)

        def compare(rows: Rows, *tensors: Tensor) -> Comparison:
            S, lam = products.rows(rows, *tensors), pick(share, rows).unsqueeze(1)
            Y, valid = self._labels(sets, lam, pick(i, rows), pick(j, rows))
            return Comparison(S, Y, torch.zeros_like(valid) if alone else valid)

        size = rows_in_block(len(x), device)
        blocks: list[Rows] = [None] if products.held else [slice(at, at + size) for at in range(0, len(i), size)]
        loss = self.loss if self.temperature is None else _CrossEntropy(self.temperature)
        totals = loss.over(Comparisons(blocks, products.tensors, compare))
        return self.loss.conclude(totals, len(i), sets.ranks, "mixed loss")

    def _labels(self, sets: Sets, lam: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """Y and valid of all examples for some mixed anchors, those of the examples i and j."""
        _, labels, _ = sets.on_device()
        mates, others_mates = (labels[end].unsqueeze(1) == labels.unsqueeze(0) for end in (i, j))  # both included
        if self.targets == "classes":
            return mates * lam + others_mates * (1.0 - lam), torch.ones_like(mates)
        ends = torch.stack([i, j], 1)
        Y = torch.zeros(mates.shape, dtype=lam.dtype, device=lam.device).scatter(
            1, ends, torch.cat([lam, 1.0 - lam], 1)
        )
        return Y, (~(mates | others_mates)).scatter(1, ends, True)

    def explain(self, model: AnyModel | None = None) -> str:
        """How mixed anchors are computed with this model."""
        route = route_for(self.mixup, model)
        form = "the loss's own form" if self.temperature is None else f"cross-entropy, T = {self.temperature:g}"
        return f"i-Mix: each example mixed with one negative, {self.mixup} mixup, {route.name}; {form}."

    def extra_repr(self) -> str:
        """The settings."""
        names = ("mixup", "strength", "targets", "temperature")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class _CrossEntropy(Loss):
    """The published loss: Σ_x -Y log softmax(s/T), over the instances x that count."""

    def __init__(self, temperature: float) -> None:
        scale = 1.0 / temperature
        super().__init__(Row(identity, identity, Log(), Linear(-scale), Exponential(scale), include_positive=True))


def _normalised(V: Tensor, scale: Tensor) -> Tensor:
    """Mixtures, of vectors with squared norms up to `scale`, brought to unit norm.

    One that vanishes (opposite vectors, λ = 1/2) has no direction and stays zero.
    """
    squared = V.square().sum(1, keepdim=True)
    vanishes = squared <= 4.0 * torch.finfo(V.dtype).eps * scale
    return V * torch.where(vanishes, 0.0, torch.rsqrt(torch.where(vanishes, 1.0, squared)))


IMIX = Method(
    "imix",
    "mixed anchors against the clean batch, labels interpolated over instances",
    "Lee et al., ICLR 2021",
    make=IMix,
    settings={
        **{name: name for name in ("mixup", "strength", "alpha", "lam_per")},
        "temperature": "instance_temperature",
    },
    losses="pairs",
    mixup=tuple(MIXUP_TYPES),
    pairs=("anc-neg",),
    usual_loss="contrastive",
    defaults={"mixup": ("input",), "pairs": ("anc-neg",), "strength": 0.4, "alpha": 1.0},
    fixed={
        "pairs": "an anchor is mixed with one negative",
        "hard_negatives": "the negative is drawn from all of them",
    },
    space={
        "strength": LogUniform(0.1, 1.6),
        "alpha": LogUniform(0.3, 4.0),
        "instance_temperature": LogUniform(0.05, 0.5),
    },
)
