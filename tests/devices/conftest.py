"""The real devices of this machine, for tests that run on each of them."""

from __future__ import annotations

import pytest
import torch

PRESENT = [name for name, module in (("cuda", torch.cuda), ("mps", torch.mps)) if module.is_available()]


NONE = pytest.param("", marks=pytest.mark.skip(reason="this machine has neither CUDA nor MPS"))


@pytest.fixture(params=PRESENT or [NONE])
def device(request: pytest.FixtureRequest) -> torch.device:
    """A GPU of this machine."""
    return torch.device(request.param)
