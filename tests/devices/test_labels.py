"""Labels that are on the device."""

from __future__ import annotations

import torch

from metrix import labels
from tests.devices.pretended_cuda import PretendedCuda


def test_a_matrix_of_pairs_on_the_device_stays_there():
    Y = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, 0.1], [0.0, 0.1, 1.0]])
    with PretendedCuda() as device:
        found = labels.pairwise(device.put(Y)).matrix()
        assert found.is_cuda
        assert torch.equal(found.held, Y)
