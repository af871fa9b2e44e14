"""The loss of prefixes: the literal loss of renormalised slices, summed; value and gradient."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

from metrix import Clean, IMix, Metrix, MetrixWarning, MoCHi, errors, losses
from metrix.core.compute import blocks
from metrix.core.prefixes import Prefixes
from tests.losses_table import LITERAL, LITERAL_WITH_KINDS, TABLE
from tests.parity import batches, literal
from tests.parity.test_mixed_loss import CLASSES, DIM, Network, compare, factors

DIMS, WEIGHT = (2, 3), 0.7
EMBEDDED = (
    ("singletons", True, True),
    ("duplicates", True, False),
    ("opposed", False, True),
    ("unbalanced", False, False),
    ("two_unlike", True, True),
    ("one_class", True, False),
)
FEATURES = (("unbalanced", "avg"), ("duplicates", "max"), ("singletons", "avg+max"), ("two_unlike", "mlp"))
SOME = ("multi-similarity", "proxy-anchor", "proxy-nca++", "nt-xent", "potential-field")


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


class Cut:
    """A loss whose proxies are the first numbers of those of another one."""

    def __init__(self, loss, dim):
        self.loss = loss
        if getattr(loss, "proxies", None) is not None:
            self.proxies = loss.proxies[:, :dim]

    def __getattr__(self, name):
        return getattr(self.loss, name)


def unit_cut(x, dim):
    return F.normalize(x[..., :dim], dim=-1)


def add_up(of_dim, weight=WEIGHT, dims=DIMS, whole=DIM):
    """The literal losses of the whole and of prefixes, of which each is a tensor or None."""
    found = [(1.0, of_dim(whole)), *((weight, of_dim(dim)) for dim in dims)]
    found = [w * value for w, value in found if value is not None]
    return sum(found) if found else None


@pytest.mark.parametrize("batch", batches.NAMES)
@pytest.mark.parametrize("name", LITERAL)
def test_clean(name, batch):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    labels = batches.labels_of(batch)
    x = (3.0 * batches.points(batch, DIM)).requires_grad_()
    expected = add_up(lambda d: case.literal_clean(Cut(loss, d), unit_cut(x, d), labels))
    objective = Clean(loss).with_matryoshka(DIMS, WEIGHT)
    compare(objective(x, labels), expected, [x, *loss.parameters()])


@pytest.mark.parametrize(("batch", "renormalise", "held"), EMBEDDED)
@pytest.mark.parametrize(("name", "kind"), [pair for pair in LITERAL_WITH_KINDS if pair[0] in SOME])
def test_embed(name, kind, batch, renormalise, held, monkeypatch):
    if not held:
        monkeypatch.setattr(blocks, "HELD", 0)
        monkeypatch.setattr(blocks, "BLOCK", 40)
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    labels = batches.labels_of(batch)
    x = batches.points(batch, DIM).requires_grad_()
    lam = 0.02 + 0.46 * factors(name, kind, len(x))

    def mixed(d):
        f = unit_cut(x, d)

        def f_lam(i, j, share):
            v = share * f[i] + (1 - share) * f[j]
            return F.normalize(v, dim=0) if renormalise else v

        return case.literal_mixed(Cut(loss, d), f, labels, f_lam, lam, kind, renormalise=renormalise)

    objective = Metrix(loss, mixup="embed", renormalise=renormalise, matryoshka=DIMS, matryoshka_weight=WEIGHT)
    compare(objective.mixed(x, labels, lam=lam, pairs=kind), add_up(mixed), [x, *loss.parameters()])


@pytest.mark.parametrize(("batch", "head"), [*FEATURES, ("unbalanced", "input")])
@pytest.mark.parametrize(("name", "kind"), [pair for pair in LITERAL_WITH_KINDS if pair[0] in SOME])
def test_feature_and_input(name, kind, batch, head):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    model = Network("avg+max" if head == "input" else head)
    labels = batches.labels_of(batch)
    x = batches.points(batch, 2, 4, 4).requires_grad_()
    z = model.features(x)
    f, lam = model.head(z), torch.full((CLASSES + len(x), len(x)), 0.37, dtype=torch.float64)

    def mixed(d):
        def f_lam(i, j, share):
            if head == "input":
                return unit_cut(model.head(model.features((share * x[i] + (1 - share) * x[j]).unsqueeze(0)))[0], d)
            return unit_cut(model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0], d)

        return case.literal_mixed(Cut(loss, d), unit_cut(f, d), labels, f_lam, lam, kind)

    objective = Metrix(loss, mixup="feature", matryoshka=DIMS, matryoshka_weight=WEIGHT, hard_negatives=len(x))
    if head == "input":
        value = objective.mixed_inputs(model, x, labels, lam=0.37, pairs=kind)
    else:
        value = objective.mixed_features(model, z, labels, lam=0.37, pairs=kind)
    compare(value, add_up(mixed), [x, *model.parameters(), *loss.parameters()])


@pytest.mark.parametrize("head", ["avg", "max"])
@pytest.mark.parametrize(("name", "kind"), [pair for pair in LITERAL_WITH_KINDS if pair[0] in SOME])
def test_the_whole_embedding_chooses_the_hardest_negatives(name, kind, head, monkeypatch):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    model = Network(head)
    labels = batches.labels_of("unbalanced")
    z = model.features(batches.points("unbalanced", 2, 4, 4)).detach().requires_grad_()
    f, lam = model.head(z), factors(name, kind, len(z))
    choose, chosen, differ = literal.hardest, [], []

    def remembered(similarities, candidates, k):
        own = choose(similarities, candidates, k)
        if len(chosen) < remembered.calls + 1:
            chosen.append(own)
        remembered.calls += 1
        differ.append(own != chosen[remembered.calls - 1])
        return chosen[remembered.calls - 1]

    monkeypatch.setattr(literal, "hardest", remembered)

    def mixed(d):
        remembered.calls = 0

        def f_lam(i, j, share):
            return unit_cut(model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0], d)

        return case.literal_mixed(Cut(loss, d), unit_cut(f, d), labels, f_lam, lam, kind, k=2)

    expected = add_up(mixed)
    assert any(differ)  # a prefix would have chosen others
    objective = Metrix(loss, mixup="feature", hard_negatives=2, matryoshka=DIMS, matryoshka_weight=WEIGHT)
    value = objective.mixed_features(model, z, labels, lam=lam, pairs=kind)
    compare(value, expected, [z, *model.head.parameters(), *loss.parameters()])


@pytest.mark.parametrize("lam_per", ["pair", "batch"])
@pytest.mark.parametrize("name", ["multi-similarity", "contrastive, mean_nonzero", "nca, include_positive"])
def test_a_step_draws_the_same_pairs_and_factors_for_all_prefixes(name, lam_per):
    labels, x = batches.labels_of("unbalanced"), batches.points("unbalanced", 8)
    loss = TABLE[name].build(CLASSES, 8)

    def value(x, **settings):
        generator = torch.Generator().manual_seed(5)
        return Metrix(loss, mixup="embed", lam_per=lam_per, generator=generator, **settings)(x, labels)

    expected = value(x) + 0.3 * (value(x[:, :2]) + value(x[:, :5]))
    assert value(x, matryoshka=(5, 2, 8), matryoshka_weight=0.3).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("name", ["multi-similarity", "proxy-anchor", "potential-field"])
def test_a_memory_is_cut_too(name):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    past = F.normalize(torch.randn(6, DIM, generator=torch.Generator().manual_seed(8), dtype=torch.float64), dim=1)
    past_labels = torch.tensor([0, 1, 1, 3, 2, 0])
    objective = Clean(loss).with_memory(9, DIM).with_matryoshka(DIMS, WEIGHT).double()
    objective.memory.add(past, past_labels)
    labels, x = batches.labels_of("singletons"), batches.points("singletons", DIM).requires_grad_()
    every = torch.cat([labels, past_labels])

    def clean(d):
        f = torch.cat([unit_cut(x, d), unit_cut(past, d)])
        return case.literal_clean(Cut(loss, d), f, every, anchors=len(x))

    compare(objective(x, labels), add_up(clean), [x, *loss.parameters()])


@pytest.mark.parametrize("loss", [losses.Triplet(), losses.RecallAtK(), losses.EPSHN()], ids=lambda x: type(x).__name__)
def test_losses_of_no_generic_form_take_slices(loss):
    labels, x = batches.labels_of("balanced"), batches.points("balanced", DIM).requires_grad_()
    expected = loss(x, labels) + sum(loss(x[:, :d], labels) for d in DIMS)
    compare(Clean(loss).with_matryoshka(DIMS)(x, labels), expected, [x])


def test_a_gradient_has_its_own():
    labels, x = batches.labels_of("balanced"), batches.points("balanced", DIM).requires_grad_()
    objective = Metrix(losses.MultiSimilarity(), mixup="embed", matryoshka=DIMS)

    def value(x):
        return objective.mixed(x, labels, lam=0.3, pairs="pos-neg")

    assert torch.autograd.gradgradcheck(value, [x], atol=1e-5)


def test_refusals():
    x, labels = torch.randn(4, 4), torch.tensor([0, 0, 1, 1])
    with pytest.raises(errors.ShapeError, match="prefixes of an embedding of dimension 4, got 2, 8"):
        Metrix(losses.NCA(), mixup="embed", matryoshka=(8, 2))(x, labels)
    for wrong in ((), (0,), (2.5,), "64", (True,)):
        with pytest.raises(errors.InvalidInput, match="matryoshka"):
            Metrix(losses.NCA(), mixup="embed", matryoshka=wrong)
    with pytest.raises(errors.InvalidInput, match="matryoshka_weight"):
        Clean(losses.NCA()).with_matryoshka(2, -1.0)
    for rival in (MoCHi(losses.NCA()), IMix(losses.NCA(), mixup="embed")):
        with pytest.raises(errors.InvalidInput, match=r"expected the clean loss \(Clean\) or Metrix"):
            rival.with_matryoshka((2,))
    with pytest.raises(errors.InvalidInput, match="SoftTriple, whose centres"):
        Clean(losses.SoftTriple(2, 4)).with_matryoshka((2,))
    x[1, :2] = 0.0
    with pytest.raises(errors.EmbeddingError, match=r"the first 2 dimensions of embeddings: .* in 1 of 4 \(rows 1\)"):
        Clean(losses.NCA()).with_matryoshka((2,))(x, labels)
    assert Prefixes.of((4, 2, 4)).within(4).dims == (2,)
