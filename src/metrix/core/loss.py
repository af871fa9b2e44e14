"""A loss: a row of Table 1, and what takes the role of anchors, positives and negatives.

pair losses    anchors: examples   positives/negatives: the other examples
proxy anchor   anchors: proxies    positives/negatives: examples
ProxyNCA       anchors: examples   positives/negatives: proxies
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from metrix.core.choices import Choice
from metrix.core.comparison import Comparison, Comparisons, Rows, pick
from metrix.core.compute.derivatives import without_autocast
from metrix.core.compute.stream import sum_over_blocks
from metrix.core.distributed.ranks import ALONE, WHOLE, Division, Ranks
from metrix.core.functions import identity
from metrix.core.generic import (
    Function,
    Reduction,
    Row,
    Totals,
    join_totals,
    loss_per_anchor,
    mean_over_anchors,
)
from metrix.core.labels import as_labels
from metrix.core.mined import Indices, mark_mined
from metrix.core.relations import GradedLabels, Relation
from metrix.core.sets import Sets, compare_clean
from metrix.core.spaces import Space
from metrix.core.tensors import as_real, as_tensor
from metrix.core.validation import check_labels, unit, values_are_at_hand, warn_unusable
from metrix.errors import InvalidInput, ShapeError, check_flag, describe_value

Role = Literal["examples", "proxies"]
Sort = Literal["pairs", "proxies", "several"]  # compares examples; or with one proxy per class; or with several
AnyLabels = Tensor | GradedLabels


class LossValue(NamedTuple):
    """A loss, and over how many anchors it is the mean; numbers that are on the device stay there."""

    value: Tensor  # ()
    usable: Tensor  # ()  anchors for which it is defined; all others were left out
    anchors: int | Tensor  # how many anchors there are


def split_labels(labels: AnyLabels, embeddings: Tensor) -> tuple[Tensor, Relation | None]:
    """The number of each example, and how positive numbers are to each other; None: they are classes."""
    if not isinstance(labels, GradedLabels):
        return check_labels(labels, embeddings), None
    relation = labels.relation.beside(embeddings.device)
    return check_labels(labels.numbers, embeddings, relation.num_classes, "classes of the relation"), relation


class Loss(nn.Module):
    """Base class of all losses of the generic form; `loss(embeddings, labels)` is the clean loss.

    Args:
        row: the five functions.
        reduction: from the terms of anchors to sums and counts, whose quotients add up to the loss.
    """

    anchor_role: Role = "examples"
    candidate_role: Role = "examples"
    sort: Sort = "pairs"
    centers: int = 1  # candidates of a class, the nearest of which counts

    def __init__(self, row: Row, reduction: Reduction = mean_over_anchors) -> None:
        super().__init__()
        self.row = row
        self.reduce = reduction
        for name in ("tau", "sigma_pos", "sigma_neg", "rho_pos", "rho_neg"):
            function = getattr(row, name)
            if isinstance(function, nn.Module):  # a user's learnable function trains and saves with the loss
                self.add_module(name, function)
        self._warned: set[str] = set()

    def forward(
        self,
        embeddings: Tensor,
        labels: AnyLabels,
        indices_tuple: Indices | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: AnyLabels | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The clean loss, eq. loss-labels averaged over anchors.

        Args:
            embeddings: (n, d); they need not be normalised. NumPy arrays and lists are converted, here and below.
            labels: (n,), integers of any kind or names of classes; a list of sets of labels; or what the functions of
                `metrix.labels` make of a matrix of pairs, sets of labels or two levels.
            indices_tuple: what a miner of pytorch-metric-learning returns: the pairs that count, of a loss of pairs;
                None: all. A pair of several triplets counts once; of a mean over anchors, those without a pair are 0.
            ref_emb: (m, d), candidates in place of the embeddings themselves, as in pytorch-metric-learning.
            ref_labels: (m,), of `ref_emb`.
            weights: (n,), numbers from 0: the mean over examples as anchors becomes a weighted mean.

        Returns:
            A scalar; zero, with a warning once, if no anchor has what the loss needs.
        """
        embeddings = as_tensor("embeddings", embeddings)
        with without_autocast(embeddings):
            sets = self.sets(unit(embeddings), as_labels(labels))
            if ref_emb is not None or ref_labels is not None:
                sets = self._against(sets, ref_emb, ref_labels)
            mined = self.mined(indices_tuple, sets)
            return (self.clean(sets, mined) if weights is None else self._weighted(sets, mined, weights)).value

    def mined(self, indices: Indices | None, sets: Sets) -> Tensor | None:
        """Which pairs a miner chose; None, if there is none."""
        if indices is None:
            return None
        if "proxies" in (self.anchor_role, self.candidate_role):
            raise InvalidInput(
                f"indices_tuple was given: {type(self).__name__} compares examples with proxies, and a miner chooses "
                "pairs of examples; leave it out, or take a loss of pairs, such as losses.MultiSimilarity"
            )
        return mark_mined(indices, len(sets.anchors), len(sets.candidates), sets.anchors.device)

    def _against(self, sets: Sets, ref_emb: Tensor | None, ref_labels: AnyLabels | None) -> Sets:
        """The anchors of `sets` with other candidates."""
        if ref_emb is None or ref_labels is None:
            raise InvalidInput("ref_emb and ref_labels: expected both or none, got one of them")
        if "proxies" in (self.anchor_role, self.candidate_role) or sets.relation is not None:
            raise InvalidInput(
                f"ref_emb was given: {type(self).__name__} of {'graded labels' if sets.relation else 'proxies'} has no "
                "place for it; take a loss of pairs, such as losses.MultiSimilarity, and one class for each example"
            )
        candidates = unit(as_tensor("ref_emb", ref_emb)).to(sets.anchors.dtype)
        labels, _ = split_labels(as_labels(ref_labels), candidates)
        return Sets(sets.anchors, candidates, sets.anchor_labels, labels, None, candidates, labels, None, sets.ranks)

    def clean(self, sets: Sets, mined: Tensor | None = None) -> LossValue:
        """The clean loss, eq. loss-labels over the anchors of the batch, and those pairs that were mined."""
        totals = self.over(compare_clean(sets, mined))
        if mined is not None and self.row.vanishes and self.reduce is mean_over_anchors:
            totals = totals._replace(counts=torch.full_like(totals.counts, len(sets.anchors)))
        return self.conclude(totals, len(sets.anchors), sets.ranks, "clean loss")

    def _weighted(self, sets: Sets, mined: Tensor | None, weights: Tensor) -> LossValue:
        """The clean loss as a weighted mean over the anchors for which it is defined."""
        given = as_real("weights", weights).to(sets.anchors)
        if self.anchor_role == "proxies" or self.reduce is not mean_over_anchors or type(self).clean is not Loss.clean:
            raise InvalidInput(
                f"weights: {type(self).__name__} is no mean over examples as anchors; weigh examples with such a loss, "
                "as losses.MultiSimilarity and losses.ProxyNCA are"
            )
        usable = given.shape == (len(sets.anchors),)
        if usable and values_are_at_hand(given):
            usable = bool(((given >= 0) & (given < torch.inf)).all())
        if not usable:
            raise InvalidInput(f"weights: expected {len(sets.anchors)} numbers from 0, got {describe_value(weights)}")
        compared = compare_clean(sets, mined)

        def totals(rows: Rows, *tensors: Tensor) -> Totals:
            losses, defined = loss_per_anchor(self.row, compared.compare(rows, *tensors))
            of = pick(given, rows) * defined
            return Totals(torch.stack([(of * losses).sum(), of.sum()]), defined.sum().expand(2), defined.sum())

        found = sum_over_blocks(totals, compared.blocks, compared.tensors, self.learnable())
        total = found.sums[1].detach()
        mean = found.sums[:1] / torch.where(total > 0, total, 1.0)
        return self.conclude(found._replace(sums=mean, counts=torch.ones_like(found.counts[:1])), len(sets.anchors))

    def over(self, comparisons: Comparisons) -> Totals:
        """Sums and counts of the loss over anchors, block by block, of the embedding and of its prefixes."""

        def totals(block: Any, *tensors: Tensor | None) -> Totals:
            return self.reduce(self.row, comparisons.compare(block, *tensors))

        def total(tensors: Sequence[Tensor | None]) -> Totals:
            return sum_over_blocks(totals, comparisons.blocks, tensors, self.learnable())

        return join_totals(total(comparisons.tensors), list(map(total, comparisons.prefixes)), comparisons.weight)

    def learnable(self) -> list[Tensor]:
        """Learnable parts of the five functions; proxies are not among them, they are anchors or candidates."""
        if not self._modules and self._parameters.keys() <= {"proxies"}:
            return []
        return [p for name, p in self.named_parameters() if name != "proxies" and p.requires_grad]

    def sets(self, embeddings: Tensor, labels: AnyLabels, division: Division = WHOLE) -> Sets:
        """Anchors, P(a) and N(a): here the examples of the batch, none of them its own positive.

        Of a batch gathered from several processes, `division` says which anchors are this one's.
        """
        labels, relation = split_labels(labels, embeddings)
        share = division.of_examples()
        if share is None:
            return Sets.of_examples(embeddings, labels, relation)
        anchors, own = embeddings[share.rows], torch.arange(len(labels))[share.rows]
        return Sets(
            anchors, embeddings, labels[share.rows], labels, own, embeddings, labels, share, division.ranks, relation
        )

    def rows(self, S: Tensor, Y: Tensor, valid: Tensor) -> Tensor:
        """eq. loss-labels for each row of S (anchors, candidates); 0 where it is undefined."""
        return loss_per_anchor(self.row, Comparison(S, Y & valid if Y.dtype == torch.bool else Y.to(S.dtype), valid))[0]

    def conclude(self, totals: Totals, anchors: int | Tensor, ranks: Ranks = ALONE, part: str = "loss") -> LossValue:
        """The loss from its sums and counts.

        Args:
            totals: sums and counts of this process; those of several processes are added up here.
            anchors: how many anchors this process has.
            ranks: the processes.
            part: what is zero without usable anchors, for the warning: the clean loss, the mixed loss or all of it.
        """
        totals, all_anchors = ranks.add_up(totals, anchors)
        parts = totals.sums / totals.counts.clamp_min(1)
        value = parts.reshape(()) if len(parts) == 1 else parts.sum()
        if values_are_at_hand(value) and int(totals.anchors) == 0:
            self.warn_unusable(int(all_anchors), part)
        return LossValue(value, totals.anchors, all_anchors)

    def warn_unusable(self, anchors: int, part: str) -> None:
        """Warn, once, that a batch had no anchor for which this part of the loss is defined."""
        if part not in self._warned:
            self._warned.add(part)
            need = [
                s for s, n in (("a positive", self.row.needs_positive), ("a negative", self.row.needs_negative)) if n
            ]
            needs = "a pair to mix" if part == "mixed loss" else " and ".join(need) or "a candidate"
            warn_unusable(self, anchors, needs, part)

    def extra_repr(self) -> str:
        """The public parameters."""
        return ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if k in self._shown)

    _shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class LossEntry(Choice):
    """A loss by name.

    Args:
        name, line, reference: as in every table.
        make: its class, whose parameters are keys of the configuration; those called `num_classes`, `dim` and
            `generator` come from the data, the model and the run.
        own_lr: learning rate of its own parameters; None: 100 times the head's.
        needs_pairs: whether it needs several images of a class in a batch.
        space: what `metrix tune` searches by default, by configuration key.
    """

    make: type[nn.Module]
    own_lr: float | None = None
    needs_pairs: bool = True
    space: Space = field(default_factory=dict)

    @property
    def takes_mixup(self) -> bool:
        """Whether it is of the generic form, which mixed examples have a place in."""
        return issubclass(self.make, Loss)


