"""The loops of `max_plus`, compiled for the CPU.

The innermost loop runs over channels, which are contiguous, so that one instruction treats 8 or 16 of
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
import torch
from numba import prange
from torch import Tensor

from metrix.core.compute.max_plus import position_dtype

# Channels per tile: the maximum and its position stay in the first-level cache.
_TILE = 256


@numba.njit(parallel=True, fastmath={"nnan", "nsz", "contract"}, cache=True, nogil=True)
def _maximum(x: Any, i: Any, j: Any, lam: Any, out: Any, where: Any) -> None:
    positions, channels = x.shape[1], x.shape[2]
    for pair in prange(len(i)):
        a, b = x[i[pair]], x[j[pair]]
        left = lam[pair]
        right = x.dtype.type(1) - left
        best_tile, place_tile = np.empty(_TILE, x.dtype), np.empty(_TILE, np.int32)
        for start in range(0, channels, _TILE):
            stop = min(start + _TILE, channels)
            best, place = best_tile[: stop - start], place_tile[: stop - start]
            best[:] = -np.inf
            place[:] = 0
            for p in range(positions):
                # slices, not offsets: the compiler then knows the loop to be contiguous
                ap, bp = a[p, start:stop], b[p, start:stop]
                position = np.int32(p)
                for c in range(stop - start):
                    value = left * ap[c] + right * bp[c]
                    higher = value > best[c]
                    best[c] = value if higher else best[c]
                    place[c] = position if higher else place[c]
            out[pair, start:stop] = best
            where[pair, start:stop] = place


@numba.njit(parallel=True, cache=True, nogil=True)
def _take(x: Any, i: Any, j: Any, lam: Any, where: Any, out: Any) -> None:
    for pair in prange(len(i)):
        a, b = x[i[pair]], x[j[pair]]
        left = lam[pair]
        right = x.dtype.type(1) - left
        for c in range(x.shape[2]):
            p = where[pair, c]
            out[pair, c] = left * a[p, c] + right * b[p, c]


@numba.njit(parallel=True, cache=True, nogil=True)
def _scatter(grad: Any, i: Any, j: Any, lam: Any, where: Any, into: Any, tile: Any) -> None:
    # one thread owns a range of channels, so no two write to the same place
    pairs, channels = grad.shape
    for block in prange((channels + tile - 1) // tile):
        start = block * tile
        stop = min(channels, start + tile)
        for pair in range(pairs):
            a, b = into[i[pair]], into[j[pair]]
            left = lam[pair]
            right = grad.dtype.type(1) - left
            for c in range(start, stop):
                p = where[pair, c]
                g = grad[pair, c]
                a[p, c] += left * g
                b[p, c] += right * g


class NumbaKernel:
    """The loops over numpy views of the tensors, on as many threads as torch uses."""

    def maximum(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum over positions, and its position: each (pairs, channels)."""
        out = x.new_empty(len(i), x.shape[2])
        where = torch.empty(len(i), x.shape[2], dtype=position_dtype(x.shape[1]))
        with _torch_threads():
            _maximum(_view(x), _view(i), _view(j), _view(lam), out.numpy(), where.numpy())
        return out, where

    def take(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor) -> Tensor:
        """λ x[i, where] + (1-λ) x[j, where]: (pairs, channels)."""
        out = x.new_empty(len(i), x.shape[2])
        with _torch_threads():
            _take(_view(x), _view(i), _view(j), _view(lam), _view(where), out.numpy())
        return out

    def scatter(self, grad: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor, into: Tensor) -> None:
        """Add λ grad to into[i, where] and (1-λ) grad to into[j, where]."""
        with _torch_threads():
            _scatter(_view(grad), _view(i), _view(j), _view(lam), _view(where), into.numpy(), 128)


def _view(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


@contextmanager
def _torch_threads() -> Iterator[None]:
    """As many threads as torch uses, now and afterwards.

    numba's first parallel loop sets the number of OpenMP threads, which is also torch's: sums would round
    differently from then on.
    """
    threads = torch.get_num_threads()
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    numba.set_num_threads(min(threads, most))
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
