"""Search through our interface against bare faiss on the same vectors, side by side."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import at_most, together

COUNT, DIM, QUERIES, K = 100_000, 512, 100, 10


def vectors(count: int = COUNT) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((count, DIM), dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


def flat_search() -> list[dict[str, Any]]:
    """One query and a batch, in memory, under ids that are text."""
    import faiss

    from metrix.search import Index

    x = vectors()
    bare = faiss.IndexFlatIP(DIM)
    bare.add(x)
    ours = Index.build(x, [f"photos/{n:06d}.jpg" for n in range(len(x))])
    rows = []
    for count in (1, QUERIES):
        queries = vectors(count)[::-1].copy()
        found = ours.search(queries, K)
        similarities, nearest = bare.search(queries, K)
        assert np.array_equal(nearest, found.rows)
        np.testing.assert_allclose(similarities, found.similarities, atol=1e-6)  # sums in another order
        times = together(
            {"bare": lambda q=queries: bare.search(q, K), "ours": lambda q=queries: ours.search(q, K)},  # type: ignore[misc]
            seconds=4.0,
        )
        name = f"flat search, {count} of {COUNT:,} x {DIM}: metrix / faiss"
        rows.append(at_most(name, times["ours"] / times["bare"], 1.05, note=f"faiss {1000 * times['bare']:.0f} ms"))
    return rows


def building() -> list[dict[str, Any]]:
    """An index in memory, and one on disk with the same guarantees: complete and synchronised."""
    import faiss

    from metrix.search import Index, Items

    x = vectors()
    ids = [f"photos/{n:06d}.jpg" for n in range(len(x))]

    def bare() -> Any:
        index = faiss.IndexFlatIP(DIM)
        index.add(x)
        return index

    times = together({"bare": bare, "ours": lambda: Index.build(x)}, seconds=3.0, least=3, warm=1)
    rows = [at_most(f"index of {COUNT:,} x {DIM} in memory: metrix / faiss", times["ours"] / times["bare"], 1.1)]
    folder = Path(tempfile.mkdtemp())
    try:

        def bare_on_disk() -> None:
            path = folder / "bare.faiss"
            faiss.write_index(bare(), str(path))
            with path.open("rb") as file:
                os.fsync(file.fileno())

        times = together(
            {"bare": bare_on_disk, "ours": lambda: Index.create(folder / "ours.index", [Items.read(x, ids)])},
            seconds=3.0,
            least=3,
            warm=1,
        )
    finally:
        shutil.rmtree(folder)
    name = f"index of {COUNT:,} x {DIM} on disk, with ids: metrix / faiss without"
    rows.append(at_most(name, times["ours"] / times["bare"], 1.1, note=f"faiss {times['bare']:.2f} s"))
    return rows


PARTS = (flat_search, building)
