"""Whether 95 % intervals hold the figure that other draws of classes give, by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from metrix.evaluate import retrieval
from metrix.search import pairs as counting
from metrix.search.pairs import count_pairs

CLASSES = 24
DRAWS = 250
AT = 0.6  # similarity of the threshold


def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of `CLASSES` new classes: they differ in size, in scatter, and in how typical they look."""
    labels = np.repeat(np.arange(CLASSES), rng.integers(3, 12, size=CLASSES))
    centres = rng.standard_normal((CLASSES, 16))
    centres[:, 0] += 1.8 * np.abs(rng.standard_normal(CLASSES))
    scatter = np.exp(rng.normal(-0.1, 0.4, size=CLASSES))
    x = centres[labels] + scatter[labels, None] * rng.standard_normal((len(labels), 16))
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels


def measure(x: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Recall@1, MAP@R, precision and false-accept rate by their definitions."""
    similar = x @ x.T
    same = labels[:, None] == labels
    accepted = similar >= AT
    np.fill_diagonal(accepted, False)
    np.fill_diagonal(similar, -2)
    hits = same[np.arange(len(x))[:, None], np.argsort(-similar, axis=1)]
    positives = same.sum(axis=1) - 1
    ranks = np.arange(1, len(x) + 1)
    precisions = np.cumsum(hits, axis=1) / ranks * hits * (ranks <= positives[:, None])
    true, false = (accepted & same).sum(), (accepted & ~same).sum()
    return {
        "recall@1": hits[:, 0].mean(),
        "map@r": (precisions.sum(axis=1) / positives).mean(),
        "precision": true / (true + false),
        "far": false / (~same).sum(),
    }


@pytest.fixture(scope="module")
def truth() -> dict[str, float]:
    rng = np.random.default_rng(7)
    found = [measure(*draw(rng)) for _ in range(1500)]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def test_intervals_over_classes_cover_what_they_promise(
    truth: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "BINS", 500)  # 0.6 is an edge of these, too
    rng = np.random.default_rng(1)
    covered = dict.fromkeys(truth, 0)
    by_queries = dict.fromkeys(("recall@1", "map@r"), 0)
    for number in range(DRAWS):
        x, labels = draw(rng)
        found = retrieval(x, labels, (1,), resamples=200)
        narrow = retrieval(x, labels, (1,), resamples=200, over="queries")
        rates = count_pairs(x, labels, 200, seed=number).intervals(AT)
        for name, value in truth.items():
            low, high = rates[name] if name in rates else found.intervals[name]
            covered[name] += low <= value <= high
        for name in by_queries:
            low, high = narrow.intervals[name]
            by_queries[name] += low <= truth[name] <= high
    for name, times in covered.items():
        assert 0.90 <= times / DRAWS <= 0.98, (name, times / DRAWS)
    assert by_queries["recall@1"] / DRAWS < 0.85  # queries of a class succeed or fail together
    assert by_queries["map@r"] / DRAWS < 0.85
