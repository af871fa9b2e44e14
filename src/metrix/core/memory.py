"""Cross-batch memory: embeddings of past batches as further candidates.

With a memory of labelled embeddings m, the anchors are the examples of the batch (or the proxies) as before, and

    P(a)   examples of the batch of the class of a, but a itself, and the memory's of that class
    N(a)   all other examples of the batch and of the memory

in the clean loss and, with embedding mixup, in the mixing pairs M(a). The memory has no gradient. A batch is compared
with past batches only: it enters the memory after its sets are formed, in place of the oldest embeddings.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from metrix.core.sets import Sets
from metrix.errors import InvalidInput, ShapeError, check_integer


class CrossBatchMemory(nn.Module):
    """The last `size` embeddings and their labels.

    Its state is in buffers, so it is saved, moved and resumed with the module that it belongs to.

    Args:
        size: how many embeddings are kept.
        dim: their dimension.
        after: the first steps that only fill the memory.

    >>> memory = CrossBatchMemory(size=4, dim=2)
    >>> memory.add(torch.eye(2), torch.tensor([0, 1]))
    >>> memory.filled
    2
    """

    embeddings: Tensor  # (size, dim)  unit
    labels: Tensor  # (size,)
    stored: Tensor  # ()  how many embeddings have ever gone in
    steps: Tensor  # ()  how many batches have

    def __init__(self, size: int, dim: int, after: int = 0) -> None:
        super().__init__()
        for name, value, least in (("size", size, 1), ("dim", dim, 1), ("after", after, 0)):
            check_integer(f"memory {name}", value, least)
        self.size, self.after = size, after
        self._replaced: tuple[Tensor, Tensor, Tensor, int] | None = None
        self.register_buffer("embeddings", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("stored", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def filled(self) -> int:
        """How many slots hold an embedding."""
        return min(int(self.stored), self.size)

    def extend(self, sets: Sets) -> Sets:
        """The sets of a batch with the memory among the candidates."""
        filled = self.filled
        if filled == 0 or int(self.steps) < self.after:
            return sets
        past, labels = self.embeddings[:filled].to(sets.examples.dtype), self.labels[:filled]
        x, y = torch.cat([sets.examples, past]), torch.cat([sets.example_labels.to(labels.dtype), labels])
        return replace(sets, candidates=x, candidate_labels=y, examples=x, example_labels=y)

    @torch.no_grad()
    def add(self, embeddings: Tensor, labels: Tensor) -> None:
        """Store unit embeddings (n, dim) in place of the oldest."""
        if embeddings.shape[1] != self.embeddings.shape[1]:
            raise ShapeError(
                f"embeddings of dimension {embeddings.shape[1]} for a memory of dimension "
                f"{self.embeddings.shape[1]}: give the memory dim={embeddings.shape[1]}"
            )
        number = torch.arange(len(embeddings), device=self.labels.device)[-self.size :]
        slots = (self.stored + number) % self.size
        self._replaced = slots, self.embeddings[slots], self.labels[slots], len(embeddings)  # copies
        self.embeddings[slots] = embeddings[number].to(self.embeddings.dtype)
        self.labels[slots] = labels[number].to(self.labels.dtype)
        self.stored += len(embeddings)
        self.steps += 1

    @torch.no_grad()
    def take_back(self) -> None:
        """Undo the last `add`.

        >>> memory = CrossBatchMemory(size=2, dim=1)
        >>> for n in range(3):
        ...     memory.add(torch.full((1, 1), float(n)), torch.tensor([n]))
        >>> memory.take_back()
        >>> memory.labels.tolist(), int(memory.stored)
        ([0, 1], 2)
        """
        if self._replaced is None:
            raise InvalidInput("expected a call of add before take_back, which undoes one, got none")
        slots, embeddings, labels, added = self._replaced
        self.embeddings[slots], self.labels[slots] = embeddings, labels
        self.stored -= added
        self.steps -= 1
        self._replaced = None

    def extra_repr(self) -> str:
        """The settings."""
        return f"size={self.size}, dim={self.embeddings.shape[1]}, after={self.after}"
