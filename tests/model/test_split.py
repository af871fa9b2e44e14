from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from metrix import Metrix, PoolLinear, losses, split
from metrix.errors import ModelError


def test_split_recognises_pooling_and_a_linear_layer():
    from torchvision.models import resnet18

    network = resnet18(num_classes=6).eval()
    model = split(network, at="layer4")
    x = torch.randn(3, 3, 64, 64)
    assert model.features(x).shape == (3, 512, 2, 2)
    assert isinstance(model.head, PoolLinear)
    torch.testing.assert_close(model(x), F.normalize(network(x), dim=1))
    assert {id(p) for p in model.parameters()} == {id(p) for p in network.parameters()}
    out = Metrix(losses.MultiSimilarity(), mixup="feature").step(model, x, torch.tensor([0, 0, 1]))
    out.loss.backward()
    assert network.conv1.weight.grad is not None


def test_split_of_any_other_tail_is_normalised():
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    model = split(network, at="0")
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), F.normalize(network(x), dim=1))
    assert "chunks" in Metrix(losses.NCA()).explain(model)


def test_split_says_what_cannot_be_cut():
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x)) + x

    class Branches(Skips):
        def forward(self, x):
            return self.b(self.a(x)) if x.sum() > 0 else x

    with pytest.raises(ValueError, match="also uses 'x'"):
        split(Skips(), at="a")
    with pytest.raises(ValueError, match="unknown layer 'c'"):
        split(Skips(), at="c")
    with pytest.raises(ValueError, match="cannot be traced"):
        split(Branches(), at="a")


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_a_wrapped_network_is_refused_with_what_to_pass(wrap: Any) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ModelError, match=r"expected the network itself, got a .*; pass its `\.(_orig_mod|module)`"):
        split(wrap(network), at="0")
