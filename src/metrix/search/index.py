"""An index of embeddings in this process: build, search, save, load.

    index = Index.build(embeddings, ids=paths)
    ids, similarities = index.search(query, k=10)
    index.save("birds.index")
    index = Index.load("birds.index")

`exact` compares a query with everything. `approximate` sorts the embeddings into cells around k-means
centres and looks only into the cells nearest to the query; `search_loss` says what that misses.
"""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.errors import DataError, EmbeddingError, InvalidInput, LabelError, ShapeError, check_integer, unknown_choice
from metrix.files import write_atomically

KINDS = ("exact", "approximate")
FORMAT = "metrix.index"
VERSION = 1


class Found(NamedTuple):
    """The k nearest of each query, nearest first; where fewer are found, id -1 or "" and similarity NaN."""

    ids: NDArray[Any]  # (queries, k)
    similarities: NDArray[np.float32]  # (queries, k) cosines


class Index:
    """Unit embeddings with an id each. Make one with `Index.build` or `Index.load`."""

    def __init__(self, faiss_index: Any, ids: NDArray[Any], kind: str) -> None:
        self._faiss, self.ids, self.kind = faiss_index, ids, kind

    @classmethod
    def build(
        cls,
        embeddings: object,
        ids: object = None,
        kind: str = "exact",
        *,
        cells: int | None = None,
        probes: int | None = None,
        seed: int = 0,
    ) -> Index:
        """Index embeddings (n, d) under n distinct ids, integers or strings; row numbers if none are given.

        For the approximate kind, `cells` is how many cells there are (default 4 √n) and `probes` how many
        of them a search looks into (default an eighth): more probes find more and take longer.

        >>> index = Index.build([[1.0, 0.0], [0.0, 1.0]], ids=["right", "up"])
        >>> index.search([[0.1, 2.0]], k=1).ids
        array([['up']], dtype='<U5')
        """
        import faiss

        if kind not in KINDS:
            raise unknown_choice("kind", kind, KINDS)
        unit = _unit(embeddings, "embeddings")
        named = _read_ids(ids, len(unit))
        if kind == "exact":
            if cells is not None or probes is not None:
                raise InvalidInput("cells and probes are of kind='approximate'; the exact index has none")
            exact = faiss.IndexFlatIP(unit.shape[1])
            exact.add(unit)
            return cls(exact, named, kind)
        cells = min(len(unit), 1 + round(4 * math.sqrt(len(unit)))) if cells is None else cells
        probes = max(1, math.ceil(cells / 8)) if probes is None else probes
        if not 1 <= probes <= cells <= len(unit):
            raise InvalidInput(
                f"cells={cells}, probes={probes} for {len(unit)} embeddings: accepted is "
                "1 <= probes <= cells <= embeddings"
            )
        centres = faiss.IndexFlatIP(unit.shape[1])
        inverted = faiss.IndexIVFFlat(centres, unit.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
        inverted.cp.min_points_per_centroid = 1  # the default warns on the terminal
        inverted.cp.seed, inverted.nprobe = seed, probes
        inverted.train(unit)
        inverted.add(unit)
        return cls(inverted, named, kind)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dim(self) -> int:
        """d, the number of columns of an embedding."""
        return int(self._faiss.d)

    def __repr__(self) -> str:
        return f"Index({len(self)} x {self.dim}, {self.kind})"

    def search(self, queries: object, k: int = 10) -> Found:
        """The k nearest embeddings of each query by cosine; k is cut to the size of the index."""
        check_integer("k", k, least=1)
        unit = _unit(queries, "queries")
        if unit.shape[1] != self.dim:
            raise ShapeError(f"queries of {unit.shape[1]} columns for an index of {self.dim}: both come from one model")
        similarities, rows = self._faiss.search(unit, min(int(k), len(self)))
        return Found(_named(self.ids, rows), np.where(rows < 0, np.float32(np.nan), similarities))

    def search_loss(self, k: int = 10, sample: int = 1000, seed: int = 0) -> float:
        """The part of the true k nearest neighbours that `search` misses, over a sample of the embeddings.

        Zero for the exact index.
        """
        if self.kind == "exact":
            return 0.0
        import faiss

        rows = np.random.default_rng(seed).permutation(len(self))[: max(1, sample)]
        self._faiss.make_direct_map()
        queries = np.stack([self._faiss.reconstruct(int(row)) for row in np.sort(rows)])
        k = min(k, len(self))
        heap = _BestOf(len(queries), k)
        for start in range(0, len(self), 65536):
            part = self._faiss.reconstruct_n(start, min(65536, len(self) - start))
            exact = faiss.IndexFlatIP(self.dim)
            exact.add(part)
            heap.add(*exact.search(queries, min(k, len(part))), start)
        found = self._faiss.search(queries, k)[1]
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, heap.rows, strict=True))
        return 1.0 - hits / (len(queries) * k)

    def save(self, path: str | Path) -> None:
        """Write the index to one file, all of it or nothing: a reader never sees half an index."""
        import faiss

        path = Path(path)
        about = {"format": FORMAT, "version": VERSION, "kind": self.kind}

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:  # savez would add a suffix to a path
                index = faiss.serialize_index(self._faiss)
                np.savez(file, about=np.array(json.dumps(about)), ids=self.ids, index=index)

        write_atomically(path, write)

    @classmethod
    def load(cls, path: str | Path) -> Index:
        """Read what `save` wrote."""
        import faiss

        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as parts:
                about = json.loads(str(parts["about"]))
                if about.get("format") != FORMAT or about.get("version") != VERSION:
                    raise DataError(
                        f"{path} holds {about.get('format')} version {about.get('version')}: this reads "
                        f"{FORMAT} version {VERSION}; build the index again"
                    )
                ids, stored = parts["ids"], faiss.deserialize_index(parts["index"])
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist: give the path that Index.save wrote") from error
        except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} is not an index, or is damaged ({error}); build it again") from error
        if stored.ntotal != len(ids):
            raise DataError(f"{path} is damaged: {stored.ntotal} embeddings for {len(ids)} ids")
        return cls(stored, ids, about["kind"])