class GenericLoss(Loss):
    """Your own row of Table 1: five functions of a tensor, eq. generic.

    Args:
        tau: τ, of the sum of both parts; the identity by default.
        sigma_pos: σ⁺, of the sum over positives; the identity by default.
        sigma_neg: σ⁻, of the sum over negatives; the identity by default.
        rho_pos: ρ⁺, of the similarity to a positive.
        rho_neg: ρ⁻, of the similarity to a negative.
        include_positive: sum ρ⁻ over positives, too.
        mean_positive: the mean of ρ⁺ in place of its sum.
        each_positive: the mean over positives p of τ(ρ⁺(s_p) + σ⁻(…)); σ⁺ has no part in it.

    >>> softer = GenericLoss(rho_pos=lambda s: (1 - s) ** 2, rho_neg=lambda s: s.relu() ** 2)
    >>> softer(torch.eye(3), torch.tensor([0, 0, 1]))
    tensor(0.6667)

    Use `losses.functions.Exponential` with `Log` or `Log1p` to have a row of exponentials
    evaluated in the log domain. A function with learnable parts must be an `nn.Module`.
    """

    def __init__(
        self,
        tau: Function | None = None,
        sigma_pos: Function | None = None,
        sigma_neg: Function | None = None,
        rho_pos: Function | None = None,
        rho_neg: Function | None = None,
        include_positive: bool = False,
        mean_positive: bool = False,
        each_positive: bool = False,
    ) -> None:
        def checked(name: str, function: Function | None, default: Function | None = identity) -> Function:
            function = default if function is None else function
            if not callable(function) or isinstance(function, type):  # a class is called to make an instance
                raise InvalidInput(f"{name}: expected a function of a tensor, got {describe_value(function)}")
            return function

        super().__init__(
            Row(
                checked("tau", tau),
                checked("sigma_pos", sigma_pos),
                checked("sigma_neg", sigma_neg),
                checked("rho_pos", rho_pos, None),
                checked("rho_neg", rho_neg, None),
                check_flag("include_positive", include_positive),
                check_flag("mean_positive", mean_positive),
                check_flag("each_positive", each_positive),
            )
        )


