"""How well adapters let a new model search the vectors of an old one, on images that none of them was fitted on.

Every image is a query once, through adapters that were fitted without its class (or, where there are too few classes,
without itself), among all the images by the old model. Its own item is left out of its answer, unless there are no
labels: then its own item is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrix.errors import InvalidInput
from metrix.evaluate.cross_model import CrossRecall, measure_across_models
from metrix.search.adapters import (
    ADAPTERS,
    MINIMUM,
    Vectors,
    check_pairs,
    fit_adapter,
    mean_cosine,
    require_kind,
    split_groups,
)
from metrix.train.batches import Report, ignore_report

FOLDS = 5
FEWEST = MINIMUM * FOLDS // (FOLDS - 1)  # images, to fit on all parts but one
OLD, NEW = "old", "new"  # the old model alone, and the new one with all images embedded again


@dataclass(frozen=True, eq=False)
class MeasuredAdapters:
    """What each adapter does to retrieval, and on what that was measured."""

    searches: Mapping[str, CrossRecall]  # by OLD, NEW and the keys of ADAPTERS
    cosines: Mapping[str, float]  # by adapter: the mean cosine of a mapped vector with that of the old model
    chosen: str
    mapped: Mapping[str, Vectors]  # (n, d) the queries by each adapter, which was not fitted on them
    images: int
    classes: int | None  # None: no labels
    queries: int  # with another image of their class to find
    held_out: str  # classes or images
    chance: float  # Recall@1 of a random order

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        about = {name: getattr(self, name) for name in ("images", "classes", "queries", "held_out", "chance", "chosen")}
        searches = {name: {**one.to_dict(), "cosine": self.cosines.get(name)} for name, one in self.searches.items()}
        return {**about, "searches": searches}


def measure_adapters(
    new: object,
    old: object,
    labels: Sequence[Any] | None,
    kinds: Sequence[str] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    report: Report = ignore_report,
) -> MeasuredAdapters:
    """Fit every kind of adapter without each fifth of the classes, and search with those.

    The one of the highest Recall@1 is chosen; of equal ones, the simplest.

    Args:
        new, old: (n, d') and (n, d), the same images by both models.
        labels: the class of each; None if there are none. With fewer than five classes, or one that nearly all images
            are of, images are held out alone.
        kinds: of adapters; all that fit the dimensions by default.
        resamples: of the bootstrap, for intervals; 0 for none.
        seed: of the folds, the adapters and the bootstrap.
        report: is called with the progress.

    Raises:
        InvalidInput: there are fewer than 25 images, or no class has two.
    """
    x, y = check_pairs(new, old)
    if len(x) < FEWEST:
        raise InvalidInput(
            f"pairs: expected at least {FEWEST} images embedded by both models, to fit an adapter and measure it on "
            f"others, got {len(x)}; 1,000 often suffice"
        )
    for kind in kinds or ():
        require_kind(kind, x.shape[1], y.shape[1])
    chosen_kinds = list(kinds or (kind for kind in ADAPTERS if kind != "identity" or x.shape[1] == y.shape[1]))
    names = np.arange(len(x)) if labels is None else np.asarray([str(one) for one in labels])
    groups, by_class = names, len(np.unique(names)) >= FOLDS and labels is not None
    folds = list(split_groups(groups, FOLDS, seed))
    if not by_class or min(int((~held_out).sum()) for held_out in folds) < MINIMUM:
        groups, by_class = np.arange(len(x)), False
        folds = list(split_groups(groups, FOLDS, seed))
    mapped = {kind: np.empty_like(y) for kind in chosen_kinds}
    for number, held_out in enumerate(folds):
        for kind in chosen_kinds:
            report("fitting adapters", number * len(mapped) + list(mapped).index(kind), len(folds) * len(mapped))
            fitted = fit_adapter(x[~held_out], y[~held_out], kind, groups[~held_out], seed)
            mapped[kind][held_out] = fitted(x[held_out])
    report("fitting adapters", len(folds) * len(mapped), len(folds) * len(mapped))
    sides = {OLD: (y, y), NEW: (x, x), **{kind: (z, y) for kind, z in mapped.items()}}
    found = measure_across_models(sides, None if labels is None else names, resamples=resamples, seed=seed)
    cosines = {kind: mean_cosine(z, y) for kind, z in mapped.items()}
    best = max(chosen_kinds, key=lambda kind: found.searches[kind].recall)  # the first, the simplest, of equal ones
    classes = None if labels is None else len(np.unique(names))
    held = "classes" if by_class else "images"
    return MeasuredAdapters(found.searches, cosines, best, mapped, len(y), classes, found.queries, held, found.chance)
