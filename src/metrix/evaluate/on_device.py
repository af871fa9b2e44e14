"""Ranks of examples, computed on the GPU that the embeddings are on.

`metrix.evaluate.ranks` and `metrix.evaluate.confusion` say what is computed. Here a block of similarities is computed
in float64, and only what is counted comes back to the host: one transfer per block, sized by the free memory. Products
in float64 know no TensorFloat-32, so no setting of the process changes the results, which are those of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrix.core.compute.device_memory import block_bytes
from metrix.evaluate.ranks import Counts, float64_tie
from metrix.evaluate.task import Task
from metrix.evaluate.vectors import Array, Vectors

_SORTED = 128  # bytes that sorting a similarity takes: it, its place and its group, copies of them, and work space
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class DeviceVectors(Vectors):
    """Vectors (n, d) on a GPU; `values` and `norms` are copies on the host, made when they are first asked for."""

    there: Tensor  # (n, d), float32 or float64
    norms_there: Tensor  # (n,), float64

    def __init__(self, there: Tensor, norms_there: Tensor) -> None:
        object.__setattr__(self, "there", there)
        object.__setattr__(self, "norms_there", norms_there)

    @classmethod
    def find(cls, embeddings: object) -> DeviceVectors | None:
        """The vectors of a tensor on CUDA; None for all else, and for values that need a closer look on the host."""
        if not (isinstance(embeddings, Tensor) and embeddings.is_cuda and embeddings.dtype in _FLOATS):
            return None
        if embeddings.ndim != 2 or 0 in embeddings.shape:
            return None
        there = embeddings.detach()
        there = there.float() if there.dtype.itemsize == 2 else there
        parts = torch.split(there, max(1, block_bytes(there.device) // (8 * there.shape[1])))
        norms = torch.cat([torch.linalg.vector_norm(part.double(), dim=1) for part in parts])
        fine = norms.isfinite().all() & (norms.min() >= 1e-150)
        return cls(there, norms) if bool(fine) else None

    @cached_property
    def values(self) -> Array:
        """(n, d)  on the host."""
        return self.there.cpu().numpy()

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """(n,)  on the host."""
        return self.norms_there.cpu().numpy()

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The GPU."""
        return self.there.device

    def __len__(self) -> int:
        return len(self.there)

    @property
    def dim(self) -> int:
        """d, the number of columns."""
        return self.there.shape[1]

    def unit_there(self, rows: Tensor | slice) -> Tensor:
        """Some rows at unit norm in float64."""
        return self.there[rows].double() / self.norms_there[rows].unsqueeze(1)


def count_on_device(task: Task, wanted: NDArray[np.intp], first_only: bool) -> Iterator[Counts]:
    """before(q, p) for the wanted queries, block by block; with `first_only`, for the nearest positive only."""
    relevant = task.relevant
    wanted = wanted[np.argsort(relevant[wanted], kind="stable")]  # similar numbers of positives together
    for block in _compare(task, wanted):
        order = _rank(block.S, float64_tie(task.gallery.dim))
        positive = block.gallery_class[order] == block.query_class.unsqueeze(1)
        positive &= block.S.gather(1, order).isfinite()
        sizes = np.ones_like(block.rows) if first_only else relevant[block.rows]
        number = torch.arange(int(sizes.max()), device=positive.device)
        # the place of each positive in the ranking, nearest first, less the positives before it
        before = torch.searchsorted(positive.cumsum(1), (number + 1).expand(len(positive), -1).contiguous()) - number
        kept = np.arange(before.shape[1]) < sizes[:, None]
        yield Counts(block.rows, np.concatenate([[0], np.cumsum(sizes)]), before.cpu().numpy()[kept])


def find_others_on_device(task: Task, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The nearest gallery example of another class for each of some queries; -1 if there is none."""
    found = [np.empty(0, dtype=np.intp)]
    for block in _compare(task, rows):
        S = block.S.masked_fill_(block.gallery_class == block.query_class.unsqueeze(1), -torch.inf)
        best = S.amax(1, keepdim=True)
        number = torch.arange(S.shape[1], device=S.device)
        first = torch.where(best - float64_tie(task.gallery.dim) <= S, number, S.shape[1]).amin(1)
        found.append(torch.where(best[:, 0].isfinite(), first, -1).cpu().numpy())
    return np.concatenate(found)


class _Compared(NamedTuple):
    """Some queries against the whole gallery."""

    rows: NDArray[np.intp]  # (q,) numbers of the queries
    query_class: Tensor  # (q,)
    gallery_class: Tensor  # (g,)
    S: Tensor  # (q, g) cosines in float64; -∞ for what a query never finds, which ranks last, before no positive


def _compare(task: Task, rows: NDArray[np.intp]) -> Iterator[_Compared]:
    """Some queries against the whole gallery, block by block."""
    queries, gallery = task.queries, task.gallery
    assert isinstance(queries, DeviceVectors)
    assert isinstance(gallery, DeviceVectors)
    budget = block_bytes(gallery.device)

    def put(numbers: NDArray[np.intp]) -> Tensor:
        return torch.from_numpy(np.asarray(numbers, dtype=np.int64)).to(gallery.device)

    query_class, gallery_class, asked = put(task.query_class[rows]), put(task.gallery_class), put(rows)
    tracks = task.sequences
    sequences = None if tracks is None else (put(tracks.query[rows]), put(tracks.gallery))
    rows_at_once = max(1, budget // (_SORTED * len(gallery)))
    for start in range(0, len(rows), rows_at_once):
        at = slice(start, start + rows_at_once)
        unit = queries.unit_there(asked[at])
        S = unit.new_empty(len(unit), len(gallery))
        for part in gallery.blocks(max(1, budget // (16 * gallery.dim))):
            torch.mm(unit, gallery.unit_there(part).T, out=S[:, part])
        if task.shared:
            S.scatter_(1, asked[at].unsqueeze(1), -torch.inf)
        if sequences is not None:
            own = sequences[0][at].unsqueeze(1)
            S.masked_fill_((own == sequences[1]) & (own >= 0), -torch.inf)
        yield _Compared(rows[at], query_class[at], gallery_class, S)


def _rank(S: Tensor, tie: float) -> Tensor:
    """Columns by falling similarity, (rows, columns); within a tie, the lower number comes first."""
    values, order = S.sort(dim=1, descending=True)
    apart = values[:, :-1] - values[:, 1:] > tie
    group = torch.nn.functional.pad(apart.cumsum(1), (1, 0))
    return order.gather(1, (group * S.shape[1] + order).argsort(1))
