"""Each fast path against its slow twin; the paper's loops are in tests/parity."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from metrix import Metrix, MetrixWarning, PoolLinear, losses
from metrix.core.comparison import Comparison
from metrix.core.compute import blocks, recompute
from metrix.core.compute import max_plus as maxplus
from metrix.core.compute.max_plus import TorchKernel, max_plus_linear
from metrix.core.functions import Exponential
from metrix.core.generic import loss_per_anchor
from metrix.core.log_sums import is_empty, log2_of_weights, log_sums
from tests.losses_table import TABLE, WITH_KINDS

N, DIM, CLASSES = 14, 6, 5
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 4])


def double(shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value_and_gradients(value, leaves):
    grads = torch.autograd.grad(value, leaves, allow_unused=True)
    return [
        value.detach(),
        *(torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True)),
    ]


def assert_same(left, right, tolerance=1e-10):
    for a, b in zip(left, right, strict=True):
        assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


class Network(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Conv2d(2, 8, 2), head
        self.seen = 0
        self.double()

    def features(self, x):
        self.seen += len(x)
        return torch.tanh(self.body(x))


class MLP(nn.Module):
    def __init__(self, *extra: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(8 * 9, 16), *extra, nn.Tanh(), nn.Linear(16, DIM))

    def forward(self, z):
        return F.normalize(self.layers(z), dim=1)


@pytest.mark.filterwarnings("ignore:.*anchors is usable:metrix.MetrixWarning")
@pytest.mark.parametrize("block", [7, 40])
@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
@pytest.mark.parametrize("mixup", ["embed", "feature"])
def test_a_loss_in_blocks_is_the_loss_in_one_piece(name, kind, mixup, block, monkeypatch):
    loss = TABLE[name].build(CLASSES, DIM)
    model = Network(PoolLinear(8, DIM, pool="max"))
    x = double((N, 2, 4, 4)).requires_grad_()
    rows = TABLE[name].factor_rows(kind, N, CLASSES)
    lam = double((rows, N), seed=5).sigmoid()
    objective = Metrix(loss, mixup=mixup)
    leaves = [x, *model.parameters(), *loss.parameters()]

    def evaluate():
        z = model.features(x)
        if mixup == "embed":
            value = objective.mixed(model.head(z), LABELS, lam, kind)
        else:
            value = objective.mixed_features(model, z, LABELS, lam, kind)
        return value_and_gradients(value, leaves)

    whole = evaluate()
    monkeypatch.setattr(blocks, "BLOCK", block)
    assert_same(evaluate(), whole)


@pytest.mark.parametrize("kernel", ["compiled", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("positions", "channels"), [(1, 3), (49, 300), (260, 5)])
@pytest.mark.parametrize("budget", [1, 2**14, 2**28])
def test_max_plus_is_autograd_through_the_formed_maps(kernel, dtype, positions, channels, budget, monkeypatch):
    if kernel == "torch":
        monkeypatch.setattr(maxplus, "kernel_for", lambda x: TorchKernel())
    else:
        assert maxplus.compiled_kernel() is not None, "numba is among the requirements"
    x = double((5, positions, channels)).to(dtype).requires_grad_()
    weight = double((4, channels), seed=1).to(dtype).requires_grad_()
    i, j = torch.cartesian_prod(torch.arange(5), torch.arange(5)).unbind(1)
    lam = double((25,), seed=2).sigmoid().to(dtype)
    upstream = double((25, 4), seed=3).to(dtype)
    formed = (lam[:, None, None] * x[i] + (1 - lam)[:, None, None] * x[j]).amax(1) @ weight.T
    expected = value_and_gradients((formed * upstream).sum(), [x, weight])
    got = value_and_gradients((max_plus_linear(x, weight, i, j, lam, budget) * upstream).sum(), [x, weight])
    assert_same(got, expected, 1e-4 if dtype == torch.float32 else 1e-11)


def test_max_plus_keeps_the_number_of_threads_of_torch():
    """In a new process: numba's first loop would set it."""
    code = """
import torch
from metrix.core.compute.max_plus import max_plus_linear
torch.set_num_threads(1)
x, zero = torch.rand(2, 4, 3), torch.zeros(1, dtype=torch.long)
max_plus_linear(x, torch.rand(5, 3), zero, zero, torch.ones(1))
print(torch.get_num_threads())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"


def test_max_plus_without_numba_says_so_once(monkeypatch, caplog):
    import builtins

    original = builtins.__import__

    def no_numba(name, *args, **kwargs):
        if name == "metrix.core.compute.max_plus_numba":
            raise ImportError("No module named 'numba'")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_numba)
    maxplus.compiled_kernel.cache_clear()
    try:
        assert isinstance(maxplus.kernel_for(torch.zeros(1)), TorchKernel)
        assert isinstance(maxplus.kernel_for(torch.zeros(1)), TorchKernel)
        assert caplog.text.count("plain torch") == 1
        assert "plain torch" in Metrix(losses.NCA()).explain(Network(PoolLinear(8, DIM)))
    finally:
        maxplus.compiled_kernel.cache_clear()


@pytest.mark.parametrize("mixup", ["input", "feature"])
def test_chunks_with_recomputation_change_nothing(mixup):
    model = Network(MLP())
    x = double((N, 2, 4, 4)).requires_grad_()
    results = []
    for budget in (2**28, 2**12, 1):
        objective = Metrix(losses.MultiSimilarity(), mixup=mixup, memory_budget=budget)
        z = model.features(x)
        value = (
            objective.mixed_inputs(model, x, LABELS, 0.4, "pos-neg")
            if mixup == "input"
            else objective.mixed_features(model, z, LABELS, 0.4, "pos-neg")
        )
        results.append(value_and_gradients(value, [x, *model.parameters()]))
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_chunks_keep_the_activations_within_the_budget():
    """Bytes saved for the backward pass grow with the number of pairs, unless there is a budget."""

    def saved(budget: int) -> int:
        sizes = {}

        def count(t):
            sizes[t.data_ptr(), t.numel()] = t.numel() * t.element_size()
            return t

        model = Network(MLP())
        z = model.features(double((N, 2, 4, 4))).detach()
        i, j = torch.cartesian_prod(torch.arange(N), torch.arange(N)).unbind(1)
        lam = torch.full((len(i),), 0.3, dtype=torch.float64)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            recompute.in_chunks(model.head, z, i, j, lam, budget, model.head)
        return sum(sizes.values())

    assert saved(2**14) < saved(2**28) / 3


def test_dropout_and_batch_norm_in_the_head_leave_the_statistics_of_clean_examples():
    model = Network(MLP(nn.BatchNorm1d(16, dtype=torch.float64), nn.Dropout(0.5)))
    z = model.features(double((N, 2, 4, 4))).detach().requires_grad_()
    clean_only = copy.deepcopy(model.head)
    clean_only(z)
    objective = Metrix(losses.MultiSimilarity(), mixup="feature", memory_budget=2**13)
    objective.mixed_features(model, z, LABELS, 0.4, "pos-neg").backward()
    assert z.grad.isfinite().all()
    norm, expected = model.head.layers[2], clean_only.layers[2]
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_mean, expected.running_mean)
    torch.testing.assert_close(norm.running_var, expected.running_var)
    assert norm.momentum == 0.1


def test_input_mixup_embeds_each_distinct_image_once():
    model = Network(PoolLinear(8, DIM))
    x = double((N, 2, 4, 4))
    objective = Metrix(losses.Contrastive(), mixup="input", pairs="pos-neg", hard_negatives=2)
    f = model.head(model.features(x)).detach()
    S = f @ f.T
    used = set()
    for a in range(N):
        negatives = [n for n in range(N) if LABELS[n] != LABELS[a]]
        hard = sorted(negatives, key=lambda n: -S[a, n].item())[:2]
        used |= {(p, n) for p in range(N) if LABELS[p] == LABELS[a] and p != a for n in hard}
    model.seen = 0
    with torch.no_grad():
        objective.step(model, x, LABELS)
    assert model.seen == N + len(used)


@pytest.mark.parametrize("head", [PoolLinear(8, DIM), MLP()], ids=["avg+max", "mlp"])
def test_feature_mixup_runs_the_backbone_once(head):
    model = Network(head)
    Metrix(losses.MultiSimilarity(), mixup="feature").step(model, double((N, 2, 4, 4)), LABELS)
    assert model.seen == N


@pytest.mark.parametrize(
    ("mixup", "head", "path"),
    [
        ("embed", None, "closed form"),
        ("feature", PoolLinear(8, DIM, "avg"), "closed form"),
        ("feature", PoolLinear(8, DIM, "max"), "max-plus"),
        ("feature", PoolLinear(8, DIM, "avg+max"), "max-plus"),
        ("feature", MLP(), "chunks"),
        ("input", PoolLinear(8, DIM), "chunks"),
    ],
)
def test_explain_names_the_path(mixup, head, path):
    model = None if head is None else Network(head)
    assert f"{mixup} mixup: {path}." in Metrix(losses.NCA(), mixup=mixup).explain(model)


def test_explain_has_a_line_for_each_type():
    text = Metrix(losses.NCA(), mixup=("input", "embed"), hard_negatives=(1, None)).explain(Network(MLP()))
    assert "the 1 hardest" in text.splitlines()[0]
    assert "all negatives" in text.splitlines()[1]


def test_one_class_has_no_negatives():
    with pytest.warns(MetrixWarning, match="a positive and a negative"):
        assert losses.CosFace(1, 4)(torch.randn(3, 4), torch.zeros(3, dtype=torch.long)).item() == 0.0
    assert losses.NormalizedSoftmax(1, 4)(torch.randn(3, 4), torch.zeros(3, dtype=torch.long)).item() == 0.0


def test_one_positive_keeps_a_small_loss_and_its_gradient():
    """In float32, log(1 + e^-30) is far below what the difference of two logarithms would leave of it."""
    loss = losses.CosFace(3, 4)
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(3, 4))
    x = torch.eye(4)[:1].requires_grad_()
    value = loss(x, torch.tensor([0]))
    value.backward()
    exact = 2.0 * math.exp(-64.0 * 0.65)
    assert value.item() == pytest.approx(exact, rel=1e-5)
    assert loss.proxies.grad.abs().max() == pytest.approx(64.0 * exact / 2, rel=1e-4)


@pytest.mark.parametrize("name", [name for name, case in TABLE.items() if case.roles == "proxy candidates"])
def test_one_positive_by_number_is_one_positive_among_labels(name):
    loss, S = TABLE[name].build(CLASSES, DIM), double((N, CLASSES)).tanh().requires_grad_()
    positive = LABELS.unsqueeze(1)
    marked = positive == torch.arange(CLASSES)
    found = [
        value_and_gradients(loss_per_anchor(loss.row, Comparison(S, Y, valid))[0].square().sum(), [S])
        for Y, valid in ((positive, torch.ones(1, 1, dtype=torch.bool)), (marked, torch.ones_like(marked)))
    ]
    assert_same(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_exponentials_keep_terms_of_any_size(dtype):
    """Beside their largest term, others vanish or are below the smallest normal number."""
    S = torch.tensor([[1.0, 0.2, -0.2, -1.0], [0.0, -0.9, -0.95, -1.0]], dtype=dtype, requires_grad=True)
    weights = torch.tensor([[0.25, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    (found,) = log_sums(S, [Exponential(400.0, 0.5)], lambda S: log2_of_weights(weights, dtype).unsqueeze(0))
    exact = (400.0 * (S.detach().double() - 0.5) + weights.double().log()).logsumexp(1)
    assert found[0].item() == pytest.approx(exact[0].item(), rel=1e-6)
    assert is_empty(found).tolist() == [False, True]
    assert torch.autograd.grad(found[0], S)[0][0].tolist() == [400.0, pytest.approx(0.0, abs=1e-30), 0.0, 0.0]


def test_nca_with_one_factor_says_that_the_mixed_loss_has_no_gradient():
    x, objective = double((N, DIM)).requires_grad_(), Metrix(losses.NCA(), "embed", "pos-neg", lam_per="batch")
    with pytest.warns(MetrixWarning, match="lam_per='pair'"):
        value = objective.mixed(x, LABELS)
    assert torch.autograd.grad(value, x)[0].abs().max() < 1e-12
    objective.mixed(x, LABELS)  # warnings are errors: it is said once
    Metrix(losses.NCA(include_positive=True), "embed", "pos-neg", lam_per="batch").mixed(x, LABELS)
