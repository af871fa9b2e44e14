"""`target="interpolated"` against its formula in loops over anchors and pairs, value and gradient in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from metrix import Metrix, losses
from metrix.core.compute import blocks
from metrix.errors import InvalidInput
from tests.losses_table import TABLE
from tests.parity import batches
from tests.parity.test_mixed_loss import CLASSES, DIM, Network, compare, factors

P, N = 0.8, 0.3
LOSSES = [name for name, case in TABLE.items() if case.five_at is not None]
WITH_KINDS = [(name, kind) for name in LOSSES for kind in TABLE[name].kinds]


def threshold(kind: str, renormalise: bool = True):
    p = 1.0 if kind == "anc-neg" else P

    def t(y: float) -> float:
        norm = math.sqrt(1 - 2 * y * (1 - y) * (1 - N)) if renormalise else 1.0
        return (y * p + (1 - y) * N) / norm

    return t


def interpolated(loss, mixup, **settings):
    return Metrix(loss, mixup=mixup, target="interpolated", target_pos=P, target_neg=N, **settings)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("batch", ["balanced", "unbalanced", "singletons", "duplicates"])
@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
def test_embed(name, kind, batch, renormalise):
    case = TABLE[name]
    loss, labels = case.build(CLASSES, DIM), batches.labels_of(batch)
    x = batches.points(batch, DIM).requires_grad_()
    f, lam = F.normalize(x, dim=1), factors(name, kind, len(x))

    def f_lam(i, j, share):
        v = share * f[i] + (1 - share) * f[j]
        return F.normalize(v, dim=0) if renormalise else v

    t = threshold(kind, renormalise)
    expected = case.literal_mixed(loss, f, labels, f_lam, lam, kind, renormalise=renormalise, threshold=t)
    objective = interpolated(loss, "embed", renormalise=renormalise)
    compare(objective.mixed(x, labels, lam=lam, pairs=kind), expected, [x, *loss.parameters()])


@pytest.mark.parametrize("head", ["avg", "avg+max", "mlp"])
@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
def test_feature(name, kind, head):
    case, model = TABLE[name], Network(head)
    loss, labels = case.build(CLASSES, DIM), batches.labels_of("unbalanced")
    x = batches.points("unbalanced", 2, 4, 4).requires_grad_()
    z, lam = model.features(x), factors(name, kind, len(x))

    def f_lam(i, j, share):
        return model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0]

    expected = case.literal_mixed(loss, model.head(z), labels, f_lam, lam, kind, threshold=threshold(kind))
    value = interpolated(loss, "feature").mixed_features(model, z, labels, lam=lam, pairs=kind)
    compare(value, expected, [x, *model.parameters(), *loss.parameters()])


@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
def test_input(name, kind):
    case, model = TABLE[name], Network("avg+max")
    loss, labels = case.build(CLASSES, DIM), batches.labels_of("balanced")
    x = batches.points("balanced", 2, 4, 4).requires_grad_()
    f, lam = model.head(model.features(x)), factors(name, kind, len(x))

    def f_lam(i, j, share):
        return model.head(model.features((share * x[i] + (1 - share) * x[j]).unsqueeze(0)))[0]

    expected = case.literal_mixed(loss, f, labels, f_lam, lam, kind, k=2, threshold=threshold(kind))
    value = interpolated(loss, "input", hard_negatives=2).mixed_inputs(model, x, labels, lam=lam, pairs=kind)
    compare(value, expected, [x, *model.parameters(), *loss.parameters()])


@pytest.mark.parametrize("name", LOSSES)
def test_blocks_have_the_same_thresholds(name, monkeypatch):
    loss, labels = TABLE[name].build(CLASSES, DIM), batches.labels_of("unbalanced")
    x = batches.points("unbalanced", DIM)
    lam = factors(name, "pos-neg", len(x))
    whole = interpolated(loss, "embed").mixed(x, labels, lam=lam, pairs="pos-neg")
    monkeypatch.setattr(blocks, "BLOCK", 1)
    assert interpolated(loss, "embed").mixed(x, labels, lam=lam, pairs="pos-neg").item() == pytest.approx(whole.item())


@pytest.mark.parametrize("kind", ["pos-neg", "anc-neg"])
def test_a_batch_where_the_clean_loss_is_at_rest_stays_there(kind):
    """Positives at p = 1 and negatives at n: no mixed contrastive term is left."""
    corners = torch.tensor([[1.0, 0.0], [N, math.sqrt(1 - N * N)]], dtype=torch.float64)
    x = corners.repeat_interleave(3, 0).requires_grad_()
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    objective = Metrix(losses.Contrastive(0.5), mixup="embed", target="interpolated", target_pos=1.0, target_neg=N)
    lam = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert objective.mixed(x, labels, lam=lam, pairs=kind).item() == pytest.approx(0.0, abs=1e-12)
    by_the_paper = Metrix(losses.Contrastive(0.5), mixup="embed").mixed(x, labels, lam=lam, pairs=kind)
    assert torch.autograd.grad(by_the_paper, x)[0].abs().max() > 1e-3


@pytest.mark.parametrize("name", [name for name, case in TABLE.items() if case.make(3, 4).threshold is None])
def test_losses_without_a_threshold_are_refused(name):
    assert TABLE[name].five_at is None
    with pytest.raises(InvalidInput, match="expected a loss that compares similarities with a threshold"):
        Metrix(TABLE[name].make(3, 4), target="interpolated")


def test_wrong_settings_are_refused():
    with pytest.raises(InvalidInput, match="target_neg < target_pos"):
        Metrix(losses.MultiSimilarity(), target="interpolated", target_pos=0.4, target_neg=0.5)
    with pytest.raises(InvalidInput, match="did you mean 'interpolated'"):
        Metrix(losses.MultiSimilarity(), target="interpolate")
