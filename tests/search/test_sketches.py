"""Codes of a bit per entry beside those of a byte."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("faiss")

from metrix.errors import DataError
from metrix.search import Index, Items, Settings, faiss_store, sketches
from metrix.search.faiss_files import write_generation
from metrix.search.recall import find_true_neighbours

COUNT, DIM = 1500, 48


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SKETCHED": 500, "PART": 600, "MOST": 3, "QUERIES_AT_ONCE": 7}.items():
        monkeypatch.setattr(sketches, name, value)
    monkeypatch.setattr(faiss_store, "TAIL", 20)
    monkeypatch.setattr(faiss_store, "FEW", 100)


def vectors(count: int = COUNT, seed: int = 0, clusters: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, DIM))
    if clusters:
        x += 2 * np.random.default_rng(99).standard_normal((clusters, DIM))[rng.integers(clusters, size=count)]
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def items(x: Any, start: int = 0) -> Items:
    rows = range(start, start + len(x))
    return Items.read(x, [f"p{n:05d}" for n in rows], {"odd": [n % 2 == 1 for n in rows]})


def share(found: Any, right: Any) -> float:
    return float(np.mean([np.isin(b, a).mean() for a, b in zip(found.ids, right.ids, strict=True)]))


def names(index: Index) -> list[str]:
    return list(index.description.place["sketch"])  # type: ignore[arg-type]


@pytest.mark.parametrize("clusters", [0, 30])
@pytest.mark.parametrize("half", [False, True])
def test_the_nearest_are_found_by_few_bytes(tmp_path: Path, clusters: int, half: bool, monkeypatch: Any) -> None:
    x, q = vectors(clusters=clusters), vectors(60, seed=1, clusters=clusters)
    index = Index.create(tmp_path / "i", [items(x)], "sq8", settings=Settings(half=half))
    assert len(names(index)) == 3  # 600, 600 and 300 rows
    reach = index.store.reach  # type: ignore[attr-defined]
    assert 10 <= reach.near <= COUNT // 3
    assert index.description.recall is not None
    assert index.description.recall >= 0.97
    used = []
    real = sketches.Sketch.find_candidates
    monkeypatch.setattr(sketches.Sketch, "find_candidates", lambda *given: used.append(given[3]) or real(*given))
    exact = Index.build(x, [f"p{n:05d}" for n in range(COUNT)], columns={"odd": [n % 2 == 1 for n in range(COUNT)]})
    assert share(index.search(q, 10), exact.search(q, 10)) >= 0.95
    assert share(index.search(q[:1], 10), exact.search(q[:1], 10)) >= 0.9
    odd = index.search(q, 10, where=["odd=true"])
    assert share(odd, exact.search(q, 10, where=["odd=true"])) >= 0.97
    assert all(record["odd"] for row in odd.records() for record in row)
    assert used == [reach.near, reach.near] + [reach.far] * (reach.far > 0)
    right = [[x[exact.find(list(row))] @ one for row in odd.ids[n : n + 1]] for n, one in enumerate(q)]
    np.testing.assert_allclose(odd.similarities, np.concatenate(right), atol=1e-3 if half else 1e-6)


def test_the_reach_is_the_smallest_that_holds_the_true_neighbours(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", [items(vectors())], "sq8")
    known = find_true_neighbours(index.store)
    store: Any = index.store
    some, ranks = known.queries[: faiss_store.REACH_QUERIES], []
    parameters = sketches.import_extra("faiss").RaBitQSearchParameters(qb=4)
    for number, part in enumerate(store._sketch.parts):
        order = sketches.search_faiss(part, some, part.ntotal, parameters)[1] + number * 600
        for row, true in zip(order.tolist(), known.rows.tolist(), strict=False):
            ranks += [row.index(one) + 1 for one in true if one in row]
    assert len(ranks) == len(some) * 10
    assert index.description.place["reach"] == sorted(ranks)[math.ceil(0.99 * len(ranks)) - 1]


def test_more_neighbours_reach_further_and_in_the_end_everywhere(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", [items(vectors())], "sq8")
    sketch = index.store._sketch  # type: ignore[attr-defined]
    reach = sketches.Reach(60, 200)
    assert [sketch.reach_for(k, reach, False) for k in (1, 11, 12, 100, 250, 251)] == [60, 60, 200, 200, 500, 0]
    assert [sketch.reach_for(k, reach, True) for k in (1, 250, 251)] == [200, 500, 0]
    exact = Index.build(vectors(), [f"p{n:05d}" for n in range(COUNT)])
    q = vectors(9, seed=1)
    assert share(index.search(q, 700), exact.search(q, 700)) > 0.999


def test_neighbours_beyond_a_cluster_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten neighbours are in the cluster of the query; more, or others than these, are among all the rest."""
    monkeypatch.setattr(sketches, "PART", 5000)
    centres, rng = np.random.default_rng(1).standard_normal((400, DIM)), np.random.default_rng(0)
    x = np.repeat(centres, 15, axis=0) + 0.2 * rng.standard_normal((6000, DIM))
    given = Items.read(x, columns={"cluster": np.repeat(np.arange(400), 15)})
    index, exact = Index.create(tmp_path / "i", [given], "sq8"), Index.build(x, columns={"cluster": given.columns[0]})
    q = x[7::150]
    assert index.store.reach.near < 30  # type: ignore[attr-defined]
    assert share(index.search(q, 10), exact.search(q, 10)) > 0.98
    assert share(index.search(q, 40), exact.search(q, 40)) > 0.98
    others = [
        (index.search(one[None], 10, where=where).ids, exact.search(one[None], 10, where=where).ids)
        for n, one in enumerate(q)
        if (where := [f"cluster!={10 * n}"])
    ]
    assert np.mean([np.isin(right, found).mean() for found, right in others]) > 0.98


