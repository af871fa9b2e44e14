"""Indexes of millions of vectors, in their own groups: they take from minutes to hours, and tens of GB of disk."""

from __future__ import annotations

import math
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import at_least, at_most, memory_now, without_target

COUNT, DIM, QUERIES, K, CHANGED = 10_000_000, 512, 100, 10, 1000
BLOCK = 50_000  # vectors generated at a time
PER_CLUSTER = 500
CASES = tuple((kind, data) for data in ("clustered", "random") for kind in ("ivf", "sq8"))
DUPLICATES_COUNT, DUPLICATES_DIM, DUPLICATES_SHARE = 1_000_000, 64, 20
GB = 1e9


class Vectors:
    """Blocks of vectors, the same whenever they are asked for; clustered ones have noise as long as their centre."""

    def __init__(self, data: str, count: int) -> None:
        self.count = count
        clusters = max(2, count // PER_CLUSTER)
        self.centres = _normal([0, 0], clusters) if data == "clustered" else np.zeros((1, DIM), np.float32)
        self.seconds = 0.0  # spent on generating, and on the true nearest

    def blocks(self) -> Iterator[np.ndarray]:
        for block, start in enumerate(range(0, self.count, BLOCK)):
            yield self.draw([1, block], min(BLOCK, self.count - start))

    def draw(self, seed: list[int], count: int) -> np.ndarray:
        begin = time.perf_counter()
        x = _normal(seed, count)
        x += self.centres[np.random.default_rng([*seed, 1]).integers(len(self.centres), size=count)]
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        self.seconds += time.perf_counter() - begin
        return x


def _normal(seed: list[int], count: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, DIM), dtype=np.float32)


def run(kind: str, data: str, count: int | None = None) -> list[dict[str, Any]]:
    """Build, search, add and delete, on vectors in float16 with codes of a byte per entry."""
    vectors = Vectors(data, count or COUNT)
    queries = vectors.draw([2], QUERIES)
    folder = _make_folder(2 * 3 * DIM * vectors.count)  # a deletion writes the index anew beside the old one
    try:
        return _measure(kind, data, vectors, queries, folder / "large.index")
    finally:
        shutil.rmtree(folder)


def _measure(kind: str, data: str, vectors: Vectors, queries: np.ndarray, folder: Path) -> list[dict[str, Any]]:
    import faiss

    from metrix.search import Index, Items
    from metrix.search.settings import Settings
    from metrix.search.stores import Best

    count, settings = vectors.count, Settings(half=True)
    if kind == "ivf":
        cells = round(2000 * math.sqrt(count / COUNT))
        settings = Settings(half=True, cells=cells, probes=math.ceil(cells * 128 / 2000))

    best = Best(len(queries), K)  # the true nearest, in float32

    def batches() -> Iterator[Items]:
        first = 0
        for x in vectors.blocks():
            begin = time.perf_counter()
            similarities, rows = faiss.knn(queries, x, K, metric=faiss.METRIC_INNER_PRODUCT)
            best.add(similarities, rows + first)
            vectors.seconds += time.perf_counter() - begin
            yield Items.read(x, [f"photos/{n:08d}.jpg" for n in range(first, first + len(x))])
            first += len(x)

    vectors.seconds = 0.0
    built = _seconds(lambda: Index.create(folder, batches(), kind, settings=settings)) - vectors.seconds
    size = sum(file.stat().st_size for file in folder.iterdir())
    searched = _alone(search_alone, folder, queries)
    recall = float((best.rows[:, :, None] == searched.rows[:, None, :]).any(axis=2).mean())
    index = Index.open(folder)
    more = Items.read(vectors.draw([3], CHANGED), [f"new/{n}.jpg" for n in range(CHANGED)])
    added = _seconds(lambda: index.add(more))
    deleted = _seconds(lambda: index.delete([f"photos/{n:08d}.jpg" for n in range(CHANGED)]))
    assert len(index) == count

    what = f"{kind}, {count:,} x {DIM} {data}"
    reach = index.description.place.get("reach")
    first = f"the best {reach:,} of a part by bits, then by bytes" if reach else "all codes"
    how = f"{settings.probes} of {settings.cells} cells" if kind == "ivf" else first
    recall_of = f"{QUERIES} queries that are not in the index, {how}"
    recall_row = (
        without_target(f"{what}: recall@{K}", recall, "", f"{recall_of}; there are no clusters for cells to find")
        if (kind, data) == ("ivf", "random")
        else at_least(f"{what}: recall@{K}", recall, 0.98, "", recall_of)
    )
    return [
        without_target(f"{what}: building", built, "s", f"{size / GB:.2f} GB on disk"),
        recall_row,
        at_most(
            f"{what}: one query, warm",
            searched.milliseconds,
            100,
            "ms",
            f"best {searched.least:.0f} ms; {searched.processor:.0f} ms of processor time; {searched.threads} threads",
        ),
        without_target(f"{what}: {QUERIES} queries at once", searched.batch, "ms", "for each"),
        at_most(
            f"{what}: memory to search", searched.peak / GB, 8, "GB", f"{searched.own / GB:.2f} GB without mapped files"
        ),
        without_target(f"{what}: adding {CHANGED:,}", added, "s"),
        without_target(f"{what}: deleting {CHANGED:,}", deleted, "s"),
    ]


