"""Labels that the neighbours contradict, and that the model does not confuse anyway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import LabelError
from metrix.search.index import Index
from metrix.search.items import LABEL
from metrix.search.nearest import nearest_others
from metrix.search.stores import Store

QUERIES = 1024  # items searched with at a time
UNUSUAL = 0.01  # what a share that was never seen counts as


@dataclass(frozen=True)
class SuspectNeighbour:
    """A neighbour of a suspect."""

    id: Any
    label: str | None
    similarity: float


@dataclass(frozen=True)
class Suspect:
    """An item whose neighbours have another label.

    `share` is how much of the neighbours' similarity speaks for the suggested label, `own_share` for its own.
    `surprise` is by how much that is more than usual for other items of its label, and less than usual for its own, as
    the sum of both log ratios: classes that the model confuses anyway surprise little.
    """

    id: Any
    label: str
    suggested: str
    share: float
    own_share: float
    surprise: float
    neighbours: tuple[SuspectNeighbour, ...]  # nearest first


def find_suspects(index: Index, k: int = 10, progress: Callable[[int, int], object] | None = None) -> list[Suspect]:
    """Items whose k nearest neighbours mostly have one other label, the most surprising first.

    >>> points = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]
    >>> index = Index.build(points, ["a", "b", "c", "d"], columns={"label": ["x", "x", "y", "x"]})
    >>> [(one.id, one.label, one.suggested) for one in find_suspects(index, k=3)]
    [('c', 'y', 'x')]
    """
    if LABEL not in index.columns:
        raise LabelError("suspects: expected an index with labels, got one without; index class folders or a manifest")
    rows, codes, names = _read_labels(index.store)
    if not len(names):
        return []
    label_of = np.full(int(rows.max()) + 1, -1, dtype=np.int64)
    label_of[rows] = codes
    near, similarities = _search(index, k, progress)
    votes = np.where((near >= 0) & (similarities > 0) & (label_of[near] >= 0), similarities, 0.0)
    # A row of `shares` is how the similarity to an item's neighbours is divided between labels.
    shares = _divide(votes, label_of[near], len(names))
    suggested = np.asarray(shares.argmax(axis=1)).reshape(-1)
    items = np.arange(len(rows))
    share, own = (np.asarray(shares[items, one]).reshape(-1) for one in (suggested, np.maximum(codes, 0)))
    chosen = np.flatnonzero((codes >= 0) & (suggested != codes) & (share > 0.5))
    surprise = _surprise(shares, codes, suggested, chosen, share, own)
    order = np.argsort(-surprise, kind="stable")
    kept = chosen[order]
    figures = (share[kept], own[kept], surprise[order])
    labels = [[names[code] for code in one[kept]] for one in (codes, suggested)]
    return _named(index.store, rows[kept], labels, figures, near[kept], similarities[kept])


def _read_labels(store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """All rows, the number of each one's label, -1 for none, and the labels."""
    rows: list[NDArray[np.int64]] = []
    codes: list[int] = []
    numbers: dict[Any, int] = {}
    for some, items in store.scan():
        rows.append(some)
        labels = items.columns[LABEL].to_pylist()
        codes += [-1 if label is None else numbers.setdefault(label, len(numbers)) for label in labels]
    return np.concatenate(rows), np.array(codes), [str(name) for name in numbers]


def _search(
    index: Index, k: int, progress: Callable[[int, int], object] | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    near = np.full((len(index), k), -1, dtype=np.int64)
    similarities = np.full(near.shape, np.nan, dtype=np.float32)
    done = 0
    for rows, items in index.store.scan(QUERIES):
        found = nearest_others(items.vectors, index.store, k, rows)
        here = slice(done, done + len(rows)), slice(0, found.rows.shape[1])
        near[here], similarities[here] = found.rows, found.similarities
        done += len(rows)
        if progress is not None:
            progress(done, len(index))
    return near, similarities


def _divide(votes: NDArray[Any], labels: NDArray[np.int64], classes: int) -> Any:
    from scipy.sparse import csr_array

    count, k = votes.shape
    there = votes.reshape(-1) > 0
    items = np.repeat(np.arange(count), k)[there]
    total = np.maximum(votes.sum(axis=1), np.finfo(np.float32).tiny)
    values = (votes / total[:, None]).reshape(-1)[there]
    return csr_array((values, (items, labels.reshape(-1)[there])), shape=(count, classes))


def _surprise(
    shares: Any,
    codes: NDArray[np.int64],
    suggested: NDArray[np.int64],
    chosen: NDArray[np.int64],
    share: NDArray[np.float64],
    own: NDArray[np.float64],
) -> NDArray[np.float64]:
    """How unusual the shares of some items are among the other items of their labels."""
    from scipy.sparse import csr_array

    labelled = np.flatnonzero(codes >= 0)
    membership = csr_array((np.ones(len(labelled)), (codes[labelled], labelled)), shape=(shares.shape[1], len(codes)))
    sums, sizes = (membership @ shares).tocsr(), np.bincount(codes[labelled], minlength=shares.shape[1])
    mine, theirs = codes[chosen], suggested[chosen]
    others = np.maximum(sizes[mine] - 1, 1)
    usual, usual_own = (
        np.maximum((np.asarray(sums[mine, label]).reshape(-1) - value[chosen]) / others, UNUSUAL)
        for label, value in ((theirs, share), (mine, own))
    )
    return np.asarray(np.log(share[chosen] / usual) + np.log(usual_own / np.maximum(own[chosen], UNUSUAL)))


def _named(
    store: Store,
    rows: NDArray[np.int64],
    labels: list[list[str]],  # own and suggested
    figures: tuple[NDArray[np.float64], ...],  # share, own share and surprise
    near: NDArray[np.int64],
    similarities: NDArray[np.float32],
) -> list[Suspect]:
    shown = np.unique(np.append(near.reshape(-1), rows))
    shown = shown[shown >= 0]
    records = dict(zip(shown.tolist(), store.read_table(shown).select(["id", LABEL]).to_pylist(), strict=True))
    found = []
    for n, row in enumerate(rows.tolist()):
        neighbours = tuple(
            SuspectNeighbour(records[other]["id"], records[other][LABEL], similarity)
            for other, similarity in zip(near[n].tolist(), similarities[n].tolist(), strict=True)
            if other >= 0
        )
        share, own_share, surprise = (float(one[n]) for one in figures)
        own, suggested = (one[n] for one in labels)
        found.append(Suspect(records[row]["id"], own, suggested, share, own_share, surprise, neighbours))
    return found
