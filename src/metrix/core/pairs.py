"""Mixing pairs M(a): which two examples are mixed for an anchor.

    pos-neg   P(a) × N(a)    label λ
    anc-neg   {a}  × N(a)    label λ
    pos-pos   P(a) × P(a)    label 1
    neg-neg   N(a) × N(a)    label 0

Where labels are not classes (`relations`), both sides bring theirs: λ Y(a, left) + (1-λ) Y(a, right).

M(a) is a product of two sides, so it is kept as two index lists per anchor, never as a list of pairs.
A kind of mixing pairs is one entry of `PAIR_KINDS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from metrix.core.choices import METRIX_PAPER, Choice, by_name
from metrix.core.comparison import Comparison, to_device
from metrix.core.compute.blocks import rows_in_block
from metrix.core.sets import PositiveLists, Sets

SideName = Literal["anc", "pos", "neg"]


@dataclass(frozen=True)
class PairKind(Choice):
    """A kind of mixing pairs: where the left and the right example come from, as seen from the anchor."""

    left: SideName
    right: SideName

    @property
    def with_anchor(self) -> bool:
        """Whether the left example is the anchor itself."""
        return self.left == "anc"

    @property
    def needs_positive(self) -> bool:
        """Whether an anchor without positives has no such pair."""
        return "pos" in (self.left, self.right)

    @property
    def needs_negative(self) -> bool:
        """Whether an anchor without negatives has no such pair."""
        return "neg" in (self.left, self.right)

    def is_possible(self, num_pos: Any, num_neg: Any) -> Any:
        """Whether an anchor with so many positives and negatives has such a pair, elementwise for arrays."""
        positive = (num_pos > 0) | (not self.needs_positive)
        return positive & ((num_neg > 0) | (not self.needs_negative))

    def labels(self, lam: Tensor) -> Tensor:
        """mix_λ(y, y') of pairs with these λ; y is 0 for a negative and 1 for a positive or the anchor."""
        if not self.needs_negative:
            return torch.ones_like(lam)
        return torch.zeros_like(lam) if self.left == "neg" else lam

    def pairs_of_anchor(self, lefts: int, negatives: int) -> int:
        """How many pairs an anchor has: `lefts` are its positives, or its negatives where these are on the left."""
        if self.with_anchor:
            return negatives
        return lefts * (lefts if self.right == "pos" else negatives)


PAIR_KINDS: dict[str, PairKind] = by_name(
    PairKind("pos-neg", "a positive of the anchor with a negative, label λ", METRIX_PAPER, "pos", "neg"),
    PairKind("anc-neg", "the anchor with a negative, label λ", METRIX_PAPER, "anc", "neg"),
    PairKind("pos-pos", "two positives, label 1", METRIX_PAPER, "pos", "pos"),
    PairKind("neg-neg", "two negatives, label 0", METRIX_PAPER, "neg", "neg"),
)


class PairSide(NamedTuple):
    """One side of M(a) for some anchors: examples by number, or all of the batch where it is None."""

    examples: Tensor | None  # (anchors, m)
    mask: Tensor | None  # (anchors, m)  bool; None where every entry counts


class PairPlan(NamedTuple):
    """Some anchors whose mixing pairs are formed together, as far as labels determine them."""

    rows: Tensor | None  # (a,)  which anchors; None: all, in their order
    lefts: Tensor | None  # (l,)  the examples that are on the left of any, each once; None: all, or the anchors
    positives: Tensor | None  # (a, m)  P(a) by number, where a side of the pairs has positives
    places: Tensor | None  # (a, m)  where they are among `lefts`; None: `positives` themselves
    counts: Tensor | None  # (a,)  how many of the m are in P(a); None: all


def plan_pairs(kind: PairKind, sets: Sets, hardest: int | None, per_anchor: int = 1) -> list[PairPlan]:
    """The anchors that have a mixing pair, in blocks of bounded size (one anchor at least), on the host.

    An anchor counts for `per_anchor` pairs at least, where the caller's work on it is that large. Anchors come in the
    order of their number of positives, so that lists of unequal length waste little, and those of a class together,
    because they share positives. Where no anchor has a pair, the plan has one all the same, without a valid pair.
    """
    n, lists = len(sets.candidates), sets.positive_lists() if kind.needs_positive else None
    if torch.compiler.is_compiling():  # which cannot follow labels: all anchors in one piece
        return [_plan(kind, lists, None, 1)]
    return _plan_blocks(kind, sets, lists, n if hardest is None else min(hardest, n), per_anchor)


def send_plans(plans: list[PairPlan], device: torch.device, *more: Tensor) -> tuple[list[PairPlan], list[Tensor]]:
    """Plans and more numbers on a device, copied in one piece."""
    moved = to_device([*(x for plan in plans for x in plan), *more], device)
    fields = iter(moved)
    sent = [PairPlan(*(next(fields) for _ in plan)) for plan in plans]
    return sent, [x for x in fields if x is not None]


def _plan_blocks(
    kind: PairKind, sets: Sets, lists: PositiveLists | None, width: int, per_anchor: int
) -> list[PairPlan]:
    """`width` is how many negatives an anchor has at most."""
    anchors, device = len(sets.anchors), sets.anchors.device
    longest = 1 if lists is None else lists.examples.shape[1]
    if rows_in_block(max(per_anchor, kind.pairs_of_anchor(longest, width)), device) >= anchors:
        return [_plan(kind, lists, None, longest)]
    num_pos, num_neg = sets.side_sizes()
    usable = kind.is_possible(num_pos, num_neg)
    order = sets.on_host()[0].argsort(stable=True)
    order = order[num_pos[order].argsort(descending=True, stable=True)]
    order = order[usable[order]] if bool(usable.any()) else order[:1]
    lefts, found, start = num_pos[order].tolist(), [], 0
    while start < len(lefts):
        longest = max(1, lefts[start])
        size = rows_in_block(max(per_anchor, kind.pairs_of_anchor(longest, width)), device)
        found.append(_plan(kind, lists, order[start : start + size], longest))
        start += size
    return found


def _plan(kind: PairKind, lists: PositiveLists | None, rows: Tensor | None, longest: int) -> PairPlan:
    """The plan of some anchors, or of all in their order, with lists of `longest` positives."""
    if lists is None:
        return PairPlan(rows, None, None, None, None)
    examples, counts = lists.examples, lists.counts
    if rows is not None:
        examples, counts = examples[rows, :longest], counts[rows]
    ragged = torch.compiler.is_compiling() or bool((counts < longest).any())
    if rows is None or kind.left != "pos":
        return PairPlan(rows, None, examples, None, counts if ragged else None)
    lefts, places = torch.unique(examples, return_inverse=True)
    return PairPlan(rows, lefts, examples, places, counts if ragged else None)


@dataclass(frozen=True, eq=False)
class MixingPairs:
    """M(a) = left × right for some anchors of a `Sets`: anchors, left, right are the three axes."""

    left: PairSide | None  # None: the anchor itself
    right: PairSide
    kind: PairKind
    places: Tensor | None = None  # (a, m)  rows of matrices over pairs that the left examples have; None: their numbers
    Y: Tensor | None = None  # (a, examples)  of the anchors, where labels are not classes

    @property
    def valid(self) -> Tensor:
        """Which pairs are in M(a): bool, broadcastable to (a, l, r)."""
        masks = [None if self.right.mask is None else self.right.mask[:, None, :]]
        if self.left is not None:
            masks.append(None if self.left.mask is None else self.left.mask[:, :, None])
        given = [mask for mask in masks if mask is not None]
        if not given:
            examples = self.right.examples
            assert examples is not None, "a side without a mask is a list"
            return torch.ones(len(examples), 1, 1, dtype=torch.bool, device=examples.device)
        return given[0] if len(given) == 1 else given[0] & given[1]

    def compare(self, S: Tensor, lam: Tensor) -> Comparison:
        """Anchors with the mixed examples of their pairs, labelled mix_λ(y, y').

        Args:
            S: (a, l, r), the similarities.
            lam: λ as a matrix over ordered pairs, as `of_pair` takes it.
        """
        if self.Y is None:
            return Comparison(S, self.kind.labels(lam), self.valid, self.of_pair)
        left, right = self.of_left(self.Y, None), self.of_right(self.Y)
        return Comparison(S, torch.lerp(right, left, self.of_pair(lam)), self.valid)

    def of_pair(self, matrix: Tensor) -> Tensor:
        """The entries of a matrix (…, left, right) over ordered pairs of examples for each pair in M(a).

        For pairs with the anchor itself, the rows of the matrix are the anchors. Broadcastable to (…, a, l, r).
        """
        right, several = self.right.examples, matrix.shape[:-2]
        if self.left is None:
            matrix = matrix if right is None else matrix.gather(-1, right.expand(*several, *right.shape))
            return matrix.unsqueeze(-2)
        left = self.left.examples if self.places is None else self.places
        if left is None:
            if right is None:
                return matrix.unsqueeze(-3)
            flat = matrix.index_select(-1, right.flatten())
            return flat.view(*matrix.shape[:-1], *right.shape).transpose(-3, -2)
        if right is None:
            flat = matrix.index_select(-2, left.flatten())
            return flat.view(*several, *left.shape, matrix.shape[-1])
        number = left[:, :, None] * matrix.shape[-1] + right[:, None, :]
        # not matrix[left, right]: its backward pass adds up in any order on several threads of the CPU
        return matrix.reshape(*several, -1).index_select(-1, number.flatten()).view(*several, *number.shape)

    def of_left(self, matrix: Tensor, own: Tensor | None) -> Tensor:
        """The entries of a matrix (a, example) for the left example of each pair: (a, l, 1).

        `own` (a,) has those of the anchors themselves; None stands for ones.
        """
        if self.left is not None:
            return _of_side(matrix, self.left).unsqueeze(2)
        return matrix.new_ones(()) if own is None else own[:, None, None]

    def of_right(self, matrix: Tensor) -> Tensor:
        """The entries of a matrix (a, example) for the right example of each pair: (a, 1, r)."""
        return _of_side(matrix, self.right).unsqueeze(1)


def _of_side(matrix: Tensor, side: PairSide) -> Tensor:
    return matrix if side.examples is None else matrix.gather(1, side.examples)


def mixing_pairs(kind: PairKind, plan: PairPlan, sets: Sets, hardest: int | None, similarity: Tensor) -> MixingPairs:
    """M(a) of the anchors of a plan.

    `hardest` keeps for each anchor its most similar negatives by `similarity` (a, examples) of these anchors.
    """
    positives = None
    if plan.positives is not None:
        mask = None
        if plan.counts is not None:
            place = torch.arange(plan.positives.shape[1], device=plan.positives.device)
            mask = place < plan.counts.unsqueeze(1)
        positives = PairSide(plan.positives, mask)
    negatives = None
    if kind.needs_negative:
        negative = sets.negative(plan.rows)
        negatives = PairSide(None, negative)
        if hardest is not None and hardest < similarity.shape[1]:
            negatives = PairSide(*hardest_negatives(similarity, negative, hardest))
    sides = {"anc": None, "pos": positives, "neg": negatives}
    right = sides[kind.right]
    assert right is not None, "only the left example can be the anchor"
    places = plan.places if kind.left == "pos" else None
    Y = None if sets.relation is None else sets.labelled(plan.rows).Y
    return MixingPairs(sides[kind.left], right, kind, places, Y)


def hardest_negatives(similarity: Tensor, negative: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most similar negatives of each anchor (anchors, k), and which of them are negatives at all."""
    top = similarity.detach().masked_fill(~negative, -torch.inf).topk(k, dim=1)
    return top.indices, top.values > -torch.inf
