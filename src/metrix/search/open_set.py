"""From which probability on a query is of an enrolled class: chosen for a wanted share of mistakes of one kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, unknown_choice
from metrix.evaluate.bootstrap import bootstrap_intervals
from metrix.search.calibration import KnownAnswers, fit_calibration, known_probability
from metrix.search.class_scores import VOTERS, EnrolledClasses
from metrix.search.description import OpenSet

TARGETS = ("false_accept", "false_reject")
LARGER_SAMPLE = 10_000  # items that a threshold is chosen on: small rates need many


@dataclass(frozen=True, eq=False)
class ChosenOpenSet:
    """A threshold, and the queries that it was chosen on."""

    open_set: OpenSet
    known: NDArray[np.float64]  # (n,) the probability of being enrolled, of queries that are
    unknown: NDArray[np.float64]  # (m,) the same of queries that are not
    intervals: dict[str, tuple[float, float]]  # of false_accept and false_reject, over classes; none without resamples

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        queries = {"known": len(self.known), "unknown": len(self.unknown)}
        bounds = {name: list(bound) for name, bound in self.intervals.items()}
        return {**self.open_set.model_dump(), "intervals": bounds, "queries": queries}


def choose_open_set(
    answers: KnownAnswers,
    classes: EnrolledClasses,
    target: str,
    wanted: float,
    *,
    k: int = VOTERS,
    resamples: int = 500,
    seed: int = 0,
) -> ChosenOpenSet:
    """Calibrate, and choose the probability below which a query is unknown.

    Args:
        answers: queries whose answer is known.
        classes: that are enrolled.
        target: `false_accept`, the share of the queries of no enrolled class that are accepted, or `false_reject`, the
            share of those of an enrolled class that are rejected.
        wanted: the most that this share may be; the other one is as small as that allows.
        k: neighbours that vote.
        resamples: of the bootstrap over classes, for the intervals; 0 for none.
        seed: of the bootstrap.

    Raises:
        InvalidInput: `wanted` is no share, or smaller than one of the queries.
    """
    flag = check_wanted(target, wanted)
    calibration = fit_calibration(answers, k)
    known, unknown = (known_probability(one, calibration) for one in (answers.known, answers.unknown))
    judged = unknown if target == "false_accept" else known
    if wanted * len(judged) < 1:
        raise InvalidInput(
            f"{flag}: expected at least 1 in {len(judged):,}, the number of queries that it is measured on, got "
            f"{wanted:g}; ask for more, or enrol more images"
        )
    probability = accept_at_most(unknown, wanted) if target == "false_accept" else _reject_at_most(known, wanted)
    mistakes = {"false_accept": unknown >= probability, "false_reject": known < probability}
    units = {"false_accept": answers.unknown_classes, "false_reject": answers.known_classes}
    intervals = {
        name: (float(bounds[0, 0]), float(bounds[0, 1]))
        for name, wrong in mistakes.items()
        if resamples and len(bounds := _bound(wrong, units[name], resamples, seed))
    }
    found = OpenSet(
        calibration=calibration,
        probability=probability,
        target=target,
        wanted=wanted,
        false_accept=float(mistakes["false_accept"].mean()),
        false_reject=float(mistakes["false_reject"].mean()),
        items=int(classes.sizes.sum()),
        classes=len(classes),
    )
    return ChosenOpenSet(found, known, unknown, intervals)


def check_wanted(target: str, wanted: float) -> str:
    """The flag of a target; an error unless there is such a target, and the wanted rate is a share.

    >>> check_wanted("false_accept", 0.01)
    '--false-accept'
    """
    if target not in TARGETS:
        raise unknown_choice("target", target, TARGETS)
    flag = f"--{target.replace('_', '-')}"
    if not 0 < wanted < 1:
        raise InvalidInput(f"{flag}: expected a share between 0 and 1, such as 0.01, got {wanted:g}")
    return flag


def accept_at_most(unknown: NDArray[np.float64], share: float) -> float:
    """The smallest threshold at which at most this share of the values is at or above it.

    >>> accept_at_most(np.array([0.1, 0.2, 0.3, 0.9]), 0.25) > 0.3
    True
    """
    ordered = np.sort(unknown)[::-1]
    allowed = int(share * len(ordered))
    return float(min(np.nextafter(ordered[allowed], 2.0), 1.0))


def _reject_at_most(known: NDArray[np.float64], share: float) -> float:
    """The largest threshold below which at most this share of the values is.

    >>> _reject_at_most(np.array([0.1, 0.2, 0.3, 0.9]), 0.25)
    0.2
    """
    return float(np.sort(known)[int(share * len(known))])


def _bound(wrong: NDArray[np.bool_], units: NDArray[Any], resamples: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return bootstrap_intervals(wrong[:, None].astype(np.float64), units, resamples, 0.95, rng)
