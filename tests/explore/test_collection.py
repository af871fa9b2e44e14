"""Neighbours, mistakes and confusions of a collection, against definitions written out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

from metrix.errors import InvalidInput
from metrix.evaluate import retrieval
from metrix.explore import maps
from metrix.explore.collection import Collection, Later, Mistakes
from metrix.explore.pictures import Picture


def unit(count: int, dim: int = 6, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def collection(vectors: np.ndarray, labels: list[str] | None, queries: int = 0) -> Collection:
    ids = [str(n) for n in range(len(vectors))]
    return Collection(
        "c",
        ids,
        None if labels is None else np.array(labels),
        vectors,
        lambda row, size, known: Picture(b"", ""),
        queries,
    )


@pytest.mark.parametrize("queries", [0, 30])
def test_mistakes_and_confusions(queries: int) -> None:
    vectors, rng = unit(100, 3), np.random.default_rng(2)
    labels = [f"k{n}" for n in rng.integers(0, 8, 99)] + ["alone"]
    one = collection(vectors, labels, queries)
    found = Mistakes(one)
    wrong, pairs = {}, {}
    for row in range(queries or 100):
        others = [n for n in range(queries, 100) if n != row]
        if labels[row] not in [labels[n] for n in others]:
            assert found.right[row] == -1
            continue
        order = sorted(others, key=lambda n: -float(vectors[row] @ vectors[n]))
        first = order[0]
        assert found.right[row] == (labels[first] == labels[row]), row
        if labels[first] != labels[row]:
            near = order[:10]
            wrong[row] = (sum(labels[n] == labels[row] for n in near), -float(vectors[row] @ vectors[first]))
            key = (labels[row], labels[first])
            pairs[key] = pairs.get(key, 0) + 1
    assert found.worst.tolist() == sorted(wrong, key=lambda row: wrong[row])
    assert {(one.classes[p["of"]], one.classes[p["as"]]): p["count"] for p in found.pairs} == pairs
    assert all(a["count"] >= b["count"] for a, b in zip(found.pairs, found.pairs[1:], strict=False))
    assert (found.right[queries or 100 :] == -1).all()


@pytest.mark.parametrize("queries", [0, 40])
def test_mistakes_are_those_of_the_evaluation_also_between_copies(queries: int) -> None:
    """Equal similarities rank in the order of the rows, as in `metrix evaluate`."""
    rng = np.random.default_rng(5)
    vectors = unit(12, 4)[rng.integers(0, 12, 120)]  # many copies
    labels = [f"k{n}" for n in rng.integers(0, 6, 120)]
    one = collection(vectors, labels, queries)
    found = Mistakes(one)
    gallery = (vectors[queries:], labels[queries:]) if queries else (None, None)
    expected = retrieval(
        vectors[: queries or 120], labels[: queries or 120], (1,), *gallery, resamples=0, confusion=True
    )
    right = np.full(120, -1)
    right[expected.query_rows] = expected.per_query["recall@1"]
    np.testing.assert_array_equal(found.right, right)
    assert expected.confusion is not None
    assert len(found.worst) == expected.confusion.wrong == sum(pair["count"] for pair in found.pairs)
    both = {frozenset((p.label, p.other)): p.queries + p.reverse for p in expected.confusion.pairs(1000)}
    mine: dict[frozenset[str], int] = {}
    for pair in found.pairs:
        key = frozenset((one.classes[pair["of"]], one.classes[pair["as"]]))
        mine[key] = mine.get(key, 0) + pair["count"]
    assert mine == both


def test_copies_one_image_and_no_classes() -> None:
    same = np.tile(unit(1), (20, 1))
    found = collection(same, ["a", "b"] * 10).find(same[:2], 5, [0, 1])
    assert found.rows.shape == (2, 5)
    assert 0 not in found.rows[0]
    assert 1 not in found.rows[1]
    assert Mistakes(collection(unit(1), ["a"])).worst.size == 0
    assert Mistakes(collection(unit(9), None)).pairs == []
    assert collection(unit(1), ["a"]).find(unit(1), 3, [0]).rows.shape == (1, 0)


def test_the_map_is_kept_and_places_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "LANDMARKS", 60)
    centres = unit(4, 16, seed=3)
    vectors = (centres[np.arange(200) % 4] + 0.05 * unit(200, 16)).astype(np.float32)
    points = maps.project_to_map(vectors)
    assert points.shape == (200, 2)
    assert np.abs(points).max() <= 1
    of = np.arange(200) % 4
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 9 * np.eye(200)
    assert (of[distances.argmin(1)] == of).mean() > 0.95  # neighbours stay neighbours
    monkeypatch.setattr(maps, "project_to_plane", None)  # it is not computed again
    np.testing.assert_array_equal(maps.project_to_map(vectors), points)
    for few in (1, 2, 3):
        assert np.isfinite(maps.project_linearly(unit(few))).all()
    assert maps.project_linearly(unit(5, 1)).shape == (5, 2)


def test_later_computes_once_and_passes_errors_on() -> None:
    calls = []
    with ThreadPoolExecutor(1) as pool:
        value = Later(lambda: calls.append(1) or "x", pool.submit)
        assert [value.start().result(5), value.start().result(5)] == ["x", "x"]
        assert calls == [1]
        with pytest.raises(ZeroDivisionError):
            Later(lambda: 1 / 0, pool.submit).start().result(5)
        hold = Event()
        pool.submit(hold.wait, 10)
        given_up, dropped = Later(lambda: "y", pool.submit), Later(lambda: calls.append(2), pool.submit)
        assert given_up.start().cancel()  # for one of those who wait
        waiting = dropped.start()
        dropped.drop()
        hold.set()
        assert given_up.start().result(5) == "y"
        with pytest.raises(InvalidInput, match="replaced"):
            waiting.result(5)
    assert calls == [1]
