"""λ ~ Beta(α, α), the interpolation factors of eq. mixing.

λ of an ordered pair (i, j) is a function of i, j and a key, which is one draw of the generator for each step: the
numbers of a counter-based generator, turned into Beta(α, α) by its quantile function. So λ is the same however a batch
is divided into blocks and processes, and is computed where it is used, on any device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from metrix.core.comparison import Rows, pick
from metrix.core.settings import check_scale
from metrix.core.tensors import as_real
from metrix.core.validation import check_lam
from metrix.errors import InvalidInput, check_name

DRAWN_PER = ("pair", "batch")
# Steps of the counter from row to row and from column to column, 2^32 over the plastic number and over its square: any
# two of 50,000 × 50,000 pairs have different counters.
ROW_STEP, COLUMN_STEP = -1052792407, -1847521881
# Of the hash, as tensors: a number would become one in every operation.
FACTORS, SHIFTS, MASKS = (
    [torch.tensor(number, dtype=torch.int32) for number in numbers]
    for numbers in ((0x7FEB352D, -2073254261), (16, 15), (0xFFFF, 0x1FFFF))
)
# Pairs whose λ a CPU computes at a time: their numbers stay in its cache.
IN_CACHE = 2**16
# Cells of the tabulated quantile function of an α that has no closed one.
CELLS = 2**16


@dataclass(frozen=True)
class Factors:
    """λ of the ordered pairs (left, right) of a step.

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
    _key: list[Tensor] = field(init=False, repr=False, default_factory=list)

    @property
    def key(self) -> Tensor:
        """Of the counter-based generator, drawn once."""
        if not self._key:
            self._key.append(draw_key(self.generator))
        return self._key[0]

    def of(self, *shape: int) -> FactorMatrix:
        """λ of all pairs in a matrix of this shape, such as (left, right), which is computed by rows."""
        device, dtype = self.like.device, self.like.dtype
        if isinstance(self.given, str):
            raise InvalidInput(f"lam: expected a number, a tensor or None, got {self.given!r}")
        if self.given is not None:
            is_number = isinstance(self.given, int | float)
            lam = torch.tensor(self.given, dtype=torch.float64) if is_number else as_real("lam", self.given)
            lam = check_lam(lam, shape).to(device=device, dtype=dtype)
            return FactorMatrix(shape, lam.expand(shape), None, self.alpha)
        key = self.key
        if not self.per_pair:
            lam = FactorMatrix((1,), self.like, key, self.alpha).rows()
            return FactorMatrix(shape, lam.squeeze(0).expand(shape), None, self.alpha)
        return FactorMatrix(shape, self.like, key, self.alpha)


