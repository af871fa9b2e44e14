"""Negatives before each positive, counted on the GPU that the embeddings are on.

`metrix.evaluate.ranks` says what is counted. Here a block of similarities is computed in float64 and sorted, and only
the counts come back to the host: one transfer per block of queries, whose size follows from the free memory. Products
in float64 know no TensorFloat-32, so no setting of the process changes the results, which are those of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrix.core.compute.device_memory import block_bytes
from metrix.evaluate.ranks import Counts, Task, float64_tie
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
    queries, gallery, relevant = task.queries, task.gallery, task.relevant
    assert isinstance(queries, DeviceVectors)
    assert isinstance(gallery, DeviceVectors)
    device, budget = gallery.device, block_bytes(gallery.device)
    rows_at_once = max(1, budget // (_SORTED * len(gallery)))
    wanted = wanted[np.argsort(relevant[wanted], kind="stable")]  # similar numbers of positives together
    query_class, gallery_class, asked = (
        torch.from_numpy(np.asarray(x, dtype=np.int64)).to(device)
        for x in (task.query_class, task.gallery_class, wanted)
    )
    for start in range(0, len(wanted), rows_at_once):
        rows, host_rows = asked[start : start + rows_at_once], wanted[start : start + rows_at_once]
        S = _compare(queries, gallery, rows, budget)  # (rows, gallery)
        if task.shared:
            S.scatter_(1, rows.unsqueeze(1), -torch.inf)  # a query ranks last, before no positive
        order = _rank(S, float64_tie(gallery.dim))
        del S
        positive = gallery_class[order] == query_class[rows].unsqueeze(1)
        if task.shared:
            positive[:, -1] = False  # the query itself
        sizes = np.ones_like(host_rows) if first_only else relevant[host_rows]
        before = _take_positives((~positive).cumsum(1), positive, int(sizes.max()))
        kept = np.arange(before.shape[1]) < sizes[:, None]
        yield Counts(host_rows, np.concatenate([[0], np.cumsum(sizes)]), before.cpu().numpy()[kept])


def _compare(queries: DeviceVectors, gallery: DeviceVectors, rows: Tensor, budget: int) -> Tensor:
    """Cosines (rows, gallery) in float64."""
    unit = queries.unit_there(rows)
    S = unit.new_empty(len(rows), len(gallery))
    for part in gallery.blocks(max(1, budget // (16 * gallery.dim))):
        torch.mm(unit, gallery.unit_there(part).T, out=S[:, part])
    return S


def _rank(S: Tensor, tie: float) -> Tensor:
    """Columns by falling similarity, (rows, columns); within a tie, the lower number comes first."""
    values, order = S.sort(dim=1, descending=True)
    apart = values[:, :-1] - values[:, 1:] > tie
    group = torch.nn.functional.pad(apart.cumsum(1), (1, 0))
    return order.gather(1, (group * S.shape[1] + order).argsort(1))


def _take_positives(values: Tensor, positive: Tensor, count: int) -> Tensor:
    """The first `count` values of each row at which `positive` holds, (rows, count); 0 where there are fewer."""
    place = torch.where(positive, positive.cumsum(1) - 1, count).clamp_(max=count)
    return values.new_zeros(len(values), count + 1).scatter_(1, place, values)[:, :count]
