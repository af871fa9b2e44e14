"""Differences between runs with the same seed: their mean, its interval, and how many seeds would decide the sign."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from metrix.errors import InvalidInput

CONFIDENCE = 0.95
POWER = 0.8  # of the number of seeds that is advised: the chance to see a difference of the size found so far
MOST_SEEDS = 1000


@dataclass(frozen=True)
class SeedDifferences:
    """Paired differences, one for each seed; the pairs start from the same weights and see the same batches.

    >>> found = SeedDifferences((1.0, 2.0, 3.0))
    >>> found.mean, round(found.margin, 2), found.decided, found.seeds_needed()
    (2.0, 2.48, False, 5)
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise InvalidInput(f"seeds: expected at least 2, to measure their spread, got {len(self.values)}")

    @property
    def mean(self) -> float:
        """The mean difference."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation of the differences."""
        return statistics.stdev(self.values)

    @property
    def margin(self) -> float:
        """Half the 95 % confidence interval of the mean difference: t(0.975, n-1) · s / √n, Student's t."""
        return critical_value(len(self.values)) * self.spread / math.sqrt(len(self.values))

    @property
    def decided(self) -> bool:
        """Whether the interval excludes zero."""
        return abs(self.mean) > self.margin

    def seeds_needed(self, power: float = POWER) -> int | None:
        """The number of seeds, in all, with which an effect of this mean and spread is found with this probability.

        It is the smallest n for which a paired t-test at the 5 % level has the power. None: more than `MOST_SEEDS`.
        """
        if self.spread == 0:
            return 2 if self.mean else None
        for n in range(2, MOST_SEEDS + 1):
            if _power(abs(self.mean) / self.spread, n) >= power:
                return n
        return None

    def detectable(self, power: float = POWER) -> float:
        """The difference that as many seeds as these find with this probability, given their spread."""
        low, high = 0.0, 1000.0  # in units of the spread; the power of two seeds grows slowly
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if _power(middle, len(self.values)) < power else (low, middle)
        return high * self.spread


def critical_value(n: int) -> float:
    """t(0.975, n-1) of Student's distribution: half the 95 % interval of the mean of n values, in units of s / √n."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, n - 1))


def _power(effect: float, n: int) -> float:
    """The power of a two-sided paired t-test with n pairs, for a mean difference in units of its deviation."""
    from scipy.stats import nct

    shift, critical = effect * math.sqrt(n), critical_value(n)
    return float(nct.sf(critical, n - 1, shift) + nct.cdf(-critical, n - 1, shift))