class ProxyLoss(Loss):
    """Base class of losses with learnable proxies: `proxies`, a Parameter (num_classes, dim).

    A class with several has them one after the other: (num_classes · centers, dim).
    """

    sort: Sort = "proxies"

    def __init__(self, row: Row, proxies: Tensor, reduction: Reduction = mean_over_anchors, centers: int = 1) -> None:
        super().__init__(row, reduction)
        self.proxies = nn.Parameter(proxies)
        self.centers = centers

    def labels(self, labels: AnyLabels, embeddings: Tensor) -> tuple[Tensor, Relation | None]:
        """The labels, which must be those of proxies, and how positive these are to them."""
        check_proxies_fit(self.proxies, embeddings)
        num_classes = len(self.proxies) // self.centers
        if isinstance(labels, GradedLabels):
            labels.relation.check_proxies(num_classes)
            return split_labels(labels, embeddings)
        of = "proxies" if self.centers == 1 else f"classes with {self.centers} proxies"
        return check_labels(labels, embeddings, num_classes, of), None

    def unit_proxies(self) -> Tensor:
        """Proxies of unit norm, in at least float32."""
        return unit(self.proxies)


def check_proxies_fit(proxies: Tensor, embeddings: Tensor) -> None:
    """Raise an error unless embeddings have the dimension of the proxies, and their device."""
    if embeddings.shape[1] != proxies.shape[1]:
        raise ShapeError(
            f"embeddings of dimension {embeddings.shape[1]} for proxies of dimension {proxies.shape[1]}: "
            f"give the loss dim={embeddings.shape[1]}"
        )
    if proxies.device != embeddings.device:
        raise InvalidInput(
            f"proxies: expected them on the device of the embeddings, {embeddings.device}, got {proxies.device}; call "
            f"loss.to({str(embeddings.device)!r})"
        )


