"""Cross-batch memory: embeddings of past batches as further candidates.

With a memory of labelled embeddings m, the anchors are the examples of the batch (or the proxies) as before, and

    P(a)   examples of the batch of the class of a, but a itself, and the memory's of that class
    N(a)   all other examples of the batch and of the memory

in the clean loss and, with embedding mixup, in the mixing pairs M(a). The memory has no gradient. A batch is compared
with past batches only: it enters the memory after its sets are formed, in place of the oldest embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
        self._replaced: tuple[list[tuple[slice, Tensor]], _OnHost] | None = None
        self._on_host: _OnHost | None = None
        self.register_buffer("embeddings", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("stored", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def on_host(self) -> _OnHost:
        """Labels and counters on the host: read from the buffers once, then kept up to date without a question."""
        if self._on_host is None:
            self._on_host = _OnHost(self.labels.to("cpu", copy=True), int(self.stored), int(self.steps))
        return self._on_host

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._on_host = None

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._write_buffers()
        super()._save_to_state_dict(*args, **kwargs)

    @torch.no_grad()
    def _write_buffers(self) -> None:
        host = self.on_host
        self.labels.copy_(host.labels)
        self.stored.fill_(host.stored)
        self.steps.fill_(host.steps)

    @property
    def filled(self) -> int:
        """How many slots hold an embedding."""
        return min(self.on_host.stored, self.size)

    def extend(self, sets: Sets) -> Sets:
        """The sets of a batch with the memory among the candidates."""
        filled = self.filled
        if filled == 0 or self.on_host.steps < self.after:
            return sets
        if self.embeddings.device != sets.examples.device:
            raise InvalidInput(
                f"memory: expected it on the device of the embeddings, {sets.examples.device}, got "
                f"{self.embeddings.device}; call objective.to({str(sets.examples.device)!r})"
            )
        anchors, own = sets.on_host()
        x = torch.cat([sets.examples, self.embeddings[:filled].to(sets.examples.dtype)])
        y = torch.cat([own, self.on_host.labels[:filled]])
        return replace(sets, candidates=x, anchor_labels=anchors, candidate_labels=y, examples=x, example_labels=y)

    @torch.no_grad()
    def add(self, embeddings: Tensor, labels: Tensor) -> None:
        """Store unit embeddings (n, dim) with their labels (n,), on the host, in place of the oldest.

        On an accelerator the buffers of labels and counters follow when the state is saved.
        """
        if embeddings.shape[1] != self.embeddings.shape[1]:
            raise ShapeError(
                f"embeddings of dimension {embeddings.shape[1]} for a memory of dimension "
                f"{self.embeddings.shape[1]}: give the memory dim={embeddings.shape[1]}"
            )
        host, n = self.on_host, len(embeddings)
        before = replace(host, labels=host.labels.clone())
        skipped = max(0, n - self.size)
        past = []
        for slots, new in self._stretches(host.stored + skipped, n - skipped):
            given = slice(new.start + skipped, new.stop + skipped)
            past.append((slots, self.embeddings[slots].clone()))
            self.embeddings[slots] = embeddings[given].to(self.embeddings.dtype)
            host.labels[slots] = labels[given]
        host.stored, host.steps = host.stored + n, host.steps + 1
        self._replaced = past, before
        if self.labels.device.type == "cpu":
            self._write_buffers()

    def _stretches(self, first: int, count: int) -> list[tuple[slice, slice]]:
        """Slots of `count` embeddings from the number `first` on, in one or two stretches, and which these are."""
        start = first % self.size
        whole = min(count, self.size - start)
        parts = [(slice(start, start + whole), slice(0, whole)), (slice(0, count - whole), slice(whole, count))]
        return [part for part in parts if part[1].stop > part[1].start]

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
        past, self._on_host = self._replaced
        for slots, embeddings in past:
            self.embeddings[slots] = embeddings
        self._write_buffers()
        self._replaced = None

    def extra_repr(self) -> str:
        """The settings."""
        return f"size={self.size}, dim={self.embeddings.shape[1]}, after={self.after}"


@dataclass
class _OnHost:
    labels: Tensor  # (size,)
    stored: int
    steps: int
