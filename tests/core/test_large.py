"""Batches too large for matrices of all pairs: the same losses, formed for some anchors at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from metrix import Metrix, PoolLinear, losses
from metrix.core.compute import blocks
from metrix.core.factors import Factors, draw
from tests.core.test_fast_paths import (
    CLASSES,
    DIM,
    LABELS,
    N,
    Network,
    assert_same,
    double,
    value_and_gradients,
)
from tests.losses_table import TABLE, WITH_KINDS


@pytest.fixture
def nothing_held(monkeypatch):
    """From now on every batch is too large, and blocks are of a few rows."""

    def begin(block: int = 40) -> None:
        monkeypatch.setattr(blocks, "HELD", 0)
        monkeypatch.setattr(blocks, "BLOCK", block)

    return begin


@pytest.mark.parametrize("block", [1, 40])
@pytest.mark.parametrize("name", TABLE)
def test_a_clean_loss_in_blocks_is_the_loss_in_one_piece(name, block, nothing_held):
    loss = TABLE[name].build(CLASSES, DIM)
    x = double((N, DIM)).requires_grad_()
    leaves = [x, *loss.parameters()]
    whole = value_and_gradients(loss(x, LABELS), leaves)
    nothing_held(block)
    assert_same(value_and_gradients(loss(x, LABELS), leaves), whole)


@pytest.mark.filterwarnings("ignore:.*anchors is usable:metrix.MetrixWarning")
@pytest.mark.parametrize("hardest", [None, 2])
@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
@pytest.mark.parametrize("mixup", ["embed", "embed, not renormalised", "feature"])
def test_a_mixed_loss_in_blocks_is_the_loss_in_one_piece(name, kind, mixup, hardest, nothing_held):
    loss = TABLE[name].build(CLASSES, DIM)
    model = Network(PoolLinear(8, DIM, pool="avg"))
    x = double((N, 2, 4, 4)).requires_grad_()
    rows = TABLE[name].factor_rows(kind, N, CLASSES)
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


ROWS, COLUMNS = 300, 500


def factors_of(alpha=2.0, seed=0, given=None, per_pair=True):
    generator = torch.Generator().manual_seed(seed)
    return Factors(given, alpha, per_pair, generator, torch.empty(0, dtype=torch.float64))


@pytest.mark.parametrize("alpha", [0.4, 1.0, 2.0, 3.5])
def test_factors_drawn_by_rows_follow_the_beta_distribution_and_are_independent(alpha):
    from scipy.stats import beta, kstest

    lam = factors_of(alpha).of(ROWS, COLUMNS).rows()
    assert kstest(lam.flatten().numpy(), beta(alpha, alpha).cdf).pvalue > 1e-3
    centred = (lam - 0.5) / lam.std()
    noise = 5 / (ROWS * COLUMNS) ** 0.5  # five standard deviations of the mean of as many products
    for shift in (1, 2, 7):
        for axis in (0, 1):  # with the pair below, and with the pair beside
            assert (centred * centred.roll(shift, axis)).mean().abs() < noise
    square = centred[:, :ROWS]
    assert (square * square.T).triu(1).sum().abs() / (ROWS * (ROWS - 1) / 2) < 5 / (ROWS * (ROWS - 1) / 2) ** 0.5
    assert len(lam.flatten().unique()) > 0.999 * lam.numel()


def test_the_factor_of_a_pair_is_the_same_in_every_block():
    drawn = factors_of().of(ROWS, COLUMNS)
    whole, order = drawn.rows(), torch.randperm(ROWS)
    assert torch.equal(drawn.rows(order[:50]), whole[order[:50]])
    assert torch.equal(drawn.rows(slice(50, 70)), whole[50:70])
    again, other = (factors_of(seed=s).of(ROWS, COLUMNS).rows(torch.arange(3)) for s in (0, 1))
    assert torch.equal(again, whole[:3])
    assert not torch.equal(other, whole[:3])


def test_a_wider_batch_keeps_the_factors_of_its_first_examples():
    narrow, wide = (factors_of().of(ROWS, columns).rows() for columns in (COLUMNS, 2 * COLUMNS))
    assert torch.equal(wide[:, :COLUMNS], narrow)


def test_factors_of_two_steps_are_independent():
    generator = torch.Generator().manual_seed(0)
    first, second = (draw((ROWS, COLUMNS), 2.0, generator, torch.device("cpu"), torch.float64) - 0.5 for _ in range(2))
    noise = 5 * first.std() * second.std() / (ROWS * COLUMNS) ** 0.5
    assert (first * second).mean().abs() < noise
    assert (first * second.roll((1, 3), (0, 1))).mean().abs() < noise


def test_no_two_pairs_share_a_counter():
    """Even of 3,000 × 3,000 numbers, none occurs twice but by the chance of 2^-32 each."""
    from metrix.core.factors import COLUMN_STEP, ROW_STEP

    number = torch.arange(3000, dtype=torch.int32)
    counters = ((number * ROW_STEP).unsqueeze(1) + number * COLUMN_STEP).flatten().sort().values
    assert int((counters[1:] == counters[:-1]).sum()) == 0


def test_all_factors_follow_from_one_draw_of_the_generator():
    factors = factors_of()
    factors.of(ROWS, COLUMNS).rows(torch.arange(9))
    expected = torch.Generator().manual_seed(0)
    torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, generator=expected)
    assert torch.equal(factors.generator.get_state(), expected.get_state())


def test_rows_of_given_factors_are_the_given_ones():
    given = torch.rand(4, 6, dtype=torch.float64)
    rows = torch.tensor([2, 0])
    assert torch.equal(factors_of(given=given).of(4, 6).rows(rows), given[rows])
    assert torch.equal(factors_of(given=0.3).of(4, 6).rows(rows), torch.full((2, 6), 0.3, dtype=torch.float64))
    batch = factors_of(per_pair=False).of(4, 6).rows(rows)
    assert len(batch.unique()) == 1


@pytest.mark.parametrize("kind", ["pos-neg", "anc-neg"])
def test_drawn_factors_do_not_depend_on_the_size_of_a_block(kind, nothing_held):
    x = double((N, DIM))
    found = []
    for block in (15, 40, 10_000):
        nothing_held(block)
        objective = Metrix(losses.MultiSimilarity(), mixup="embed", generator=torch.Generator().manual_seed(3))
        found.append(objective.mixed(x, LABELS, pairs=kind).item())
    assert found[1:] == pytest.approx(found[:1] * 2, rel=1e-12)


def test_the_switch_to_blocks_is_automatic_and_changes_nothing():
    """Just above the limit, float64: 1,500 examples have matrices of 18 MB."""
    n = 1500
    assert n * n * 8 > blocks.HELD
    x = double((n, 8)).requires_grad_()
    labels = torch.arange(n) % 300
    lam = double((n, n), seed=1).sigmoid()
    objective = Metrix(losses.MultiSimilarity(), mixup="embed", pairs="anc-neg")

    def evaluate():
        value = objective.loss(x, labels) + objective.mixed(x, labels, lam, "anc-neg")
        return value_and_gradients(value, [x])

    in_blocks = evaluate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "HELD", 2**40)
        assert_same(in_blocks, evaluate(), 1e-9)


MEMORY = """
import sys, torch
from metrix import Metrix, losses
from metrix.core.compute import blocks
blocks.BLOCK = 2**20
def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024
torch.set_num_threads(1)
kind = sys.argv[1]
loss = losses.MultiSimilarity()
mixed = Metrix(loss, mixup="embed").mixed
def run(n):
    x = torch.randn(n, 16).requires_grad_()
    labels = torch.arange(n // 4).repeat_interleave(4)
    (loss(x, labels) if kind == "clean" else mixed(x, labels, pairs=kind)).backward()
run(64)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
run(4096)
print(status("VmHWM") - before)
"""


@pytest.mark.parametrize("kind", ["clean", "anc-neg", "pos-neg"])
def test_memory_is_that_of_a_block(kind):
    """Blocks here are of 4 MB; matrices of all pairs of 4,096 examples take 64 MB each, and six to sixteen live."""
    found = subprocess.run([sys.executable, "-c", MEMORY, kind], capture_output=True, text=True, check=True)
    assert float(found.stdout) < 250