def test_an_addition_continues_the_last_part(tmp_path: Path) -> None:
    x, more = vectors(), vectors(400, seed=3)
    index = Index.create(tmp_path / "i", [items(x)], "sq8")
    before = names(index)
    index.add(items(more[:20], COUNT))
    assert names(index) == before  # compared without codes
    index.add(items(more[20:], COUNT + 20))
    after = names(index)
    assert after[:2] == before[:2]
    assert len(after) == 4
    assert before[2] not in [path.name for path in (tmp_path / "i").iterdir()]
    exact = Index.build(np.concatenate([x, more]), [f"p{n:05d}" for n in range(COUNT + 400)])
    for opened in (index, Index.open(tmp_path / "i")):
        assert [part.ntotal for part in opened.store._sketch.parts] == [600, 600, 600, 100]  # type: ignore[attr-defined]
        assert share(opened.search(more, 1), exact.search(more, 1)) == 1.0
    whole = Index.create(tmp_path / "w", [items(np.concatenate([x, more]))], "sq8")
    assert abs(int(whole.description.place["reach"]) - int(index.description.place["reach"])) < 120  # type: ignore[arg-type]
    index.delete(["p00003"])
    assert (index.find(["p00003", "p00004"]) >= 0).tolist() == [False, True]
    assert not set(after) & set(names(index))
    index.delete([f"p{n:05d}" for n in range(100, 1700)])
    assert "sketch" not in index.description.place  # small again: all bytes
    assert len(list((tmp_path / "i").glob("sketch-*"))) == 0
    other = Index.create(tmp_path / "o", [items(vectors(900, seed=5), 5000)], "sq8")
    index.merge(other)
    assert len(names(index)) == 2


@pytest.mark.parametrize("same", [COUNT, 700])
def test_identical_vectors_are_no_failure(tmp_path: Path, same: int) -> None:
    x = vectors()
    x[:same] = x[0]
    index = Index.create(tmp_path / "i", [items(x)], "sq8")
    np.testing.assert_allclose(index.search(x[:1], 10).similarities, 1.0, atol=1e-6)


