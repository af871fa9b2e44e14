"""Labels of a batch in other forms than integers: names, sets of labels, two levels, and a matrix of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metrix.core.relations import GradedLabels, Hierarchy, LabelSets, PairMatrix
from metrix.core.tensors import INTEGERS, as_tensor
from metrix.core.validation import as_class_numbers
from metrix.errors import LabelError, ShapeError
from metrix.messages import first_few


def pairwise(Y: Any, valid: Any = None, positive_above: float = 0.5) -> GradedLabels:
    """Labels of the pairs of a batch: Y (n, n), how positive example k is to anchor a.

    Args:
        Y: in [0, 1]; the diagonal is not used. It need not be symmetric.
        valid: (n, n), bool: the pairs that count; None: all.
        positive_above: in mixing pairs, candidates with a larger Y are positives of the anchor, all others negatives.

    >>> from metrix import Metrix, losses
    >>> Y = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, 0.1], [0.0, 0.1, 1.0]])
    >>> loss = Metrix(losses.MultiSimilarity(), mixup="embed")(torch.randn(3, 8), pairwise(Y))
    """
    relation = PairMatrix(as_tensor("Y", Y), None if valid is None else as_tensor("valid", valid), positive_above)
    return GradedLabels(torch.arange(relation.num_classes, device=relation.matrix.device), relation)


def multi_label(
    given: Any, relation: str = "jaccard", classes: Sequence[Any] | None = None, positive_above: float = 0.0
) -> GradedLabels:
    """Labels of examples that have several labels each, or none.

    Args:
        given: a matrix (n, labels) of 0 and 1, or for each example the set (or list) of its labels.
        relation: Y of two examples: "jaccard", the labels that both have as a share of those that either has; "any", 1
            with a label in common; "all", 1 with the same labels.
        classes: with sets, all labels that there are, in the order of the proxies of the loss; by default those that
            occur, which is enough for a loss without proxies.
        positive_above: in mixing pairs, candidates with a larger Y are positives of the anchor, all others negatives;
            with 0, those with a label in common are positives.

    >>> multi_label([{"sea", "sand"}, {"sea"}, {"snow"}]).matrix()
    tensor([[1.0000, 0.5000, 0.0000],
            [0.5000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    indicators = _indicators(given, classes) if _is_list_of_sets(given) else as_tensor("labels", given)
    made = LabelSets(indicators, relation, positive_above)
    return GradedLabels(torch.arange(made.num_classes, device=indicators.device), made)


def hierarchical(fine: Any, coarse: Any, weight: float = 0.5, positive_above: float = 0.5) -> GradedLabels:
    """Labels on two levels: Y is 1 for examples of one fine class, `weight` for those of one coarse class only.

    Args:
        fine: (n,), integers or names.
        coarse: (n,), the same of the coarser level; a fine class lies in one coarse class.
        weight: from 0, where the coarse level does not count, to 1, where only it does.
        positive_above: in mixing pairs, candidates with a larger Y are positives of the anchor, all others negatives.

    For a loss with proxies, which are those of the fine classes, give the objective a `Hierarchy` of all classes:
    `objective.with_relation(Hierarchy(coarse_of, weight))`.

    >>> hierarchical(["sparrow", "finch", "sedan"], ["bird", "bird", "car"], weight=0.3).matrix()
    tensor([[1.0000, 0.3000, 0.0000],
            [0.3000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    columns = [_class_column(name, given) for name, given in (("fine", fine), ("coarse", coarse))]
    if columns[0].ndim != 1 or columns[0].shape != columns[1].shape:
        shapes = " and ".join(str(tuple(column.shape)) for column in columns)
        raise ShapeError(f"fine and coarse labels: expected two of shape (n,), got {shapes}")
    classes, numbers = torch.unique(columns[0], return_inverse=True)
    coarse_of = columns[1].new_zeros(len(classes)).scatter_(0, numbers, columns[1])
    if not torch.equal(coarse_of[numbers], columns[1]):
        rows = (coarse_of[numbers] != columns[1]).nonzero().flatten().tolist()
        raise LabelError(
            "coarse labels: expected one for each fine label, got several: the rows "
            f"{first_few(rows)} have another one than an earlier row of their fine class"
        )
    return GradedLabels(numbers, _OfBatch(coarse_of, weight, positive_above))


def _class_column(name: str, given: Any) -> Tensor:
    """The labels of one level in int64."""
    column = as_class_numbers(name, given)
    if column.dtype not in INTEGERS:
        raise LabelError(
            f"{name}: expected integers, such as torch.int64, or names of classes, got {column.dtype}; number the "
            "classes, or call .long()"
        )
    return column.to(torch.int64)


class _OfBatch(Hierarchy):
    """A hierarchy of the classes of one batch, whose numbers are not those of proxies."""

    def check_proxies(self, count: int) -> None:
        """Classes are numbered by the batch."""
        raise LabelError(
            f"labels: the fine classes of a batch say nothing of the {count} proxies of the loss; number the classes, "
            "and give the objective their groups: objective.with_relation(metrix.labels.Hierarchy(coarse_of, weight))"
        )


def number(names: Any, classes: Sequence[str] | None = None) -> tuple[Tensor, list[str]]:
    """Numbers from 0 for the names of classes, and the classes in that order: what losses with proxies take.

    Args:
        names: (n,), the class of each example.
        classes: all classes; those of `names`, sorted, by default.

    >>> number(["finch", "sedan", "finch"])
    (tensor([0, 1, 0]), ['finch', 'sedan'])
    """
    try:
        given = np.asarray(names, dtype=str).tolist()
    except (TypeError, ValueError) as error:
        raise LabelError(
            f"labels: expected a list of names, one for each example, got {type(names).__name__} ({error})"
        ) from None
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise LabelError(f"labels: expected a list of names, one for each example, got {type(names).__name__}")
    known = sorted(set(given)) if classes is None else list(classes)
    place = {name: k for k, name in enumerate(known)}
    missing = sorted({name for name in given if name not in place})
    if missing:
        raise LabelError(f"labels: expected names of the {len(known)} classes given, got {first_few(missing)}")
    return torch.tensor([place[name] for name in given]), known


def as_labels(given: Any) -> Tensor | GradedLabels:
    """Labels in any form that an objective takes: integers, names of classes, a list of sets, or `GradedLabels`."""
    if isinstance(given, Tensor | GradedLabels):
        return given
    return multi_label(given) if _is_list_of_sets(given) else as_class_numbers("labels", given)


def _is_list_of_sets(given: Any) -> bool:
    return (isinstance(given, Sequence) and any(isinstance(x, set | frozenset) for x in given)) or _is_ragged(given)


def _is_ragged(given: Any) -> bool:
    """Whether it is a list of lists of names, which are sets of labels in no order."""
    if not isinstance(given, list | tuple) or not all(isinstance(x, list | tuple) for x in given):
        return False
    return any(isinstance(name, str) for x in given for name in x)


def _indicators(given: Sequence[Iterable[Any]], classes: Sequence[Any] | None) -> Tensor:
    """(n, labels)  1 where an example has a label."""
    wrong = [type(x).__name__ for x in given if not isinstance(x, set | frozenset | list | tuple)]
    if wrong:
        raise LabelError(f"labels: expected a set of labels for each example, got {first_few(wrong)} among them")
    occurring = {name for x in given for name in x}
    if classes is None and occurring and all(isinstance(name, int) and name >= 0 for name in occurring):
        # numbers of labels, which are those of proxies too
        classes = range(max(occurring) + 1) if max(occurring) < 100_000 else sorted(occurring)
    known = list(classes) if classes is not None else sorted(occurring, key=str)
    place = {name: k for k, name in enumerate(known)}
    missing = sorted((name for name in occurring if name not in place), key=str)
    if missing:
        raise LabelError(f"labels: expected labels among the {len(known)} classes given, got {first_few(missing)}")
    out = torch.zeros(len(given), max(len(known), 1))
    for row, x in zip(out, given, strict=True):
        row[[place[name] for name in x]] = 1.0
    return out
