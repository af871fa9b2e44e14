"""Answers that are equal up to rounding: a processor adds in another order for one query than for several."""

from __future__ import annotations

from typing import Any

import pytest


def up_to_rounding(value: Any, tolerance: float = 1e-4) -> Any:
    """What equals the value, with all floats in it, in lists and dictionaries, up to an absolute tolerance."""
    if isinstance(value, dict):
        return {key: up_to_rounding(one, tolerance) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(up_to_rounding(one, tolerance) for one in value)
    return pytest.approx(value, abs=tolerance) if isinstance(value, float) else value
