"""Batches too large for matrices of all pairs: the same losses, formed for some anchors at a time."""

from __future__ import annotations

import pytest
import torch

from metrix import Metrix, PoolLinear
from metrix.core import sets
from metrix.core.pairs import PAIR_KINDS
from tests.core.test_fast_paths import (
    CLASSES,
    DIM,
    LABELS,
    LOSSES,
    N,
    Network,
    assert_same,
    double,
    value_and_gradients,
)


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


@pytest.mark.filterwarnings("ignore:.*anchors is usable:metrix.MetrixWarning")
@pytest.mark.parametrize("hardest", [None, 2])
@pytest.mark.parametrize("kind", PAIR_KINDS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mixup", ["embed", "embed, not renormalised", "feature"])
def test_a_mixed_loss_in_blocks_is_the_loss_in_one_piece(name, kind, mixup, hardest, nothing_held):
    if name == "proxy-nca++" and kind in ("pos-pos", "neg-neg"):
        return
    torch.manual_seed(0)
    loss = LOSSES[name]().double()
    model = Network(PoolLinear(8, DIM, pool="avg"))
    x = double((N, 2, 4, 4)).requires_grad_()
    rows = CLASSES if name.startswith("proxy-anchor") and kind == "anc-neg" else N
    lam = double((rows, N), seed=5).sigmoid()
    renormalise = "not" not in mixup
    objective = Metrix(loss, mixup=mixup.split(",")[0], hard_negatives=hardest, renormalise=renormalise)
    leaves = [x, *model.parameters(), *loss.parameters()]

    def evaluate():
        z = model.features(x)
        if mixup == "feature":
            value = objective.mixed_features(model, z, LABELS, lam, kind)
        else:
            value = objective.mixed(model.head(z), LABELS, lam, kind)
        return value_and_gradients(value, leaves)

    whole = evaluate()
    nothing_held()
    assert_same(evaluate(), whole)
