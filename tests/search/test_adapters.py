"""Adapters against independent computations, and bad pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

from metrix.errors import ChoiceError, DataError, EmbeddingError, InvalidInput, ShapeError
from metrix.search import adapters
from metrix.search.adapters import ADAPTERS, FittedAdapter, fit_adapter, mean_cosine, split_groups
from metrix.search.cross_pairs import count_cross_pairs
from metrix.search.pairs import count_pairs


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def pairs() -> tuple[np.ndarray, np.ndarray]:
    """120 images of 24 classes: the old model sees a curved, noisy projection of what the new one sees."""
    rng = np.random.default_rng(0)
    x = unit(np.repeat(rng.normal(size=(24, 10)), 5, axis=0) + 0.5 * rng.normal(size=(120, 10)))
    y = unit(np.tanh(2 * x @ rng.normal(size=(10, 6))) + 0.05 * rng.normal(size=(120, 6)))
    return x, y


def test_procrustes_is_the_rotation_of_scipy() -> None:
    rng = np.random.default_rng(1)
    x, noise = unit(rng.normal(size=(50, 8))), 0.1 * rng.normal(size=(50, 8))
    y = unit(x @ np.linalg.qr(rng.normal(size=(8, 8)))[0] + noise)
    rotation = scipy.linalg.orthogonal_procrustes(x, y)[0]
    fitted = fit_adapter(x, y, "procrustes")
    np.testing.assert_allclose(fitted.arrays["left"], rotation, atol=1e-5)
    np.testing.assert_allclose(fitted(x), unit(x @ rotation), atol=1e-5)
    np.testing.assert_allclose(fitted(7 * x), fitted(x), atol=1e-6)  # any scale


def test_procrustes_between_two_dimensions_is_that_of_vectors_filled_up_with_zeros(pairs: tuple) -> None:
    x, y = pairs
    filled = np.pad(y, ((0, 0), (0, 4)))
    rotation = scipy.linalg.orthogonal_procrustes(x, filled)[0][:, :6]
    fitted = fit_adapter(x, y, "procrustes")
    assert (fitted.new_dim, fitted.dim) == (10, 6)
    np.testing.assert_allclose(fitted(x), unit(x @ rotation), atol=1e-5)
    back = fit_adapter(y, x, "procrustes").arrays["left"]
    np.testing.assert_allclose(back @ back.T, np.eye(6), atol=1e-5)


def test_reduced_rank_regression_is_the_literal_one(pairs: tuple) -> None:
    x, y = pairs
    centred, target = x - x.mean(0), y - y.mean(0)
    for ridge in (1e-9, 0.1):
        penalty = ridge * np.trace(centred.T @ centred) / 10
        filled = np.vstack([centred, np.sqrt(penalty) * np.eye(10)])  # ridge as more rows of least squares
        whole = np.linalg.lstsq(filled, np.vstack([target, np.zeros((10, 6))]), rcond=None)[0]
        directions = np.linalg.svd(filled @ whole)[2]
        for rank, found in adapters._reduce_ranks(x, y, ridge):
            expected = whole @ directions[:rank].T @ directions[:rank]
            np.testing.assert_allclose(found["left"] @ found["right"], expected, atol=1e-9)
            np.testing.assert_allclose(found["bias"], y.mean(0) - x.mean(0) @ expected, atol=1e-9)
            assert np.linalg.matrix_rank(found["left"] @ found["right"]) == rank
    assert rank == 6


def test_ranks_below_the_full_one_are_tried(monkeypatch: pytest.MonkeyPatch, pairs: tuple) -> None:
    monkeypatch.setattr(adapters, "RANKS", (2, 4))
    assert [rank for rank, _ in adapters._reduce_ranks(*pairs, 1e-3)] == [2, 4, 6]
    x = pairs[0]
    flat = unit(x[:, :2] @ np.random.default_rng(0).normal(size=(2, 6)))  # nothing beyond rank 2
    fitted = fit_adapter(x, flat, "low-rank")
    assert fitted.arrays["left"].shape == (10, 2)
    assert mean_cosine(fitted(x), flat) > 0.85  # their scale is lost


def test_an_mlp_bends_what_no_rotation_can_and_repeats(pairs: tuple) -> None:
    x, y = pairs
    train, test = np.arange(120) < 95, np.arange(120) >= 95
    found = {kind: fit_adapter(x[train], y[train], kind) for kind in ("procrustes", "low-rank", "mlp")}
    close = {kind: mean_cosine(one(x[test]), y[test]) for kind, one in found.items()}
    assert close["procrustes"] < close["low-rank"] < close["mlp"]
    again = fit_adapter(x[train], y[train], "mlp")
    assert all((again.arrays[name] == one).all() for name, one in found["mlp"].arrays.items())
    z, arrays = x[:3], found["mlp"].arrays
    hidden = np.maximum(z @ arrays["hidden"] + arrays["hidden_bias"], 0)
    literal = z @ arrays["left"] @ arrays["right"] + arrays["bias"] + hidden @ arrays["output"]
    np.testing.assert_allclose(found["mlp"](z), unit(literal), atol=1e-5)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_comes_back_from_its_file(kind: str, pairs: tuple, tmp_path: Path) -> None:
    x, y = pairs
    y = x if kind == "identity" else y
    fitted = fit_adapter(x, y, kind)
    fitted.save(tmp_path / "a.safetensors")
    read = FittedAdapter.read(tmp_path / "a.safetensors")
    assert (read(x) == fitted(x)).all()
    assert (read.kind, read.new_dim, read.dim) == (kind, 10, y.shape[1])


def test_damaged_files_are_errors(pairs: tuple, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fitted = fit_adapter(*pairs, "procrustes")
    for arrays in (
        {},
        {"left": np.full((10, 6), np.nan, np.float32)},
        {"left": np.ones((10, 5), np.float32)},
        {"left": np.ones(10, np.float32)},
        {**fitted.arrays, "bias": np.ones(6, np.float32)},
    ):
        FittedAdapter("procrustes", 10, 6, arrays).save(path)
        with pytest.raises(DataError, match="expected an adapter"):
            FittedAdapter.read(path)
    FittedAdapter("identity", 10, 6, {}).save(path)
    with pytest.raises(DataError, match="identity from 10 to 6"):
        FittedAdapter.read(path)
    path.write_bytes(b"none")
    with pytest.raises(DataError, match="damaged file"):
        FittedAdapter.read(path)


def test_bad_pairs_are_errors(pairs: tuple) -> None:
    x, y = pairs
    with pytest.raises(ChoiceError, match=r"unknown adapter .linear.; expected one of: .identity."):
        fit_adapter(x, y, "linear")
    with pytest.raises(ShapeError, match="expected as many vectors"):
        fit_adapter(x[:-1], y, "procrustes")
    with pytest.raises(InvalidInput, match="expected at least 20 images embedded by both models, got 1;"):
        fit_adapter(x[:1], y[:1], "mlp")
    with pytest.raises(EmbeddingError, match="NaN"):
        fit_adapter(np.where(np.eye(120, 10) > 0, np.nan, x), y, "low-rank")
    with pytest.raises(ShapeError, match="identity: expected vectors of one dimension, got 10"):
        fit_adapter(x, y, "identity")
    with pytest.raises(ShapeError, match="expected dimension 10, of the model that queries go through, got 6"):
        fit_adapter(x, y, "procrustes")(y)


@pytest.mark.parametrize("kind", ["procrustes", "low-rank", "mlp"])
def test_equal_vectors_and_one_group_are_no_failure(kind: str) -> None:
    same = np.tile(unit(np.ones((1, 4))), (20, 1))
    fitted = fit_adapter(same, same, kind, groups=["a"] * 20)
    np.testing.assert_allclose(fitted(same[:1]), same[:1], atol=1e-4)


def test_groups_are_held_out_whole_once_each() -> None:
    groups = np.array(list("aaabbcddddefg"))
    parts = list(split_groups(groups, 3, seed=0))
    assert (np.sum(parts, axis=0) == 1).all()
    assert all(len(set(part[groups == one].tolist())) == 1 for part in parts for one in "abcdefg")
    assert max(part.sum() for part in parts) <= 5
    assert len(list(split_groups(groups[:5], 5, seed=0))) == 2


def test_pairs_across_two_models_are_counted_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    a, b, labels = unit(rng.normal(size=(30, 4))), unit(rng.normal(size=(30, 4))), rng.integers(6, size=30)
    found = count_cross_pairs(a, b, labels, resamples=20)
    similar = {True: [], False: []}
    for i in range(30):
        for j in range(30):
            if i != j:
                similar[labels[i] == labels[j]].append(a[i] @ b[j])
    for at in (-0.5, 0.0, 0.4):
        edge = int(np.argmin(abs(found.edges - at)))
        assert abs(found.same[edge:].sum() - sum(s >= at for s in similar[True])) <= 1  # one at the edge itself
        assert abs(found.different[edge:].sum() - sum(s >= at for s in similar[False])) <= 1
    alike, twice = count_cross_pairs(a, a, labels, 0), count_pairs(a, labels, 0)
    assert (alike.same == twice.same).all()
    assert (alike.different == twice.different).all()
    chosen = found.threshold("far", 0.1)
    assert chosen.low <= chosen.similarity <= chosen.high
    with pytest.raises(InvalidInput, match="expected two classes"):
        count_cross_pairs(a, b, np.zeros(30))
