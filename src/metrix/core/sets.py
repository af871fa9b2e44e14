"""Anchors a, their positives P(a) and their negatives N(a).

Labels are on the host, where lists of positives and the sizes of all that is computed follow from them; masks of
(anchors, candidates) are formed on the device of the embeddings, for some anchors at a time where a batch is large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from metrix.core.comparison import Comparison, Comparisons, Products, Rows, pick, to_device
from metrix.core.compute.blocks import is_held, rows_in_block
from metrix.core.distributed.ranks import ALONE, Ranks, Share
from metrix.core.prefixes import WHOLE_ONLY, Prefixes, unit_prefix
from metrix.core.relations import Relation


class PositiveLists(NamedTuple):
    """P(a) of every anchor as a list, on the host."""

    examples: Tensor  # (anchors, longest)  by number; what lies beyond an anchor's count is any example
    counts: Tensor  # (anchors,)


@dataclass(eq=False)
class Sets:
    """eq. pos and neg: P(a) are the candidates of the class of anchor a, without a itself; N(a) are all others.

    With a `relation`, labels are not classes: P(a) are the candidates that are more positive to a than its
    `positive_above`.

    Each of several processes has its share of the anchors, with the candidates of all.
    """

    anchors: Tensor  # (anchors, d)  unit
    candidates: Tensor  # (candidates, d)  unit
    anchor_labels: Tensor  # (anchors,)  as given, on the host or on the device
    candidate_labels: Tensor  # (candidates,)
    own: Tensor | None  # (anchors,)  on the host: which candidate is the anchor itself; None: anchors are no candidates
    examples: Tensor  # (n, d)  unit: the whole batch
    example_labels: Tensor  # (n,)
    share: Share | None  # which of all anchors these are; None: all
    ranks: Ranks  # the processes whose anchors the loss is averaged over
    relation: Relation | None = None  # how positive labels are to each other; None: labels are classes
    proxies: Literal["none", "anchors", "candidates"] = "none"  # what is a proxy; its label is its number
    centers: int = 1  # candidates of a class, the nearest of which counts
    prefixes: Prefixes = WHOLE_ONLY  # of the embedding, whose loss is added to that of the whole
    _on_device: list[Tensor | None] = field(init=False, default_factory=list)
    _on_host: list[Tensor] = field(init=False, default_factory=list)
    _products: list[Products] = field(init=False, default_factory=list)
    _labelled: list[Labelled] = field(init=False, default_factory=list)
    _prefixes: dict[int, Sets] = field(init=False, default_factory=dict)

    @classmethod
    def of_examples(cls, embeddings: Tensor, labels: Tensor, relation: Relation | None = None) -> Sets:
        """Every example of a batch is an anchor, and all others are its candidates.

        >>> sets = Sets.of_examples(torch.eye(3), torch.tensor([0, 0, 1]))
        >>> sets.labelled().positive.tolist()
        [[False, True, False], [True, False, False], [False, False, False]]
        """
        numbers = torch.arange(len(labels))
        return cls(embeddings, embeddings, labels, labels, numbers, embeddings, labels, None, ALONE, relation)

    @property
    def start(self) -> int:
        """The number of the first anchor among those of all processes."""
        return 0 if self.share is None else self.share.start

    @property
    def total(self) -> int:
        """The number of anchors of all processes."""
        return len(self.anchors) if self.share is None else self.share.of

    @property
    def products(self) -> Products:
        """s(a, x) of anchors and candidates, by rows; where it is held, the clean and the mixed loss share it."""
        if not self._products:
            self._products.append(Products.of(self.anchors, self.candidates))
        return self._products[0]

    @property
    def similarity(self) -> Tensor:
        """(anchors, candidates)  s(a, x), all at once."""
        return self.products.rows(None, *self.products.tensors)

    def of_prefixes(self) -> list[Sets]:
        """The same sets with each prefix of the embedding; what was one tensor still is."""
        return [self._of_prefix(dim) for dim in self.prefixes.dims]

    def _of_prefix(self, dim: int) -> Sets:
        if dim not in self._prefixes:
            anchors = unit_prefix(self.anchors, dim)
            candidates = anchors if self.candidates is self.anchors else unit_prefix(self.candidates, dim)
            if self.examples is self.anchors or self.examples is self.candidates:
                examples = anchors if self.examples is self.anchors else candidates
            else:
                examples = unit_prefix(self.examples, dim)
            self._prefixes[dim] = replace(self, anchors=anchors, candidates=candidates, examples=examples)
        return self._prefixes[dim]

    def on_device(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Labels of anchors and of candidates, and own places, beside the embeddings; copied once."""
        if not self._on_device:
            same = self.anchor_labels is self.candidate_labels
            self._on_device = to_device(
                [None if same else self.anchor_labels, self.candidate_labels, self.own], self.anchors.device
            )
        anchors, candidates, own = self._on_device
        assert candidates is not None
        return candidates if anchors is None else anchors, candidates, own

    def on_host(self) -> tuple[Tensor, Tensor]:
        """Labels of anchors and of candidates on the host; copied once, if they are on the device."""
        if not self._on_host:
            self.bring(None)
        anchors, candidates = self._on_host
        return anchors, candidates

    def bring(self, mask: Tensor | None) -> Tensor:
        """A mask (of booleans) on the host, in one transfer with the labels, if these are on the device."""
        labels = [self.anchor_labels, self.candidate_labels]
        same = labels[0] is labels[1]
        given = [*(labels[:1] if same else labels), *([] if mask is None else [mask])]
        there = [x for x in given if x.device.type != "cpu"]
        packed: Iterator[Tensor] = iter(())
        if there:
            whole = torch.cat([x.reshape(-1).to(torch.int64) for x in there]).cpu()
            packed = iter(torch.split(whole, [x.numel() for x in there]))
        found = [x if x.device.type == "cpu" else next(packed).view(x.shape).to(x.dtype) for x in given]
        self._on_host = [found[0], found[0] if same else found[1]]
        return found[-1]

    def labelled(self, rows: Rows = None) -> Labelled:
        """How positive all candidates are to some anchors, and which count, on the device of the embeddings."""
        anchors, candidates, own = self.on_device()
        if rows is None:
            if not self._labelled:
                self._labelled.append(_label(self, anchors, candidates, own, self.relation, self.anchors.dtype))
            return self._labelled[0]
        own = None if own is None else pick(own, rows)
        return _label(self, pick(anchors, rows), candidates, own, self.relation, self.anchors.dtype)

    def negative(self, rows: Rows = None) -> Tensor:
        """Which candidates are in N(a) of some anchors: bool (anchors, candidates)."""
        if self.relation is not None or (rows is None and self._labelled):
            return self.labelled(rows).negative
        anchors, candidates, _ = self.on_device()
        return pick(anchors, rows).unsqueeze(1) != candidates.unsqueeze(0)

    def labelled_on_host(self, rows: Rows = None) -> Labelled:
        """The same on the host."""
        anchors, candidates = self.on_host()
        own = None if self.own is None else pick(self.own, rows)
        relation = None if self.relation is None else self.relation.on_host()
        return _label(self, pick(anchors, rows), candidates, own, relation, torch.float32)

    def side_sizes(self) -> tuple[Tensor, Tensor]:
        """|P(a)| and |N(a)| of every anchor (anchors,), on the host."""
        n = len(self.candidates)
        if self.relation is None:
            _, start, stop = self._stretches()
            return (stop - start if self.own is None else stop - start - 1), n - (stop - start)
        sizes = [(part.positive.sum(1), part.negative.sum(1)) for part in self._blocks_on_host()]
        positive, negative = (torch.cat(side) for side in zip(*sizes, strict=True))
        return positive, negative

    def positive_lists(self) -> PositiveLists:
        """P(a) of every anchor; the longest list has one entry at least."""
        if self.relation is not None:
            positive = torch.cat([part.positive for part in self._blocks_on_host()])
            counts = positive.sum(1)
            order = positive.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
            return PositiveLists(order[:, : _longest(counts)], counts)
        order, start, stop = self._stretches()
        if len(order) == 0:  # a process without examples
            return PositiveLists(order.view(0, 1), start)
        counts = stop - start if self.own is None else stop - start - 1
        at = start.unsqueeze(1) + torch.arange(_longest(counts))
        if self.own is not None:  # an anchor is left out of the stretch of its class
            rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
            at += at >= rank[self.own].unsqueeze(1)
        return PositiveLists(order[at.clamp_max(len(order) - 1)], counts)

    def _stretches(self) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates in the order of classes, and the stretch of each anchor's class there."""
        anchors, candidates = self.on_host()
        ordered, order = candidates.sort(stable=True)
        return order, torch.searchsorted(ordered, anchors), torch.searchsorted(ordered, anchors, right=True)

    def _blocks_on_host(self) -> list[Labelled]:
        """`labelled_on_host` of all anchors in blocks."""
        size = rows_in_block(len(self.candidates))
        return [self.labelled_on_host(slice(at, at + size)) for at in range(0, max(1, len(self.anchors)), size)]


