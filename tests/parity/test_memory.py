"""Cross-batch memory: anchors are of the batch, candidates of batch and memory; value and gradient."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

from metrix import Clean, IMix, Metrix, MetrixWarning, losses
from metrix.core.compute import blocks
from metrix.core.pairs import PAIR_KINDS
from tests.losses_table import LITERAL, TABLE
from tests.parity import batches
from tests.parity.test_mixed_loss import CLASSES, DIM, compare

# a memory is of examples: where positives and negatives are proxies, there is no place for it
NAMES = [name for name in LITERAL if TABLE[name].roles != "proxy candidates"]
PAST = F.normalize(torch.randn(6, DIM, generator=torch.Generator().manual_seed(8), dtype=torch.float64), dim=1)
PAST_LABELS = torch.tensor([0, 1, 1, 3, 2, 0])


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


def remembering(objective, size=9):
    """The objective with a memory of six embeddings and some slots that are not filled."""
    objective = objective.with_memory(size, DIM).double()
    objective.memory.add(PAST, PAST_LABELS)
    return objective


@pytest.mark.parametrize("batch", batches.NAMES)
@pytest.mark.parametrize("name", NAMES)
def test_the_clean_loss_has_the_memory_among_its_candidates(name, batch):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    labels, x = batches.labels_of(batch), batches.points(batch, DIM).requires_grad_()
    f, every = torch.cat([F.normalize(x, dim=1), PAST]), torch.cat([labels, PAST_LABELS])
    expected = case.literal_clean(loss, f, every, anchors=len(x))
    compare(remembering(Clean(loss))(x, labels), expected, [x, *loss.parameters()])


@pytest.mark.parametrize("held", [True, False], ids=["in one piece", "in blocks"])
@pytest.mark.parametrize("batch", ["balanced", "singletons", "duplicates"])
@pytest.mark.parametrize("kind", PAIR_KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_embedding_mixup_has_the_memory_among_its_partners(name, kind, batch, held, monkeypatch):
    if not held:
        monkeypatch.setattr(blocks, "HELD", 0)
        monkeypatch.setattr(blocks, "BLOCK", 40)
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    labels, x = batches.labels_of(batch), batches.points(batch, DIM).requires_grad_()
    f, every = torch.cat([F.normalize(x, dim=1), PAST]), torch.cat([labels, PAST_LABELS])
    generator = torch.Generator().manual_seed(4)
    rows = case.factor_rows(kind, len(x) if kind == "anc-neg" else len(f), CLASSES)
    lam = 0.02 + 0.46 * torch.rand(rows, len(f), generator=generator, dtype=torch.float64)

    def f_lam(i, j, share):
        return F.normalize(share * f[i] + (1 - share) * f[j], dim=0)

    expected = case.literal_mixed(loss, f, every, f_lam, lam, kind, anchors=len(x))
    value = remembering(Metrix(loss, mixup="embed")).mixed(x, labels, lam, kind)
    compare(value, expected, [x, *loss.parameters()])


def test_the_loss_is_both_parts_and_the_batch_goes_in_afterwards():
    labels, x = batches.labels_of("balanced"), batches.points("balanced", DIM)
    objective = remembering(Metrix(losses.MultiSimilarity(), mixup="embed", pairs="pos-neg", lam_per="batch"))
    clean = remembering(Clean(losses.MultiSimilarity()))(x, labels)
    torch.manual_seed(0)
    mixed = objective.mixed(x, labels, pairs="pos-neg")
    torch.manual_seed(0)
    assert objective(x, labels).item() == pytest.approx((clean + 0.4 * mixed).item(), rel=1e-12)
    memory = objective.memory
    assert (memory.filled, int(memory.stored), int(memory.steps)) == (9, 12, 2)
    ring = torch.cat([F.normalize(x, dim=1)[3:], PAST[3:], F.normalize(x, dim=1)[:3]])
    assert torch.equal(memory.embeddings, ring)
    assert memory.labels.tolist() == [*labels[3:].tolist(), *PAST_LABELS[3:].tolist(), *labels[:3].tolist()]


def test_a_batch_larger_than_the_memory_leaves_its_last_embeddings():
    memory = Clean(losses.NCA()).with_memory(4, DIM).double().memory
    memory.add(PAST, PAST_LABELS)
    order = [4, 5, 2, 3]
    assert torch.equal(memory.embeddings, PAST[order])
    assert memory.labels.tolist() == PAST_LABELS[order].tolist()


def test_the_memory_fills_before_it_counts():
    labels, x = batches.labels_of("balanced"), batches.points("balanced", DIM)
    objective, alone = Clean(losses.NCA()).with_memory(8, DIM, after=2).double(), losses.NCA()(x, labels)
    found = [objective(x, labels).item() for _ in range(4)]
    assert found[:2] == [alone.item()] * 2
    assert found[2] != alone.item()
    assert objective.memory.filled == 8


def test_measuring_does_not_change_the_memory():
    labels, x = batches.labels_of("balanced"), batches.points("balanced", DIM)
    objective = remembering(Metrix(losses.NCA(), mixup="embed"))
    before = {k: v.clone() for k, v in objective.state_dict().items()}
    with torch.no_grad():
        objective(x, labels)
    objective.eval()(x, labels)
    assert all(torch.equal(v, before[k]) for k, v in objective.state_dict().items())
    assert {"memory.embeddings", "memory.labels", "memory.stored", "memory.steps"} <= before.keys()


@pytest.mark.parametrize(
    ("objective", "match"),
    [
        (lambda: Clean(losses.ProxyNCA(3, DIM)), "got ProxyNCA, whose positives and negatives are proxies"),
        (lambda: Clean(losses.Triplet()), "got Triplet, which has no set of candidates"),
        (lambda: IMix(losses.NCA()), "expected the clean loss .* got IMix"),
    ],
)
def test_a_memory_without_a_place_is_an_error(objective, match):
    with pytest.raises(ValueError, match=match):
        objective().with_memory(8, DIM)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="memory size: expected an integer ≥ 1, got 0"):
        Clean(losses.NCA()).with_memory(0, DIM)
    objective = Clean(losses.NCA()).with_memory(8, DIM + 1)
    with pytest.raises(ValueError, match=f"give the memory dim={DIM}"):
        objective(torch.randn(4, DIM), torch.tensor([0, 0, 1, 1]))
