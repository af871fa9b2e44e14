"""Ranges of settings that `metrix tune` searches; the entries of losses and mixing methods have them.

A space is a mapping of configuration keys to such ranges, for example
`{"margin": Uniform(0.1, 0.9), "temperature": LogUniform(0.03, 1.0)}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Setting: TypeAlias = "str | int | float | bool | tuple[str, ...] | None"


@dataclass(frozen=True)
class Uniform:
    """Numbers from `low` to `high`, all equally likely before anything is known."""

    low: float
    high: float


@dataclass(frozen=True)
class LogUniform:
    """Positive numbers from `low` to `high` whose logarithms are equally likely."""

    low: float
    high: float


@dataclass(frozen=True)
class WholeNumber:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class OneOf:
    """One of a few values, without an order."""

    values: tuple[Setting, ...]


Range: TypeAlias = Uniform | LogUniform | WholeNumber | OneOf
Space: TypeAlias = Mapping[str, Range]

PROXY_RATES = LogUniform(1e-3, 1.0)  # learning rates of proxies, which are published from 4e-3 to 1
