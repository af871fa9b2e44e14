"""Batches of images that threads decode while the caller works on the batch before."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from metrix.data.dataset import Part
from metrix.data.images import ImageError

MOST_THREADS = 16


def read_ahead(
    part: Part,
    batches: Sequence[Sequence[int]],
    threads: int | None = None,
    on_broken: Callable[[int, str], object] | None = None,
) -> Generator[Tensor, None, None]:
    """The images of batches (n, channels, height, width), bit for bit as `part.batch` gives them.

    At most one batch, or four images per thread if that is more, waits in memory. Pixels that are in memory already are
    transformed in the calling thread.

    Args:
        part: its transform has no randomness, and gives all images one size.
        batches: positions within the part.
        threads: by default one for each processor, at most 16.
        on_broken: called with the position and the reason of an image that cannot be read, before the batch that it is
            left out of; without it, such an image is an error.

    Raises:
        ImageError: an image cannot be read, and there is no `on_broken`.
    """
    view = part.transform
    if part.in_memory or view is None or not batches:
        for batch in batches:
            yield part.batch(batch)[0]
        return
    threads = threads or min(_count_processors(), MOST_THREADS)
    ahead = max(4 * threads, *map(len, batches))
    rest = (index for batch in batches for index in batch)
    waiting: deque[Future[Tensor]] = deque()
    pool = ThreadPoolExecutor(threads, initializer=_limit_to_one_thread)

    def fill() -> None:
        for index in islice(rest, ahead - len(waiting)):
            waiting.append(pool.submit(lambda i: view(part.image(i)), index))

    try:
        fill()
        for batch in batches:
            images, read = torch.empty(0), 0
            for index in batch:
                decoded = waiting.popleft()
                failure = decoded.exception()
                fill()
                if on_broken is not None and isinstance(failure, ImageError):
                    on_broken(index, failure.reason)
                    continue
                image = decoded.result()
                if read == 0:
                    images = torch.empty(len(batch), *image.shape, dtype=image.dtype)
                images[read] = image
                read += 1
            yield images[:read]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _limit_to_one_thread() -> None:
    """Let torch resize images in the calling thread only; other threads keep theirs."""
    from threadpoolctl import threadpool_limits

    torch.get_num_threads()  # sets this thread's number to the default, which would otherwise happen later
    threadpool_limits(1, user_api="openmp")  # OpenMP has a number for each thread


def _count_processors() -> int:
    if hasattr(os, "sched_getaffinity"):  # fewer than the machine has, in a container
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
