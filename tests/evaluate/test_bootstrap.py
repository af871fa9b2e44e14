from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix.errors import ChoiceError, InvalidInput, LabelError, ShapeError
from metrix.evaluate import Retrieval, compare, retrieval


def run(seed: int, noise: float, n: int = 200, classes: int = 20) -> Retrieval:
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    x = rng.standard_normal((classes, 8))[labels]
    base = rng.standard_normal((n, 8))
    own = np.random.default_rng(seed).standard_normal((n, 8))
    return retrieval(x + noise * (base + 0.2 * own), labels, ks=(1, 4), resamples=0)


def test_the_difference_is_that_of_the_means() -> None:
    a, b = run(1, 1.0), run(2, 0.7)
    result = compare(a, b)
    for name, difference in result.differences.items():
        assert difference.difference == pytest.approx(b.means[name] - a.means[name], abs=1e-12)
        assert difference.low <= difference.difference <= difference.high
    assert result["map@r"].significant
    assert result["map@r"].p_value < 0.01
    assert json.loads(json.dumps(result.to_dict()))["differences"]["map@r"]["significant"] is True


def test_the_interval_is_that_of_a_literal_loop() -> None:
    a, b = run(1, 1.0), run(2, 0.95)
    values = b.per_query["map@r"] - a.per_query["map@r"]
    rng = np.random.default_rng(9)
    by_class = [values[a.query_labels == c] for c in range(20)]
    of_queries = [np.mean([values[i] for i in rng.integers(len(values), size=len(values))]) for _ in range(2000)]
    of_classes = [np.concatenate([by_class[c] for c in rng.integers(20, size=20)]).mean() for _ in range(2000)]
    # 2.5 % in each tail for 200 queries, 1.6 % for 20 classes: Φ(√(20/19) · t(2.5 %, 19))
    for over, means, tail in (("queries", of_queries, 0.0245), ("classes", of_classes, 0.0159)):
        compared = compare(a, b, resamples=2000, over=over)
        assert compared.over == compared.to_dict()["over"] == over
        result, spread = compared["map@r"], np.std(means)
        assert result.low == pytest.approx(np.quantile(means, tail), abs=0.3 * spread)
        assert result.high == pytest.approx(np.quantile(means, 1 - tail), abs=0.3 * spread)


def test_a_class_that_decides_all_is_seen_by_resampling_classes_only() -> None:
    labels = np.repeat(np.arange(6), 50)
    better = np.where(labels == 0, 1.0, 0.0)  # every query of one class in six is won, nothing else changes
    base = retrieval(np.random.default_rng(0).standard_normal((300, 4)), labels, ks=(1,), resamples=0)
    a, b = (replace(base, per_query={"recall@1": values}) for values in (np.zeros(300), better))
    assert compare(a, b, over="queries")["recall@1"].significant
    assert not compare(a, b)["recall@1"].significant
    assert compare(a, b)["recall@1"].p_value > 0.05


def test_queries_of_one_class_say_nothing_about_others() -> None:
    rng = np.random.default_rng(0)
    gallery, names = rng.standard_normal((40, 4)), np.arange(40) % 8
    a, b = (retrieval(rng.standard_normal((5, 4)), [3] * 5, (1,), gallery, names) for _ in range(2))
    assert a.intervals == {}
    assert "1 class" in a.caution
    found = compare(a, b)["recall@1"]
    assert (found.low, found.high, found.p_value, found.significant) == (-np.inf, np.inf, 1.0, False)


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ChoiceError, match="unknown bootstrap unit 'images'"):
        compare(run(1, 1.0), run(2, 1.0), over="images")


def test_pairing_is_sharper_than_two_intervals() -> None:
    a, b = run(1, 1.0), run(2, 1.0)
    paired = compare(a, b)["map@r"]
    apart = np.sqrt(a.per_query["map@r"].var() + b.per_query["map@r"].var()) * 2 * 1.96 / np.sqrt(a.queries)
    assert paired.high - paired.low < 0.8 * apart


def test_a_run_does_not_differ_from_itself() -> None:
    a = run(1, 1.0)
    for difference in compare(a, a).differences.values():
        assert difference.difference == difference.low == difference.high == 0.0
        assert difference.p_value == 1.0
        assert not difference.significant


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_swapping_the_runs_swaps_the_sign(one: int, two: int) -> None:
    a, b = run(one, 1.0, n=40, classes=5), run(two, 0.9, n=40, classes=5)
    forth, back = compare(a, b, resamples=200), compare(b, a, resamples=200)
    for name in forth.differences:
        assert forth[name].difference == pytest.approx(-back[name].difference, abs=1e-12)
        assert forth[name].low == pytest.approx(-back[name].high, abs=1e-12)
        assert forth[name].p_value == back[name].p_value


def test_no_difference_is_found_as_often_as_it_should() -> None:
    # Two runs that differ by noise alone: at 95% about one in twenty is called significant.
    rng = np.random.default_rng(0)
    base = run(1, 1.0)

    def fake() -> Retrieval:
        values = {"recall@1": rng.integers(2, size=base.queries).astype(float)}
        return replace(base, per_query=values)

    found = [compare(fake(), fake(), resamples=300)["recall@1"] for _ in range(200)]
    assert 0.01 < np.mean([one.significant for one in found]) < 0.11
    assert 0.01 < np.mean([one.p_value < 0.05 for one in found]) < 0.11


def test_the_generator_decides() -> None:
    a, b = run(1, 1.0), run(2, 0.9)
    assert compare(a, b).differences == compare(a, b).differences
    assert compare(a, b).differences != compare(a, b, generator=torch.Generator().manual_seed(5)).differences


def test_runs_of_other_queries_are_refused() -> None:
    a = run(1, 1.0)
    with pytest.raises(ShapeError, match="different queries"):
        compare(a, run(1, 1.0, n=100))
    with pytest.raises(LabelError, match="different labels"):
        compare(a, run(1, 1.0, classes=10))
    rng = np.random.default_rng(0)
    other = retrieval(rng.standard_normal((200, 4)), np.arange(200) % 20, ks=(3,), resamples=0)
    assert set(compare(a, other).differences) == {"map@r", "r_precision", "map"}  # what both have
    with pytest.raises(InvalidInput, match="resamples: expected an integer ≥ 1, got 0"):
        compare(a, a, resamples=0)
