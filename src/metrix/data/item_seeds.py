"""Random numbers that depend on an item and not on the order in which items are loaded.

Each item of each epoch has a 64-bit key; everything random about it follows from the key. So batches are
the same with any number of loader processes, and a run that resumes sees what it would have seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray


class Repeat(int):
    """An index that comes again in the same epoch; `visit` counts from 1, so that its view is a new one.

    >>> again = Repeat(7, visit=2)
    >>> again == 7, again.visit
    (True, 2)
    """

    visit: int

    def __new__(cls, index: int, visit: int) -> Repeat:
        """An index with its visit."""
        self = super().__new__(cls, index)
        self.visit = visit
        return self

    def __reduce__(self) -> tuple[type[Repeat], tuple[int, int]]:
        return type(self), (int(self), self.visit)


def item_keys(seed: int, epoch: int, indices: ArrayLike, visits: ArrayLike = 0) -> NDArray[np.uint64]:
    """One key for each item, different for each seed, epoch, index and visit."""
    keys = np.asarray(indices, dtype=np.int64).astype(np.uint64)
    for part in (np.asarray(visits, dtype=np.int64), np.int64(epoch), np.int64(seed)):
        keys = _mix(keys + _mix(np.asarray(part).astype(np.uint64) + _STEP))
    return keys


def uniform(keys: NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """(items, count) numbers in [0, 1), `count` for each key."""
    steps = (np.arange(1, count + 1, dtype=np.uint64) * _STEP)[None, :]
    high: NDArray[np.uint64] = _mix(keys[:, None] + steps) >> np.uint64(11)
    return np.asarray(high.astype(np.float64) / 2.0**53)


@contextlib.contextmanager
def drawing_from(key: int) -> Iterator[None]:
    """Let torch's CPU generator start from a key, for code that draws from it; after, it is as before."""
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(key >> 1)
        yield
    finally:
        generator.set_state(before)


_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the input changes half of the output."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
