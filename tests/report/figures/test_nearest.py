"""Galleries of nearest neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from metrix.report.figures.nearest import NeighbourSearch, build_gallery
from tests.report.figures.vectors import unit


def test_a_gallery_is_what_an_exhaustive_search_finds() -> None:
    vectors, labels = unit(40, 6), np.array([f"c{n % 5}" for n in range(40)])
    pixels = np.arange(40, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    shown = build_gallery({"run": NeighbourSearch(vectors)}, [7, 21], labels, lambda row: pixels[row], k=3)
    cosines = vectors @ vectors.T - 9 * np.eye(40)
    for row, query in zip((7, 21), shown.queries, strict=True):
        expected = (-cosines[row]).argsort()[:3]
        hits = query.found["run"]
        assert [int(hit.picture.pixels[0, 0]) for hit in hits] == expected.tolist()
        assert [hit.right for hit in hits] == (labels[expected] == labels[row]).tolist()
        assert [hit.similarity for hit in hits] == pytest.approx(cosines[row][expected], abs=1e-5)
    other, names = unit(10, 6, seed=4), np.array([f"c{n % 5}" for n in range(10)])
    apart = build_gallery(
        {"run": NeighbourSearch(vectors, other)},
        [7],
        labels,
        lambda row: pixels[row],
        names,
        lambda row: pixels[row],
        k=20,
    )
    assert [int(hit.picture.pixels[0, 0]) for hit in apart.queries[0].found["run"]] == (
        -(other @ vectors[7])
    ).argsort().tolist()


def test_a_query_is_not_found_by_itself_among_its_copies() -> None:
    same = np.tile(unit(1, 4), (9, 1))
    ids, _ = NeighbourSearch(same).nearest([8], k=3)
    assert ids.shape == (1, 3)
    assert 8 not in ids
