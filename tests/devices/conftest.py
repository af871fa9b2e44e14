"""The real devices of this machine, for tests that run on each of them."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["cuda", "mps"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """A GPU; skipped where there is none of this kind."""
    present = torch.cuda.is_available() if request.param == "cuda" else torch.backends.mps.is_available()
    if not present:
        pytest.skip(f"this machine has no {request.param}")
    return torch.device(request.param)