class Searched(NamedTuple):
    """What a process that only searches has found, and taken."""

    rows: np.ndarray
    milliseconds: float  # of a warm query, the median
    least: float
    processor: float  # milliseconds of all threads, the median
    batch: float  # milliseconds of a query, of all at once
    peak: int  # bytes
    own: int  # of them, not of mapped files
    threads: int


def search_alone(folder: Path, queries: np.ndarray) -> Searched:
    """Open and search."""
    import faiss

    from metrix.search import Index

    index = Index.open(folder)
    rows = np.concatenate([index.search(query[None], K).rows for query in queries])
    times, processor = [], []
    for query in queries:
        before = time.process_time()
        times.append(1000 * _seconds(lambda q=query: index.search(q[None], K)))  # type: ignore[misc]
        processor.append(1000 * (time.process_time() - before))
    peak, own = memory_now("VmHWM"), memory_now("RssAnon")
    batch = 1000 * _seconds(lambda: index.search(queries, K)) / len(queries)
    middle, most = float(np.median(times)), float(np.median(processor))
    return Searched(rows, middle, min(times), most, batch, peak, own, faiss.omp_get_max_threads())


def duplicates(count: int | None = None) -> list[dict[str, Any]]:
    """Duplicates in an index, of which a twentieth is one vector; it has cells, as exact search takes an hour."""
    from metrix.search import Index, Items
    from metrix.search.settings import Settings

    count = count or DUPLICATES_COUNT
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, DUPLICATES_DIM), dtype=np.float32)
    same = np.sort(rng.permutation(count)[: count // DUPLICATES_SHARE])
    x[same] = x[same[0]]
    folder = _make_folder(4 * DUPLICATES_DIM * count)
    try:
        Index.create(folder / "copies.index", [Items.read(x)], "ivf", settings=Settings(probes=8))
        groups, seconds, peak = _alone(find_alone, folder / "copies.index")
    finally:
        shutil.rmtree(folder)
    assert groups == [same.tolist()], "expected the identical vectors as the only group"
    name = f"duplicates of {count:,} x {DUPLICATES_DIM}, {len(same):,} identical"
    return [at_most(f"{name}: peak memory", peak / GB, 2, "GB"), without_target(f"{name}: time", seconds, "s")]


def find_alone(folder: Path) -> tuple[list[list[int]], float, int]:
    """Duplicates: the ids of each group, seconds, and peak memory in bytes."""
    from metrix.search import Index, find_duplicates

    index, begin = Index.open(folder), time.perf_counter()
    groups = [list(group.ids) for group in find_duplicates(index)]
    return groups, time.perf_counter() - begin, memory_now("VmHWM")


def _alone(work: Callable[..., Any], *given: Any) -> Any:
    """What work returns in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        return processes.submit(work, *given).result()


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _make_folder(needed: int) -> Path:
    folder = Path(tempfile.mkdtemp())
    free = shutil.disk_usage(folder).free
    if free < needed:
        folder.rmdir()
        sys.exit(
            f"disk: expected {needed / GB:.0f} GB free in {folder.parent}, got {free / GB:.0f}; set TMPDIR or --count"
        )
    return folder
