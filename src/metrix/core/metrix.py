"""Metrix, eq. loss-final: the clean loss plus w times the mixed loss."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from metrix.core.choices import METRIX_PAPER, find, find_several
from metrix.core.distributed.ranks import Batch, Gathering
from metrix.core.factors import EXPECTED, MOST_NODES, NODES, Factors, check_drawing, choose, quadrature
from metrix.core.loss import AnyLabels, Loss
from metrix.core.mixed import mixed_loss
from metrix.core.mixing_objective import MixingObjective
from metrix.core.mixup import MIXUP_TYPES, MixtureOptions, route_for
from metrix.core.objective import Method, MixingSettings
from metrix.core.pairs import PAIR_KINDS
from metrix.core.pml import generic_form
from metrix.core.sets import Sets
from metrix.core.settings import check_generator, check_weight
from metrix.core.spaces import LogUniform, OneOf
from metrix.core.split_model import AnyModel, SplitModel, check_model
from metrix.core.target import InterpolatedTarget, build_target
from metrix.errors import InvalidInput, MetrixWarning, check_flag, check_integer


class Metrix(MixingObjective):
    """The clean loss plus `strength` times the loss of mixed examples, for any loss of the generic form.

    Args:
        loss: one of `metrix.losses`, or a pytorch-metric-learning loss of known form.
        mixup: a mixup type, "input", "feature" or "embed"; of several, one is drawn in each step.
        pairs: a kind of mixing pairs, "pos-neg", "anc-neg", "pos-pos" or "neg-neg"; of several, one is drawn in
            each step.
        strength: w of eq. loss-final.
        alpha: λ ~ Beta(alpha, alpha).
        hard_negatives: mix only the k most similar negatives of each anchor; several have one k for each mixup
            type. None: 3 for input mixup, all for feature and embed mixup.
        lam_per: "pair" draws one λ for each ordered pair of examples, "batch" one for each step; "expected" draws none:
            the mixed loss is its expectation over a λ that all pairs share (docs/equations.md).
        renormalise: bring mixed embeddings to unit norm (embed mixup).
        generator: of all random choices; None is torch's default one.
        memory_budget: bytes that the activations of mixed examples may take at a time.
        target: "paper": a mixed example has the threshold (margin) of the loss; "interpolated": one that follows
            its λ, for losses with a threshold (docs/equations.md).
        target_pos: p, with the interpolated target: the similarity of positives to an anchor at rest.
        target_neg: n, the same of negatives.
        lam_nodes: with "expected": values of λ at which the loss is evaluated, by Gauss-Jacobi quadrature. It costs
            as many mixed losses.

    Embedding mixup needs only embeddings, and stands where a pytorch-metric-learning loss would:

    >>> from metrix import losses, split
    >>> images, labels = torch.randn(6, 3, 8, 8), torch.tensor([0, 0, 1, 1, 2, 2])
    >>> loss = Metrix(losses.MultiSimilarity(), mixup="embed")(torch.randn(6, 4), labels)

    The other types need a model in two parts, features and head:

    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    >>> model = split(network, at="0")
    >>> out = Metrix(losses.MultiSimilarity(), mixup="feature").step(model, images, labels)
    >>> out.loss.backward()
    >>> out.embeddings.shape, out.mixup
    (torch.Size([6, 4]), 'feature')
    """

    takes_memory = True
    takes_graded = True

    def __init__(
        self,
        loss: nn.Module,
        mixup: str | Sequence[str] = "feature",
        pairs: str | Sequence[str] = ("pos-neg", "anc-neg"),
        strength: float = 0.4,
        alpha: float = 2.0,
        hard_negatives: int | Sequence[int | None] | None = None,
        lam_per: str = "pair",
        renormalise: bool = True,
        generator: torch.Generator | None = None,
        memory_budget: int = 2**28,
        target: str = "paper",
        target_pos: float = InterpolatedTarget.pos,
        target_neg: float = InterpolatedTarget.neg,
        lam_nodes: int = NODES,
    ) -> None:
        super().__init__()
        self.loss: Loss = generic_form(loss)
        self.mixup = find_several("mixup", mixup, MIXUP_TYPES)
        self.pairs = find_several("pairs", pairs, PAIR_KINDS)
        self.hard_negatives = _hard_negatives(hard_negatives, self.mixup)
        check_drawing(alpha, lam_per)
        self.strength, self.alpha, self.lam_per = check_weight("strength", strength), float(alpha), lam_per
        self.lam_nodes = check_integer("lam_nodes", lam_nodes, least=1, most=MOST_NODES)
        if lam_per == EXPECTED:
            quadrature(self.alpha, self.lam_nodes)
        if lam_per == EXPECTED and self.loss.candidate_role == "examples" and self.loss.row.cancels:
            raise InvalidInput(
                f"lam_per: expected 'pair' with {type(self.loss).__name__}, got {lam_per!r}: where all pairs share one "
                "λ, its positive and negative sums over mixed examples cancel, and there is no gradient; use "
                "include_positive=True, or another loss"
            )
        self._warned = False
        self.renormalise, self.generator = check_flag("renormalise", renormalise), check_generator(generator)
        self.memory_budget = check_integer("memory_budget", memory_budget, least=1)
        self.target, self.interpolated = target, build_target(target, self.loss, target_pos, target_neg)

    @property
    def mixup_types(self) -> tuple[str, ...]:
        """The mixup types, one of which is drawn in each step."""
        return self.mixup

    def draw_step(self) -> tuple[str, str]:
        """The mixup type and the kind of mixing pairs of a step."""
        return self.mixup[choose(len(self.mixup), self.generator)], self._draw_pairs()

    def mixed(
        self, embeddings: Tensor, labels: AnyLabels, lam: float | Tensor | str | None = None, pairs: str | None = None
    ) -> Tensor:
        """eq. loss-mixed with embedding mixup, without the clean loss.

        Args:
            embeddings: (n, d); they need not be normalised.
            labels: (n,), as in `forward`.
            lam: λ of every pair, or a tensor (n, n) of λ of ordered pairs, n counting the embeddings of a memory,
                too; "expected" for the expectation over λ; None does as `lam_per` says.
            pairs: a kind of mixing pairs; None draws one of the objective's.

        Returns:
            The mixed loss, a scalar.
        """
        batch = self.gather(embeddings, labels)
        sets = self.extend(self.sets_of(batch))
        return self.mixed_of(None, sets.examples, batch, sets, "embed", self._given(pairs), lam)[0]

    def mixed_features(
        self,
        model: AnyModel,
        features: Tensor,
        labels: AnyLabels,
        lam: float | Tensor | str | None = None,
        pairs: str | None = None,
    ) -> Tensor:
        """eq. loss-mixed with feature mixup of `features = model.features(inputs)`; the rest is as in `mixed`."""
        split = check_model(model)
        batch = self.gather(split.head(features), labels)
        return self.mixed_of(split, features, batch, self.sets_of(batch), "feature", self._given(pairs), lam)[0]

    def mixed_inputs(
        self,
        model: AnyModel,
        inputs: Tensor,
        labels: AnyLabels,
        lam: float | Tensor | str | None = None,
        pairs: str | None = None,
    ) -> Tensor:
        """eq. loss-mixed with input mixup; the rest is as in `mixed`."""
        split = check_model(model)
        batch = self.gather(split.head(split.features(inputs)), labels)
        return self.mixed_of(split, inputs, batch, self.sets_of(batch), "input", self._given(pairs), lam)[0]

    def explain(self, model: AnyModel | None = None) -> str:
        """How the mixed examples of each mixup type are computed with this model, and why in this way.

        >>> from metrix import losses
        >>> Metrix(losses.NCA(), mixup="embed").explain().split(". ")[0]
        'embed mixup: closed form'
        """
        lines = []
        for mixup, k in zip(self.mixup, self.hard_negatives, strict=True):
            route = route_for(mixup, model)
            negatives = "all negatives" if k is None else f"the {k} hardest negatives of each anchor"
            line = f"{mixup} mixup: {route.name}. {route.why[0].upper()}{route.why[1:]}. Mixes {negatives}."
            if self.lam_per == EXPECTED:
                line += f" The loss is computed for {self.lam_nodes} values of λ, and averaged over Beta(α, α)."
            lines.append(line)
        return "\n".join(lines)

    def extra_repr(self) -> str:
        """The settings."""
        names = ("mixup", "pairs", "strength", "alpha", "hard_negatives", "lam_per", "renormalise")
        shown = [f"{name}={getattr(self, name)!r}" for name in names]
        if self.interpolated is not None:
            shown.append(f"target={self.target!r}, pos={self.interpolated.pos}, neg={self.interpolated.neg}")
        return ", ".join(shown)

    def mixed_of(
        self,
        model: SplitModel | None,
        source: Tensor,
        batch: Batch,
        sets: Sets,
        mixup: str,
        kind: str,
        lam: float | Tensor | str | None = None,
    ) -> tuple[Tensor, int]:
        """eq. loss-mixed, and how many anchors were left out."""
        if self.interpolated is not None and sets.relation is not None:
            raise InvalidInput(
                "target='interpolated': expected labels that are classes, got labels in degrees: its threshold follows "
                "from λ, which is then not the label of a mixed example; use target='paper'"
            )
        mixup_type = MIXUP_TYPES[mixup]
        local = mixup_type.mixes != "embeddings" and not self.ranks.alone and self.ranks.mix == "local"
        gather = Gathering(None if local else batch.division)
        if local:
            share = batch.division.of_examples()
            assert share is not None, "there are several processes"
            own = self.loss.sets(sets.examples[share.rows], batch.labels[share.rows])
            sets = replace(own, ranks=self.ranks)
        mixture = mixup_type.mixture(model, source, MixtureOptions(self.renormalise, self.memory_budget, gather))
        hardest = self.hard_negatives[self.mixup.index(mixup)] if mixup in self.mixup else None
        per_pair = self.lam_per == "pair"
        if self.lam_per == "batch" and lam is None and sets.relation is None:
            self._warn_if_cancelled()
        generator = self.ranks.own_generator(self.generator) if local and per_pair and lam is None else self.generator

        def loss_with(lam: float | Tensor | None) -> tuple[Tensor, int]:
            factors = Factors(lam, self.alpha, per_pair, generator, sets.examples)
            return mixed_loss(self.loss, mixture, sets, factors, PAIR_KINDS[kind], hardest, self.interpolated)

        lam = self.lam_per if lam is None and self.lam_per == EXPECTED else lam
        if not isinstance(lam, str):
            mixed, left_out = loss_with(lam)
            return gather.tie(mixed), left_out
        if lam != EXPECTED:
            raise InvalidInput(f"lam: expected a number, a tensor, {EXPECTED!r} or None, got {lam!r}")
        terms = [(weight, *loss_with(node)) for node, weight in quadrature(self.alpha, self.lam_nodes)]
        mixed = torch.stack([weight * value for weight, value, _ in terms]).sum()
        return gather.tie(mixed), terms[0][2]

    def _warn_if_cancelled(self) -> None:
        """Warn, once, of a loss whose mixed loss is a constant where all pairs share one λ."""
        if self.loss.candidate_role == "examples" and self.loss.row.cancels and not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self.loss).__name__} with lam_per='batch': where all pairs share one λ, its positive and "
                "negative sums over mixed examples cancel, and the mixed loss has no gradient; use lam_per='pair', "
                "include_positive=True or another loss (this is said once)",
                MetrixWarning,
                stacklevel=4,
            )

    def _draw_pairs(self) -> str:
        return self.pairs[choose(len(self.pairs), self.generator)]

    def _given(self, pairs: str | None) -> str:
        return self._draw_pairs() if pairs is None else find("pairs", pairs, PAIR_KINDS).name


def _hard_negatives(given: int | Sequence[int | None] | None, mixup: tuple[str, ...]) -> tuple[int | None, ...]:
    if given is None:
        return tuple(MIXUP_TYPES[name].hard_negatives for name in mixup)
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        return (check_integer("hard_negatives", given, least=1),) * len(mixup)
    each = tuple(given)
    if len(each) != len(mixup):
        raise InvalidInput(f"hard_negatives: expected one number, or one for each mixup type of {mixup}, got {given}")
    return tuple(k if k is None else check_integer("hard_negatives", k, least=1) for k in each)


def _build(loss: nn.Module, settings: MixingSettings, generator: torch.Generator | None) -> Metrix:
    return Metrix(
        loss,
        mixup=settings.mixup,
        pairs=settings.pairs,
        strength=settings.strength,
        alpha=settings.alpha,
        hard_negatives=settings.hard_negatives,
        lam_per=settings.lam_per,
        lam_nodes=settings.lam_nodes,
        generator=generator,
        target=settings.target,
        target_pos=settings.target_pos,
        target_neg=settings.target_neg,
    )


METRIX = Method(
    "metrix",
    "labels of mixed examples interpolated, for any additive loss",
    METRIX_PAPER,
    build=_build,
    losses="generic",
    mixup=tuple(MIXUP_TYPES),
    pairs=tuple(PAIR_KINDS),
    usual_loss="contrastive",
    defaults={"mixup": ("feature",), "pairs": ("pos-neg", "anc-neg"), "strength": 0.4, "alpha": 2.0},
    space={
        "strength": LogUniform(0.1, 1.6),
        "alpha": LogUniform(0.5, 4.0),
        "pairs": OneOf((("pos-neg", "anc-neg"), ("pos-neg",), ("anc-neg",))),
        "lam_per": OneOf(("pair", "batch")),
    },
)
