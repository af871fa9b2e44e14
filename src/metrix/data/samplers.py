"""Samplers: which images form a batch.

A sampler yields lists of indices that depend only on seed and epoch; every batch is full. With several processes, each
rank takes its share of a global batch, which does not depend on the number of processes: the shares of ranks 0, 1, …
one after another are the batch of a single process. A rank takes whole classes of a balanced batch, so the shares
differ by one class if the classes cannot be divided evenly.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrix.data.item_seeds import Repeat
from metrix.errors import InvalidInput, check_integer


class BatchSampler(torch.utils.data.Sampler[list[int]]):
    """Base class of the samplers: the batches of one epoch, each cut to the share of a rank.

    To resume, call `set_epoch(epoch, start_batch)` with the number of batches that were *trained on*. The sampler
    itself does not know it, because a loader fetches batches ahead.
    """

    def __init__(
        self, batches: int, seed: int, rank: int, world_size: int, batch_size: int = 0, together: int = 1
    ) -> None:
        if not 0 <= rank < world_size:
            raise InvalidInput(f"rank: expected an integer from 0 to {world_size - 1} (world_size - 1), got {rank}")
        self.batch_size, self.together = (
            batch_size,
            together,
        )  # size of the global batch; how many images in a row stay on one rank
        self.batches_per_epoch = batches
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch, self.start_batch = 0, 0

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Set the epoch, and how many of its first batches to skip."""
        if epoch < 0 or not 0 <= start_batch <= self.batches_per_epoch:
            raise InvalidInput(
                f"expected epoch ≥ 0 and start_batch from 0 to {self.batches_per_epoch}, "
                f"got epoch {epoch}, start_batch {start_batch}"
            )
        self.epoch, self.start_batch = epoch, start_batch

    def __len__(self) -> int:
        return self.batches_per_epoch - self.start_batch

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(self._global_batches(np.random.default_rng([self.seed, self.epoch]))):
            if number >= self.start_batch:
                groups = len(batch) // self.together
                start, stop = (groups * r // self.world_size * self.together for r in (self.rank, self.rank + 1))
                yield batch[start:stop]

    def _global_batches(self, rng: np.random.Generator) -> Iterator[list[int]]:
        raise NotImplementedError


class RandomSampler(BatchSampler):
    """Every image once per epoch, in random order; the last batch is filled up with images drawn again.

    With `batches`, an epoch has so many, and images come again only after all others.

    >>> [sorted(batch) for batch in RandomSampler(4, batch_size=4)]
    [[0, 1, 2, 3]]
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        batches: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not 1 <= batch_size <= size:
            raise InvalidInput(
                f"batch_size: expected an integer from 1 to the number of examples, {size}, got {batch_size}"
            )
        _require_enough("batch_size", batch_size, world_size)
        super().__init__(-(-size // batch_size) if batches is None else batches, seed, rank, world_size, batch_size)
        self.size = size

    def _global_batches(self, rng: np.random.Generator) -> Iterator[list[int]]:
        images = _Cycle(np.arange(self.size), rng)
        visits: Counter[int] = Counter()
        for _ in range(self.batches_per_epoch):
            yield [_count_visit(index, visits) for index in images.take(self.batch_size)]


class BalancedSampler(BatchSampler):
    """Batches of `classes_per_batch` classes with `per_class` images of each.

    Classes come in random order, each once before any is repeated, so the first ceil(classes / classes_per_batch)
    batches contain every class. Within a class, each image comes once before any is repeated. An index that occurs
    again in an epoch is a `Repeat`, which gives it a new random view.

    Args:
        labels: the label of each image.
        classes_per_batch: classes in a (global) batch.
        per_class: images of each of them; a class that has fewer repeats its images as evenly as possible.
        batches: batches per epoch, enough to contain every class; by default as many as the images fill.
        seed: seed of the random order.
        rank: number of this process.
        world_size: number of processes.

    >>> sampler = BalancedSampler([0, 0, 0, 1, 1, 1, 2, 2, 2], classes_per_batch=3, per_class=3)
    >>> [sorted(batch) for batch in sampler]
    [[0, 1, 2, 3, 4, 5, 6, 7, 8]]
    """

    def __init__(
        self,
        labels: Sequence[int] | NDArray[np.int64] | Tensor,
        classes_per_batch: int,
        per_class: int,
        *,
        batches: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        classes, membership = np.unique(np.asarray(labels), return_inverse=True)
        if not 1 <= classes_per_batch <= len(classes):
            raise InvalidInput(
                f"classes_per_batch: expected an integer from 1 to the number of classes, {len(classes)}, "
                f"got {classes_per_batch}"
            )
        check_integer("per_class", per_class, least=1)
        _require_enough("classes_per_batch", classes_per_batch, world_size)
        needed = -(-len(classes) // classes_per_batch)
        if batches is not None and batches < needed:
            raise InvalidInput(
                f"batches: expected at least {needed}, to have all {len(classes)} classes in an epoch, got {batches}"
            )
        filling = -(-len(membership) // (classes_per_batch * per_class))
        number = max(needed, filling) if batches is None else batches
        super().__init__(number, seed, rank, world_size, classes_per_batch * per_class, per_class)
        self.classes_per_batch, self.per_class = classes_per_batch, per_class
        order = np.argsort(membership, kind="stable")
        self._images = np.split(order, np.cumsum(np.bincount(membership))[:-1])  # indices, for each class

    def _global_batches(self, rng: np.random.Generator) -> Iterator[list[int]]:
        classes = _Cycle(np.arange(len(self._images)), rng)
        images: dict[int, _Cycle] = {}
        visits: Counter[int] = Counter()
        for _ in range(self.batches_per_epoch):
            batch: list[int] = []
            for k in classes.take(self.classes_per_batch):
                cycle = images.setdefault(k, _Cycle(self._images[k], rng))
                batch += [_count_visit(index, visits) for index in cycle.take(self.per_class)]
            yield batch


class _Cycle:
    """Items in random order, each once before any is repeated."""

    def __init__(self, items: NDArray[np.int64], rng: np.random.Generator) -> None:
        self._items, self._rng = items, rng
        self._queue: deque[int] = deque()

    def take(self, number: int) -> list[int]:
        """The next items; one that was taken in this call is repeated only after all others."""
        taken: list[int] = []
        while len(taken) < number:
            if not self._queue:
                shuffled: list[int] = self._rng.permutation(self._items).tolist()
                recent = set(taken)
                self._queue.extend(sorted(shuffled, key=recent.__contains__))
            taken.append(self._queue.popleft())
        return taken


def _count_visit(index: int, visits: Counter[int]) -> int:
    """Count a visit: the index itself at its first visit in the epoch, then a `Repeat`."""
    visits[index] += 1
    return index if visits[index] == 1 else Repeat(index, visits[index] - 1)


def _require_enough(name: str, value: int, world_size: int) -> None:
    if world_size < 1 or value < world_size:
        raise InvalidInput(
            f"{name} (of the global batch): expected at least world_size={world_size}, so that every rank has a share, "
            f"got {value}"
        )
