"""Table 1 against the paper's eq. generic and against pytorch-metric-learning, value and gradient."""

from __future__ import annotations

import warnings

import pytest
import torch
from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as peer
from torch.nn import functional as F

from metrix import MetrixWarning, losses
from tests.losses_table import LITERAL, TABLE
from tests.parity import batches, literal
from tests.parity.test_mixed_loss import CLASSES, DIM, compare


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


@pytest.mark.parametrize("batch", batches.NAMES)
@pytest.mark.parametrize("name", LITERAL)
def test_table_1(name, batch):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    labels = batches.labels_of(batch)
    x = (3.0 * batches.points(batch, DIM)).requires_grad_()  # embeddings need not be normalised
    expected = case.literal_clean(loss, F.normalize(x, dim=1), labels)
    compare(loss(x, labels), expected, [x, *loss.parameters()])


def test_mean_nonzero_is_the_mean_of_positives_plus_the_mean_of_non_zero_negatives():
    labels, x = batches.labels_of("unbalanced"), batches.points("unbalanced", DIM).requires_grad_()
    f = F.normalize(x, dim=1)
    pos, neg = [], []
    for a in range(len(f)):
        pos += [-(f[a] @ f[p]) for p in literal.positives(labels.tolist(), a)]
        neg += [literal.relu(f[a] @ f[n] - 0.1) for n in literal.negatives(labels.tolist(), a)]
    neg = [t for t in neg if t > 0]
    expected = sum(pos) / len(pos) + sum(neg) / len(neg)
    compare(losses.Contrastive(0.1, reduction="mean_nonzero")(x, labels), expected, [x])


def test_generic_loss_takes_any_five_functions():
    five = (torch.tanh, torch.sqrt, torch.log1p, lambda s: (1 - s) ** 2 + 0.1, lambda s: torch.relu(s) ** 2)
    labels, x = batches.labels_of("balanced"), batches.points("balanced", DIM).requires_grad_()
    expected = literal.clean_pairs(five, F.normalize(x, dim=1), labels)
    compare(losses.GenericLoss(*five)(x, labels), expected, [x])


PEERS = {
    "contrastive, cosine": lambda: peer.ContrastiveLoss(0.8, 0.2, distance=distances.CosineSimilarity()),
    "contrastive, euclidean": lambda: peer.ContrastiveLoss(0.1, 1.2),
    "lifted, cosine": lambda: peer.GeneralizedLiftedStructureLoss(distance=distances.CosineSimilarity()),
    "lifted, squared": lambda: peer.GeneralizedLiftedStructureLoss(1.3, 0.2, distance=distances.LpDistance(power=2)),
    "multi-similarity": lambda: peer.MultiSimilarityLoss(18, 75, 0.77),
    "multi-similarity, defaults": lambda: peer.MultiSimilarityLoss(),
    "nca": lambda: peer.NCALoss(softmax_scale=3),
    "nca, cosine": lambda: peer.NCALoss(softmax_scale=3, distance=distances.CosineSimilarity()),
    "proxy-nca": lambda: peer.ProxyNCALoss(CLASSES, DIM, softmax_scale=3),
    "normalized softmax": lambda: peer.NormalizedSoftmaxLoss(CLASSES, DIM),
    "proxy anchor": lambda: peer.ProxyAnchorLoss(CLASSES, DIM),
    "circle": lambda: peer.CircleLoss(gamma=8),
    "supcon": lambda: peer.SupConLoss(),
    "supcon, squared": lambda: peer.SupConLoss(0.3, distance=distances.LpDistance(power=2)),
    "cosface": lambda: peer.CosFaceLoss(CLASSES, DIM, margin=0.2, scale=16),
    "arcface": lambda: peer.ArcFaceLoss(CLASSES, DIM),
    "sub-centre arcface": lambda: peer.SubCenterArcFaceLoss(num_classes=CLASSES, embedding_size=DIM, sub_centers=2),
    "nt-xent": lambda: peer.NTXentLoss(),
    "nt-xent, squared": lambda: peer.NTXentLoss(0.3, distance=distances.LpDistance(power=2)),
    "tuplet margin": lambda: peer.TupletMarginLoss(margin=8.0, scale=20),
}


