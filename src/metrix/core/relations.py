"""Labels that are not one class: how positive a candidate is to an anchor, Y in [0, 1], from numbers of classes.

With labels that are classes, Y is 1 for examples of one class and 0 for all others. A `Relation` gives any Y to two
classes, and the generic loss, eq. loss-labels, takes it as it is:

    loss(a) = τ( σ⁺( Σ_x Y(a,x) ρ⁺(s(a,x)) ) + σ⁻( Σ_x (1-Y(a,x)) ρ⁻(s(a,x)) ) )        over all x but a

For mixing pairs, P(a) are the candidates with Y(a,x) > `positive_above`, and N(a) all others. The label of a mixed
example is interpolated from those of both partners:

    λ Y(a,x) + (1-λ) Y(a,x')        and Y(a,a) = 1 for the anchor itself
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from metrix.core.choices import Choice, by_name, find
from metrix.core.tensors import INTEGERS, as_real, as_tensor
from metrix.errors import InvalidInput, LabelError, ShapeError, check_number


class Relation(nn.Module):
    """Base class: how positive each class is to each other.

    Args:
        num_classes: classes are numbered from 0 to one less.
        positive_above: candidates with a larger Y are positives, where examples are either positive or negative: in
            mixing pairs, and for Recall@K.
    """

    def __init__(self, num_classes: int, positive_above: float = 0.5) -> None:
        super().__init__()
        self._on_host: tuple[Relation] | None = None
        self.num_classes = num_classes
        self.positive_above = check_number("positive_above", positive_above, least=0)
        if self.positive_above >= 1:
            raise InvalidInput(f"positive_above: expected a number from 0 to below 1, got {positive_above}")

    def between(self, a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Y (a, b): how positive examples of the classes b are to anchors of the classes a."""
        raise NotImplementedError

    def on_host(self) -> Relation:
        """The same relation on the host, copied once."""
        if self._on_host is None:
            host = torch.device("cpu")
            self._on_host = (self.beside(host),)  # in a tuple: a module would be moved and saved with this one
        return self._on_host[0]

    def beside(self, device: torch.device) -> Relation:
        """The same relation on a device, which leaves this one where it is."""
        if all(x.device == device for x in self.buffers()):
            return self
        moved = copy.deepcopy(self).to(device)
        moved._on_host = self._on_host if device.type == "cpu" else (self.on_host(),)
        return moved

    def known(self, a: Tensor, b: Tensor) -> Tensor | None:
        """(a, b)  bool: which pairs count; None: all."""
        return None

    def check_proxies(self, count: int) -> None:
        """Raise an error unless this relation says how positive each of so many proxies is."""
        if count != self.num_classes:
            raise LabelError(
                f"{count} proxies for the {self.num_classes} classes of the {type(self).__name__}: expected as many; "
                f"give the loss num_classes={self.num_classes}"
            )

    def to_proxies(self, a: Tensor, proxies: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Y (a, proxies): how positive each of some proxies, by number, is to examples of the classes a."""
        return self.between(a, proxies, dtype)

    def extra_repr(self) -> str:
        """The settings."""
        return f"num_classes={self.num_classes}, positive_above={self.positive_above}"


class ClassMatrix(Relation):
    """Y of two classes from a matrix.

    Args:
        matrix: (classes, classes) in [0, 1]; a row is how positive each class is to an anchor of one.
        valid: (classes, classes), bool: the pairs that count; None: all.
        positive_above: as in every relation.

    >>> alike = ClassMatrix([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> alike.between(torch.tensor([0]), torch.tensor([0, 1, 2]))
    tensor([[1.0000, 0.5000, 0.0000]])
    """

    matrix: Tensor
    valid: Tensor | None

    def __init__(self, matrix: Any, valid: Any = None, positive_above: float = 0.5) -> None:
        Y = as_real("matrix", matrix).detach()
        if Y.ndim != 2 or Y.shape[0] != Y.shape[1]:
            raise ShapeError(f"Y: expected a square matrix, got shape {tuple(Y.shape)}")
        Y = Y if Y.is_floating_point() else Y.float()
        if not bool(((Y >= 0) & (Y <= 1)).all()):  # false for NaN
            raise LabelError(
                f"Y: expected numbers from 0 (negative) to 1 (positive), got {float(Y.min()):g} to {float(Y.max()):g}"
            )
        super().__init__(len(Y), positive_above)
        mask = None if valid is None else as_tensor("valid", valid)
        if mask is not None and (mask.shape != Y.shape or mask.dtype != torch.bool):
            raise ShapeError(
                f"valid: expected booleans of the shape of Y, {tuple(Y.shape)}, got {mask.dtype} of {tuple(mask.shape)}"
            )
        self.register_buffer("matrix", Y, persistent=False)
        self.register_buffer("valid", mask, persistent=False)

    def between(self, a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows and columns of the matrix."""
        return self.matrix.index_select(0, a).index_select(1, b).to(dtype)

    def known(self, a: Tensor, b: Tensor) -> Tensor | None:
        """Rows and columns of `valid`."""
        return None if self.valid is None else self.valid.index_select(0, a).index_select(1, b)


class PairMatrix(ClassMatrix):
    """Y of the pairs of one batch: each example is a class of its own."""

    def check_proxies(self, count: int) -> None:
        """Pairs of examples say nothing of proxies."""
        raise LabelError(
            f"labels: a matrix of pairs says nothing of the {count} proxies of the loss; give multi-label or "
            "hierarchical labels, or choose a loss of pairs, such as MultiSimilarity"
        )


class Hierarchy(Relation):
    """Classes in groups: Y is 1 within a class, `weight` within a group, 0 otherwise.

    Args:
        coarse_of: (classes,), the number of the group of each class.
        weight: Y of two examples of one group but of different classes.
        positive_above: as in every relation.

    >>> birds_and_cars = Hierarchy([0, 0, 1], weight=0.3)
    >>> birds_and_cars.between(torch.tensor([0]), torch.tensor([0, 1, 2]))
    tensor([[1.0000, 0.3000, 0.0000]])
    """

    coarse_of: Tensor

    def __init__(self, coarse_of: Any, weight: float = 0.5, positive_above: float = 0.5) -> None:
        groups = as_tensor("coarse_of", coarse_of)
        if groups.ndim != 1 or groups.dtype not in INTEGERS:
            raise ShapeError(
                f"coarse_of: expected an integer for each class, got {groups.dtype} of shape {tuple(groups.shape)}"
            )
        super().__init__(len(groups), positive_above)
        self.weight = check_number("weight", weight, least=0)
        if self.weight > 1:
            raise InvalidInput(f"weight: expected a number from 0 to 1, got {weight}")
        self.register_buffer("coarse_of", groups.to(torch.int64), persistent=False)

    def between(self, a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """1 within a class, `weight` within a group."""
        alike = self.coarse_of[a].unsqueeze(1) == self.coarse_of[b].unsqueeze(0)
        same = a.unsqueeze(1) == b.unsqueeze(0)
        return (alike.to(dtype) * self.weight).masked_fill_(same, 1.0)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{super().extra_repr()}, weight={self.weight}"


@dataclass(frozen=True)
class SetRelation(Choice):
    """How positive two sets of labels are to each other, from indicators A (a, labels) and B (b, labels)."""

    function: Callable[[Tensor, Tensor], Tensor]


def _jaccard(A: Tensor, B: Tensor) -> Tensor:
    shared = A @ B.T
    union = A.square().sum(1).unsqueeze(1) + B.square().sum(1).unsqueeze(0) - shared
    return torch.where(union > 0, shared / torch.where(union > 0, union, 1.0), 0.0).clamp(0.0, 1.0)


def _any(A: Tensor, B: Tensor) -> Tensor:
    return (A @ B.T > 0).to(A.dtype)


def _all(A: Tensor, B: Tensor) -> Tensor:
    differ = A.square().sum(1).unsqueeze(1) + B.square().sum(1).unsqueeze(0) - 2.0 * (A @ B.T)
    return ((differ <= 0) & (A.sum(1) > 0).unsqueeze(1)).to(A.dtype)


SET_RELATIONS: dict[str, SetRelation] = by_name(
    SetRelation("jaccard", "labels that both have, as a share of those that either has", "", _jaccard),
    SetRelation("any", "1 with a label in common, else 0", "", _any),
    SetRelation("all", "1 with the same labels, else 0", "", _all),
)


class LabelSets(Relation):
    """Classes that are sets of labels; Y is given by how much two sets have in common.

    An example without labels is nobody's positive. Proxies, if the loss has them, stand for labels, not for sets:
    proxy c is positive to the examples that have the label c.

    Args:
        indicators: (classes, labels), 1 where a class has a label, else 0.
        relation: a name of `SET_RELATIONS`: "jaccard", "any" or "all".
        positive_above: as in every relation; with 0, one label in common makes a positive.

    >>> beach = LabelSets([[1, 1, 0], [1, 0, 0], [0, 0, 1]])  # sea and sand, sea, snow
    >>> beach.between(torch.tensor([0]), torch.tensor([0, 1, 2]))
    tensor([[1.0000, 0.5000, 0.0000]])
    """

    indicators: Tensor

    def __init__(self, indicators: Any, relation: str = "jaccard", positive_above: float = 0.0) -> None:
        T = as_real("indicators", indicators)
        if T.ndim != 2 or 0 in T.shape:
            raise ShapeError(f"indicators: expected a matrix (examples, labels), got shape {tuple(T.shape)}")
        if not bool(((T == 0) | (T == 1)).all()):
            raise LabelError("indicators: expected 1 where an example has a label and 0 elsewhere, got other numbers")
        super().__init__(len(T), positive_above)
        self.relation = find("relation", relation, SET_RELATIONS)
        self.register_buffer("indicators", T.float(), persistent=False)

    def between(self, a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Y of two sets."""
        A, B = (self.indicators.index_select(0, numbers).to(dtype) for numbers in (a, b))
        return self.relation.function(A, B)

    def check_proxies(self, count: int) -> None:
        """There must be one proxy for each label."""
        labels = self.indicators.shape[1]
        if count != labels:
            raise LabelError(
                f"{count} proxies for {labels} labels: expected one proxy for each label that an example can have; "
                f"give the loss num_classes={labels}, or indicators of {count} columns"
            )

    def to_proxies(self, a: Tensor, proxies: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """1 for the proxies of the labels that an example has."""
        return self.indicators.index_select(0, a).index_select(1, proxies).to(dtype)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{super().extra_repr()}, labels={self.indicators.shape[1]}, relation={self.relation.name!r}"


@dataclass(frozen=True, eq=False)
class GradedLabels:
    """Labels of a batch that are not one class: a number for each example, and how positive numbers are to each other.

    `metrix.labels` has functions that make them.
    """

    numbers: Tensor  # (n,)  int64
    relation: Relation

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> GradedLabels:
        """The labels of some examples."""
        return GradedLabels(self.numbers[rows], self.relation)

    def matrix(self) -> Tensor:
        """Y (n, n) of all pairs of the batch."""
        return self.relation.between(self.numbers, self.numbers)

    def to(self, device: torch.device) -> GradedLabels:
        """The same on a device."""
        return GradedLabels(self.numbers.to(device), self.relation.beside(device))
