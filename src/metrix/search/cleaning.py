"""What an index shows about its own data: near-identical images, and labels that the neighbours contradict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrix.errors import InvalidInput, LabelError
from metrix.search.index import Index
from metrix.search.items import LABEL

NEAR_IDENTICAL = 0.98  # the default similarity of duplicates
QUERIES = 1024  # items searched with at a time
FIRST_K = 8


@dataclass(frozen=True)
class Duplicates:
    """Items that are near-identical, each to at least one other of the group; `similarity` is the least such."""

    ids: tuple[Any, ...]
    similarity: float


@dataclass(frozen=True)
class Suspect:
    """An item whose neighbours have another label.

    `share` is how much of the neighbours' similarity speaks for the suggested label, `own_share` for its own.
    """

    id: Any
    label: str
    suggested: str
    share: float
    own_share: float
    nearest: Any  # the nearest neighbour with the suggested label


def find_duplicates(
    index: Index, threshold: float = NEAR_IDENTICAL, progress: Callable[[int, int], object] | None = None
) -> list[Duplicates]:
    """Groups of items that are at least `threshold` similar, the largest groups first.

    >>> index = Index.build([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]], ids=["a", "b", "c"])
    >>> [group.ids for group in find_duplicates(index)]
    [('a', 'b')]
    """
    if not -1 <= threshold <= 1:
        raise InvalidInput(f"threshold: expected a cosine from -1 to 1, got {threshold}")
    parent: dict[Any, Any] = {}
    edges: list[tuple[Any, Any, float]] = []

    def root(one: Any) -> Any:
        while parent.setdefault(one, one) != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    done, total = 0, len(index)
    for lot in index.store.scan(QUERIES):
        ids = lot.ids.to_pylist()
        vectors, names, k = lot.vectors, ids, FIRST_K
        while len(names):
            found = index.search(vectors, k, exclude=names)
            near = found.similarities >= threshold
            for one, others, similar, is_near in zip(names, found.ids, found.similarities, near, strict=True):
                for other, value in zip(others[is_near].tolist(), similar[is_near].tolist(), strict=True):
                    edges.append((one, other, value))
                    parent[root(one)] = root(other)
            full = near.all(axis=1) & (found.ids.shape[1] == k)  # there may be more: ask for more
            rows = np.flatnonzero(full)
            vectors, names, k = vectors[rows], [names[row] for row in rows], 4 * k
        done += len(ids)
        if progress is not None:
            progress(done, total)
    members: dict[Any, set[Any]] = defaultdict(set)
    least: dict[Any, float] = {}
    for one, other, value in edges:
        at = root(one)
        members[at] |= {one, other}
        least[at] = min(value, least.get(at, 1.0))
    groups = [Duplicates(tuple(sorted(ids)), least[at]) for at, ids in members.items()]
    return sorted(groups, key=lambda group: (-len(group.ids), -group.similarity, group.ids))


def find_suspects(index: Index, k: int = 10, progress: Callable[[int, int], object] | None = None) -> list[Suspect]:
    """Items whose k nearest neighbours mostly have one other label, the clearest cases first.

    >>> points = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]
    >>> index = Index.build(points, ["a", "b", "c", "d"], columns={"label": ["x", "x", "y", "x"]})
    >>> [(one.id, one.label, one.suggested) for one in find_suspects(index, k=3)]
    [('c', 'y', 'x')]
    """
    if LABEL not in index.columns:
        raise LabelError("suspects: expected an index with labels, got one without; index class folders or a manifest")
    labels: dict[Any, Any] = {}
    for lot in index.store.scan():
        labels.update(zip(lot.ids.to_pylist(), lot.columns[LABEL].to_pylist(), strict=True))
    suspects: list[Suspect] = []
    done = 0
    for lot in index.store.scan(QUERIES):
        ids = lot.ids.to_pylist()
        found = index.search(lot.vectors, k, exclude=ids)
        for one, others, similar in zip(ids, found.ids.tolist(), found.similarities.tolist(), strict=True):
            suspect = _judge(one, labels, others, similar)
            if suspect is not None:
                suspects.append(suspect)
        done += len(ids)
        if progress is not None:
            progress(done, len(labels))
    return sorted(suspects, key=lambda one: (one.own_share - one.share, str(one.id)))


def _judge(one: Any, labels: dict[Any, Any], others: list[Any], similar: list[float]) -> Suspect | None:
    votes: dict[str, float] = defaultdict(float)
    for other, value in zip(others, similar, strict=True):
        if value > 0 and labels.get(other) is not None:  # NaN, where there are fewer neighbours, is not above 0
            votes[labels[other]] += value
    if not votes or labels[one] is None:
        return None
    total = sum(votes.values())
    suggested = max(votes, key=lambda name: (votes[name], name))
    if suggested == labels[one] or votes[suggested] <= total / 2:
        return None
    nearest = next(other for other in others if labels.get(other) == suggested)
    return Suspect(one, labels[one], suggested, votes[suggested] / total, votes.get(labels[one], 0.0) / total, nearest)
