"""Metrix, eq. loss-final: the clean loss plus w times the mixed loss."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from metrix.core.choices import METRIX_PAPER, find, find_several
from metrix.core.compute.derivatives import without_autocast
from metrix.core.compute.micro_batches import embed, without_micro_batches
from metrix.core.distributed.ranks import Batch, Gathering
from metrix.core.factors import Factors, check_drawing, choose, choose_number
from metrix.core.loss import AnyLabels, Loss, LossValue
from metrix.core.mined import Indices
from metrix.core.mixed import mixed_loss
from metrix.core.mixup import MIXUP_TYPES, MixtureOptions, route_for
from metrix.core.objective import Method, Objective, StepOutput
from metrix.core.pairs import PAIR_KINDS
from metrix.core.pml import generic_form
from metrix.core.sets import Sets
from metrix.core.settings import check_generator, check_weight
from metrix.core.spaces import LogUniform, OneOf
from metrix.core.split_model import AnyModel, SplitModel, check_model
from metrix.errors import InvalidInput, MetrixWarning, check_flag, check_integer


class MixingObjective(Objective):
    """Base class of objectives with a mixed loss beside the clean one, of any mixup type."""

    loss: Loss
    strength: float  # w of eq. loss-final

    @property
    def mixup_types(self) -> tuple[str, ...]:
        """The mixup types, one of which a step has."""
        raise NotImplementedError

    def draw_step(self) -> tuple[str, str]:
        """The mixup type and the kind of mixing pairs of a step."""
        raise NotImplementedError

    def mixed_of(
        self, model: SplitModel | None, source: Tensor, batch: Batch, sets: Sets, mixup: str, kind: str
    ) -> LossValue:
        """The mixed loss of a step.

        `source` are the inputs or features of this process, whichever are mixed, or the embeddings of `sets`.
        """
        raise NotImplementedError

    def forward(self, embeddings: Tensor, labels: AnyLabels, indices_tuple: Indices | None = None) -> Tensor:
        """The loss of embeddings alone, for embedding mixup.

        Args:
            embeddings: (n, d); they need not be normalised.
            labels: (n,), integers, names of classes, or, where the objective takes them, labels in degrees
                (`metrix.labels`).
            indices_tuple: what a miner of pytorch-metric-learning returns: the pairs of which the clean loss is; the
                mixed loss is of all mixing pairs.

        Returns:
            The clean loss plus `strength` times the mixed loss, a scalar.
        """
        if any(MIXUP_TYPES[name].mixes != "embeddings" for name in self.mixup_types):
            raise InvalidInput(
                f"mixup={self.mixup_types} needs the model: call objective.step(model, inputs, labels), or choose "
                "mixup='embed', which needs only embeddings"
            )
        if indices_tuple is not None and (self.memory is not None or not self.ranks.alone):
            raise InvalidInput(
                "indices_tuple was given: a miner chooses pairs of one batch, and this objective compares it with a "
                "memory or with the batches of other processes; leave the miner out"
            )
        clean, mixed = self.parts(None, None, None, embeddings, labels, *self.draw_step(), indices_tuple)
        return clean.value if mixed is None else clean.value + self.strength * mixed.value

    def step(self, model: AnyModel, inputs: Tensor, labels: AnyLabels) -> StepOutput:
        """The loss of a batch, with any mixup type.

        Args:
            model: has `features(x)` and `head(z)`, as `metrix.Embedder` and `metrix.split(module, at=LAYER)` do.
            inputs: (n, …), what `model.features` takes.
            labels: (n,), as in `forward`.

        Returns:
            The loss to call `backward()` on, its two parts, the embeddings, and what was drawn.
        """
        split, (mixup, kind) = check_model(model), self.draw_step()
        mixes_features = any(MIXUP_TYPES[name].mixes == "features" for name in self.mixup_types)
        features, embeddings = embed(split, inputs, keep_features=mixes_features and self.strength > 0)
        clean, mixed = self.parts(without_micro_batches(split), inputs, features, embeddings, labels, mixup, kind)
        loss, value, parts = clean.value, torch.zeros_like(clean.value), {"clean loss": clean}
        if mixed is not None:
            loss, value, parts = loss + self.strength * mixed.value, mixed.value, {**parts, "mixed loss": mixed}
        return StepOutput(loss, clean.value, value, embeddings, mixup, kind, parts, self.loss, self.prefixes.dims)

    def parts(
        self,
        model: SplitModel | None,
        inputs: Tensor | None,
        features: Tensor | None,
        embeddings: Tensor,
        labels: AnyLabels,
        mixup: str,
        kind: str,
        indices: Indices | None = None,
    ) -> tuple[LossValue, LossValue | None]:
        """eq. loss-final: the clean loss, and the mixed loss of what a mixup type of the step mixes; None if w is 0."""
        batch = self.gather(embeddings, labels)
        with without_autocast(batch.embeddings):
            own = self.sets_of(batch)
            sets = self.extend(own)
            self.remember(own)
            clean = self.loss.clean(sets, self.loss.mined(indices, sets))
        if self.strength == 0:
            return clean, None
        mixes = MIXUP_TYPES[mixup].mixes
        sets = sets if mixes == "embeddings" else own  # a memory has no features and no inputs
        source = {"inputs": inputs, "features": features, "embeddings": sets.examples}[mixes]
        assert source is not None, "inputs are given, and features kept, where they are mixed"
        return clean, self.mixed_of(model, source, batch, sets, mixup, kind)


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
        lam_per: "pair" draws one λ for each ordered pair of examples, "batch" one for each step.
        renormalise: bring mixed embeddings to unit norm (embed mixup).
        generator: of all random choices; None is torch's default one.
        memory_budget: bytes that the activations of mixed examples may take at a time.
        matryoshka: lengths of prefixes of the embeddings to train too, as `with_matryoshka` says.
        matryoshka_weight: of the loss of each prefix.

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
    takes_matryoshka = True

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
        matryoshka: int | Sequence[int] | None = None,
        matryoshka_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.loss: Loss = generic_form(loss)
        self.mixup = find_several("mixup", mixup, MIXUP_TYPES)
        self.pairs = find_several("pairs", pairs, PAIR_KINDS)
        self.hard_negatives = _hard_negatives(hard_negatives, self.mixup)
        check_drawing(alpha, lam_per)
        self.strength, self.alpha, self.lam_per = check_weight("strength", strength), float(alpha), lam_per
        self._warned = False
        self.renormalise, self.generator = check_flag("renormalise", renormalise), check_generator(generator)
        self.memory_budget = check_integer("memory_budget", memory_budget, least=1)
        if matryoshka is not None:
            self.with_matryoshka(matryoshka, matryoshka_weight)

    @property
    def mixup_types(self) -> tuple[str, ...]:
        """The mixup types, one of which is drawn in each step."""
        return self.mixup

    def draw_step(self) -> tuple[str, str]:
        """The mixup type and the kind of mixing pairs of a step."""
        return self.mixup[choose(len(self.mixup), self.generator)], self._draw_pairs()

    def mixed(
        self, embeddings: Tensor, labels: AnyLabels, lam: float | Tensor | None = None, pairs: str | None = None
    ) -> Tensor:
        """eq. loss-mixed with embedding mixup, without the clean loss.

        Args:
            embeddings: (n, d); they need not be normalised.
            labels: (n,), as in `forward`.
            lam: λ of every pair, or a tensor (n, n) of λ of ordered pairs, n counting the embeddings of a memory,
                too; None draws them as `lam_per` says.
            pairs: a kind of mixing pairs; None draws one of the objective's.

        Returns:
            The mixed loss, a scalar.
        """
        batch = self.gather(embeddings, labels)
        sets = self.extend(self.sets_of(batch))
        return self.mixed_of(None, sets.examples, batch, sets, "embed", self._given(pairs), lam).value

    def mixed_features(
        self,
        model: AnyModel,
        features: Tensor,
        labels: AnyLabels,
        lam: float | Tensor | None = None,
        pairs: str | None = None,
    ) -> Tensor:
        """eq. loss-mixed with feature mixup of `features = model.features(inputs)`; the rest is as in `mixed`."""
        split = check_model(model)
        batch = self.gather(split.head(features), labels)
        return self.mixed_of(split, features, batch, self.sets_of(batch), "feature", self._given(pairs), lam).value

    def mixed_inputs(
        self,
        model: AnyModel,
        inputs: Tensor,
        labels: AnyLabels,
        lam: float | Tensor | None = None,
        pairs: str | None = None,
    ) -> Tensor:
        """eq. loss-mixed with input mixup; the rest is as in `mixed`."""
        split = check_model(model)
        batch = self.gather(split.head(split.features(inputs)), labels)
        return self.mixed_of(split, inputs, batch, self.sets_of(batch), "input", self._given(pairs), lam).value

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
            lines.append(f"{mixup} mixup: {route.name}. {route.why[0].upper()}{route.why[1:]}. Mixes {negatives}.")
        return "\n".join(lines)

    def extra_repr(self) -> str:
        """The settings."""
        names = ("mixup", "pairs", "strength", "alpha", "hard_negatives", "lam_per", "renormalise")
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{shown}, matryoshka={self.prefixes.dims}" if self.prefixes.dims else shown

    def mixed_of(
        self,
        model: SplitModel | None,
        source: Tensor,
        batch: Batch,
        sets: Sets,
        mixup: str,
        kind: str,
        lam: float | Tensor | None = None,
    ) -> LossValue:
        """eq. loss-mixed."""
        mixup_type = MIXUP_TYPES[mixup]
        local = mixup_type.mixes != "embeddings" and not self.ranks.alone and self.ranks.mix == "local"
        gather = Gathering(None if local else batch.division)
        if local:
            share = batch.division.of_examples()
            assert share is not None, "there are several processes"
            own = self.loss.sets(sets.examples[share.rows], batch.labels[share.rows])
            sets = replace(own, ranks=self.ranks, prefixes=sets.prefixes)
        mixture = mixup_type.mixture(model, source, MixtureOptions(self.renormalise, self.memory_budget, gather))
        hardest = self.hard_negatives[self.mixup.index(mixup)] if mixup in self.mixup else None
        per_pair = self.lam_per == "pair"
        if not per_pair and lam is None and sets.relation is None and not torch.compiler.is_compiling():
            self._warn_if_cancelled()
        generator = self.ranks.own_generator(self.generator) if local and per_pair and lam is None else self.generator

        factors = Factors(lam, self.alpha, per_pair, generator, sets.examples)
        if kind in PAIR_KINDS:
            found = mixed_loss(self.loss, mixture, sets, factors, PAIR_KINDS[kind], hardest)
        else:  # in a compiled graph: the loss of every kind, of which the drawn one counts
            drawn = choose_number(len(self.pairs), generator).to(sets.examples.device)
            each = [mixed_loss(self.loss, mixture, sets, factors, PAIR_KINDS[name], hardest) for name in self.pairs]
            value, usable = (
                torch.stack(x).index_select(0, drawn.view(1)).view(())
                for x in ([found.value for found in each], [found.usable for found in each])
            )
            found = each[0]._replace(value=value, usable=usable)
        return found._replace(value=gather.tie(found.value))

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
        """A kind of mixing pairs; a compiled graph, which has no branch on what is drawn, computes all of them."""
        if torch.compiler.is_compiling() and len(self.pairs) > 1:
            return " or ".join(self.pairs)
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


METRIX = Method(
    "metrix",
    "labels of mixed examples interpolated, for any additive loss",
    METRIX_PAPER,
    make=Metrix,
    settings={name: name for name in ("mixup", "pairs", "strength", "alpha", "hard_negatives", "lam_per")},
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
