from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from metrix.errors import EmbeddingError, InvalidInput, ShapeError
from metrix.evaluate import clustering


def clusters(seed: int, n: int, classes: int, d: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % classes)
    return rng.standard_normal((classes, d))[labels] + noise * rng.standard_normal((n, d)), labels


def test_separate_classes_are_found() -> None:
    x, labels = clusters(0, 300, 5, 16, noise=0.01)
    # One start may put two centres in one class; the best of many does not.
    result = clustering(x * np.random.default_rng(0).uniform(0.1, 10, (300, 1)), labels, restarts=30)
    assert result.nmi == pytest.approx(1.0)
    assert result.ami == pytest.approx(1.0)
    assert result.clusters == 5


def test_random_labels_score_chance() -> None:
    x, _ = clusters(1, 600, 6, 8, noise=0.1)
    result = clustering(x, np.random.default_rng(5).integers(6, size=600))
    assert abs(result.ami) < 0.03
    assert 0 < result.nmi < 0.06  # NMI is not corrected for chance


def test_measures_are_those_of_scikit_learn() -> None:

    x, labels = clusters(2, 200, 7, 6, noise=1.0)
    module = importlib.import_module("metrix.evaluate.clustering")
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    found = module.k_means(unit, 7, 3, 25, 1)
    result = clustering(x, labels, seed=3)
    assert result.nmi == pytest.approx(normalized_mutual_info_score(labels, found), abs=1e-9)
    assert result.ami == pytest.approx(adjusted_mutual_info_score(labels, found), abs=1e-9)
    # The k-means is one: its objective is near scikit-learn's, and every row is at its nearest centre.
    from sklearn.cluster import KMeans

    theirs = KMeans(7, n_init=10, random_state=0).fit(unit)
    centres = np.stack([unit[found == c].mean(axis=0) for c in range(7)])
    ours = ((unit - centres[found]) ** 2).sum()
    assert ours < 1.15 * theirs.inertia_


def test_the_seed_decides() -> None:
    x, labels = clusters(3, 300, 20, 6, noise=2.0)
    assert clustering(x, labels, seed=1) == clustering(x, labels, seed=1)
    assert clustering(x, labels, seed=1).nmi != clustering(x, labels, seed=2).nmi


def test_ends(capfd: pytest.CaptureFixture[str]) -> None:
    x, _ = clusters(4, 30, 3, 4, noise=1.0)
    assert clustering(x, ["same"] * 30).nmi == 1.0
    assert clustering(x, np.arange(30)).nmi == pytest.approx(1.0)
    copies = clustering(np.ones((30, 4)), np.arange(30) % 3)  # one point, three classes
    assert copies.nmi == pytest.approx(0.0, abs=0.3)
    assert json.loads(json.dumps(copies.to_dict()))["clusters"] == 3
    assert capfd.readouterr() == ("", "")  # faiss does not print


def test_unusable_input_is_refused() -> None:
    x, labels = clusters(5, 30, 3, 4, noise=1.0)
    with pytest.raises(ShapeError, match="29 labels for 30"):
        clustering(x, labels[1:])
    with pytest.raises(EmbeddingError, match="norm zero"):
        clustering(x * 0, labels)
    with pytest.raises(InvalidInput, match="got iterations=0"):
        clustering(x, labels, iterations=0)