class _BestOf:
    """The k best of several lists."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.similarities = np.empty((queries, 0), dtype=np.float32)
        self.rows = np.empty((queries, 0), dtype=np.int64)

    def add(self, similarities: NDArray[np.float32], rows: NDArray[np.int64], offset: int) -> None:
        """Merge a list whose rows start at `offset`."""
        together = np.concatenate([self.similarities, similarities], axis=1)
        best = np.argsort(-together, axis=1, kind="stable")[:, : self.k]
        self.similarities = np.take_along_axis(together, best, axis=1)
        self.rows = np.take_along_axis(np.concatenate([self.rows, rows + offset], axis=1), best, axis=1)


def _unit(embeddings: Any, name: str) -> NDArray[np.float32]:
    """Embeddings (n, d) at unit norm, float32."""
    if hasattr(embeddings, "detach"):
        embeddings = embeddings.detach().float().cpu().numpy()
    try:
        values = np.asarray(embeddings)
    except ValueError as error:
        raise ShapeError(f"{name} do not form an (n, d) table: {error}") from error
    if values.ndim != 2 or 0 in values.shape:
        raise ShapeError(f"{name} of shape {values.shape}: accepted is (n, d) with at least one row and column")
    if values.dtype.kind not in "fiub":
        raise EmbeddingError(f"{name} of type {values.dtype}: accepted are real numbers")
    norms = np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True)
    bad = np.flatnonzero(~np.isfinite(norms[:, 0]) | (norms[:, 0] == 0))
    if len(bad):
        raise EmbeddingError(
            f"{name} hold NaN, infinity or a zero vector in {len(bad)} of {len(values)} rows, first in row "
            f"{bad[0]}: they have no direction to search by; drop these rows"
        )
    return np.ascontiguousarray(values / norms, dtype=np.float32)


def _read_ids(ids: Any, count: int) -> NDArray[Any]:
    if ids is None:
        return np.arange(count)
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    given = list(ids)
    if len(given) != count:
        raise ShapeError(f"{len(given)} ids for {count} embeddings: one id per row is needed")
    if not (
        all(isinstance(one, str) for one in given)
        or all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in given)
    ):
        raise LabelError("ids are all integers or all strings; a path becomes an id with str(path)")
    named = np.array(given)
    values, counts = np.unique(named, return_counts=True)
    if len(values) < count:
        raise LabelError(
            f"id {values[counts > 1][0].item()!r} is given {counts.max()} times: an id names one embedding"
        )
    return named


def _named(ids: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Rows as ids; -1, for none, stays -1 or becomes an empty string."""
    nobody = np.array("" if ids.dtype.kind == "U" else -1, dtype=ids.dtype)
    return np.where(rows < 0, nobody, ids[np.maximum(rows, 0)])
