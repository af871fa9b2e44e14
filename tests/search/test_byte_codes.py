"""Bytes that prove which rows can be among the nearest: the answers are those of a search through everything."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("faiss")

from metrix.search import Index, Items, Settings, byte_codes
from metrix.search.byte_codes import ByteCodes, can_have_bytes
from metrix.search.nearest import nearest, nearest_among
from metrix.search.vectors import MappedVectors

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FEWEST": 1, "PART": 500, "ROWS_AT_ONCE": 300, "AFTER": 2}.items():
        monkeypatch.setattr(byte_codes, name, value)
    monkeypatch.setattr("metrix.search.faiss_store.AFTER", 2)


def unit(x: Array) -> NDArray[np.float32]:
    return np.ascontiguousarray(x / np.linalg.norm(x, axis=1, keepdims=True), dtype=np.float32)


def normal(count: int, dim: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, dim))


def hostile(name: str) -> NDArray[np.float32]:
    """Vectors that make ties, that codes describe badly, or that are hardly any."""
    x = normal(2000, 40)
    if name == "duplicates":
        x[100:900] = x[100]
    elif name == "identical":
        x[:] = x[0]
    elif name == "pairs":
        x = np.concatenate([x[:1000], x[:1000]])
    elif name == "one-hot":
        x = np.eye(40)[np.arange(2000) % 40]
    elif name == "spikes":
        x[7, 3] = 1e4
    elif name == "tiny":
        x *= 1e-30
    elif name == "steps":
        x = np.round(x)
        x[np.linalg.norm(x, axis=1) == 0, 0] = 1
    elif name == "opposite":
        x[1000:] = -x[:1000]
    elif name == "near":
        x = x[:1] + 1e-4 * x
    elif name == "odd dimension":
        x = normal(2000, 67)
    elif name == "one dimension":
        x = np.where(np.arange(2000)[:, None] % 3 == 0, -1.0, 1.0)
    elif name == "one":
        x = x[:1]
    elif name == "two":
        x = x[:2]
    return unit(x)


HOSTILE = (
    "random", "duplicates", "identical", "pairs", "one-hot", "spikes", "tiny", "steps", "opposite", "near",
    "odd dimension", "one dimension", "one", "two",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_similarities_and_ties_are_those_of_all(name: str, threads: int, monkeypatch: Any) -> None:
    import faiss

    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: threads)
    monkeypatch.setattr(byte_codes, "MOST_OF_ALL", 16 if threads == 1 else 1)  # 1: never given up
    x = hostile(name)
    queries = np.concatenate([x[:: max(1, len(x) // 6)], unit(normal(6, x.shape[1], 1)), -x[:2]])
    for vectors in (MappedVectors([x]), MappedVectors([x[:700], x[700:]]), MappedVectors([x.astype(np.float16)])):
        codes = ByteCodes(vectors)
        for query in queries[:, None]:
            for k in {1, min(7, len(x)), min(40, len(x))}:
                compare = lambda rows, q=query, n=k: nearest_among(q, vectors, n, rows)  # noqa: E731, B023
                found = codes.search(query, k, compare)
                if found is None:  # too many rows to prove anything
                    continue
                right = nearest(query, vectors, k)
                np.testing.assert_array_equal(found[1], right[1])
                np.testing.assert_array_equal(found[0], right[0])


def test_few_rows_are_compared() -> None:
    x = unit(normal(6000, 64))
    codes, compared = ByteCodes(MappedVectors([x])), []
    for query in unit(normal(20, 64, 1))[:, None]:

        def compare(rows: Array, query: Array = query) -> Any:
            compared.append(len(rows))
            assert (np.diff(rows) > 0).all()
            return nearest_among(query, MappedVectors([x]), 5, rows)

        assert codes.search(query, 5, compare) is not None
    assert max(compared) < 3 * (8 * 5 + 64) + 200
    assert codes.worthwhile


def test_the_bound_is_an_upper_bound_of_every_error() -> None:
    x = hostile("spikes")
    codes = ByteCodes(MappedVectors([x]))
    signed = np.clip(np.rint(x / np.float32(codes._step)), -127, 127).astype(np.float64) * codes._step
    error = np.linalg.norm(x.astype(np.float64) - signed, axis=1)
    usual = np.setdiff1d(np.arange(len(x)), codes._unusual)
    assert 0 < len(codes._unusual) < 10
    assert (error[usual] <= codes._error).all()
    assert (error[codes._unusual] > 0.99 * codes._error).all()


def test_codes_that_prove_nothing_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x = hostile("near")
    index = Index.build(x)
    tried = []
    real = ByteCodes.search
    monkeypatch.setattr(ByteCodes, "search", lambda *given: tried.append(1) or real(*given))
    for n in range(60):
        assert index.search(x[n : n + 1], 3).rows[0, 0] == nearest(x[n : n + 1], x, 3)[1][0, 0]
    assert len(tried) == byte_codes.TRIES


@pytest.mark.parametrize("half", [False, True])
def test_an_index_answers_as_before(tmp_path: Any, half: bool) -> None:
    x = hostile("pairs")
    columns = {"odd": [n % 2 == 1 for n in range(len(x))]}
    index = Index.create(tmp_path / "i", [Items.read(x, None, columns)], settings=Settings(half=half))
    index.add(Items.read(hostile("random")[:30], list(range(5000, 5030)), {"odd": [True] * 30}))
    q = unit(normal(12, 40, 5))
    calls = [
        {"k": 5},
        {"k": 1},
        {"k": 5, "where": ["odd=true"]},
        {"k": 99},
        {"k": 120},
        {"k": 3000},
        {"k": 4, "own": [3]},
    ]
    before = [index.search(one, **call) for call in calls for one in q[:, None]]  # type: ignore[arg-type]
    fresh = Index.open(tmp_path / "i")
    plain = [nearest(one, fresh.store.vectors, 5) for one in q[:, None]]  # type: ignore[attr-defined]
    fresh.prepare()
    assert fresh.store._bytes is not None  # type: ignore[attr-defined]
    after = [fresh.search(one, **call) for call in calls for one in q[:, None]]  # type: ignore[arg-type]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.similarities, other.similarities)
    for one, (similarities, rows) in zip(after, plain, strict=False):
        np.testing.assert_array_equal(one.rows, rows)
        np.testing.assert_array_equal(one.similarities, similarities)
    several = fresh.search(q[:3], 5)
    np.testing.assert_array_equal(several.rows, np.concatenate([one.rows for one in after[:3]]))
    many = fresh.search(q, 5)  # by matrix products
    np.testing.assert_allclose(many.similarities, np.concatenate([one.similarities for one in after[:12]]), atol=1e-6)


def test_codes_are_made_once_there_were_queries_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    x, made = hostile("random"), []
    real = byte_codes.ByteCodes
    monkeypatch.setattr("metrix.search.faiss_store.ByteCodes", lambda vectors: made.append(1) or real(vectors))
    index = Index.build(x)
    for n in range(2):
        index.search(x[n : n + 1], 3)
    assert not made
    threads = [threading.Thread(target=lambda: index.search(x[:1], 3)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    index.search(x[:64], 3)
    assert Index.build(x, kind="sq8").prepare() is None  # codes of its own
    assert made == [1]


def test_only_indexes_of_some_size_have_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_codes, "FEWEST", 4096)
    vectors = MappedVectors([hostile("random")])
    assert not can_have_bytes(vectors)
    monkeypatch.setattr(byte_codes, "FEWEST", 1)
    assert can_have_bytes(vectors)
    monkeypatch.setattr(byte_codes, "ONE_THREAD", 2000 * 40 - 1)
    assert not can_have_bytes(vectors)


def test_one_query_is_compared_by_the_same_kernel_whatever_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    x, threads = unit(normal(20_000, 64)), faiss.omp_get_max_threads()
    query = x[5:6]
    try:
        found = []
        for number in (1, 2):
            faiss.omp_set_num_threads(number)
            found.append(nearest(query, x, 9))
            assert faiss.omp_get_max_threads() == number  # other users of faiss keep theirs
    finally:
        faiss.omp_set_num_threads(threads)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    alone = [
        faiss.fvec_inner_product(faiss.swig_ptr(query), faiss.swig_ptr(x[row : row + 1]), 64) for row in found[0][1][0]
    ]
    np.testing.assert_array_equal(found[0][0][0], np.array(alone, np.float32))