@dataclass(frozen=True)
class FactorMatrix:
    """λ by rows.

    Attributes:
        shape: of the whole matrix.
        lam: all of it; a tensor with its device and type of number where there is a `key` to draw from.
        key: (2,), of the counter-based generator.
        alpha: λ ~ Beta(alpha, alpha).
    """

    shape: tuple[int, ...]
    lam: Tensor
    key: Tensor | None
    alpha: float

    def rows(self, rows: Rows = None) -> Tensor:
        """Some rows; None: all."""
        if self.key is None:
            return pick(self.lam, rows)
        number = torch.arange(max(self.shape), dtype=torch.int32, device=self.lam.device)
        if len(self.shape) == 1:
            return self._of_counters(pick(number, rows) * COLUMN_STEP)
        left = (pick(number[: self.shape[0]], rows) * ROW_STEP).unsqueeze(1)
        right = number[: self.shape[1]] * COLUMN_STEP
        tall = max(1, IN_CACHE // self.shape[1])
        if self.lam.device.type != "cpu" or torch.compiler.is_compiling() or len(left) <= tall:
            return self._of_counters(left + right)
        lam = torch.empty(len(left), len(right), dtype=self.lam.dtype)
        for part, of in zip(torch.split(lam, tall), torch.split(left, tall), strict=True):
            part.copy_(self._of_counters(of + right))
        return lam

    def _of_counters(self, counters: Tensor) -> Tensor:
        assert self.key is not None, "a matrix that is not given is drawn"
        return _beta(_hash(counters, self.key), self.alpha, self.lam.dtype)


def check_drawing(alpha: float, lam_per: str) -> None:
    """Raise an error for an α or a `lam_per` that λ cannot be drawn with."""
    check_scale("alpha", alpha)
    check_name("lam_per", lam_per, DRAWN_PER)


def draw(
    shape: tuple[int, ...],
    alpha: float,
    generator: torch.Generator | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Independent draws from Beta(α, α), in up to two axes."""
    like = torch.empty((), dtype=dtype, device=device)
    return Factors(None, alpha, bool(shape), generator, like).of(*shape).rows()


def draw_key(generator: torch.Generator | None) -> Tensor:
    """A key of the counter-based generator, (2,), from one draw on the device of the generator."""
    return _draw_integers(-(2**31), 2**31, [2], torch.int32, generator)


def choose(count: int, generator: torch.Generator | None) -> int:
    """A uniform draw from 0 to `count` - 1; the generator is not used where there is only one choice."""
    return int(choose_number(count, generator)) if count > 1 else 0


def choose_number(count: int, generator: torch.Generator | None) -> Tensor:
    """The same draw as a tensor, (): a compiled graph has no branch on it."""
    return _draw_integers(0, count, [], torch.int64, generator)


def _draw_integers(
    low: int, high: int, shape: list[int], dtype: torch.dtype, generator: torch.Generator | None
) -> Tensor:
    if generator is not None and torch.compiler.is_compiling():
        drawn: Tensor = _draw_integers_of(id(generator), low, high, shape, dtype)
        return drawn
    at = torch.device("cpu") if generator is None else generator.device
    return torch.randint(low, high, shape, dtype=dtype, generator=generator, device=at)


# A compiled graph takes no generator: it asks for the draw of one by its address.
_GENERATORS: WeakValueDictionary[int, torch.Generator] = WeakValueDictionary()


def register_generator(generator: torch.Generator) -> None:
    """Let compiled graphs draw from a generator."""
    _GENERATORS[id(generator)] = generator


@torch.library.custom_op("metrix::draw_integers", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _draw_integers_of(address: int, low: int, high: int, shape: list[int], dtype: torch.dtype) -> Tensor:
    return _draw_integers(low, high, shape, dtype, _GENERATORS[address]).cpu()


@_draw_integers_of.register_fake
def _(address: int, low: int, high: int, shape: list[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def _hash(counter: Tensor, key: Tensor) -> Tensor:
    """Random bits in place of int32 counters: two rounds of multiplications and shifts, half of the key before each."""
    x = counter.add_(key[0])
    x ^= (x >> SHIFTS[0]).bitwise_and_(MASKS[0])
    x.mul_(FACTORS[0]).bitwise_xor_(key[1])
    x ^= (x >> SHIFTS[1]).bitwise_and_(MASKS[1])
    x.mul_(FACTORS[1])
    x ^= (x >> SHIFTS[0]).bitwise_and_(MASKS[0])
    return x


def _beta(bits: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """Random bits to draws from Beta(α, α), by its quantile function.

    Its values at 65,537 points are interpolated, but for α = 1 and α = 2, the paper's, which have a closed one: there,
    the root in [0, 1] of 3λ² - 2λ³ = u.
    """
    if alpha == 2.0:
        return (bits * torch.tensor(2.0**-31, dtype=dtype)).asin_().div_(3.0).sin_().add_(0.5)
    if alpha == 1.0:
        return torch.add(bits.to(dtype) * 2.0**-32, 0.5)
    table = _quantiles(alpha, bits.device, dtype)
    cell, within = (bits >> 16) + CELLS // 2, (bits & 0xFFFF).to(dtype) * 2.0**-16
    left, right = (table.take(at.long()) for at in (cell, cell + 1))
    return torch.lerp(left, right, within)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _quantiles(alpha: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The quantile function of Beta(α, α) at `CELLS` + 1 points from 0 to 1."""
    return _tabulate(alpha, device, dtype)


@cache
def _tabulate(alpha: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    from scipy.special import betaincinv

    points = np.linspace(0.0, 0.5, CELLS // 2 + 1)
    points[0] = 0.25 / CELLS  # the quantile of 0 is 0 whatever α, far from where a narrow distribution lies
    with np.errstate(all="ignore"):
        lower = np.nan_to_num(betaincinv(alpha, alpha, points), nan=0.5).clip(0.0, 0.5)
    return torch.from_numpy(np.concatenate([lower, 1.0 - lower[-2::-1]])).to(dtype).to(device)
