"""Which of many unlabelled items to label next, from their vectors: one table of strategies.

Each strategy looks at s(x), how similar an item is to the nearest labelled or chosen one, at how sure the classes of
the index are, or at both. None takes two items that are near-copies of each other, or one of a labelled item.

    coverage   argmin s(x): the farthest from all that is labelled (k-centre, greedy)
    typical    argmax sum over items y of max(0, s(x, y) - s(y)): the most items gain a near label (facility location)
    unsure     the same, where an item y counts by how unsure its class is
    margin     the smallest difference between the probabilities of the best two classes
    random     any, as the baseline

Greedy steps are exact: what was compared with fewer chosen items than there are now is a bound, and brought up to date
once it comes first. Vectors are read in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metrix.errors import unknown_choice

BLOCK = 2048  # items that are brought up to date together
REFERENCES = 4096  # items that stand for all where it is summed over them

OnChosen = Callable[[int, int], object]  # called with (chosen, wanted)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Unlabelled items, by their place from 0.

    Args:
        read: gives the unit vectors (m, d) of some places.
        similarity: of each to the nearest labelled item; -1 if there is none.
        margin: the difference between the probabilities of the best two classes; None if there are no classes.
    """

    read: Callable[[NDArray[np.int64]], NDArray[np.float32]]
    similarity: NDArray[np.float32]  # (n,)
    margin: NDArray[np.float32] | None = None  # (n,)

    def __len__(self) -> int:
        return len(self.similarity)

    def read_blocks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """All places with their vectors, some at a time."""
        for start in range(0, len(self), BLOCK):
            places = np.arange(start, min(start + BLOCK, len(self)))
            yield places, self.read(places)


@dataclass(eq=False)
class _Chosen:
    """What is chosen so far, and how similar each candidate is to the nearest labelled or chosen item."""

    candidates: Candidates
    threshold: float  # from which on two items are near-copies
    places: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nearest = self.candidates.similarity.copy()
        self._compared = np.zeros(len(self.nearest), dtype=np.int32)  # with how many of the chosen
        self._vectors: list[NDArray[np.float32]] = []

    def update(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Bring the similarities of some candidates up to date, and return their vectors."""
        vectors = self.candidates.read(places)
        behind = int(self._compared[places].min(initial=len(self.places)))
        if behind < len(self.places):
            found = (vectors @ np.stack(self._vectors[behind:]).T).max(axis=1)
            self.nearest[places] = np.maximum(self.nearest[places], found)
            self._compared[places] = len(self.places)
        return vectors

    def is_current(self, place: int) -> bool:
        """Whether the similarity of a candidate is up to date."""
        return bool(self._compared[place] == len(self.places))

    def is_copy(self, places: NDArray[np.int64] | int) -> NDArray[np.bool_]:
        """Whether candidates that are up to date are near-copies of labelled or chosen items."""
        return np.asarray(self.nearest[places] >= self.threshold)

    def add(self, place: int) -> None:
        """Choose a candidate."""
        self._vectors.append(self.candidates.read(np.array([place]))[0])
        self.places.append(place)
        self.nearest[place], self._compared[place] = np.inf, np.iinfo(np.int32).max


Strategy = Callable[[_Chosen, int, np.random.Generator], Iterator[int]]


def _take_in_order(chosen: _Chosen, order: NDArray[np.int64]) -> Iterator[int]:
    for start in range(0, len(order), BLOCK):
        some = order[start : start + BLOCK]
        chosen.update(some)
        for place in some[~chosen.is_copy(some)].tolist():
            chosen.update(np.array([place]))
            if not chosen.is_copy(place):
                yield place


def _choose_randomly(chosen: _Chosen, n: int, rng: np.random.Generator) -> Iterator[int]:
    yield from _take_in_order(chosen, rng.permutation(len(chosen.candidates)))


def _choose_by_margin(chosen: _Chosen, n: int, rng: np.random.Generator) -> Iterator[int]:
    assert chosen.candidates.margin is not None
    yield from _take_in_order(chosen, np.argsort(chosen.candidates.margin, kind="stable"))


def _choose_by_coverage(chosen: _Chosen, n: int, rng: np.random.Generator) -> Iterator[int]:
    count = len(chosen.candidates)
    while True:
        place = int(chosen.nearest.argmin())
        if chosen.is_copy(place):
            return  # as are all others: similarities only grow
        if chosen.is_current(place):
            yield place
        else:
            least = np.append(np.argpartition(chosen.nearest, min(BLOCK, count) - 1)[:BLOCK], place)
            chosen.update(least[np.isfinite(chosen.nearest[least])])


def _choose_typical(chosen: _Chosen, n: int, rng: np.random.Generator) -> Iterator[int]:
    yield from _cover(chosen, rng, lambda places: np.ones(len(places), np.float32))


def _choose_unsure(chosen: _Chosen, n: int, rng: np.random.Generator) -> Iterator[int]:
    margin = chosen.candidates.margin
    assert margin is not None
    yield from _cover(chosen, rng, lambda places: 1 - margin[places])


def _cover(
    chosen: _Chosen, rng: np.random.Generator, weigh: Callable[[NDArray[np.int64]], NDArray[np.float32]]
) -> Iterator[int]:
    """Candidates by how much they add to the similarity of all items to the nearest labelled or chosen one."""
    candidates, count = chosen.candidates, len(chosen.candidates)
    places = np.sort(rng.permutation(count)[:REFERENCES])
    references, weights = candidates.read(places), weigh(places)
    covered = candidates.similarity[places].astype(np.float32)

    def gain(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = np.maximum(vectors @ references.T - covered, 0) @ weights
        return found

    gains = np.concatenate([gain(vectors) for _, vectors in candidates.read_blocks()])
    current = np.zeros(count, dtype=np.int32)
    turn = 0
    while True:
        place = int(gains.argmax())
        if not np.isfinite(gains[place]):
            return
        if current[place] == turn:
            gains[place] = -np.inf
            chosen.update(np.array([place]))
            if chosen.is_copy(place):
                continue
            yield place
            turn += 1
            covered = np.maximum(covered, references @ candidates.read(np.array([place]))[0])
        else:
            some = min(BLOCK // 8, count)
            best = np.append(np.argpartition(-gains, some - 1)[:some], place)  # of equal ones, others may come first
            best = best[np.isfinite(gains[best]) & (current[best] < turn)]
            gains[best] = gain(candidates.read(best))
            current[best] = turn


STRATEGIES: dict[str, Strategy] = {
    "coverage": _choose_by_coverage,
    "typical": _choose_typical,
    "unsure": _choose_unsure,
    "margin": _choose_by_margin,
    "random": _choose_randomly,
}
BY_CLASSES = ("unsure", "margin")  # need labels
DEFAULT = "typical"


def choose_places(
    candidates: Candidates,
    n: int,
    strategy: str,
    threshold: float,
    *,
    seed: int = 0,
    progress: OnChosen | None = None,
) -> list[int]:
    """The places of up to n candidates, the best first; fewer if all others are near-copies."""
    if strategy not in STRATEGIES:
        raise unknown_choice("strategy", strategy, STRATEGIES)
    chosen = _Chosen(candidates, threshold)
    if not len(candidates):
        return []
    for place in STRATEGIES[strategy](chosen, n, np.random.default_rng(seed)):
        chosen.add(place)
        if progress is not None:
            progress(len(chosen.places), n)
        if len(chosen.places) == n:
            break
    return chosen.places