@pytest.mark.parametrize("batch", ["balanced", "unbalanced"])
@pytest.mark.parametrize("name", PEERS)
def test_from_pml_has_the_value_of_the_original(name, batch):
    torch.manual_seed(0)
    original = PEERS[name]().double()
    translated = losses.from_pml(original)
    labels = batches.labels_of(batch)
    if batch == "unbalanced":
        labels = labels.where(labels != 2, 1)  # PML counts anchors without positives as zero, we leave them out
    x = batches.points(batch, DIM).requires_grad_()
    expected = original(x, labels)
    compare(translated(x, labels), expected, [x])


def test_supcon_of_pairs_is_nt_xent():
    labels, x = torch.arange(3).repeat(2), batches.points("balanced", DIM)[:6].requires_grad_()
    compare(losses.SupCon(0.07)(x, labels), peer.NTXentLoss(0.07)(x, labels), [x])
    compare(losses.NTXent(0.07)(x, labels), peer.NTXentLoss(0.07)(x, labels), [x])


def test_n_pairs_says_why_it_does_not_mix_and_what_does():
    with pytest.raises(ValueError, match=r"draws one pair of each class.* use losses.NTXent"):
        losses.from_pml(peer.NPairsLoss())


def test_nt_xent_of_one_pair_for_each_class_is_the_n_pairs_loss_of_unit_embeddings():
    """Sohn, eq. 6: log(1 + Σ_j e^{f_i·f_j⁺ - f_i·f_i⁺}), with anchors f_i and all of the other classes for f_j⁺."""
    labels, x = torch.arange(3).repeat(2), batches.points("balanced", DIM)[:6].requires_grad_()
    f, expected = F.normalize(x, dim=1), []
    for a in range(6):
        p = (a + 3) % 6
        expected.append(torch.log(1 + sum(torch.exp(f[a] @ f[n] - f[a] @ f[p]) for n in range(6) if n not in (a, p))))
    compare(losses.NTXent(1.0)(x, labels), sum(expected) / 6, [x])


def test_potential_energy_is_the_published_sum_times_a_constant():
    """Bhatnagar and Ahuja, eq. 6: U = Σ_i Ψ_{y_i}(z_i) + Σ_j Σ_k Ψ_j(p_jk), over examples and proxies."""
    delta, alpha = 0.7, 3.0
    torch.manual_seed(1)
    loss = losses.PotentialField(3, DIM, delta, alpha, centers=2).double()
    labels, x = batches.labels_of("balanced"), batches.points("balanced", DIM).requires_grad_()
    z = torch.cat([F.normalize(x, dim=1), F.normalize(loss.proxies, dim=1)])
    y = [*labels.tolist(), 0, 0, 1, 1, 2, 2]
    energy, apart = 0.0, []
    for i in range(12):
        for j in range(12):
            if i != j:
                d = torch.linalg.vector_norm(z[i] - z[j])
                apart += [d.item()] if y[i] != y[j] else []
                energy += -1 / d.clamp_min(delta) ** alpha if y[i] == y[j] else 1 / d.clamp_max(delta) ** alpha
    assert delta / 2 < min(apart) < delta  # nearer ones are on our tangent
    compare(loss(x, labels), delta**alpha / 12 * energy, [x, loss.proxies])


def test_translated_proxies_are_those_of_the_original():
    original = peer.ProxyAnchorLoss(CLASSES, DIM)
    assert losses.from_pml(original).proxies is original.proxies


def test_proxy_anchor_original_is_the_published_loss():
    torch.manual_seed(0)
    original = peer.ProxyAnchorLoss(CLASSES, DIM).double()
    ours = losses.ProxyAnchor.original(CLASSES, DIM).double()
    ours.proxies = original.proxies
    labels, x = batches.labels_of("singletons"), batches.points("singletons", DIM).requires_grad_()
    compare(ours(x, labels), original(x, labels), [x, original.proxies])
