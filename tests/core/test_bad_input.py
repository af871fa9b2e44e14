"""Every mistake gets a ValueError of ours that says what was expected and what was given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, reducers, regularizers
from pytorch_metric_learning import losses as peer
from torch import nn

from metrix import Clean, Metrix, MetrixError, MetrixWarning, losses
from metrix import labels as kinds
from metrix.core.rivals.imix import IMix
from metrix.core.rivals.mochi import MoCHi
from metrix.core.rivals.proxy_synthesis import ProxySynthesis
from metrix.sentence_transformers import MetrixLoss

X, Y = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])


def embed(**options):
    return Metrix(losses.MultiSimilarity(), mixup="embed", **options)


def with_row(value):
    x = X.clone()
    x[3] = value
    return x


CASES = {
    "labels of another length": (lambda: embed()(X, Y[:5]), r"expected .* \(6,\) for 6 embeddings, got \(5,\)"),
    "labels of two axes": (lambda: losses.NCA()(X, Y[:, None]), r"\(6, 1\)"),
    "labels of names and numbers": (
        lambda: losses.NCA()(X, ["a", "a", "b", 1, 2, 3]),
        "labels: expected a tensor, or .* got list",
    ),
    "no labels": (lambda: embed()(X, None), "labels: expected a tensor, or .* got NoneType"),
    "a list of tensors": (lambda: embed()([*X.clone().requires_grad_()], Y), "stack a list of tensors"),
    "sparse embeddings": (
        lambda: losses.NCA()(X.to_sparse(), Y),
        "embeddings: expected a dense tensor, got torch.sparse",
    ),
    "sparse labels": (lambda: embed()(X, Y.to_sparse()), "labels: expected a dense tensor, got torch.sparse"),
    "nested embeddings": (
        lambda: losses.Triplet()(torch.nested.nested_tensor([*X], layout=torch.jagged), Y),
        "got a nested tensor",
    ),
    "meta embeddings": (lambda: embed()(X.to("meta"), Y), "embeddings: expected a tensor with values"),
    "meta labels": (lambda: losses.NCA()(X, Y.to("meta")), "labels: expected a tensor with values"),
    "float8": (lambda: embed()(X.to(torch.float8_e4m3fn), Y), "16, 32 or 64 bits, got torch.float8_e4m3fn"),
    "complex embeddings": (lambda: losses.EPSHN()(X.to(torch.complex64), Y), "got torch.complex64"),
    "text as lam": (lambda: embed().mixed(X, Y, lam="half"), "lam: expected a number, a tensor or None"),
    "float labels": (lambda: losses.NCA()(X, Y.float()), "labels: expected integers, .* got torch.float32"),
    "embeddings of one axis": (
        lambda: embed()(X[0], Y),
        r"expected .*\(examples, dimensions\), got \(4,\)",
    ),
    "no embeddings": (lambda: embed()(X[:0], Y[:0]), r"got \(0, 4\)"),
    "whole-number embeddings": (lambda: embed()(X.long(), Y), "expected floating point numbers .* got torch.int64"),
    "NaN": (lambda: embed()(with_row(torch.nan), Y), r"1 of 6 .*rows 3\)"),
    "infinity": (lambda: embed()(with_row(torch.inf), Y), "got NaN, infinite .* in 1 of 6"),
    "zero norm": (lambda: losses.Contrastive()(with_row(0.0), Y), "zero norm in 1 of 6"),
    "label past the proxies": (
        lambda: losses.ProxyAnchor(2, 4)(X, Y),
        "expected 0 to 1 for 2 proxies, got 0 to 2",
    ),
    "negative label": (lambda: losses.ProxyNCA(3, 4)(X, Y - 1), "expected 0 to 2 for 3 proxies, got -1 to 1"),
    "proxies of another dimension": (
        lambda: losses.ProxyNCA(3, 5)(X, Y),
        "dimension 4 for proxies of dimension 5",
    ),
    "unknown pairs": (lambda: embed(pairs="pos-ned"), "'pos-ned'; did you mean 'pos-neg'"),
    "unknown mixup": (lambda: Metrix(losses.NCA(), mixup="embedding"), "did you mean 'embed'"),
    "unknown pairs in a call": (lambda: embed().mixed(X, Y, 0.5, "neg-pos"), "unknown pairs 'neg-pos'"),
    "no pairs": (lambda: embed(pairs=()), "pairs: expected one or several of pos-neg"),
    "k below 1": (lambda: embed(hard_negatives=0), "hard_negatives: expected an integer ≥ 1, got 0"),
    "k for another number of types": (lambda: embed(hard_negatives=(1, 2)), "one for each mixup type"),
    "negative strength": (lambda: embed(strength=-1), "strength: expected a number ≥ 0, got -1"),
    "alpha of zero": (lambda: embed(alpha=0), "alpha: expected a number > 0, got 0"),
    "unknown lam_per": (lambda: embed(lam_per="pairs"), "did you mean 'pair'"),
    "lam above 1": (lambda: embed().mixed(X, Y, lam=1.2), "expected numbers from 0 to 1, got 1.2 to 1.2"),
    "lam of another shape": (lambda: embed().mixed(X, Y, lam=torch.rand(4, 4), pairs="pos-neg"), r"\(6, 6\)"),
    "model without head": (
        lambda: Metrix(losses.NCA()).step(nn.Linear(4, 4), X, Y),
        "Linear has no features and no head: expected a module",
    ),
    "calling a feature objective": (
        lambda: Metrix(losses.NCA())(X, Y),
        "needs the model: call objective.step",
    ),
    "a miner's tuple of another batch": (
        lambda: embed()(X, Y, (Y, Y, Y + 99)),
        "mine the batch that the loss is given",
    ),
    "same-class pairs with ProxyNCA": (
        lambda: Metrix(losses.ProxyNCA(3, 4), mixup="embed", pairs="pos-pos")(X, Y),
        "only examples of different classes",
    ),
    "unknown reduction": (
        lambda: losses.Contrastive(reduction="mean-nonzero"),
        "did you mean 'mean_nonzero'",
    ),
    "temperature of zero": (lambda: losses.NCA(temperature=0), "temperature: expected a number > 0, got 0"),
    "a row without rho": (lambda: losses.GenericLoss(), "rho_pos: expected a function of a tensor, got None"),
    "triplets without a margin": (lambda: losses.Triplet(margin=0), "margin: expected a number > 0, got 0"),
    "unknown mining": (lambda: losses.Triplet(mining="semihard"), "did you mean 'semi-hard'"),
    "no classes": (lambda: losses.Margin(num_classes=0), "num_classes: expected an integer ≥ 1, got 0"),
    "nearest past farthest": (lambda: losses.Margin(nearest=1.5), "0 < nearest < farthest ≤ 2, got 1.5 and 1.4"),
    "label without β": (lambda: losses.Margin(num_classes=2)(X, Y), "0 to 1 for 2 classes with a β, got 0 to 2"),
    "temperature of zero, EPSHN": (lambda: losses.EPSHN(0), "temperature: expected a number > 0, got 0"),
    "no centres": (lambda: losses.SoftTriple(3, 4, 0), "centers: expected an integer ≥ 1, got 0"),
    "negative tau": (lambda: losses.SoftTriple(3, 4, tau=-1), "tau: expected a number ≥ 0, got -1"),
    "centres of another dimension": (lambda: losses.SoftTriple(3, 5)(X, Y), "dimension 4 for centres of dimension 5"),
    "label past the centres": (lambda: losses.SoftTriple(2, 4)(X, Y), "for 2 classes with centres"),
    "a miner's tuple, triplets": (lambda: losses.Triplet()(X, Y, (Y, Y, Y)), "leave the miner out"),
    "labels of another length, EPSHN": (lambda: losses.EPSHN()(X, Y[:5]), r"for 6 embeddings, got \(5,\)"),
    "zero norm, triplets": (lambda: losses.Triplet()(X * 0, Y), "zero norm"),
}


OBJECTIVES = {
    "loss": losses.MultiSimilarity,
    "proxies": lambda: losses.ProxyAnchor(3, 4).double(),
    "baseline": losses.Triplet,
    "clean": lambda: Clean(losses.NCA()),
    "embed": embed,
    "i-Mix": lambda: IMix(losses.Contrastive(), mixup="embed"),
    "MoCHi": lambda: MoCHi(losses.Contrastive()),
    "Proxy Synthesis": lambda: ProxySynthesis(losses.ProxyNCA(3, 4)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_arrays_and_lists_are_converted(name):
    def value(embeddings, labels):
        torch.manual_seed(0)
        return OBJECTIVES[name]()(embeddings, labels).item()

    x, y = X.double(), Y.numpy()
    expected = value(x, Y)
    backwards = np.ascontiguousarray(x.numpy()[::-1])[::-1]  # of negative stride
    swapped = x.numpy().astype(">f8")  # of the other byte order
    for embeddings in (x.numpy(), x.tolist(), backwards, swapped, tuple(map(tuple, x.tolist()))):
        assert value(embeddings, Y.tolist()) == pytest.approx(expected, rel=1e-12)
    for labels in (y, y.astype(np.uint16), Y.to(torch.uint64), Y.to(torch.uint32), Y.to(torch.int8), Y.to(torch.uint8)):
        assert value(x, labels) == expected


def test_one_class_says_which_part_is_zero():
    x = X.clone().requires_grad_()
    with pytest.warns(MetrixWarning, match="the mixed loss of the batch is zero") as said:
        value = embed()(x, torch.zeros(6, dtype=torch.long))
    assert value.item() > 0, "multi-similarity needs no negatives"
    assert len(said) == 1


@pytest.mark.parametrize("name", CASES)
def test_mistake(name):
    make, message = CASES[name]
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert isinstance(caught.value, MetrixError)


def test_triplet_loss_says_why():
    with pytest.raises(ValueError, match="forming triplets with the anchor"):
        Metrix(peer.TripletMarginLoss())


def test_losses_that_cannot_be_translated_say_why():
    with pytest.raises(ValueError, match="its form is not known here"):
        losses.from_pml(peer.AngularLoss())
    with pytest.raises(ValueError, match="expected its default reducer, AvgNonZeroReducer, got MeanReducer"):
        losses.from_pml(peer.ContrastiveLoss(reducer=reducers.MeanReducer()))
    with pytest.raises(ValueError, match="SNRDistance"):
        losses.from_pml(peer.ContrastiveLoss(distance=distances.SNRDistance()))
    with pytest.raises(ValueError, match="with embedding_regularizer"):
        losses.from_pml(peer.NCALoss(embedding_regularizer=regularizers.LpRegularizer()))


NEED_PAIRS = (losses.NCA, losses.LiftedStructure, losses.Triplet, losses.Margin, losses.EPSHN)


@pytest.mark.parametrize("loss", [make() for make in NEED_PAIRS], ids=lambda loss: type(loss).__name__)
def test_a_batch_without_a_usable_anchor_is_zero_with_a_graph_and_one_warning(loss):
    x = X.clone().requires_grad_()
    with pytest.warns(MetrixWarning, match="none of 6 anchors is usable"):
        loss(x, torch.arange(6))
    value = loss(x, torch.arange(6))  # a second warning would be an error
    value.backward()
    assert value.item() == 0
    assert not x.grad.any()


def test_no_mixing_pairs_is_zero_with_a_graph():
    objective = embed(pairs="pos-neg")
    x = X.clone().requires_grad_()
    with pytest.warns(MetrixWarning):
        value = objective.mixed(x, torch.zeros(6, dtype=torch.long))
    value.backward()
    assert value.item() == 0
    assert not x.grad.any()


def test_anchors_left_out_are_counted():
    class Model(nn.Module):
        features = nn.Identity()

        def head(self, z):
            return nn.functional.normalize(z, dim=1)

    out = Metrix(losses.NCA(), pairs="pos-neg").step(Model(), X, torch.tensor([0, 0, 1, 1, 2, 3]))
    assert (out.left_out_clean, out.left_out_mixed) == (2, 2)


@pytest.mark.parametrize("given", [None, "text", {"a": 1}, [[1.0], [1.0, 2.0]], X.to_sparse(), X.to("meta")])
def test_odd_relations_of_classes(given) -> None:
    for build in (kinds.ClassMatrix, kinds.Hierarchy, kinds.LabelSets):
        with pytest.raises(MetrixError, match=r"expected .* got"):
            build(given)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.float32], ids=str)
def test_levels_of_classes_are_integers_or_names(dtype: torch.dtype) -> None:
    for fine, coarse, name in ((Y.to(dtype), Y, "fine"), (Y, Y.to(dtype), "coarse")):
        with pytest.raises(MetrixError, match=f"{name}: expected integers, .* or names of classes, got {dtype}"):
            kinds.hierarchical(fine, coarse)
    for unsigned in (torch.uint8, torch.uint16, torch.uint64, torch.int8):
        found = kinds.hierarchical(Y.to(unsigned), (Y // 2).to(unsigned)).matrix()
        assert torch.equal(found, kinds.hierarchical(Y, Y // 2).matrix())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64], ids=str)
def test_relations_are_of_real_numbers(dtype: torch.dtype) -> None:
    square = torch.eye(6).to(dtype)
    for build in (kinds.pairwise, kinds.multi_label, kinds.ClassMatrix, kinds.LabelSets, kinds.Hierarchy):
        with pytest.raises(MetrixError, match=f"expected .* got {dtype}"):
            build(Y.to(dtype) if build is kinds.Hierarchy else square)


@pytest.mark.parametrize("given", [5, [["a"], ["b", "c"]], [["a"], ["b"]], X.to("meta")])
def test_odd_names_of_classes(given) -> None:
    with pytest.raises(MetrixError, match="expected a list of names"):
        kinds.number(given)


def test_labels_of_sentences_may_be_a_list() -> None:
    class Model(nn.Module):
        def forward(self, texts):
            return {"sentence_embedding": texts["x"]}

    loss = MetrixLoss(Model(), losses.MultiSimilarity(), mixup="none")
    assert torch.equal(loss([{"x": X}], Y.tolist()), loss([{"x": X}], Y))
    with pytest.raises(MetrixError, match="labels: expected a dense tensor"):
        loss([{"x": X}], Y.to_sparse())
