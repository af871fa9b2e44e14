"""`head_init="whiten"`: embeddings of the training images are centred and of equal variance."""

from __future__ import annotations

import pytest
import torch

from metrix import PoolLinear
from metrix.errors import InvalidInput
from metrix.train.whitening import whiten_head


def features(count: int = 200, channels: int = 8) -> torch.Tensor:
    """Maps behind a ReLU, of unequal variance."""
    generator = torch.Generator().manual_seed(0)
    return torch.relu(
        torch.randn(count, channels, 2, 2, generator=generator) * torch.arange(1.0, channels + 1)[:, None, None] + 1
    )


def whitened(dim: int, count: int = 200) -> tuple[PoolLinear, torch.Tensor]:
    torch.manual_seed(1)
    head, x = PoolLinear(8, dim), features(count)
    whiten_head(head, lambda: [head(part) for part in x.split(64)], lambda moments: moments)
    return head, x


def test_outputs_are_centred_and_uncorrelated():
    head, x = whitened(3)
    with torch.no_grad():
        out = head.linear(head.pooled(x)).double()
    assert out.mean(0).abs().max() < 1e-4 * out.std()
    correlations = torch.corrcoef(out.T)
    assert (correlations - torch.eye(3)).abs().max() < 1e-4
    deviations = out.std(0)
    assert deviations.min() > 0.9 * deviations.max()  # equal but for the shrinkage


def test_components_are_those_of_largest_variance():
    head, x = whitened(3)
    pooled = head.pooled(x).double()
    _, _, directions = torch.linalg.svd(pooled - pooled.mean(0), full_matrices=False)
    rows = torch.nn.functional.normalize(head.linear.weight.detach().double(), dim=1)
    assert ((rows @ directions[:3].T).abs() - torch.eye(3)).abs().max() < 1e-4


def test_scale_is_that_of_the_random_layer():
    torch.manual_seed(1)
    random = PoolLinear(8, 3).linear.weight.square().mean()
    head, _ = whitened(3)
    assert head.linear.weight.square().mean().item() == pytest.approx(random.item(), rel=1e-5)


def test_parts_of_several_processes_add_up():
    alone, x = whitened(3)
    torch.manual_seed(1)
    other = PoolLinear(8, 3)
    collected = []
    with pytest.raises(ZeroDivisionError):  # stop after collecting: this "process" has seen only half
        whiten_head(other, lambda: other(x[100:]), lambda moments: collected.append(moments.clone()) or 1 / 0)
    whiten_head(other, lambda: other(x[:100]), lambda moments: moments + collected[0])
    assert torch.allclose(other.linear.weight.abs(), alone.linear.weight.abs(), atol=1e-5)


def test_more_dimensions_than_components_are_refused():
    with pytest.raises(InvalidInput, match="expected at most 4 with head_init"):
        whitened(8, count=5)