class Labelled(NamedTuple):
    """Candidates as labelled for some anchors: (anchors, candidates)."""

    Y: Tensor  # how positive: bool, or numbers where labels are not classes; an anchor is not its own positive
    valid: Tensor  # bool: in P(a) or N(a), which an anchor itself and unknown pairs are not
    positive: Tensor  # bool: in P(a)

    @property
    def negative(self) -> Tensor:
        """Bool: in N(a)."""
        return self.valid ^ self.positive


def _label(
    sets: Sets, anchors: Tensor, candidates: Tensor, own: Tensor | None, relation: Relation | None, dtype: torch.dtype
) -> Labelled:
    valid = torch.ones(len(anchors), len(candidates), dtype=torch.bool, device=candidates.device)
    if own is not None:
        valid = valid.scatter(1, own.unsqueeze(1), False)
    if relation is None:
        positive = anchors.unsqueeze(1) == candidates.unsqueeze(0)
        positive = positive if own is None else positive & valid
        return Labelled(positive, valid, positive)
    if sets.proxies == "anchors":
        Y = relation.to_proxies(candidates, anchors, dtype).T
    elif sets.proxies == "candidates":
        Y = relation.to_proxies(anchors, candidates, dtype)
    else:
        Y = relation.between(anchors, candidates, dtype) * valid
        known = relation.known(anchors, candidates)
        valid = valid if known is None else valid & known
    return Labelled(Y, valid, valid & (relation.positive_above < Y))


