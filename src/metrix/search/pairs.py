"""From which similarity on are two images the same thing? Counted over all pairs of held-out images.

With t a similarity, TP(t) and FP(t) the pairs of one class and of two classes that are at least that similar,

    precision(t) = TP / (TP + FP)     recall(t) = TP / all pairs of one class     far(t) = FP / all pairs of two

Pairs are counted in bins of similarity 0.0002 wide, so memory does not grow with their number, and a threshold is
the edge of a bin: the precision, recall and false-accept rate stated for it are exact counts.

Intervals are of a bootstrap over classes: images of one class are not independent. A class that is drawn twice counts
twice, on either side of a pair: with w_c the number of times that class c was drawn, a pair within c has weight w_c and
a pair of two classes c and d has weight w_c w_d. Where the similarity of two classes has little to do with either of
them, this errs on the wide side. Of more than 100 classes, 100 groups are drawn instead, into which the classes are
dealt at random, so that work and memory do not grow with their number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError, ShapeError, check_integer, unknown_choice
from metrix.evaluate.bootstrap import expanded_tail
from metrix.search.description import Threshold
from metrix.search.items import unit_vectors

BINS = 10_000
BLOCK_BYTES = 64 << 20  # of similarities at a time
TARGETS = ("precision", "recall", "far")
MOST_UNITS = 100  # that a bootstrap draws: classes, or groups of classes


@dataclass(frozen=True, eq=False)
class Pairs:
    """How many pairs of one class and of two are how similar; `edges[j]` is where bin j begins."""

    same: NDArray[np.int64]  # (bins,)
    different: NDArray[np.int64]  # (bins,)
    images: int
    classes: int
    units: int  # that were resampled: classes, or groups of classes
    resampled_same: NDArray[np.float64] = field(repr=False)  # (resamples, bins)
    resampled_different: NDArray[np.float64] = field(repr=False)

    @property
    def edges(self) -> NDArray[np.float64]:
        """The similarities that thresholds are chosen from, -1 to 1."""
        return np.linspace(-1.0, 1.0, BINS + 1)

    def curves(self) -> dict[str, NDArray[np.float64]]:
        """`similarity`, and precision, recall and far at each; precision is NaN where no pair is that similar."""
        precision, recall, far = _rates(self.same[None], self.different[None])
        return {"similarity": self.edges, "precision": precision[0], "recall": recall[0], "far": far[0]}

    def threshold(self, target: str, wanted: float, confidence: float = 0.95) -> Threshold:
        """The similarity that reaches a precision or recall of at least `wanted`, or a false-accept rate of at most.

        For precision and false-accept rate it is the lowest such similarity, for recall the highest.
        """
        if target not in TARGETS:
            raise unknown_choice("target", target, TARGETS)
        if not 0 < wanted < 1:
            raise InvalidInput(f"{target}: expected a fraction between 0 and 1, as 0.99, got {wanted}")
        precision, recall, far = _rates(self.same[None], self.different[None])
        chosen = int(_choose(target, wanted, precision, recall, far)[0])
        if chosen < 0:
            best = int(np.nanargmax(precision[0]))
            raise InvalidInput(
                f"precision: expected at most {precision[0, best]:.4f}, the highest that these examples reach (at "
                f"similarity {self.edges[best]:.4f}), got {wanted}"
            )
        low = high = float(self.edges[chosen])
        if len(self.resampled_same):
            found = _choose(target, wanted, *_rates(self.resampled_same, self.resampled_different))
            values = np.where(found < 0, 1.0, self.edges[np.maximum(found, 0)])  # never reached: nothing is accepted
            tail = expanded_tail(confidence, self.units)
            low, high = (float(value) for value in np.quantile(values, [tail, 1 - tail]))
        return Threshold(
            similarity=float(self.edges[chosen]),
            low=low,
            high=high,
            target=target,
            wanted=wanted,
            precision=float(np.nan_to_num(precision[0, chosen], nan=1.0)),
            recall=float(recall[0, chosen]),
            far=float(far[0, chosen]),
        )

    def intervals(self, similarity: float, confidence: float = 0.95) -> dict[str, tuple[float, float]]:
        """The confidence intervals of precision, recall and far at a similarity; none without resamples.

        Resamples that accept no pair at all say nothing about precision and are left out of its interval.
        """
        if not len(self.resampled_same):
            return {}
        chosen = int(np.searchsorted(self.edges, similarity - 1e-9))
        tail = expanded_tail(confidence, self.units)
        found = {}
        for name, rate in zip(TARGETS, _rates(self.resampled_same, self.resampled_different), strict=True):
            values = rate[:, chosen][~np.isnan(rate[:, chosen])]
            low, high = np.quantile(values, [tail, 1 - tail]) if len(values) else (0.0, 1.0)
            found[name] = (float(low), float(high))
        return found


def count_pairs(vectors: object, labels: Any, resamples: int = 500, seed: int = 0) -> Pairs:
    """Count all pairs of labelled vectors (n, d) by similarity, in bounded memory; 0 `resamples` give no interval.

    >>> pairs = count_pairs([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], ["a", "a", "b"], resamples=0)
    >>> pairs.threshold("recall", 0.9).similarity
    0.8
    """
    unit = unit_vectors(vectors)
    names = np.asarray(labels)
    if names.shape != (len(unit),):
        raise ShapeError(f"labels: expected one for each of {len(unit)} vectors, got shape {names.shape}")
    check_integer("resamples", resamples, 0)
    known, numbers = np.unique(names, return_inverse=True)
    draws = np.random.default_rng(seed)
    units = min(len(known), MOST_UNITS)
    if units < len(known):  # deal the classes into groups, each of which is then a range of classes
        numbers = draws.permutation(len(known))[numbers]
    unit_of = np.arange(len(known)) * units // len(known)
    order = np.argsort(numbers, kind="stable")
    unit, numbers = np.ascontiguousarray(unit[order]), numbers[order]
    ends = np.searchsorted(numbers, np.arange(len(known)), side="right")
    starts = np.concatenate([[0], ends[:-1]])
    if (ends - starts).max() < 2 or len(known) < 2:
        raise LabelError(
            f"labels: expected two classes, one of them with two examples, got {len(known)} in {len(unit)} examples"
        )
    times = np.zeros((resamples, units))
    for b in range(resamples):
        times[b] = np.bincount(draws.integers(units, size=units), minlength=units)
    pairs = Pairs(
        np.zeros(BINS, np.int64),
        np.zeros(BINS, np.int64),
        len(unit),
        len(known),
        units,
        np.zeros((resamples, BINS)),
        np.zeros((resamples, BINS)),
    )
    rows_at_once = max(1, min(2048, BLOCK_BYTES // (4 * len(unit))))
    across = 0.0  # pairs of classes in two units
    for first in range(0, len(unit), rows_at_once):
        rows = range(first, min(first + rows_at_once, len(unit)))
        across += _count_block(pairs, unit, numbers, starts, ends, rows, unit_of, times)
    if resamples:  # the expectation of w_c w_d is below 1, and pairs within a group of classes are not resampled
        pairs.resampled_different[:] *= pairs.different.sum() / (across * (1 - 1 / units))
    return pairs


def _count_block(
    pairs: Pairs,
    unit: NDArray[np.float32],  # sorted by class
    numbers: NDArray[np.intp],
    starts: NDArray[np.intp],
    ends: NDArray[np.intp],
    rows: range,
    unit_of: NDArray[np.intp],  # (classes,) the unit that each class belongs to
    times: NDArray[np.float64],  # (resamples, units) how often each unit was drawn
) -> float:
    """Add the pairs of some rows with all others; returns how many are of two units."""
    S = unit[rows.start : rows.stop] @ unit.T
    S += 1.0
    S *= BINS / 2
    bins = np.clip(S, 0, BINS - 1).astype(np.int16 if BINS < 1 << 15 else np.int32)
    present = np.unique(numbers[rows.start : rows.stop])
    same = np.zeros((len(present), BINS))
    different = np.zeros((len(present), BINS))
    for n, c in enumerate(present):
        a, b = max(starts[c], rows.start), min(ends[c], rows.stop)
        mine = bins[a - rows.start : b - rows.start]
        within = np.bincount(mine[:, starts[c] : ends[c]].reshape(-1), minlength=BINS)
        everything = np.bincount(mine.reshape(-1), minlength=BINS)
        itself = np.bincount(mine[np.arange(b - a), np.arange(a, b)], minlength=BINS)
        same[n], different[n] = within - itself, everything - within
    pairs.same[:] += same.sum(axis=0).astype(np.int64)
    pairs.different[:] += different.sum(axis=0).astype(np.int64)
    if not len(times):
        return 0.0
    pairs.resampled_same[:] += times[:, unit_of[present]] @ same
    across = 0.0
    unit_of_row = unit_of[numbers[rows.start : rows.stop]]
    columns = (unit_of[numbers] * BINS).astype(np.int32)  # a two-dimensional histogram, by unit and bin
    for u in np.unique(unit_of_row):
        mine = bins[unit_of_row == u] + columns
        by_unit = np.bincount(mine.reshape(-1), minlength=times.shape[1] * BINS).reshape(-1, BINS)
        by_unit[u] = 0
        across += float(by_unit.sum())
        pairs.resampled_different[:] += times[:, [u]] * (times @ by_unit)
    return across


def _rates(same: NDArray[Any], different: NDArray[Any]) -> tuple[NDArray[np.float64], ...]:
    """Precision, recall and false-accept rate (n, bins + 1) at each edge; the last edge accepts nothing."""
    none = np.zeros((len(same), 1))
    true = np.concatenate([np.cumsum(same[:, ::-1], axis=1)[:, ::-1], none], axis=1)
    false = np.concatenate([np.cumsum(different[:, ::-1], axis=1)[:, ::-1], none], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return true / (true + false), true / true[:, :1], false / false[:, :1]


def _choose(
    target: str,
    wanted: float,
    precision: NDArray[np.float64],
    recall: NDArray[np.float64],
    far: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The edge that reaches what is wanted, in each row; -1 where none does."""
    if target == "recall":
        reached = recall >= wanted
        last = reached.shape[1] - 1 - np.argmax(reached[:, ::-1], axis=1)
        return np.where(reached.any(axis=1), last, -1)
    reached = precision >= wanted if target == "precision" else far <= wanted
    return np.where(reached.any(axis=1), np.argmax(reached, axis=1), -1)
