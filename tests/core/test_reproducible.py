"""The same batch has the same gradient, bit for bit, on any fixed number of threads."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from metrix import Metrix, PoolLinear, losses
from metrix.core.compute import blocks
from metrix.core.pairs import PAIR_KINDS
from metrix.core.rivals.imix import IMix
from metrix.core.rivals.mochi import MoCHi
from metrix.core.rivals.proxy_synthesis import ProxySynthesis
from tests.losses_table import BASELINES, PROXY_LOSSES, TABLE

CLASSES, DIM = 4, 8
LABELS = torch.arange(CLASSES).repeat(3)
HEADS = ("avg", "max", "avg+max", "plain")


class NoUnorderedSums(TorchDispatchMode):
    """Refuses to add up several numbers into one place in an order that depends on threads.

    The backward pass of `x[i]` does so on the CPU where i names a row twice; that of `index_select` does not.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("_index_put_impl_", "index_put_", "index_put"):
            into, indices, _, accumulate = (*args, False)[:4]
            if accumulate:
                numbers = torch.arange(into.numel()).view(into.shape)[
                    tuple(slice(None) if i is None else i for i in indices)
                ]
                assert numbers.unique().numel() == numbers.numel(), "backward of x[i] with a row twice"
        return func(*args, **(kwargs or {}))


class Network(nn.Module):
    def __init__(self, head: str, channels: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, channels, 3)
        self.plain = nn.Linear(channels * 36, DIM) if head == "plain" else None
        self.head = self.of_map if self.plain is not None else PoolLinear(channels, DIM, pool=head)

    def features(self, x):
        return self.body(x)

    def of_map(self, z):
        return nn.functional.normalize(self.plain(z.flatten(1)), dim=1)


def gradients(objective, model, x, labels):
    objective.generator = torch.Generator().manual_seed(3)
    model.zero_grad()
    objective.zero_grad()
    objective.step(model, x, labels).loss.backward()
    return [p.grad.clone() for p in (*model.parameters(), *objective.parameters()) if p.grad is not None]


WAYS = [*(("feature", head) for head in HEADS), ("input", "avg"), ("embed", "avg")]


REPEATED = ("multi-similarity", "proxy-anchor", "proxy-nca++")


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in REPEATED for kind in TABLE[name].kinds])
@pytest.mark.parametrize(("mixup", "head"), WAYS)
def test_no_gradient_is_added_up_in_any_order(name, kind, mixup, head, monkeypatch):
    model, x = Network(head), torch.randn(12, 3, 8, 8)
    for hardest, held in itertools.product((3, None), (blocks.HELD, 0)):
        monkeypatch.setattr(blocks, "HELD", held)
        loss = TABLE[name].build(CLASSES, DIM).float()
        with NoUnorderedSums():
            gradients(Metrix(loss, mixup=mixup, pairs=kind, hard_negatives=hardest), model, x, LABELS)


def rivals():
    for mixup in ("input", "feature", "embed"):
        yield f"i-Mix, {mixup}", lambda mixup=mixup: IMix(losses.Contrastive(), mixup=mixup)
    yield "MoCHi", lambda: MoCHi(losses.Contrastive(), hard_negatives=3)
    for name in PROXY_LOSSES:
        case = TABLE[name]
        yield f"Proxy Synthesis, {name}", lambda case=case: ProxySynthesis(case.build(CLASSES, DIM).float())


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in rivals()])
def test_no_gradient_of_a_rival_is_added_up_in_any_order(make):
    with NoUnorderedSums():
        gradients(make(), Network("avg+max"), torch.randn(12, 3, 8, 8), LABELS)


@pytest.mark.parametrize("name", [*BASELINES, *TABLE])
def test_no_gradient_of_a_clean_loss_is_added_up_in_any_order(name):
    loss = BASELINES[name](CLASSES, DIM) if name in BASELINES else TABLE[name].build(CLASSES, DIM).float()
    with NoUnorderedSums():
        loss(torch.randn(12, DIM, requires_grad=True), LABELS).backward()


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("kind", PAIR_KINDS)
@pytest.mark.parametrize(("mixup", "head"), WAYS)
@pytest.mark.usefixtures("two_threads")
def test_two_threads_give_the_same_gradient_every_time(kind, mixup, head):
    model, x = Network(head, channels=64), torch.randn(24, 3, 8, 8)
    objective = Metrix(
        losses.MultiSimilarity(), mixup=mixup, pairs=kind, hard_negatives=12 if mixup == "feature" else 4
    )
    labels = torch.arange(6).repeat(4)
    first = gradients(objective, model, x, labels)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(objective, model, x, labels), strict=True))
