"""Strategies that choose what to label next, against literal greedy steps, and the diversity that they guarantee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from metrix.errors import ChoiceError
from metrix.search import Index, choosing
from metrix.search.choosing import STRATEGIES, Candidates, choose_places
from metrix.search.class_scores import TEMPERATURE, EnrolledClasses
from metrix.search.suggesting import compare_with_labelled

NEVER = 2.0  # a threshold that no similarity reaches


def draw(count: int, dim: int = 6, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).normal(size=(count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def candidates(vectors: NDArray[np.float32], labelled: NDArray[np.float32], margin: Any = None) -> Candidates:
    similarity = (vectors @ labelled.T).max(axis=1) if len(labelled) else np.full(len(vectors), -1, np.float32)
    return Candidates(lambda places: vectors[places], similarity, margin)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks even of few vectors, so that bounds are brought up to date more than once."""
    monkeypatch.setattr(choosing, "BLOCK", 16)


@pytest.mark.parametrize("labelled", [0, 7])
def test_coverage_takes_the_farthest_each_time(labelled: int) -> None:
    vectors, known = draw(200), draw(labelled, seed=1) if labelled else draw(1)[:0]
    found = choose_places(candidates(vectors, known), 30, "coverage", NEVER)
    there = [*known.astype(np.float64)]
    for place in found:
        nearest = [max((float(v @ w) for w in there), default=-1.0) for v in vectors.astype(np.float64)]
        assert nearest[place] <= min(nearest) + 1e-6
        there.append(vectors[place].astype(np.float64))
    assert len(set(found)) == 30


@pytest.mark.parametrize("strategy", ["typical", "unsure"])
def test_covering_takes_the_largest_gain_each_time(strategy: str) -> None:
    vectors, known = draw(150), draw(5, seed=1)
    margin = np.random.default_rng(2).random(150).astype(np.float32)
    weights = np.ones(150) if strategy == "typical" else 1 - margin.astype(np.float64)
    found = choose_places(candidates(vectors, known, margin), 20, strategy, NEVER)
    exact, there, left = vectors.astype(np.float64), [*known.astype(np.float64)], set(range(150))
    for place in found:
        before = np.array([max(float(y @ w) for w in there) for y in exact])
        every = np.maximum(exact @ exact.T - before[:, None], 0).T @ weights
        every[[c for c in range(150) if c not in left]] = -np.inf
        assert every[place] >= every.max() - 1e-4
        left.remove(place)
        there.append(exact[place])
    assert len(found) == 20


def test_margin_takes_the_smallest_first_and_random_is_seeded() -> None:
    vectors, margin = draw(100), np.random.default_rng(3).random(100).astype(np.float32)
    pool = candidates(vectors, draw(3, seed=1), margin)
    assert choose_places(pool, 10, "margin", NEVER) == np.argsort(margin)[:10].tolist()
    one, again, other = (choose_places(pool, 10, "random", NEVER, seed=seed) for seed in (0, 0, 1))
    assert one == again != other


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_two_are_near_copies_nor_one_of_a_labelled_item(strategy: str) -> None:
    base, known = draw(40), draw(10, seed=1)
    rng = np.random.default_rng(4)
    vectors = np.concatenate([base, base + 0.001 * rng.normal(size=base.shape), known, base])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    margin = rng.random(len(vectors)).astype(np.float32)
    found = choose_places(candidates(vectors, known, margin), 200, strategy, 0.999)
    chosen = vectors[found].astype(np.float64)
    likeness = chosen @ chosen.T - 2 * np.eye(len(found))
    assert likeness.max() < 0.999
    assert (chosen @ known.T).max() < 0.999
    # and nothing else could be added
    both = np.concatenate([chosen, known])
    assert ((vectors @ both.T).max(axis=1) >= 0.998).all()
    assert 35 <= len(found) <= 40


def test_odd_pools() -> None:
    none = Candidates(lambda places: draw(1)[places], np.empty(0, np.float32), np.empty(0, np.float32))
    same = np.repeat(draw(1), 50, axis=0)
    for strategy in STRATEGIES:
        assert choose_places(none, 5, strategy, 0.99) == []
        pool = candidates(same, draw(1)[:0], np.zeros(50, np.float32))
        assert len(choose_places(pool, 5, strategy, 0.99)) == 1
        assert len(choose_places(pool, 60, strategy, NEVER)) == 50
    with pytest.raises(ChoiceError, match="did you mean 'coverage'"):
        choose_places(none, 5, "coverag", 0.99)


def test_progress_counts_what_is_chosen() -> None:
    said: list[tuple[int, int]] = []
    choose_places(candidates(draw(20), draw(2)), 3, "typical", NEVER, progress=lambda *done: said.append(done))
    assert said == [(1, 3), (2, 3), (3, 3)]


def test_shares_of_votes_are_those_of_the_nearest_labelled_items() -> None:
    vectors, queries = draw(60, seed=5), draw(25, seed=6)
    labels = [None if n % 5 == 0 else "abc"[n % 3] for n in range(60)]
    index = Index.build(vectors, columns={"label": labels})
    classes = EnrolledClasses.read(index.store)
    found = compare_with_labelled(lambda places: queries[places], 25, index.store, classes, k=6)
    for n, query in enumerate(queries.astype(np.float64)):
        order = sorted((m for m in range(60) if labels[m] is not None), key=lambda m: -float(vectors[m] @ query))[:6]
        assert found.similarity[n] == pytest.approx(float(vectors[order[0]] @ query), abs=1e-6)
        votes: dict[str, float] = {}
        for m in order:
            votes[str(labels[m])] = votes.get(str(labels[m]), 0) + float(np.exp(vectors[m] @ query / TEMPERATURE))
        ranked = sorted(votes.items(), key=lambda item: -item[1])
        total = sum(votes.values())
        names = [None if c < 0 else classes.names[c] for c in found.best[n]]
        assert names == [name for name, _ in ranked[:2]] + [None] * (2 - len(ranked[:2]))
        shares = [vote / total for _, vote in ranked[:2]] + [0] * (2 - len(ranked[:2]))
        assert found.shares[n] == pytest.approx(shares, abs=1e-5)
        assert found.margin[n] == pytest.approx(shares[0] - shares[1], abs=1e-5)
