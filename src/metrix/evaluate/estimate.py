"""A measured number that knows how sure it is."""

from __future__ import annotations


class Estimate(float):
    """A float with the standard error of the sample it came from: 0 where nothing was sampled.

    >>> value = Estimate(0.41, standard_error=0.02, sampled=500)
    >>> value + 1, value
    (1.41, Estimate(0.41, standard_error=0.02, sampled=500))
    """

    standard_error: float
    sampled: int | None  # how many were drawn; None if all were taken

    def __new__(cls, value: float, standard_error: float = 0.0, sampled: int | None = None) -> Estimate:
        """A float is made in `__new__`, and is then fixed."""
        estimate = super().__new__(cls, value)
        estimate.standard_error = standard_error
        estimate.sampled = sampled
        return estimate

    @property
    def exact(self) -> bool:
        """Whether every pair or query was taken."""
        return self.sampled is None

    def __repr__(self) -> str:
        if self.exact:
            return f"Estimate({float(self)!r})"
        return f"Estimate({float(self)!r}, standard_error={self.standard_error!r}, sampled={self.sampled!r})"

    def __reduce__(self) -> tuple[type[Estimate], tuple[float, float, int | None]]:
        return (Estimate, (float(self), self.standard_error, self.sampled))
