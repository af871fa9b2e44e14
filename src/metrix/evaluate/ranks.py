"""How many negatives rank before each positive of a query, exactly and in bounded memory.

Every retrieval metric is a function of these counts: for each positive p of query q, the number of negatives that
come before it,

    before(q, p) = #{n : s(q,n) > s(q,p)} + #{n : s(q,n) = s(q,p), n has the lower row number}.

The rank of the j-th positive is before + j. So no list of k neighbours is kept or sorted: a matrix product gives a
block of similarities, which is counted and discarded, and a class of ten thousand examples takes no more memory than
a class of two.

The product is in float32, where each similarity has an error of up to (d + 6) 2⁻²⁴: d roundings in the sum, one in
each factor, and a margin for terms of higher order. A negative within twice this of a positive is compared with it
again in float64, so the counts are those of float64. Similarities that float64 cannot tell apart, such as those of
two copies of one vector, are ties. What a query never finds (`metrix.evaluate.task`) has the similarity -∞.

Embeddings on a GPU are counted there, by `metrix.evaluate.on_device`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from metrix.evaluate.task import Task

BLOCK_BYTES = 96 << 20  # size of a block of similarities
SORT_PAST = 192  # positives per query, beyond which sorting a row is faster than a count for each


@dataclass(frozen=True)
class Counts:
    """Negatives before each positive: `before[offsets[i]:offsets[i+1]]` are the counts of query `rows[i]`.

    Where examples are relevant in degrees, `ndcg` gives NDCG@K of each query, which does not follow from the counts.
    """

    rows: NDArray[np.intp]
    offsets: NDArray[np.intp]
    before: NDArray[np.int64]
    ndcg: Callable[[int], NDArray[np.float64]] | None = None


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def float32_slack(dim: int) -> float:
    """The largest difference, by rounding alone, of two float32 cosines that are equal: twice (d + 6) 2⁻²⁴."""
    return 2 * (dim + 6) * 2.0**-24


def float64_tie(dim: int) -> float:
    """The same for float64: cosines no further apart than this are a tie."""
    return 2 * (dim + 6) * 2.0**-53


def count_negatives_before(task: Task, wanted: NDArray[np.intp], first_only: bool = False) -> Iterator[Counts]:
    """before(q, p) for the wanted queries, block by block; with `first_only`, for the nearest positive only."""
    if task.on_device:
        from metrix.evaluate.on_device import count_on_device

        yield from count_on_device(task, wanted, first_only)
        return
    order = np.argsort(task.gallery_class, kind="stable")
    gallery32 = task.gallery.unit32(order)
    ends = np.cumsum(np.bincount(task.gallery_class, minlength=1 + int(task.query_class.max())))
    starts = np.concatenate([[0], ends[:-1]])
    position = np.empty(len(order), dtype=np.intp)
    position[order] = np.arange(len(order))

    rows_at_once = max(1, min(2048, BLOCK_BYTES // (4 * len(order))))
    relevant = task.relevant
    # Queries of a class follow each other, since their positives are the same part of the gallery.
    wanted = wanted[np.argsort(task.query_class[wanted], kind="stable")]
    buffer = np.empty((rows_at_once, len(order)), dtype=np.float32)
    with ThreadPoolExecutor(usable_cores()) as pool:
        for start in range(0, len(wanted), rows_at_once):
            rows = wanted[start : start + rows_at_once]
            sizes = np.ones_like(rows) if first_only else relevant[rows]
            block = _Block(
                rows=rows,
                begin=starts[task.query_class[rows]],
                end=ends[task.query_class[rows]],
                offsets=np.concatenate([[0], np.cumsum(sizes)]),
                order=order,
                position=position,
            )
            yield _count_block(task, block, gallery32, buffer[: len(rows)], first_only, pool)


@dataclass(frozen=True)
class _Block:
    """Some queries, and the positions of their positives in the gallery sorted by class."""

    rows: NDArray[np.intp]
    begin: NDArray[np.intp]
    end: NDArray[np.intp]
    offsets: NDArray[np.intp]
    order: NDArray[np.intp]  # gallery rows by class
    position: NDArray[np.intp]  # where each gallery row is in that order


def _count_block(
    task: Task,
    block: _Block,
    gallery32: NDArray[np.float32],
    S: NDArray[np.float32],
    first_only: bool,
    pool: ThreadPoolExecutor,
) -> Counts:
    from metrix.evaluate.counting import count_negatives

    before = np.zeros(block.offsets[-1], dtype=np.int64)
    unsettled = np.zeros(len(block.rows), dtype=np.bool_)
    if not first_only:
        unsettled |= block.end - block.begin > SORT_PAST
    if not unsettled.all():
        np.matmul(task.queries.unit(block.rows, np.float32), gallery32.T, out=S)
        task.hide(S, block.rows, columns=block.position)
        query_values, query_norms = task.queries.values[block.rows], task.queries.norms[block.rows]

        def count(part: slice) -> None:
            count_negatives(
                S[part],
                block.begin[part],
                block.end[part],
                block.offsets[part],
                first_only,
                float32_slack(task.gallery.dim),
                float64_tie(task.gallery.dim),
                query_values[part],
                query_norms[part],
                task.gallery.values,
                task.gallery.norms,
                block.order,
                64 + len(block.order) // 8,  # near-ties, beyond which one float64 row is cheaper
                before,
                unsettled[part],
            )

        list(pool.map(count, split_rows(len(block.rows), usable_cores())))
    if unsettled.any():
        _sort_rows(task, block, np.flatnonzero(unsettled), first_only, before, pool)
    return Counts(block.rows, block.offsets, before)


def split_rows(count: int, pieces: int) -> list[slice]:
    """At most `pieces` slices that cover range(count)."""
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(edges) if a < b]


def _sort_rows(
    task: Task,
    block: _Block,
    chosen: NDArray[np.intp],
    first_only: bool,
    before: NDArray[np.int64],
    pool: ThreadPoolExecutor,
) -> None:
    """The same counts by sorting whole rows in float64, for large classes and for queries with many near-ties."""
    rows_at_once = max(1, BLOCK_BYTES // (8 * len(block.order)))
    for start in range(0, len(chosen), rows_at_once):
        some = chosen[start : start + rows_at_once]
        unit = task.queries.unit(block.rows[some])
        S = np.empty((len(some), len(block.order)))
        for part in task.gallery.blocks():
            np.matmul(unit, task.gallery.unit(block.order[part]).T, out=S[:, part])
        task.hide(S, block.rows[some], columns=block.position)

        def sort(part: slice, some: NDArray[np.intp] = some, S: NDArray[np.float64] = S) -> None:
            for row, index in zip(S[part], some[part], strict=True):
                place = slice(block.offsets[index], block.offsets[index + 1])
                counted = _count_by_sorting(row, block, int(index), float64_tie(task.gallery.dim))
                before[place] = counted[:1] if first_only else counted

        list(pool.map(sort, split_rows(len(some), usable_cores())))


def _count_by_sorting(row: NDArray[np.float64], block: _Block, index: int, tie: float) -> NDArray[np.intp]:
    """Negatives before each positive of one query, nearest positive first."""
    begin, end = block.begin[index], block.end[index]
    sorting = np.argsort(-row)
    with np.errstate(invalid="ignore"):  # of what is hidden, -∞, which ranks last, before no positive
        apart = row[sorting[:-1]] - row[sorting[1:]] > tie
    if not apart.all():  # within a tie, the lower row number comes first
        group = np.concatenate([[0], np.cumsum(apart)])
        sorting = sorting[np.lexsort((block.order[sorting], group))]
    positive = (sorting >= begin) & (sorting < end) & np.isfinite(row[sorting])
    return np.asarray(np.cumsum(~positive)[positive])
