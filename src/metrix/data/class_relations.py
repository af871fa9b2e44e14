"""How positive the classes of a dataset are to each other: sets of labels, or categories of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from metrix.data.catalogue import Catalogue
from metrix.errors import DataError
from metrix.messages import first_few

if TYPE_CHECKING:
    from metrix.core.relations import Relation


def build_relation(
    catalogue: Catalogue, class_names: Sequence[str], category_weight: float = 0.0, label_relation: str = "jaccard"
) -> Relation | None:
    """How positive some classes of a catalogue, by their number in `class_names`, are to each other.

    Args:
        catalogue: its classes are sets of labels, or lie in categories, or neither.
        class_names: the classes.
        category_weight: how positive images of one category but of different classes are; 0: not at all.
        label_relation: how positive two sets of labels are: a name of `SET_RELATIONS`.

    Returns:
        The relation; None where labels are plain classes.
    """
    from metrix.core.relations import Hierarchy, LabelSets

    if catalogue.separator is not None:
        if category_weight > 0:
            raise DataError(
                f"category_weight: expected 0 with several labels for each image, got {category_weight:g}; a category "
                "can be one of the labels"
            )
        sets = [name.split(catalogue.separator) for name in class_names]
        place = {label: k for k, label in enumerate(sorted({label for labels in sets for label in labels}))}
        indicators = np.zeros((len(sets), len(place)), dtype=np.int64)
        for row, labels in zip(indicators, sets, strict=True):
            row[[place[label] for label in labels]] = 1
        return LabelSets(indicators, label_relation)
    if category_weight == 0:
        return None
    category = _categories(catalogue)
    groups = {name: k for k, name in enumerate(sorted({category[name] for name in class_names}))}
    return Hierarchy([groups[category[name]] for name in class_names], category_weight)


def describe_relation(relation: Relation) -> str:
    """A sentence on what positives are with a relation, for the user."""
    from metrix.core.relations import Hierarchy, LabelSets

    if isinstance(relation, Hierarchy):
        kind = f"images of one category are positive to the degree {relation.weight:g}, of one class 1"
        counted = "of the same category" if relation.weight > relation.positive_above else "of the same class"
    else:
        assert isinstance(relation, LabelSets), "a dataset has sets of labels or categories"
        kind = (
            f"images have {relation.indicators.shape[1]} labels in all; degree of two images: {relation.relation.line}"
        )
        counted = "with the same labels" if relation.relation.name == "all" else "with a label in common"
    return f"{kind}. Recall@K counts images {counted}, NDCG@K the degrees"


def _categories(catalogue: Catalogue) -> dict[str, str]:
    """The category of each class."""
    if catalogue.categories is None:
        raise DataError(
            f"category_weight: the {catalogue.layout} dataset has no categories; add a column 'category' to a "
            "manifest, or leave category_weight at 0"
        )
    found: dict[str, set[str]] = {}
    for label, category in zip(catalogue.labels.tolist(), catalogue.categories, strict=True):
        found.setdefault(catalogue.class_names[label], set()).add(category)
    several = [f"{name} ({', '.join(sorted(given))})" for name, given in found.items() if len(given) > 1]
    if several:
        raise DataError(
            f"category: expected one for each class, got several for {first_few(several)}; correct the column, or "
            "leave category_weight at 0"
        )
    missing = [name for name, given in found.items() if given == {""}]
    if missing:
        raise DataError(
            f"category: expected one for each class, got none for {first_few(missing)}; fill the column, or leave "
            "category_weight at 0"
        )
    return {name: next(iter(given)) for name, given in found.items()}