def _longest(counts: Tensor) -> int:
    return max(1, int(counts.max())) if len(counts) else 1


def compare_clean(sets: Sets, mined: Tensor | None = None) -> Comparisons:
    """Anchors with all their candidates: examples, or proxies in one of the two roles.

    `mined`, bool (anchors, candidates), says which pairs count; None: all.
    """
    products, anchors, candidates = sets.products, len(sets.anchors), len(sets.candidates)
    one_positive = sets.proxies == "candidates" and sets.relation is None and candidates > sets.centers
    blocks: list[Rows] = [None]
    if not torch.compiler.is_compiling() and not is_held(anchors, candidates, sets.anchors):
        size = rows_in_block(candidates, sets.anchors.device)
        blocks = [slice(at, at + size) for at in range(0, anchors, size)]

    def compare(rows: Rows, *tensors: Tensor) -> Comparison:
        S = nearest_center(products.rows(rows, *tensors), sets.centers)
        if one_positive:
            return Comparison(S, pick(sets.on_device()[0], rows).unsqueeze(1), S.new_ones(1, 1, dtype=torch.bool))
        labelled = sets.labelled(rows)
        Y, valid = labelled.Y, labelled.valid
        if sets.centers > 1:
            Y, valid = Y[:, :: sets.centers], valid[:, :: sets.centers]
        if mined is not None:
            valid = valid & pick(mined, rows)
            Y = Y & valid if Y.dtype == torch.bool else Y
        return Comparison(S, Y, valid)

    prefixes = [part.products.tensors for part in sets.of_prefixes()]
    return Comparisons(blocks, products.tensors, compare, prefixes, sets.prefixes.weight)


def nearest_center(S: Tensor, centers: int) -> Tensor:
    """Similarities to classes (anchors, classes) from those to candidates, of which a class has several or one."""
    return S if centers == 1 else S.view(len(S), S.shape[1] // centers, centers).max(2).values