def test_an_index_without_a_sketch_compares_all_bytes(tmp_path: Path) -> None:
    """As those of earlier versions are."""
    index = Index.create(tmp_path / "i", [items(vectors())], "sq8")
    path = tmp_path / "i" / "description.json"
    content = json.loads(path.read_text())
    del content["place"]["sketch"], content["place"]["reach"]
    path.write_text(json.dumps(content))
    old = Index.open(tmp_path / "i")
    exact = Index.build(vectors(), [f"p{n:05d}" for n in range(COUNT)])
    q = vectors(20, seed=1)
    assert share(old.search(q, 10), exact.search(q, 10)) >= 0.99
    old.add(items(vectors(100, seed=4), COUNT))
    assert len(names(old)) == 3  # made with the next codes
    assert index.store.reach.near  # type: ignore[attr-defined]


def test_a_damaged_sketch_is_one_clear_error(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", [items(vectors())], "sq8")
    description = tmp_path / "i" / "description.json"
    sound = description.read_text()
    place = json.loads(sound)["place"]
    for changed, words in (
        ({"sketch": place["sketch"][:2]}, "expected a bit per entry for 1500 rows, got 1200"),
        ({"sketch": [place["codes"]]}, "expected codes of a bit per entry of dimension 48, got others"),
        ({"sketch": ["../x.faiss"]}, "leads out of the index"),
        ({"sketch": "x.faiss"}, "expected names of files"),
        ({"reach": "far"}, "place.reach: expected an integer ≥ 0"),
        ({"reach": -1}, "place.reach: expected an integer ≥ 0"),
        ({"far_reach": "far"}, "place.far_reach: expected an integer ≥ 0"),
    ):
        description.write_text(json.dumps({**json.loads(sound), "place": {**place, **changed}}))
        with pytest.raises(DataError, match=words):
            Index.open(tmp_path / "i")
    description.write_text(sound)
    part = tmp_path / "i" / names(index)[1]
    content = part.read_bytes()
    part.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="damaged"):
        Index.open(tmp_path / "i")
    part.unlink()
    with pytest.raises(DataError, match=r"expected .*sketch-.*which is missing"):
        Index.open(tmp_path / "i")


def test_a_sketch_that_is_not_complete_leaves_the_old_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    index = Index.create(tmp_path / "i", [items(vectors())], "sq8")
    real = faiss.write_index

    def fail(codes: Any, path: str) -> None:
        real(codes, path)
        if "-1.faiss" in path:
            raise KeyboardInterrupt

    monkeypatch.setattr(faiss, "write_index", fail)
    with pytest.raises(KeyboardInterrupt):
        index.delete(["p00003"])
    monkeypatch.undo()
    old = Index.open(tmp_path / "i")
    assert names(old) == names(index)
    assert len(old) == COUNT
    assert len(list((tmp_path / "i").glob("sketch-*"))) == 5  # two were left behind
    old.set_columns(["p00003"], {"odd": [False]})
    assert len(list((tmp_path / "i").glob("sketch-*"))) == 3


def test_a_generation_that_was_never_measured_compares_all_bytes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sketches, "SKETCHED", 500)
    place = write_generation(tmp_path, 1, [items(vectors())], "sq8", Settings())
    store = faiss_store.FaissStore.open(tmp_path, place, "sq8")
    assert store.reach == (0, 0)
    x = vectors()
    assert store.search(x[:5], 1).rows[:, 0].tolist() == list(range(5))


def test_parts_searched_at_once_keep_to_the_filter(tmp_path: Path) -> None:
    """A faiss index writes into the parameters that it is given while it searches."""
    x, q = vectors(), vectors(60, seed=1)
    index = Index.create(tmp_path / "i", [items(x)], "sq8")
    first = index.search(q, 10, where=["odd=true"])
    for _ in range(60):
        again = index.search(q, 10, where=["odd=true"])
        assert (again.ids == first.ids).all()
        assert all(record["odd"] for row in again.records() for record in row)
