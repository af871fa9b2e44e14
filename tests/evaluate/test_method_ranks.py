"""Ranks over datasets against the example of Demšar (2006), scipy, and sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from metrix.errors import InvalidInput
from metrix.evaluate.method_ranks import (
    bound_mean_ranks,
    compare_ranks,
    find_critical_difference,
    group_methods,
    rank_methods,
)

METHODS = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")
# AUC of four learners on fourteen datasets: Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets",
# JMLR 7 (2006), table 6. On `voting` the paper ranks by more digits than it prints: 2 and 3, where 0.975 is tied here.
AUC = {
    "adult": (0.763, 0.768, 0.771, 0.798),
    "breast cancer": (0.599, 0.591, 0.590, 0.569),
    "breast cancer wisconsin": (0.954, 0.971, 0.968, 0.967),
    "cmc": (0.628, 0.661, 0.654, 0.657),
    "ionosphere": (0.882, 0.888, 0.886, 0.898),
    "iris": (0.936, 0.931, 0.916, 0.931),
    "liver disorders": (0.661, 0.668, 0.609, 0.685),
    "lung cancer": (0.583, 0.583, 0.563, 0.625),
    "lymphography": (0.775, 0.838, 0.866, 0.875),
    "mushroom": (1.000, 1.000, 1.000, 1.000),
    "primary tumor": (0.940, 0.962, 0.965, 0.962),
    "rheum": (0.619, 0.666, 0.614, 0.669),
    "voting": (0.972, 0.981, 0.9752, 0.9751),
    "wine": (0.957, 0.978, 0.946, 0.970),
}
MEANS = dict(zip(METHODS, (3.143, 2.000, 2.893, 1.964), strict=True))


@pytest.fixture(scope="module")
def ranks() -> np.ndarray:
    return rank_methods(list(AUC.values()))


def test_the_example_has_the_ranks_of_the_paper(ranks: np.ndarray) -> None:
    by_name = dict(zip(AUC, ranks.tolist(), strict=True))
    assert by_name["adult"] == [4, 3, 2, 1]
    assert by_name["iris"] == [1, 2.5, 4, 2.5]
    assert by_name["mushroom"] == [2.5, 2.5, 2.5, 2.5]
    assert by_name["voting"] == [4, 1, 2, 3]
    assert ranks.mean(axis=0) == pytest.approx(list(MEANS.values()), abs=5e-4)


def test_friedman_is_that_of_the_paper_corrected_for_ties_as_scipy_does(ranks: np.ndarray) -> None:
    found = compare_ranks(ranks)
    # three ties of two (2³ - 2 = 6 each) and one of four (4³ - 4 = 60), of 14 rows of 4: the paper has no correction
    correction = 1 - (3 * 6 + 60) / (14 * 4 * (4**2 - 1))
    plain = found.chi_square * correction
    assert plain == pytest.approx(9.28, abs=0.01)
    assert 13 * plain / (14 * 3 - plain) == pytest.approx(3.69, abs=0.01)  # the paper's F
    assert found.chi_square == pytest.approx(friedmanchisquare(*np.array(list(AUC.values())).T).statistic)
    assert found.f == pytest.approx(13 * found.chi_square / (14 * 3 - found.chi_square))
    assert found.p_value < 0.05


@pytest.mark.parametrize("shape", [(3, 3), (5, 17), (40, 4)])
@pytest.mark.parametrize("levels", [2, 5, 10_000])
def test_friedman_agrees_with_scipy_on_ties_of_all_sizes(shape: tuple[int, int], levels: int) -> None:
    scores = np.random.default_rng(levels).integers(0, levels, shape).astype(float)
    expected = friedmanchisquare(*scores.T).statistic
    assert compare_ranks(rank_methods(scores)).chi_square == pytest.approx(expected)


def test_p_values_are_exact_with_few_datasets_and_agree_with_scipy_with_many() -> None:
    # three datasets that rank three methods alike: 6 of the 6³ equally likely outcomes
    assert compare_ranks(rank_methods([[3.0, 2.0, 1.0]] * 3)).p_value == pytest.approx(6 / 216, abs=0.006)
    # two datasets, two methods: alike or not
    assert compare_ranks(rank_methods([[2.0, 1.0]] * 2)).p_value == pytest.approx(0.5, abs=0.02)
    scores = np.random.default_rng(1).normal(size=(60, 5)) + np.array([0.0, 0.1, 0.2, 0.2, 0.45])
    expected = friedmanchisquare(*scores.T).pvalue
    assert 0.001 < expected < 0.5
    assert compare_ranks(rank_methods(scores)).p_value == pytest.approx(expected, abs=0.02)


def test_ranks_that_agree_or_tie_everywhere_are_extremes() -> None:
    alike = compare_ranks(rank_methods([[3.0, 2.0, 1.0]] * 4))
    assert math.isinf(alike.f)
    assert alike.p_value < 0.01
    assert alike.chi_square == pytest.approx(8)  # N (k - 1)
    tied = compare_ranks(rank_methods([[1.0, 1.0, 1.0]] * 4))
    assert (tied.chi_square, tied.f, tied.p_value) == (0, 0, 1)


@pytest.mark.parametrize(
    ("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (8, 3.031), (10, 3.164)]
)
def test_critical_differences_have_the_q_of_the_papers_table(methods: int, q: float) -> None:
    expected = q * math.sqrt(methods * (methods + 1) / (6 * 14))
    assert find_critical_difference(methods, 14) == pytest.approx(expected, rel=1e-3)


def test_the_example_has_the_critical_differences_of_the_paper() -> None:
    assert find_critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert find_critical_difference(4, 14, confidence=0.90) == pytest.approx(1.12, abs=0.005)


def test_groups_are_the_largest_and_their_ends_are_closer_than_the_difference() -> None:
    assert group_methods(MEANS, 1.25) == [("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")]
    # 3.143 is 1.179 and 1.143 from the best two, 0.25 from 2.893
    assert group_methods(MEANS, 1.12) == [("C4.5+m+cf", "C4.5+m", "C4.5+cf"), ("C4.5+cf", "C4.5")]
    assert group_methods({"a": 1.0, "b": 2.0}, 1.0) == []  # exactly the difference: told apart
    assert group_methods({"b": 2.0, "a": 1.0}, 1.01) == [("a", "b")]


def test_intervals_of_mean_ranks_hold_the_mean_and_are_those_of_the_datasets(ranks: np.ndarray) -> None:
    bounds = bound_mean_ranks(ranks)
    means = ranks.mean(axis=0)
    assert (bounds[:, 0] < means).all()
    assert (means < bounds[:, 1]).all()
    standard = ranks.std(axis=0, ddof=1) / math.sqrt(14)
    assert bounds[:, 1] - bounds[:, 0] == pytest.approx(2 * 2.16 * standard, rel=0.1)  # t(0.975, 13) = 2.16
    assert bound_mean_ranks(np.array([[1.0, 2.0]] * 3)).tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([0.1, 0.2], "got shape"),
        ([[0.1], [0.2]], "at least 2 methods"),
        (np.empty((0, 3)), "a row for each dataset"),
        ([[0.1, math.nan]], "finite"),
        ([[0.1, math.inf]], "finite"),
    ],
)
def test_mistakes_in_scores(scores: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        rank_methods(scores)  # type: ignore[arg-type]


def test_too_few_datasets_are_refused() -> None:
    with pytest.raises(InvalidInput, match="datasets: expected an integer ≥ 3, got 2"):
        bound_mean_ranks(np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(InvalidInput, match="datasets: expected an integer ≥ 2, got 1"):
        compare_ranks(np.array([[1.0, 2.0]]))
    with pytest.raises(InvalidInput, match="methods: expected an integer ≥ 2, got 1"):
        find_critical_difference(1, 5)
