"""A measured number with its standard error."""

from __future__ import annotations


class Estimate(float):
    """A float with its standard error, which is 0 for a value computed from all the data.

    >>> value = Estimate(0.41, standard_error=0.02, sampled=500)
    >>> value + 1, value
    (1.41, Estimate(0.41, standard_error=0.02, sampled=500))
    """

    standard_error: float
    sampled: int | None  # sample size; None if all the data were used

    def __new__(cls, value: float, standard_error: float = 0.0, sampled: int | None = None) -> Estimate:
        """Set the attributes here: a float is immutable once `__new__` returns."""
        estimate = super().__new__(cls, value)
        estimate.standard_error = standard_error
        estimate.sampled = sampled
        return estimate

    @property
    def exact(self) -> bool:
        """Whether it was computed from all pairs or queries, not from a sample."""
        return self.sampled is None

    def __repr__(self) -> str:
        if self.exact:
            return f"Estimate({float(self)!r})"
        return f"Estimate({float(self)!r}, standard_error={self.standard_error!r}, sampled={self.sampled!r})"

    def __reduce__(self) -> tuple[type[Estimate], tuple[float, float, int | None]]:
        return (Estimate, (float(self), self.standard_error, self.sampled))