class ProxyAnchorLoss(ProxyLoss):
    """Base class of losses whose anchors are proxies and whose positives and negatives are examples."""

    anchor_role: Role = "proxies"

    def sets(self, embeddings: Tensor, labels: AnyLabels, division: Division = WHOLE) -> Sets:
        """Every proxy is an anchor; its class's examples are positive, all others negative."""
        labels, relation = self.labels(labels, embeddings)
        share = division.of_shared(len(self.proxies))
        rows = slice(None) if share is None else share.rows
        classes, proxies = torch.arange(len(self.proxies))[rows], self.unit_proxies().to(embeddings.dtype)[rows]
        sets = Sets(proxies, embeddings, classes, labels, None, embeddings, labels, share, division.ranks)
        return replace(sets, relation=relation, proxies="anchors")


class ProxyCandidateLoss(ProxyLoss):
    """Base class of losses whose anchors are examples and whose positives and negatives are proxies."""

    candidate_role: Role = "proxies"

    def sets(self, embeddings: Tensor, labels: AnyLabels, division: Division = WHOLE) -> Sets:
        """Every example is an anchor; the proxies of its class are its positives, all others negative."""
        labels, relation = self.labels(labels, embeddings)
        share = division.of_examples()
        rows = slice(None) if share is None else share.rows
        classes = torch.arange(len(self.proxies)) // self.centers
        proxies = self.unit_proxies().to(embeddings.dtype)
        anchors, own = (embeddings, labels) if share is None else (embeddings[rows], labels[rows])
        sets = Sets(anchors, proxies, own, classes, None, embeddings, labels, share, division.ranks)
        return replace(sets, relation=relation, proxies="candidates", centers=self.centers)
