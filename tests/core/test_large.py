"""Batches too large for matrices of all pairs: the same losses, formed for some anchors at a time."""

from __future__ import annotations

import pytest
import torch

from metrix.core import sets
from tests.core.test_fast_paths import DIM, LABELS, LOSSES, N, assert_same, double, value_and_gradients


@pytest.fixture
def nothing_held(monkeypatch):
    """From now on every batch is too large, and blocks are of a few rows."""

    def begin(block: int = 40) -> None:
        monkeypatch.setattr(sets, "HELD", 0)
        monkeypatch.setattr(sets, "BLOCK", block)

    return begin


@pytest.mark.parametrize("block", [1, 40])
@pytest.mark.parametrize("name", LOSSES)
def test_a_clean_loss_in_blocks_is_the_loss_in_one_piece(name, block, nothing_held):
    torch.manual_seed(0)
    loss = LOSSES[name]().double()
    x = double((N, DIM)).requires_grad_()
    leaves = [x, *loss.parameters()]
    whole = value_and_gradients(loss(x, LABELS), leaves)
    nothing_held(block)
    assert_same(value_and_gradients(loss(x, LABELS), leaves), whole)
