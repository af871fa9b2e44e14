"""Second derivatives are right, or an error says that there are none; autocast around `backward()` changes little."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from metrix import Clean, Metrix, MetrixError, MetrixWarning, PoolLinear, losses
from metrix.core.compute import blocks
from metrix.core.compute.micro_batches import MicroBatched
from metrix.core.rivals.imix import IMix
from metrix.core.rivals.proxy_synthesis import ProxySynthesis
from metrix.core.rivals.simix import SiMix
from tests.losses_table import BASELINES, TABLE

with warnings.catch_warnings():  # forward mode loads these on first use, and torch warns of itself
    warnings.simplefilter("ignore", FutureWarning)
    from torch._decomp import decompositions_for_jvp  # noqa: F401

CLASSES, DIM = 3, 4
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
X = torch.randn(6, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
STEP = 1e-5


def along(x, seed=1):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def assert_second_derivative(f, x, leaves=()):
    """The derivative of ½‖∇f‖² and of ∇f · v against finite differences of first gradients, alone and beside f."""

    def gradients(x):
        x = x.detach().requires_grad_()
        return x, torch.autograd.grad(f(x), x)[0]

    v = along(x)
    ahead, behind = (gradients(x + sign * STEP * v)[1] for sign in (1, -1))
    expected = (ahead - behind) / (2 * STEP)  # the Hessian times v
    scale = expected.norm().clamp_min(1e-6)

    x = x.detach().requires_grad_()
    value = f(x)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    assert torch.allclose(first, gradients(x)[1], atol=1e-9)
    (alone,) = torch.autograd.grad((first * v).sum(), x, retain_graph=True)
    assert (alone - expected).norm() < 1e-4 * scale, "alone"
    (beside,) = torch.autograd.grad(value + 0.5 * (first * v).sum(), x)
    assert (beside - first.detach() - 0.5 * expected).norm() < 1e-4 * scale, "beside the loss"


def quietly(f):
    def run(*args):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetrixWarning)
            return f(*args)

    return run


@pytest.fixture(params=["held", "streamed"])
def memory(request, monkeypatch):
    """Matrices of all pairs in one piece, or in many small blocks."""
    if request.param == "streamed":
        monkeypatch.setattr(blocks, "HELD", 0)
        monkeypatch.setattr(blocks, "BLOCK", 7)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", [name for name, case in TABLE.items() if case.true_gradient])
def test_clean(name):
    loss = TABLE[name].build(CLASSES, DIM)
    assert_second_derivative(lambda x: loss(x, LABELS), X)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines(name):
    loss = BASELINES[name](CLASSES, DIM).double()

    def value(x):
        loss.generator = torch.Generator().manual_seed(0)
        return loss(x, LABELS)

    assert_second_derivative(value, X)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n, case in TABLE.items() if case.true_gradient for k in case.defined_kinds]
)
def test_embedding_mixup(name, kind):
    objective = Metrix(TABLE[name].build(CLASSES, DIM), mixup="embed")
    assert_second_derivative(quietly(lambda x: objective.mixed(x, LABELS, 0.3, kind)), X)


class Network(nn.Module):
    """Smooth, so that finite differences converge."""

    def __init__(self, head: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(2, 5, 2), nn.Tanh())
        self.plain = nn.Linear(5 * 4, DIM)
        self.head = self.of_map if head == "plain" else PoolLinear(5, DIM, pool=head)
        self.double()

    def features(self, x):
        return self.body(x)

    def of_map(self, z):
        return nn.functional.normalize(self.plain(z.flatten(1)), dim=1)


IMAGES = torch.randn(6, 2, 3, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("budget", [2**28, 1])
@pytest.mark.parametrize("kind", ["pos-neg", "anc-neg"])
@pytest.mark.parametrize(
    ("mixup", "head"), [*(("feature", h) for h in ("avg", "max", "avg+max", "plain")), ("input", "avg")]
)
@pytest.mark.parametrize("name", ["multi-similarity", "nca", "proxy-nca++"])
def test_feature_and_input_mixup(name, mixup, head, kind, budget):
    model = Network(head)
    objective = Metrix(TABLE[name].build(CLASSES, DIM), mixup=mixup, pairs=kind, hard_negatives=6, memory_budget=budget)

    def value(x):
        objective.generator = torch.Generator().manual_seed(2)
        return objective.step(model, x, LABELS).loss

    assert_second_derivative(value, IMAGES)


def test_parameters_of_the_model_and_proxies():
    """A gradient penalty with respect to parameters, too: its derivative is that of finite differences."""
    model, loss = Network("avg+max"), TABLE["proxy-anchor"].build(CLASSES, DIM)
    objective = Metrix(loss, mixup="feature", pairs="pos-neg")
    parameters = [loss.proxies, *model.parameters()]
    parameters = [p for p in parameters if p is not model.plain.weight and p is not model.plain.bias]

    def first(create_graph):
        objective.generator = torch.Generator().manual_seed(2)
        return torch.autograd.grad(objective.step(model, IMAGES, LABELS).loss, parameters, create_graph=create_graph)

    directions = [along(p, seed) for seed, p in enumerate(parameters)]
    product = sum((g * v).sum() for g, v in zip(first(True), directions, strict=True))
    found = torch.autograd.grad(product, parameters)
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, v in zip(parameters, directions, strict=True):
                p += sign * STEP * v
        sides.append(first(False))
        with torch.no_grad():
            for p, v in zip(parameters, directions, strict=True):
                p -= sign * STEP * v
    for ahead, behind, given in zip(*sides, found, strict=True):
        expected = (ahead - behind) / (2 * STEP)
        assert (given - expected).norm() < 1e-4 * expected.norm().clamp_min(1e-4)


def test_micro_batches():
    model, objective = MicroBatched(Network("avg"), 2), Clean(losses.MultiSimilarity())
    assert_second_derivative(lambda x: objective.step(model, x, LABELS).loss, IMAGES)


RIVALS = {
    "i-Mix": lambda: IMix(losses.MultiSimilarity(), mixup="embed"),
    "i-Mix, published": lambda: IMix(losses.MultiSimilarity(), mixup="embed", temperature=0.2),
    "SiMix": lambda: SiMix(losses.RecallAtK(temperature=0.3)),
    "Proxy Synthesis": lambda: ProxySynthesis(losses.ProxyAnchor(CLASSES, DIM).double(), lam_per="pair"),
}


@pytest.mark.parametrize("name", RIVALS)
def test_rivals(name):
    objective = RIVALS[name]()

    def value(x):
        objective.generator = torch.Generator().manual_seed(2)
        return objective(x, LABELS)

    assert_second_derivative(value, X)


def test_across_processes_is_an_error():
    from metrix.core.compute.derivatives import refuse_second_derivatives

    with pytest.raises(MetrixError, match="across processes"):
        refuse_second_derivatives()
    with torch.no_grad():
        refuse_second_derivatives()


FUNCTIONAL = ("contrastive", "multi-similarity", "nca", "proxy-anchor", "proxy-nca++")


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in FUNCTIONAL for kind in (None, *TABLE[name].defined_kinds)]
)
def test_torch_func(name, kind):
    loss = TABLE[name].build(CLASSES, DIM)

    def value(x):
        return loss(x, LABELS) if kind is None else Metrix(loss, mixup="embed").mixed(x, LABELS, 0.3, kind)

    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(x), x, create_graph=True)
    assert torch.allclose(torch.func.grad(value)(X), expected, atol=1e-10)
    v = along(X)
    (product,) = torch.autograd.grad((expected * v).sum(), x)
    hessian = torch.func.hessian(value)(X)
    assert torch.allclose((hessian * v).sum((2, 3)), product, atol=1e-8)
    with pytest.raises(MetrixError, match="vmap"):
        torch.func.vmap(value)(torch.stack([X, X]))
    with pytest.raises(MetrixError, match="vmap"):
        torch.func.vmap(torch.func.grad(value))(torch.stack([X, X]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("mixup", "head"), [*(("feature", h) for h in ("avg", "max", "avg+max", "plain")), ("input", "avg")]
)
@pytest.mark.parametrize("name", ["multi-similarity", "nca", "proxy-nca++"])
def test_backward_inside_autocast(name, mixup, head, dtype):
    model, x = Network(head).float(), torch.randn(6, 2, 3, 3)
    objective = Metrix(TABLE[name].build(CLASSES, DIM).float(), mixup=mixup, hard_negatives=6)
    parameters = [
        p for p in model.parameters() if head == "plain" or (p is not model.plain.weight and p is not model.plain.bias)
    ]

    def gradients(inside):
        objective.generator = torch.Generator().manual_seed(2)
        with torch.autocast("cpu", dtype=dtype):
            loss = objective.step(model, x, LABELS).loss
            if inside:
                return torch.autograd.grad(loss, parameters)
        return torch.autograd.grad(loss, parameters)

    for inside, outside in zip(gradients(True), gradients(False), strict=True):
        assert inside.isfinite().all()
        assert (inside - outside).norm() <= 0.03 * outside.norm() + 1e-3


@pytest.mark.parametrize("head", ["avg", "max", "avg+max", "plain"])
def test_torch_func_with_feature_mixup(head):
    model, objective = Network(head), Metrix(losses.MultiSimilarity(), mixup="feature")

    def value(x):
        return objective.mixed_features(model, model.features(x), LABELS, 0.3, "pos-neg")

    x = IMAGES.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(x), x)
    assert torch.allclose(torch.func.grad(value)(IMAGES), expected, atol=1e-10)
