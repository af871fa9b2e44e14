from __future__ import annotations

import pytest
import torch

from metrix.errors import ChoiceError
from metrix.model.pooling import POOLS, AttentionPool, GeneralisedMean, build_head


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shape", [(3, 8, 5, 4), (3, 20, 8)])
def test_every_head_gives_unit_vectors_and_gradients(pool: str, shape: tuple[int, ...]) -> None:
    head = build_head(pool, 8, 4)
    features = torch.randn(shape, requires_grad=True)
    out = head(features)
    assert out.shape == (3, 4)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(3))
    (out * torch.randn(3, 4)).sum().backward()
    assert features.grad is not None
    assert features.grad.abs().sum() > 0
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("pool", POOLS)
def test_maps_and_tokens_are_the_same_positions(pool: str) -> None:
    head = build_head(pool, 8, 4)
    features = torch.randn(2, 8, 3, 3)
    torch.testing.assert_close(head(features), head(features.flatten(2).transpose(1, 2)))


def test_generalised_mean_is_its_formula() -> None:
    x = torch.rand(2, 9, 8, dtype=torch.float64)
    expected = x.clamp_min(1e-6).pow(3).mean(1).pow(1 / 3)
    torch.testing.assert_close(GeneralisedMean(3.0).double()(x), expected, rtol=1e-5, atol=1e-6)


def test_generalised_mean_is_avg_at_one_and_max_in_the_limit() -> None:
    x = torch.rand(2, 9, 8)
    torch.testing.assert_close(GeneralisedMean(1.0)(x), x.mean(1))
    torch.testing.assert_close(GeneralisedMean(1000.0)(x), x.amax(1), rtol=5e-3, atol=0)


def test_generalised_mean_does_not_overflow_half_precision() -> None:
    x = torch.full((1, 4, 2), 100.0, dtype=torch.float16)  # 100^3 is past the largest float16
    torch.testing.assert_close(GeneralisedMean(3.0)(x), torch.full((1, 2), 100.0, dtype=torch.float16))


def test_attention_starts_as_average_and_follows_its_query() -> None:
    pool = AttentionPool(8)
    x = torch.randn(2, 9, 8)
    torch.testing.assert_close(pool(x), x.mean(1))
    with torch.no_grad():
        pool.query[3] = 1e4  # all attention to the position with the largest fourth channel
    chosen = x[torch.arange(2), x[:, :, 3].argmax(1)]
    torch.testing.assert_close(pool(x), chosen)


def test_unknown_head() -> None:
    with pytest.raises(ChoiceError, match="unknown pool 'mean'"):
        build_head("mean", 8, 4)
