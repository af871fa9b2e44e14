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

import torch
from torch import Tensor, nn

from metrix.core.choices import find
from metrix.core.closed_form import Interpolated
from metrix.core.compute.blocks import is_held, rows_in_block
from metrix.core.compute.stream import sum_over_blocks
from metrix.core.distributed.ranks import Batch, Gathering
from metrix.core.generic import Totals, weights
from metrix.core.loss import Loss
from metrix.core.mixed import Mixture
from metrix.core.mixing_objective import MixingObjective
from metrix.core.mixup import MIXUP_TYPES, MixtureOptions, route_for
from metrix.core.objective import Method, MixingSettings
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
        mixup: str = "input",
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
        find("mixup", mixup, MIXUP_TYPES)
        check_name("targets", targets, TARGETS)
        if temperature is not None:
            temperature = check_scale("temperature", temperature)
        if temperature is not None and targets == "classes":
            raise InvalidInput("temperature with targets='classes': cross-entropy has one class for each instance")
        self.drawing = Drawing(alpha, lam_per, "IMix")
        self.mixup, self.targets, self.temperature = mixup, targets, temperature
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
    ) -> tuple[Tensor, int]:
        """The loss of mixed anchors, and how many were left out."""
        gather = Gathering(batch.division)  # partners are drawn from all of the batch
        mixture = MIXUP_TYPES[mixup].mixture(model, source, MixtureOptions(True, self.memory_budget, gather))
        with torch.autocast(batch.embeddings.device.type, enabled=False):
            mixed, left_out = self.mixed(mixture, sets, sets.example_labels)
        return gather.tie(mixed), left_out

    def mixed(
        self,
        mixture: Mixture,
        sets: Sets,
        labels: Tensor,
        lam: float | Tensor | None = None,
        others: Tensor | None = None,
    ) -> tuple[Tensor, int]:
        """The loss of the mixed anchors, and how many were left out; λ and partners are drawn unless given."""
        x, n, i = sets.examples, len(labels), sets.own
        assert i is not None, "anchors are examples"
        j = draw_partners(labels, self.generator) if others is None else others
        if j is None:  # one class: no negatives
            none = torch.zeros(1, dtype=torch.int64, device=x.device)
            return self.loss.conclude(
                Totals(x.new_zeros(1), none, none[0]), len(i), x, ranks=sets.ranks, part="mixed loss"
            )
        share = self.drawing((n,), x, lam, self.generator)
        j, share = j[i], torch.maximum(share, 1.0 - share)[i]
        if isinstance(mixture, Interpolated):
            u = mixture.vectors
            mixed = torch.lerp(u.index_select(0, j), u.index_select(0, i), share.unsqueeze(1))
            V = _normalised(mixed, u.detach().square().sum(1).max())
        else:
            V = mixture.embed(i, j, share).to(x.dtype)
        rows = torch.arange(len(i), device=x.device)
        totals = sum_over_blocks(
            lambda rows, V, x: self._totals(sets.part(rows, V, x), share[rows], i[rows], j[rows]),
            [rows] if is_held(len(i), n, x) else torch.split(rows, rows_in_block(n)),
            [V, x],
            self.loss.learnable(),
        )
        return self.loss.conclude(totals, len(i), x, ranks=sets.ranks, part="mixed loss")

    def _totals(self, sets: Sets, lam: Tensor, i: Tensor, j: Tensor) -> Totals:
        """The loss of some mixed anchors, those of the examples i, with the whole clean batch."""
        S, row = sets.similarity, torch.arange(len(i), device=i.device)
        share, other = lam.unsqueeze(1), sets.candidate_labels[j].unsqueeze(1)
        mates, others_mates = sets.same, sets.candidate_labels.unsqueeze(0) == other  # the two examples included
        if self.targets == "classes":
            Y, valid = mates * share + others_mates * (1.0 - share), torch.ones_like(mates)
        else:
            Y, valid = torch.zeros_like(S), ~(mates | others_mates)
            Y[row, i], Y[row, j] = lam, 1.0 - lam
            valid[row, i] = valid[row, j] = True
        if self.temperature is None:
            return self.loss.reduce(self.loss.row, S, weights(Y, valid, self.loss.row.include_positive))
        z = (S / self.temperature).masked_fill(~valid, -torch.inf).log_softmax(1)
        count = torch.tensor(len(i), device=i.device)
        return Totals(-(lam * z[row, i] + (1.0 - lam) * z[row, j]).sum().reshape(1), count.reshape(1), count)

    def explain(self, model: AnyModel | None = None) -> str:
        """How mixed anchors are computed with this model."""
        route = route_for(self.mixup, model)
        form = "the loss's own form" if self.temperature is None else f"cross-entropy, T = {self.temperature:g}"
        return f"i-Mix: each example mixed with one negative, {self.mixup} mixup, {route.name}; {form}."

    def extra_repr(self) -> str:
        """The settings."""
        names = ("mixup", "strength", "targets", "temperature")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def _normalised(V: Tensor, scale: Tensor) -> Tensor:
    """Mixtures, of vectors with squared norms up to `scale`, brought to unit norm.

    One that vanishes (opposite vectors, λ = 1/2) has no direction and stays zero.
    """
    squared = V.square().sum(1, keepdim=True)
    vanishes = squared <= 4.0 * torch.finfo(V.dtype).eps * scale
    return V * torch.where(vanishes, 0.0, torch.rsqrt(torch.where(vanishes, 1.0, squared)))


def _build(loss: nn.Module, settings: MixingSettings, generator: torch.Generator | None) -> IMix:
    return IMix(
        loss,
        mixup=settings.mixup[0],
        strength=settings.strength,
        alpha=settings.alpha,
        lam_per=settings.lam_per,
        temperature=settings.instance_temperature,
        generator=generator,
    )


IMIX = Method(
    "imix",
    "mixed anchors against the clean batch, labels interpolated over instances",
    "Lee et al., ICLR 2021",
    build=_build,
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
