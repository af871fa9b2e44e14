"""λ ~ Beta(α, α), the interpolation factors of eq. mixing: drawn, or integrated out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from metrix.core.settings import check_scale
from metrix.core.tensors import as_real
from metrix.core.validation import check_lam
from metrix.errors import InvalidInput, check_name

DRAWN_PER = ("pair", "batch")
EXPECTED = "expected"  # in place of a draw: the expectation over λ
NODES = 8  # at which a loss is evaluated for its expectation
MOST_NODES = 256  # each costs a mixed loss
RowsOfFactors = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Factors:
    """λ of the ordered pairs of a step.

    Args:
        given: λ of all pairs, or a matrix of them; None draws them.
        alpha: λ ~ Beta(alpha, alpha).
        per_pair: one draw for each pair, or one for the whole batch.
        generator: of the draws; None is torch's default one.
        like: a tensor with the device and the type of number that λ shall have.
    """

    given: float | Tensor | None
    alpha: float
    per_pair: bool
    generator: torch.Generator | None
    like: Tensor

    def matrix(self, shape: tuple[int, ...]) -> Tensor:
        """λ of all pairs in a tensor of this shape, such as (left, right)."""
        device, dtype = self.like.device, self.like.dtype
        if self.given is not None:
            return check_lam(as_real("lam", self.given).to(device=device, dtype=dtype), shape)
        return draw(shape if self.per_pair else (), self.alpha, self.generator, device, dtype).expand(shape)

    def rows(self, shape: tuple[int, int]) -> RowsOfFactors:
        """λ of a matrix (left, right) that is too large to hold: a function from numbers of rows to these rows.

        The counter of a counter-based generator starts at the number of the row, and its key is one draw of the
        passed generator. So λ of a pair is the same whenever it is asked for.
        """
        if self.given is not None or not self.per_pair:
            lam = self.matrix(shape)
            return lambda rows: lam.index_select(0, rows)
        key = choose(2**32, self.generator)
        return lambda rows: _draw_rows(rows, shape[1], self.alpha, key, self.like)


def check_drawing(alpha: float, lam_per: str, drawn_by: str | None = None) -> None:
    """Raise an error for an α or a `lam_per` that λ cannot be drawn with.

    Args:
        alpha: λ ~ Beta(alpha, alpha).
        lam_per: one draw for each "pair" or each "batch"; "expected" for none.
        drawn_by: the name of a mixing method that only draws; None if "expected" is allowed, too.
    """
    check_scale("alpha", alpha)
    if isinstance(lam_per, str) and lam_per == EXPECTED and drawn_by is not None:
        names = " or ".join(map(repr, DRAWN_PER))
        raise InvalidInput(f"lam_per: expected {names} with {drawn_by}, got {lam_per!r}; only Metrix integrates over λ")
    check_name("lam_per", lam_per, (*DRAWN_PER, EXPECTED))


@cache
def quadrature(alpha: float, nodes: int) -> tuple[tuple[float, float], ...]:
    """λ and weight of each node of the Gauss-Jacobi quadrature of Beta(α, α): E f(λ) ≈ Σ weight · f(λ).

    It is exact for polynomials in λ up to degree 2 · nodes - 1.

    >>> [(round(lam, 3), round(weight, 3)) for lam, weight in quadrature(2.0, 2)]
    [(0.276, 0.5), (0.724, 0.5)]
    """
    from scipy.special import roots_jacobi

    with np.errstate(all="ignore"):
        x, w = roots_jacobi(nodes, alpha - 1.0, alpha - 1.0)
    if not np.isfinite([x, w]).all():
        raise InvalidInput(
            f"lam_nodes: expected fewer values of λ with alpha={alpha:g}, got {nodes}; the quadrature of so narrow a "
            "distribution overflows, and 8 are enough for it"
        )
    return tuple(zip(((1.0 + x) / 2.0).tolist(), (w / w.sum()).tolist(), strict=True))


def draw(
    shape: tuple[int, ...],
    alpha: float,
    generator: torch.Generator | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Independent draws from Beta(α, α).

    α = 1 and α = 2, the paper's, invert the distribution function; any other α takes two gammas.
    """
    at = _source(generator, device)
    if alpha == 1.0:
        return torch.rand(shape, generator=generator, device=at, dtype=dtype).to(device)
    if alpha == 2.0:
        return _beta_2(torch.rand(shape, generator=generator, device=at, dtype=dtype).to(device))
    shapes = torch.full((2, *shape), alpha, device=at, dtype=torch.float64)
    gammas = torch._standard_gamma(shapes, generator)
    lam = gammas[0] / gammas.sum(0)
    lam = torch.where(lam.isfinite(), lam, 0.5)  # both gammas underflow for a tiny α
    return lam.to(device=device, dtype=dtype)


def choose(count: int, generator: torch.Generator | None) -> int:
    """A uniform draw from 0 to `count` - 1; the generator is not used where there is only one choice."""
    if count == 1:
        return 0
    at = generator.device if generator is not None else torch.device("cpu")
    return int(torch.randint(count, (), generator=generator, device=at))


def _source(generator: torch.Generator | None, device: torch.device) -> torch.device:
    """The device that random numbers are drawn on."""
    if generator is not None:
        return generator.device
    return device if device.type == "cuda" else torch.device("cpu")


def _beta_2(u: Tensor) -> Tensor:
    """Uniform numbers, in place, to draws from Beta(2, 2): the root in [0, 1] of 3λ² - 2λ³ = u."""
    return u.mul_(2.0).sub_(1.0).asin_().div_(3.0).sin_().add_(0.5)


def _draw_rows(rows: Tensor, columns: int, alpha: float, key: int, like: Tensor) -> Tensor:
    """Some rows of a matrix of independent draws from Beta(α, α), each the same whichever others are asked for."""
    out = np.empty((len(rows), columns), np.float64 if like.dtype == torch.float64 else np.float32)
    for row, number in zip(out, rows.tolist(), strict=True):
        # the highest of the four words of the counter: no row is long enough to reach the next one's numbers
        random = np.random.Generator(np.random.Philox(key=key, counter=number << 192))
        if alpha in (1.0, 2.0):
            random.random(out=row, dtype=row.dtype)
        else:
            row[:] = random.beta(alpha, alpha, columns)
    lam = torch.from_numpy(out).to(like.device, like.dtype)
    return _beta_2(lam) if alpha == 2.0 else lam
