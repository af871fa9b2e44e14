"""Random numbers that belong to an item, whatever the order in which items are loaded.

An item of an epoch has a key of four numbers: seed, epoch, index, and how often it has already occurred in the
epoch. Everything random about the item follows from its key, through the counter-based generator Philox. So
batches are the same with any number of loader processes, and a resumed run sees what it would have seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray


class Repeat(int):
    """An index that occurs again in the same epoch and gets a new random view; `visit` counts from 1.

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
    """The keys (items, 4) of items: seed, epoch, visit, index.

    >>> item_keys(0, 5, [17, 3]).tolist()
    [[0, 5, 0, 17], [0, 5, 0, 3]]
    """
    columns = np.broadcast_arrays(*(np.asarray(x, dtype=np.int64) for x in (seed, epoch, visits, indices)))
    return np.stack(columns, axis=-1).astype(np.uint64)


def uniform(keys: NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """Random numbers (items, count) in [0, 1), those of each row determined by its key.

    >>> numbers = uniform(item_keys(0, 5, [17, 3]), 4)
    >>> numbers.shape, bool((numbers[1] == uniform(item_keys(0, 5, [3]), 4)).all())
    ((2, 4), True)
    """
    return np.asarray((_draw(keys, count) >> np.uint64(11)) / 2.0**53)


@contextlib.contextmanager
def seed_torch(key: NDArray[np.uint64]) -> Iterator[None]:
    """Seed torch's global CPU generator from a key (4,) while the block runs; afterwards it is as before."""
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(int(_draw(key[None], 1)[0, 0]) >> 1)
        yield
    finally:
        generator.set_state(before)


def _draw(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """The first `count` words of each key's stream, (items, count).

    Seed and epoch are the key of Philox, visit and index the upper half of its counter, which leaves 2⁶⁶ words to
    each item before the streams of two items meet.
    """
    philox = np.random.Philox(key=0)
    state: Any = philox.state  # the setter also takes tuples, which are faster than arrays
    words = []
    for seed, epoch, visit, index in keys.tolist():
        state["state"] = {"key": (seed, epoch), "counter": (0, 0, visit, index)}
        philox.state = state  # ten times faster than a new generator
        words.append(philox.random_raw(count))
    return np.array(words, dtype=np.uint64).reshape(-1, count)
