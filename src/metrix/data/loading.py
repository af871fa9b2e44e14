"""Batches of a part for training and measuring, loaded here or by other processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from metrix.data.dataset import Part
from metrix.data.samplers import BatchSampler

_STOPS = (signal.SIGINT, signal.SIGTERM)


def loader(
    part: Part, sampler: BatchSampler | None = None, *, batch_size: int = 256, workers: int = 0, pinned: bool = False
) -> torch.utils.data.DataLoader[Any]:
    """A DataLoader of (images, labels).

    Args:
        part: the images; its transform must give all of them one size.
        sampler: chooses the batches. Without one, all images come in order.
        batch_size: without a sampler, the number of images in a batch.
        workers: number of loader processes; 0 loads in this one.
        pinned: put batches into memory from which a GPU copies while the host goes on.

    >>> from metrix import data
    >>> part = data.open("glyphs-mini").test.with_transform(data.GlyphTransform.still())
    >>> images, labels = next(iter(loader(part, batch_size=8)))
    >>> images.shape
    torch.Size([8, 1, 28, 28])
    """
    # DataLoader draws a seed when an iteration starts: from a generator of its own, not from the global one.
    common: dict[str, Any] = {
        "num_workers": workers,
        "pin_memory": pinned,
        "persistent_workers": workers > 0,
        "generator": torch.Generator(),
        "worker_init_fn": _ignore_signals if workers > 0 else None,
    }
    batches = _Batches(part)
    if sampler is not None:
        return _Loader(batches, batch_sampler=sampler, collate_fn=_identity, **common)
    return _Loader(batches, batch_size=batch_size, collate_fn=_identity, **common)


class _Loader(torch.utils.data.DataLoader[Any]):
    """Starts all its processes before Ctrl-C or SIGTERM is obeyed."""

    def __iter__(self) -> Any:
        with _hold_signals() if self.num_workers > 0 else nullcontext():
            return super().__iter__()


class _Batches(torch.utils.data.Dataset[Any]):
    """A part that returns stacked batches, which saves DataLoader from copying each of them."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.part[index]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.part.batch(indices)


def _ignore_signals(worker: int) -> None:
    """Leave Ctrl-C and SIGTERM, which a whole process group receives, to the main process.

    A loader process ends when the main process does, or when it is told to through its queue.
    """
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _hold_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block; a process forked in it ignores them.

    A handler that raises in the middle of a fork would leave a half-started process, or run the caller's code in it.
    """
    if threading.current_thread() is not threading.main_thread():  # only there do handlers run
        yield
        return
    received: list[int] = []
    held = [number for number in _STOPS if signal.getsignal(number) is not None]  # None: not a handler of Python
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in held}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _identity(batch: Any) -> Any:
    return batch
