"""Losses and objectives on a pretended GPU: the numbers of the CPU, and how often a step asks, copies and launches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from metrix import Clean, Metrix, MetrixWarning, PoolLinear, losses
from metrix.errors import EmbeddingError, InvalidInput
from metrix.experiments.methods import find_methods_for
from metrix.train.names import LOSSES, METHODS
from tests.devices.pretended_cuda import PretendedCuda
from tests.losses_table import BASELINES, TABLE, WITH_KINDS

CLASSES, PER_CLASS, DIM = 5, 4, 16
LABELS = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
X = torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(0))


PREFIXED = ("multi-similarity", "proxy-anchor", "proxy-nca++", "potential-field")


def generator():
    return torch.Generator().manual_seed(3)


def differentiate(objective, x, labels):
    value = objective(x, labels)
    value.backward()
    return [value, x.grad, *(p.grad for p in objective.parameters())]


def compare(make, x=X, labels=LABELS, labels_there=True, steps=1):
    """The same on both devices; returns the pretended one, with the counts of the last step."""
    here = make()
    for _ in range(steps):
        expected = differentiate(here, x.clone().requires_grad_(), labels)
    with PretendedCuda() as device:
        there = device.put_module(make())
        given = device.put(labels) if labels_there else labels
        for _ in range(steps):
            device.reset()
            found = differentiate(there, device.put(x, requires_grad=True), given)
    for a, b in zip(found, expected, strict=True):
        if b is not None and steps == 1:
            torch.testing.assert_close(a.held, b)
    return device


def assert_within_budget(device):
    assert device.synchronisations.total() <= 1, device.synchronisations
    assert device.copies.total() <= 2, device.copies


@pytest.mark.parametrize("labels_there", [True, False], ids=["labels there", "labels here"])
@pytest.mark.parametrize("name", TABLE)
def test_clean_losses(name, labels_there):
    device = compare(lambda: Clean(TABLE[name].build(CLASSES, DIM).float()), labels_there=labels_there)
    assert_within_budget(device)
    if not labels_there:
        assert device.synchronisations.total() == 0, device.synchronisations


@pytest.mark.filterwarnings("ignore::metrix.MetrixWarning")
@pytest.mark.parametrize("lam_per", ["pair", "batch"])
@pytest.mark.parametrize("hardest", [None, 3])
@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
def test_embedding_mixup(name, kind, hardest, lam_per):
    def make():
        loss = TABLE[name].build(CLASSES, DIM).float()
        return Metrix(loss, "embed", kind, lam_per=lam_per, hard_negatives=hardest, generator=generator())

    assert_within_budget(compare(make))


@pytest.mark.parametrize("hardest", [None, 3])
@pytest.mark.parametrize(("name", "kind"), [pair for pair in WITH_KINDS if pair[0] in PREFIXED])
def test_prefixes_ask_no_more(name, kind, hardest):
    def make(**settings):
        loss = TABLE[name].build(CLASSES, DIM).float()
        return Metrix(loss, "embed", kind, hard_negatives=hardest, generator=generator(), **settings)

    whole, prefixed = compare(make), compare(lambda: make(matryoshka=(2, 4, 8)))
    assert_within_budget(prefixed)
    assert prefixed.synchronisations.total() == whole.synchronisations.total(), prefixed.synchronisations
    assert prefixed.copies.total() == whole.copies.total(), prefixed.copies


def test_a_memory_is_not_asked_for_its_labels():
    def make():
        return Metrix(losses.MultiSimilarity(), "embed", "pos-neg", generator=generator()).with_memory(32, DIM)

    assert_within_budget(compare(make, steps=2))


@pytest.mark.parametrize("labels_there", [True, False], ids=["labels there", "labels here"])
@pytest.mark.parametrize("name", BASELINES)
def test_baselines(name, labels_there):
    def make():
        torch.manual_seed(0)
        loss = BASELINES[name](CLASSES, DIM)
        if hasattr(loss, "generator"):
            loss.generator = generator()
        return Clean(loss)

    device = compare(make, labels_there=labels_there)
    # a negative is drawn on the host, where the generator is: distances go there, and what was drawn comes back
    drawn = name.startswith("margin")
    assert device.synchronisations.total() <= drawn + labels_there, device.synchronisations
    assert device.copies.total() <= 2, device.copies


VARIANTS = {
    "metrix": [{"mixup": "embed"}],
    "imix": [{"mixup": "embed"}, {"mixup": "embed", "temperature": 0.2}, {"mixup": "embed", "targets": "classes"}],
}


@pytest.mark.parametrize(
    ("method", "name", "settings"),
    [
        pytest.param(method, name, settings, id=f"{method} {name} {settings}")
        for name in ("contrastive", "multi-similarity", "proxy-anchor", "recall-at-k")
        for method in find_methods_for(LOSSES[name])
        for settings in VARIANTS.get(method, [{}])
    ],
)
def test_mixing_methods(method, name, settings):
    def make():
        case = {**TABLE, **BASELINES}[name]
        loss = case.build(CLASSES, DIM).float() if name in TABLE else case(CLASSES, DIM)
        return METHODS[method].make(loss, generator=generator(), **settings)

    device = compare(make)
    assert device.synchronisations.total() <= 1, device.synchronisations
    assert device.copies.total() <= 3, (
        device.copies
    )  # that of the clean loss, which is shown, and a table of λ among them


@pytest.mark.parametrize(
    ("n", "kind", "most"), [(100, None, 70), (100, "pos-neg", 160), (4096, "pos-neg", 400)], ids=str
)
def test_launches_of_multi_similarity(n, kind, most):
    labels = torch.arange(n) // 5
    loss = losses.MultiSimilarity()
    objective = Clean(loss) if kind is None else Metrix(loss, "embed", kind, generator=generator())
    with PretendedCuda() as device:
        x = device.put(torch.randn(n, 16), requires_grad=True)
        objective(x, labels).backward()
        assert device.launches.total() <= most, device.launches
        assert_within_budget(device)


@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
def test_large_batches_ask_no_more(name, kind):
    """Shapes only; losses of angles launch the most."""
    n = 4096
    with PretendedCuda(shapes_only=True) as device:
        loss = device.put_module(TABLE[name].make(n // 4, DIM))
        objective = Metrix(loss, "embed", kind, hard_negatives=3, generator=generator())
        x = torch.empty(n, DIM, device="cuda:0", requires_grad=True)
        device.reset()
        objective(x, torch.arange(n) // 4).backward()
        assert_within_budget(device)
        assert device.launches.total() <= 450, device.launches


class Network(nn.Module):
    def __init__(self, pool: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Conv2d(3, 8, 3), PoolLinear(8, DIM, pool)

    def features(self, x):
        return self.body(x)


@pytest.mark.parametrize("matryoshka", [None, (4, 8)], ids=["whole", "prefixes"])
@pytest.mark.parametrize("kind", ["pos-neg", "anc-neg"])
@pytest.mark.parametrize(("mixup", "pool"), [("feature", "avg"), ("feature", "avg+max"), ("input", "avg")])
def test_models(mixup, pool, kind, matryoshka):
    images = torch.randn(len(LABELS), 3, 6, 6, generator=torch.Generator().manual_seed(0))

    def step(model, objective, images, labels):
        out = objective.step(model, images, labels)
        out.loss.backward()
        return out, [out.loss, *(p.grad for p in model.parameters())]

    def make():
        return Metrix(losses.MultiSimilarity(), mixup, kind, generator=generator(), matryoshka=matryoshka)

    _, expected = step(Network(pool), make(), images, LABELS)
    with PretendedCuda() as device:
        model = device.put_module(Network(pool))
        out, found = step(model, make(), device.put(images), device.put(LABELS))
        assert_within_budget(device)
        device.reset()
        assert out.read().left_out_mixed == 0
        assert device.synchronisations.total() == 1  # losses, counts and flags in one transfer
        assert out.left_out_clean == 0
        assert device.synchronisations.total() == 1
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.held, b, rtol=1e-4, atol=1e-5)


def test_reading_a_step_says_what_went_wrong():
    class Broken(nn.Module):
        def forward(self, x):
            return torch.cat([x[:2], x[2:3] * float("nan"), x[3:]])

    with PretendedCuda() as device:
        out = Clean(losses.MultiSimilarity()).step(Broken(), device.put(X), LABELS)
        with pytest.raises(EmbeddingError, match=r"1 of 20 \(rows 2\)"):
            out.read()
        short = device.put(torch.cat([X[:, :3] * (torch.arange(len(X)) != 4).unsqueeze(1), X[:, 3:]], dim=1))
        out = Clean(losses.MultiSimilarity()).with_matryoshka((3, 8)).step(nn.Identity(), short, LABELS)
        with pytest.raises(EmbeddingError, match=r"the first 3 dimensions of embeddings: .* 1 of 20 \(rows 4\)"):
            out.read()
        alone = Clean(losses.NCA()).step(nn.Identity(), device.put(X), torch.zeros(len(X), dtype=torch.int64))
        with pytest.warns(MetrixWarning, match="none of 20 anchors is usable"):
            assert alone.left_out_clean == 20


def test_parameters_left_on_the_host_are_an_error_in_words():
    with PretendedCuda() as device:
        x = device.put(X)
        with pytest.raises(InvalidInput, match=r"proxies: .* call loss.to\('cuda:0'\)"):
            TABLE["proxy-anchor"].build(CLASSES, DIM).float()(x, LABELS)
        objective = Metrix(losses.NCA(), "embed").with_memory(8, DIM)
        objective.memory.add(X[:4], LABELS[:4])
        with pytest.raises(InvalidInput, match=r"memory: .* call objective.to\('cuda:0'\)"):
            objective(x, LABELS)
