"""λ ~ Beta(α, α), the interpolation factors of eq. mixing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from metrix.core.validation import interpolation
from metrix.errors import InvalidInput, unknown_choice

LAM_PER = ("pair", "batch")
RowsOfFactors = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Factors:
    """λ of the ordered pairs of a step: given, or drawn for each pair or once for the batch."""

    given: float | Tensor | None
    alpha: float
    per_pair: bool
    generator: torch.Generator | None
    like: Tensor  # device and dtype

    def matrix(self, shape: tuple[int, ...]) -> Tensor:
        """λ of all pairs, (left, right) or listed."""
        device, dtype = self.like.device, self.like.dtype
        if self.given is not None:
            return interpolation(torch.as_tensor(self.given, dtype=dtype, device=device), shape)
        return draw(shape if self.per_pair else (), self.alpha, self.generator, device, dtype).expand(shape)

    def rows(self, shape: tuple[int, int]) -> RowsOfFactors:
        """The same for a matrix that is not held: a function from numbers of rows to these rows.

        A row has a generator of its own, seeded from one draw of the passed generator and the number of the
        row. So λ of a pair is the same whenever it is asked for, and all of them follow from that one draw.
        """
        if self.given is not None or not self.per_pair:
            lam = self.matrix(shape)
            return lambda rows: lam.index_select(0, rows)
        seed, like = choose(2**32, self.generator), self.like
        own = torch.Generator(_source(self.generator, like.device))

        def drawn(rows: Tensor) -> Tensor:
            out = like.new_empty(len(rows), shape[1])
            for row, number in zip(out, rows.tolist(), strict=True):
                own.manual_seed(_scrambled(seed + number))
                row.copy_(draw((shape[1],), self.alpha, own, like.device, like.dtype))
            return out

        return drawn


def check_drawing(alpha: float, lam_per: str) -> None:
    """Refuse what λ cannot be drawn with."""
    if not alpha > 0:
        raise InvalidInput(f"alpha={alpha}: accepted is a number above 0")
    if lam_per not in LAM_PER:
        raise unknown_choice("lam_per", lam_per, LAM_PER)


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
        u = torch.rand(shape, generator=generator, device=at, dtype=dtype).to(device)
        # the root in [0, 1] of the distribution function 3λ² - 2λ³ = u
        return u.mul_(2.0).sub_(1.0).asin_().div_(3.0).sin_().add_(0.5)
    shapes = torch.full((2, *shape), alpha, device=at, dtype=torch.float64)
    gammas = torch._standard_gamma(shapes, generator)
    lam = gammas[0] / gammas.sum(0)
    lam = torch.where(lam.isfinite(), lam, 0.5)  # both gammas underflow for a tiny α
    return lam.to(device=device, dtype=dtype)


def choose(count: int, generator: torch.Generator | None) -> int:
    """A uniform choice among `count`; nothing is drawn where there is no choice."""
    if count == 1:
        return 0
    at = generator.device if generator is not None else torch.device("cpu")
    return int(torch.randint(count, (), generator=generator, device=at))


def _source(generator: torch.Generator | None, device: torch.device) -> torch.device:
    """Where random numbers come from."""
    if generator is not None:
        return generator.device
    return device if device.type == "cuda" else torch.device("cpu")


def _scrambled(number: int) -> int:
    """One of the 2³² seeds that a CPU generator tells apart; a bijection, so no two rows share one.

    Neighbouring numbers get seeds that have nothing in common (the last steps of the MurmurHash3).
    """
    x = number & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)
