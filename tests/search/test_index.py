from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix.errors import ChoiceError, DataError, EmbeddingError, InvalidInput, LabelError, ShapeError
from metrix.evaluate import retrieval
from metrix.search import Index


def points(seed: int, n: int, d: int = 8) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * rng.uniform(0.1, 10, (n, 1))


def literal_nearest(queries: np.ndarray, x: np.ndarray, k: int) -> list[list[int]]:
    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b))

    return [sorted(range(len(x)), key=lambda i: -cosine(q, x[i]))[:k] for q in queries]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 50))
def test_the_exact_index_finds_the_nearest(seed: int, n: int, k: int) -> None:
    x, q = points(seed, n), points(seed + 1, 5)
    ids, similarities = Index.build(x).search(q, k)
    assert ids.tolist() == literal_nearest(q, x, k)
    assert ids.shape == similarities.shape == (5, min(k, n))
    assert (np.diff(similarities, axis=1) <= 0).all()


def test_an_approximate_index_that_looks_everywhere_is_exact() -> None:
    x, q = points(0, 300), points(1, 20)
    index = Index.build(x, kind="approximate", cells=10, probes=10)
    assert index.search(q, 7).ids.tolist() == literal_nearest(q, x, 7)
    assert index.search_loss(k=7) == 0.0


def test_the_stated_loss_is_the_measured_one(capfd: pytest.CaptureFixture[str]) -> None:
    x = points(0, 600)
    index = Index.build(x, kind="approximate", cells=40, probes=2)
    nearest = literal_nearest(x, x, 5)
    missed = np.mean([len(set(a) - set(b)) / 5 for a, b in zip(nearest, index.search(x, 5).ids.tolist(), strict=True)])
    assert missed > 0.05
    assert index.search_loss(k=5, sample=600) == pytest.approx(missed, abs=2e-3)
    assert index.search_loss(k=5, sample=200) == pytest.approx(missed, abs=0.1)
    more = Index.build(x, kind="approximate", cells=40, probes=20)
    assert more.search_loss(k=5) < missed
    assert Index.build(x).search_loss() == 0.0
    assert capfd.readouterr() == ("", "")  # faiss does not print


def test_faiss_as_pytorch_metric_learning_leaves_it() -> None:
    import faiss.contrib.torch_utils  # noqa: F401 - replaces methods of faiss when it is imported

    test_an_approximate_index_that_looks_everywhere_is_exact()


def test_too_few_in_the_cells_is_said() -> None:
    index = Index.build(points(0, 50), [f"p{i}" for i in range(50)], "approximate", cells=25, probes=1)
    found = index.search(points(1, 3), 50)
    assert (found.ids == "").any()
    assert (np.isnan(found.similarities) == (found.ids == "")).all()
    numbers = Index.build(points(0, 50), kind="approximate", cells=25, probes=1).search(points(1, 3), 50)
    assert ((numbers.ids == -1) == np.isnan(numbers.similarities)).all()


@pytest.mark.parametrize("kind", ["exact", "approximate"])
@pytest.mark.parametrize("ids", [None, list(range(100, 180)), [f"photo {i}.jpg" for i in range(80)]])
def test_save_and_load(tmp_path: Path, kind: str, ids: Any) -> None:
    index = Index.build(points(0, 80), ids, kind)
    index.save(tmp_path / "some.index")
    again = Index.load(tmp_path / "some.index")
    q = points(1, 6)
    assert np.array_equal(again.search(q, 4).ids, index.search(q, 4).ids)
    assert np.array_equal(again.search(q, 4).similarities, index.search(q, 4).similarities)
    assert repr(again) == f"Index(80 x 8, {kind})"
    assert os.listdir(tmp_path) == ["some.index"]


def test_a_failed_save_leaves_the_old_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Index.build(points(0, 30))
    old.save(tmp_path / "some.index")

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        Index.build(points(1, 40)).save(tmp_path / "some.index")
    assert len(Index.load(tmp_path / "some.index")) == 30
    assert os.listdir(tmp_path) == ["some.index"]


def test_what_is_not_an_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.index"
    with pytest.raises(DataError, match="does not exist"):
        Index.load(path)
    path.write_bytes(b"not an index")
    with pytest.raises(DataError, match="is not an index"):
        Index.load(path)
    Index.build(points(0, 30)).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="damaged"):
        Index.load(path)
    with path.open("wb") as file:
        np.savez(file, about=np.array('{"format": "metrix.index", "version": 99}'))
    with pytest.raises(DataError, match="version 99"):
        Index.load(path)
    with path.open("wb") as file:
        np.savez(file, about=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="is not an index"):  # an object array would be unpickled
        Index.load(path)


def test_tensors_are_accepted() -> None:
    x = torch.from_numpy(points(0, 20))
    for dtype in (torch.float32, torch.bfloat16):
        index = Index.build(x.to(dtype), torch.arange(20), "exact")
        assert index.search(x.to(dtype).requires_grad_(), 1).ids[:, 0].tolist() == list(range(20))


def test_an_index_answers_for_the_evaluation() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 30
    x = rng.standard_normal((30, 8))[labels] + 0.7 * rng.standard_normal((300, 8))
    exact = retrieval(x, labels, resamples=0)
    same = retrieval(x, labels, resamples=0, searcher=Index.build(x))
    assert same.recall == exact.recall
    assert same.map_at_r == pytest.approx(exact.map_at_r, abs=1e-12)
    index = Index.build(x, kind="approximate", cells=40, probes=1)
    rough = retrieval(x, labels, resamples=0, searcher=index)
    assert rough.search_loss is not None
    assert rough.search_loss["map@r"] == pytest.approx(exact.map_at_r - rough.map_at_r, abs=1e-12)
    assert rough.search_loss["map@r"] > 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kind": "exat"}, ChoiceError, "did you mean 'exact'"),
        ({"ids": [1, 2]}, ShapeError, "2 ids for 3 embeddings"),
        ({"ids": [1, 1, 2]}, LabelError, "id 1 is given 2 times"),
        ({"ids": [1, "a", 2]}, LabelError, "all integers or all strings"),
        ({"ids": [Path("a"), Path("b"), Path("c")]}, LabelError, r"str\(path\)"),
        ({"cells": 3}, InvalidInput, "kind='approximate'"),
        ({"kind": "approximate", "cells": 4}, InvalidInput, "cells=4, probes=1 for 3 embeddings"),
        ({"kind": "approximate", "cells": 2, "probes": 3}, InvalidInput, "probes <= cells"),
        ({"embeddings": [[1.0, np.nan]] * 3}, EmbeddingError, "3 of 3 rows"),
        ({"embeddings": [[0.0, 0.0]] * 3}, EmbeddingError, "zero vector"),
        ({"embeddings": np.empty((0, 2))}, ShapeError, "at least one row"),
        ({"embeddings": [1.0, 2.0]}, ShapeError, "accepted is"),
        ({"embeddings": [["a"]]}, EmbeddingError, "real numbers"),
    ],
)
def test_unusable_input_is_refused(arguments: dict[str, Any], error: Any, message: str) -> None:
    arguments = {"embeddings": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], **arguments}
    with pytest.raises(error, match=message):
        Index.build(**arguments)


def test_unusable_queries_are_refused() -> None:
    index = Index.build(points(0, 10))
    with pytest.raises(ShapeError, match="3 columns for an index of 8"):
        index.search(points(0, 2, 3), 1)
    for k in (0, -1, 1.5, True):
        with pytest.raises(InvalidInput, match="k: expected an integer ≥ 1, got"):
            index.search(points(0, 2), k)  # type: ignore[arg-type]
