"""Which images form a batch: at random, or so many of each of so many classes.

Both yield lists of indices, depend on (seed, epoch) alone, and fill every batch. A rank takes its share of
a global batch that is the same whatever the number of processes: the shares of ranks 0, 1, ... one after
another are the batch that one process would see. A rank takes whole classes of a balanced batch; where their
number is no multiple of the number of ranks, some ranks take one more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrix.data.item_seeds import Repeat
from metrix.errors import InvalidInput


class BatchSampler(torch.utils.data.Sampler[list[int]]):
    """What both samplers share: batches of one epoch, from a start, in shares.

    To resume, call `set_epoch(epoch, start_batch)` with the number of batches that were *trained on*: a
    loader asks for batches ahead, so the sampler itself cannot know.
    """

    def __init__(
        self, batches: int, seed: int, rank: int, world_size: int, batch_size: int = 0, together: int = 1
    ) -> None:
        if not 0 <= rank < world_size:
            raise InvalidInput(f"rank counts from 0 to world_size - 1; got rank {rank} of {world_size}")
        self.batch_size, self.together = batch_size, together  # of the global batch; images that one rank takes
        self.batches_per_epoch = batches
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch, self.start_batch = 0, 0

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Choose the epoch, and how many of its batches to leave out."""
        if epoch < 0 or not 0 <= start_batch <= self.batches_per_epoch:
            raise InvalidInput(
                f"epoch must be at least 0 and start_batch from 0 to {self.batches_per_epoch}; "
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
    """Every image once, in random order; the last batch is filled up with others.

    >>> [sorted(batch) for batch in RandomSampler(4, batch_size=4)]
    [[0, 1, 2, 3]]
    """

    def __init__(self, size: int, batch_size: int, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        if not 1 <= batch_size <= size:
            raise InvalidInput(f"batch_size must be from 1 to the {size} images there are; got {batch_size}")
        _require_enough("batch_size", batch_size, world_size)
        super().__init__(-(-size // batch_size), seed, rank, world_size, batch_size)
        self.size = size

    def _global_batches(self, rng: np.random.Generator) -> Iterator[list[int]]:
        images = _Cycle(np.arange(self.size), rng)
        visits: Counter[int] = Counter()
        for _ in range(self.batches_per_epoch):
            yield [_visited(index, visits) for index in images.take(self.batch_size)]


class BalancedSampler(BatchSampler):
    """`classes_per_batch` classes with `per_class` images of each.

    Classes come in random order, each once before any comes again, so the first
    ceil(classes / classes_per_batch) batches visit every class; an epoch has at least those. By default it
    has about as many batches as there are images to fill them, `batches` sets another number.

    Within a class, each image comes once before any comes again. A class of fewer than `per_class` images
    gives all of them and then the same again, as evenly as can be; an index that comes again in an epoch
    is a `Repeat`, so that its random view is a new one.

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
                f"classes_per_batch must be from 1 to the {len(classes)} classes there are; got {classes_per_batch}"
            )
        if per_class < 1:
            raise InvalidInput(f"per_class must be at least 1; got {per_class}")
        _require_enough("classes_per_batch", classes_per_batch, world_size)
        needed = -(-len(classes) // classes_per_batch)
        if batches is not None and batches < needed:
            raise InvalidInput(
                f"batches must be at least {needed}, so that an epoch visits all {len(classes)} classes; got {batches}"
            )
        filling = -(-len(membership) // (classes_per_batch * per_class))
        number = max(needed, filling) if batches is None else batches
        super().__init__(number, seed, rank, world_size, classes_per_batch * per_class, per_class)
        self.classes_per_batch, self.per_class = classes_per_batch, per_class
        order = np.argsort(membership, kind="stable")
        self._images = np.split(order, np.cumsum(np.bincount(membership))[:-1])  # of each class

    def _global_batches(self, rng: np.random.Generator) -> Iterator[list[int]]:
        classes = _Cycle(np.arange(len(self._images)), rng)
        images: dict[int, _Cycle] = {}
        visits: Counter[int] = Counter()
        for _ in range(self.batches_per_epoch):
            batch: list[int] = []
            for k in classes.take(self.classes_per_batch):
                cycle = images.setdefault(k, _Cycle(self._images[k], rng))
                batch += [_visited(index, visits) for index in cycle.take(self.per_class)]
            yield batch


class _Cycle:
    """Items in random order, each once before any comes again."""

    def __init__(self, items: NDArray[np.int64], rng: np.random.Generator) -> None:
        self._items, self._rng = items, rng
        self._queue: deque[int] = deque()

    def take(self, number: int) -> list[int]:
        """The next items; those taken in this call come again only when all others have."""
        taken: list[int] = []
        while len(taken) < number:
            if not self._queue:
                shuffled: list[int] = self._rng.permutation(self._items).tolist()
                recent = set(taken)
                self._queue.extend(sorted(shuffled, key=recent.__contains__))
            taken.append(self._queue.popleft())
        return taken


def _visited(index: int, visits: Counter[int]) -> int:
    """The index itself at its first visit of the epoch, then as a `Repeat`."""
    visits[index] += 1
    return index if visits[index] == 1 else Repeat(index, visits[index] - 1)


def _require_enough(name: str, value: int, world_size: int) -> None:
    if world_size < 1 or value < world_size:
        raise InvalidInput(
            f"{name} is that of the global batch and must be at least world_size, so that every rank gets some; "
            f"got {value} and {world_size}"
        )
