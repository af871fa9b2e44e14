"""The functions that fill the columns of Table 1: rho and sigma.

A sum of exponentials under a logarithm is evaluated in the log domain: `Log` and `Log1p` take the
logarithm of the sum, `Exponential` gives the logarithm of a term. Any other callable works too, and
is then applied as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.errors import check_number

# From here on log(1 + e^x) is x in float64, too; torch's own threshold, 20, drops a term of 2e-9.
SOFTPLUS_IS_LINEAR = 60.0


def identity(x: Tensor) -> Tensor:
    """τ(x) = σ(x) = x."""
    return x


def negated(x: Tensor) -> Tensor:
    """ρ⁺(x) = -x, contrastive."""
    return -x


def softplus(x: Tensor) -> Tensor:
    """τ(x) = log(1 + e^x), cross-entropy with a margin."""
    return F.softplus(x, threshold=SOFTPLUS_IS_LINEAR)


@dataclass(frozen=True)
class Linear:
    """ρ(x) = scale · x."""

    scale: float

    def __post_init__(self) -> None:
        check_number("scale", self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return self.scale * x


@dataclass(frozen=True)
class Hinge:
    """ρ⁻(x) = [x - m]₊, contrastive; with m = 0, τ(x) = [x]₊, lifted structure."""

    margin: float = 0.0

    def __post_init__(self) -> None:
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.relu(x - self.margin)


@dataclass(frozen=True)
class Shortfall:
    """ρ⁺(x) = [m - x]₊, contrastive with positives that are drawn no closer than m."""

    margin: float

    def __post_init__(self) -> None:
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.relu(self.margin - x)


@dataclass(frozen=True)
class Exponential:
    """ρ(x) = e^{scale (x - margin)}."""

    scale: float
    margin: float = 0.0

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.exp(self.log(x))

    def log(self, x: Tensor) -> Tensor:
        """log ρ(x)."""
        return self.scale * (x - self.margin if self.margin else x)


@dataclass(frozen=True)
class ArcExponential:
    """ρ(x) = e^{scale · cos(θ + margin)}, where x = cos θ and the margin is in radians.

    Past θ + margin = π the cosine would rise again: there it is cos θ - margin · sin(margin).
    """

    scale: float
    margin: float

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        check_number("margin", self.margin)

    def exponent(self, x: Tensor) -> Tensor:
        """cos(θ + margin)."""
        turned = turn(x, self.margin)
        return torch.where(x >= -math.cos(self.margin), turned, x - self.margin * math.sin(self.margin))

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.exp(self.log(x))

    def log(self, x: Tensor) -> Tensor:
        """log ρ(x)."""
        return self.scale * self.exponent(x)


@dataclass(frozen=True)
class ArcLinear:
    """ρ(x) = scale · cos(θ + margin), where x = cos θ and the margin is in radians."""

    scale: float
    margin: float

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return self.scale * turn(x, self.margin)


def turn(x: Tensor, angle: float) -> Tensor:
    """cos(θ + angle) of cosines x = cos θ."""
    squared = 1.0 - x.square()
    apart = squared > 4.0 * torch.finfo(x.dtype).eps  # the root has no derivative at zero
    sine = torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)
    return x * math.cos(angle) - sine * math.sin(angle)


@dataclass(frozen=True)
class Attraction:
    """ρ⁺(x) = -(radius / max(d, radius))^decay, with the distance d = √(2-2x) of unit vectors: a well, flat within."""

    radius: float
    decay: float

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        nearness = self.radius**2 / (2.0 - 2.0 * x).clamp_min(self.radius**2)
        return -nearness.pow(0.5 * self.decay)


@dataclass(frozen=True)
class Repulsion:
    """ρ⁻(x) = (radius / min(d, radius))^decay, with the distance d = √(2-2x) of unit vectors: a peak, flat without.

    The peak is infinite. From half of the radius inwards its tangent, as a function of x, takes its place, so that
    value and gradient stay finite for equal vectors, in half precision, too, and still push them apart.
    """

    radius: float
    decay: float

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        squared, power = self.radius**2, 0.5 * self.decay
        nearest = squared / 4.0
        distance = 2.0 - 2.0 * x  # squared
        steepness = power * 4.0**power / nearest  # -dρ/d(d²) at the nearest
        peak: Tensor = (squared / distance.clamp(nearest, squared)).pow(power)
        within: Tensor = steepness * torch.relu(nearest - distance)
        return peak + within


@dataclass(frozen=True)
class CircleExponential:
    """ρ⁺(x) = e^{-scale · [1 + m - x]₊ (x - 1 + m)} or ρ⁻(x) = e^{scale · [x + m]₊ (x - m)}, circle loss.

    The factors [·]₊ say how far a similarity is from its optimum; no gradient goes through them.
    """

    scale: float
    margin: float
    of_positives: bool

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        check_number("margin", self.margin)

    def exponent(self, x: Tensor) -> Tensor:
        """What `scale` multiplies."""
        fixed, m = x.detach(), self.margin
        if self.of_positives:
            return torch.relu(1.0 + m - fixed) * (1.0 - m - x)
        return torch.relu(fixed + m) * (x - m)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.exp(self.scale * self.exponent(x))


@dataclass(frozen=True)
class Log:
    """σ(x) = sign · log(x), undefined for an empty sum."""

    sign: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """σ(x)."""
        return self.sign * torch.log(x)

    def of_log(self, z: Tensor) -> Tensor:
        """σ(e^z)."""
        return z if self.sign == 1.0 else self.sign * z


@dataclass(frozen=True)
class Log1p:
    """σ(x) = weight · log(1 + x)."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_number("weight", self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        """σ(x)."""
        return self.weight * torch.log1p(x)

    def of_log(self, z: Tensor) -> Tensor:
        """σ(e^z) = weight · log(1 + e^z)."""
        value = softplus(z)
        return value if self.weight == 1.0 else self.weight * value
