"""Points in the plane for a collection: at once by principal components, then by t-SNE, which is kept."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.files import cache_folder, write_atomically
from metrix.report.figures.maps import project_to_plane
from metrix.search import nearest_others

LANDMARKS = 3000  # images that t-SNE places; others go between those that they are nearest to
NEAR = 5
RECIPE = 1  # increase it when the map changes, so that kept ones are not used


def project_linearly(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Points (n, 2) along the two principal directions, within -1 and 1."""
    sample = vectors[:: max(1, len(vectors) // 10_000)].astype(np.float64)
    centre = sample.mean(0)
    spread = sample - centre
    axes = np.linalg.eigh(spread.T @ spread)[1][:, ::-1][:, :2]
    points = (vectors - centre) @ axes
    return within(np.pad(points, ((0, 0), (0, 2 - points.shape[1]))))


def project_to_map(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Points (n, 2) within -1 and 1 by t-SNE; deterministic, and kept in the cache folder."""
    digest = hashlib.sha256(f"{RECIPE}|{LANDMARKS}|{vectors.shape}".encode())
    digest.update(np.ascontiguousarray(vectors).data)
    path = cache_folder() / "maps" / f"{digest.hexdigest()[:32]}.npy"
    try:
        kept: NDArray[np.float32] = np.load(path, allow_pickle=False)
        if kept.shape == (len(vectors), 2):
            return kept
    except (OSError, ValueError, EOFError):
        pass
    points = within(_place(vectors))

    array = io.BytesIO()  # written to a file, np.save does not notice a disk that is full at its last bytes
    np.save(array, points)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: temporary.write_bytes(array.getvalue()))
    except OSError:
        pass  # a cache that cannot be written costs time the next time
    return points


def _place(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    count = len(vectors)
    if count <= LANDMARKS:
        return project_to_plane(vectors)
    rows = np.sort(np.random.default_rng(0).permutation(count)[:LANDMARKS])
    known = project_to_plane(vectors[rows])
    points = np.empty((count, 2))
    scatter = np.random.default_rng(1)
    spacing = 0.3 * float(np.sqrt(np.prod(np.ptp(known, axis=0)) / LANDMARKS))  # between neighbours on the map
    for start in range(0, count, 4096):
        part = vectors[start : start + 4096]
        found, similarities = nearest_others(part, vectors[rows], NEAR)
        weights = np.exp(30 * (similarities - similarities[:, :1]).astype(np.float64))
        weights /= weights.sum(1, keepdims=True)
        # Around the nearest one: a mean over several islands would be on none of them.
        close = np.linalg.norm(known[found] - known[found[:, :1]], axis=2) < 20 * spacing
        weights *= close
        weights /= weights.sum(1, keepdims=True)
        points[start : start + 4096] = np.einsum("nk,nkc->nc", weights, known[found])
    moved = np.ones(count, dtype=bool)
    moved[rows] = False
    points[moved] += scatter.normal(0, spacing, (int(moved.sum()), 2))
    points[rows] = known
    return points


def within(points: NDArray[Any]) -> NDArray[np.float32]:
    """Points moved and scaled, the same along both axes, to lie within -1 and 1."""
    if not len(points):
        return np.empty((0, 2), np.float32)
    low, high = points.min(0), points.max(0)
    scale = float((high - low).max()) or 1.0
    return np.asarray(2 * (points - (low + high) / 2) / scale * 0.97, dtype=np.float32)
