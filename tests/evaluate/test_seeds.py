"""Paired differences over seeds, against simulated experiments."""

from __future__ import annotations

import numpy as np
import pytest

from metrix.errors import InvalidInput
from metrix.evaluate.seeds import SeedDifferences


def share_decided(effect: float, n: int) -> float:
    """In what share of experiments with n seeds an effect in units of the spread is found."""
    drawn = np.random.default_rng(0).normal(effect, 1.0, (3000, n))
    return float(np.mean([SeedDifferences(tuple(row)).decided for row in drawn]))


def test_an_interval_excludes_a_zero_that_is_true_in_one_of_twenty():
    assert share_decided(0.0, 4) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize("effect", [1.2, 2.5])
def test_the_advised_number_of_seeds_decides_four_times_out_of_five(effect):
    n = SeedDifferences((effect - 0.5**0.5, effect + 0.5**0.5)).seeds_needed()  # a spread of 1
    assert n is not None
    assert share_decided(effect, n) > 0.77 > share_decided(effect, n - 1) - 0.03
    assert share_decided(SeedDifferences(tuple(range(n))).detectable() / np.std(range(n), ddof=1), n) == pytest.approx(
        0.8, abs=0.03
    )


def test_extremes():
    assert SeedDifferences((1.0, 1.0)).seeds_needed() == 2
    assert SeedDifferences((0.0, 0.0)).seeds_needed() is None
    assert SeedDifferences((1.0, -1.0, 0.001)).seeds_needed() is None
    with pytest.raises(InvalidInput, match="at least 2"):
        SeedDifferences((1.0,))
