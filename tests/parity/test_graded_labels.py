"""Labels that are not one class, against the equations in loops: clean and mixed, value and gradient."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from metrix import Clean, Metrix, MetrixWarning, MoCHi, PoolLinear, labels, losses
from metrix.core.compute import blocks
from metrix.core.relations import Relation
from tests.losses_table import LITERAL, LITERAL_WITH_KINDS, TABLE
from tests.parity import literal, literal_graded
from tests.parity.test_mixed_loss import Network, compare

DIM, N, LABELS = 4, 7, 5
SETS = [{0, 1}, {0}, {1, 2, 3}, set(), {2, 3}, {0, 1}, {4}]
FINE, COARSE = [0, 0, 1, 2, 3, 3, 4], [0, 0, 0, 0, 1, 1, 2]
GROUP_OF = [0, 0, 0, 1, 2]


@dataclass(frozen=True)
class GradedCase:
    """Labels of seven examples: as the library takes them, and what they mean, written out."""

    given: labels.GradedLabels
    Y: list[list[float]]  # (n, n)
    valid: list[list[bool]]  # (n, n)
    proxies: list[list[float]] | None  # (n, proxies)
    above: float = 0.5


def _pairwise(above: float) -> GradedCase:
    Y = torch.rand(N, N, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    Y[0, 1:3], Y[1, 4], Y[5, 6] = 0.0, 1.0, above  # an edge: no positive
    Y[6] = 0.2  # an anchor without positives
    valid = torch.rand(N, N, generator=torch.Generator().manual_seed(8)) > 0.2
    valid[3] = False  # an anchor of which nothing is known
    counted = [[bool(valid[a, x]) and a != x for x in range(N)] for a in range(N)]
    return GradedCase(labels.pairwise(Y, valid, above), Y.tolist(), counted, None, above)


def _multi(relation: str) -> GradedCase:
    related = {
        "jaccard": literal_graded.jaccard,
        "any": lambda a, b: float(bool(a & b)),
        "all": lambda a, b: float(a == b and bool(a)),
    }[relation]
    Y = [[related(a, b) for b in SETS] for a in SETS]
    proxies = [[float(c in a) for c in range(LABELS)] for a in SETS]
    return GradedCase(labels.multi_label(SETS, relation), Y, _all_others(), proxies, above=0.0)


def _hierarchy(weight: float) -> GradedCase:
    def related(a: int, b: int) -> float:
        return 1.0 if FINE[a] == FINE[b] else weight if COARSE[a] == COARSE[b] else 0.0

    Y = [[related(a, b) for b in range(N)] for a in range(N)]
    proxies = [
        [1.0 if FINE[a] == c else weight if COARSE[a] == GROUP_OF[c] else 0.0 for c in range(5)] for a in range(N)
    ]
    relation = labels.Hierarchy(GROUP_OF, weight)
    return GradedCase(labels.GradedLabels(torch.tensor(FINE), relation), Y, _all_others(), proxies)


def _all_others() -> list[list[bool]]:
    return [[a != x for x in range(N)] for a in range(N)]


CASES = {
    "pairs": _pairwise(0.5),
    "pairs, positive above 0.1": _pairwise(0.1),
    "sets, jaccard": _multi("jaccard"),
    "sets, any": _multi("any"),
    "sets, all": _multi("all"),
    "two levels, 0.3": _hierarchy(0.3),
    "two levels, 0.7": _hierarchy(0.7),
}


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


@pytest.fixture(params=["held", "in blocks"])
def memory(request, monkeypatch):
    """Matrices of all pairs, or a few rows at a time."""
    if request.param == "in blocks":
        monkeypatch.setattr(blocks, "HELD", 0)
        monkeypatch.setattr(blocks, "BLOCK", 20)


def points(*shape: int) -> torch.Tensor:
    return torch.randn(N, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def goes_with(name: str, case: str) -> bool:
    """Pairs of examples say nothing of proxies, see `REFUSALS`."""
    if TABLE[name].roles == "pairs and proxies":
        return False
    return TABLE[name].roles == "pairs" or CASES[case].proxies is not None


CLEAN = [(name, case) for name in LITERAL for case in CASES if goes_with(name, case)]
MIXED = [(*pair, case) for pair in LITERAL_WITH_KINDS for case in CASES if goes_with(pair[0], case)]


def of_anchors(case: GradedCase, roles: str):
    """Y and valid as the rows of anchors."""
    if roles == "pairs":
        return case.Y, case.valid
    Y = case.proxies if roles == "proxy candidates" else [list(column) for column in zip(*case.proxies, strict=True)]
    return Y, [[True] * len(row) for row in Y]


def expected_clean(name, loss, f, case):
    entry, roles = TABLE[name], TABLE[name].roles
    proxies = None if roles == "pairs" else F.normalize(loss.proxies, dim=1)

    def to_classes():
        return torch.stack(
            [torch.stack([literal.to_class(v, proxies, c, entry.centers) for c in range(LABELS)]) for v in f]
        )

    S = {"pairs": lambda: f @ f.T, "proxy anchors": lambda: proxies @ f.T, "proxy candidates": to_classes}
    return literal_graded.clean(entry.five(loss), S[roles](), *of_anchors(case, roles), entry.include_positive)


def expected_mixed(name, loss, f, case, f_lam, lam, kind, k=None):
    entry, roles = TABLE[name], TABLE[name].roles
    if roles == "pairs":
        anchors = f
    else:
        proxies = anchors = F.normalize(loss.proxies, dim=1)
    if roles == "proxy candidates":
        Y, above, include = (case.proxies, case.Y), case.above, entry.include_positive
        return literal_graded.mixed_anchors(
            entry.five(loss), f, proxies, *Y, f_lam, lam, above, include, k, entry.centers
        )

    def similarity(a, i, j, share):
        if kind == "anc-neg" and roles == "proxy anchors":
            return anchors[a] @ F.normalize(share * anchors[a] + (1 - share) * f[j], dim=0)
        return anchors[a] @ f_lam(i, j, share)

    Y, valid = of_anchors(case, roles)
    return literal_graded.mixed(
        entry.five(loss), anchors @ f.T, Y, valid, similarity, lam, kind, case.above, k, entry.include_positive
    )


def factors(name: str, kind: str) -> torch.Tensor:
    rows = TABLE[name].factor_rows(kind, N, LABELS)
    return torch.rand(rows, N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize(("name", "case"), CLEAN)
def test_clean(name, case, memory):
    loss = TABLE[name].build(LABELS, DIM)
    x = points(DIM).requires_grad_()
    expected = expected_clean(name, loss, F.normalize(x, dim=1), CASES[case])
    compare(loss(x, CASES[case].given), expected, [x, *loss.parameters()])
    assert Clean(loss)(x, CASES[case].given).item() == loss(x, CASES[case].given).item()


@pytest.mark.parametrize(("name", "kind", "case"), MIXED)
def test_embed(name, kind, case, memory):
    loss = TABLE[name].build(LABELS, DIM)
    x = points(DIM).requires_grad_()
    f, lam = F.normalize(x, dim=1), factors(name, kind)

    def f_lam(i, j, share):
        return F.normalize(share * f[i] + (1 - share) * f[j], dim=0)

    expected = expected_mixed(name, loss, f, CASES[case], f_lam, lam, kind)
    value = Metrix(loss, mixup="embed").mixed(x, CASES[case].given, lam=lam, pairs=kind)
    compare(value, expected, [x, *loss.parameters()])


@pytest.mark.parametrize("head", ["avg", "max"])
@pytest.mark.parametrize(
    ("name", "kind", "case"),
    [x for x in MIXED if x[0] in ("multi-similarity", "proxy-nca") and x[2] in ("pairs", "sets, jaccard")],
)
def test_feature_with_the_hardest_negatives(name, kind, case, head):
    loss = TABLE[name].build(LABELS, DIM)
    model = Network(head)
    assert isinstance(model.head, PoolLinear)
    x = points(2, 4, 4).requires_grad_()
    z = model.features(x)
    f, lam = model.head(z), factors(name, kind)

    def f_lam(i, j, share):
        return model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0]

    expected = expected_mixed(name, loss, f, CASES[case], f_lam, lam, kind, k=2)
    value = Metrix(loss, mixup="feature", hard_negatives=2).mixed_features(model, z, CASES[case].given, lam, kind)
    compare(value, expected, [x, *model.parameters(), *loss.parameters()])


@pytest.mark.parametrize("mixup", ["embed", "feature", "input"])
def test_step_is_clean_plus_mixed(mixup):
    given, model = CASES["sets, jaccard"].given, Network("avg")
    objective = Metrix(losses.MultiSimilarity(), mixup=mixup, generator=torch.Generator().manual_seed(0))
    out = objective.step(model, points(2, 4, 4), given)
    expected = out.clean + 0.4 * out.mixed
    assert out.mixed.item() > 0
    assert out.loss.item() == pytest.approx(expected.item(), abs=1e-12)
    out.loss.backward()


def test_one_label_each_is_the_loss_of_classes():
    y, x = torch.tensor([0, 0, 1, 2, 2, 1, 0]), points(DIM)
    same = (y[:, None] == y).double()
    as_sets = [{int(k)} for k in y]
    relation = labels.ClassMatrix(torch.eye(3))
    for name in LITERAL:
        entry = TABLE[name]
        if not goes_with(name, "sets, any"):
            continue
        loss = entry.build(3, DIM)
        plain, mixed = loss(x, y).item(), Metrix(loss, mixup="embed").mixed(x, y, lam=0.3, pairs="pos-neg").item()
        forms = [as_sets, labels.multi_label(F.one_hot(y)), labels.GradedLabels(y, relation)]
        forms += [labels.pairwise(same)] if entry.roles == "pairs" else []
        for given in forms:
            assert loss(x, given).item() == pytest.approx(plain, abs=1e-12)
            found = Metrix(loss, mixup="embed").mixed(x, given, lam=0.3, pairs="pos-neg")
            assert found.item() == pytest.approx(mixed, abs=1e-12)


def test_names_are_classes_and_the_same_in_every_batch():
    y, x = torch.tensor([0, 0, 1, 2, 2, 1, 0]), points(DIM)
    names = [["cat", "dog", "cow"][k] for k in y]
    objective = Metrix(losses.MultiSimilarity(), mixup="embed")
    expected = objective.mixed(x, y, lam=0.4, pairs="pos-neg")
    for given in (names, tuple(names), np.array(names), np.array(names, dtype=object)):
        assert objective.mixed(x, given, lam=0.4, pairs="pos-neg").item() == expected.item()
    found = []
    for given in (y, names):
        objective = Metrix(losses.MultiSimilarity(), mixup="embed", generator=torch.Generator().manual_seed(0))
        objective.with_memory(16, DIM)
        objective(x[:3], given[:3])
        found.append(objective(x[3:], given[3:]).item())
    assert found[0] == found[1]


def test_a_relation_of_classes_goes_with_a_memory():
    relation = labels.Hierarchy(GROUP_OF, 0.3)
    x, y = points(DIM).float(), torch.tensor(FINE)
    objective = Metrix(losses.MultiSimilarity(), mixup="embed").with_memory(16, DIM).with_relation(relation)
    objective.generator = torch.Generator().manual_seed(0)
    objective(x[:3], y[:3])
    with_memory = objective.loss.clean(objective.extend(objective.sets_of(objective.gather(x[3:], y[3:]))))[0]
    f, order = F.normalize(x.double(), dim=1), [3, 4, 5, 6, 0, 1, 2]
    Y = [[CASES["two levels, 0.3"].Y[a][b] for b in order] for a in order[:4]]
    valid = [[a != b for b in range(7)] for a in range(4)]
    five = TABLE["multi-similarity"].five(TABLE["multi-similarity"].build(LABELS, DIM))
    S = (f[order] @ f[order].T)[:4]
    expected = literal_graded.clean(five, S, Y, valid)
    assert with_memory.item() == pytest.approx(expected.item(), abs=1e-5)


REFUSALS = {
    "a matrix of pairs with proxies": (
        lambda: losses.ProxyAnchor(5, DIM)(points(DIM), labels.pairwise(torch.eye(N))),
        "says nothing of the 5 proxies",
    ),
    "levels of a batch with proxies": (
        lambda: losses.ProxyAnchor(5, DIM)(points(DIM), labels.hierarchical(FINE, COARSE)),
        "with_relation",
    ),
    "proxies that are not labels": (
        lambda: losses.ProxyNCA(4, DIM)(points(DIM), labels.multi_label(SETS)),
        "4 proxies for 5 labels",
    ),
    "several proxies that are mixed with examples": (
        lambda: losses.PotentialField(5, DIM)(points(DIM), labels.multi_label(SETS)),
        "give PotentialField centers=0",
    ),
    "names with proxies": (lambda: losses.ProxyNCA(4, DIM)(points(DIM), list("abcabca")), "metrix.labels.number"),
    "a triplet loss": (
        lambda: losses.Triplet()(points(DIM), CASES["pairs"].given),
        "no place for positives of degrees",
    ),
    "a triplet loss as an objective": (
        lambda: Clean(losses.Triplet())(points(DIM), CASES["pairs"].given),
        "not of the generic form",
    ),
    "another mixing method": (
        lambda: MoCHi(losses.NCA())(points(DIM), CASES["pairs"].given),
        "MoCHi takes one class",
    ),
    "a matrix of pairs with a memory": (
        lambda: Metrix(losses.NCA(), mixup="embed").with_memory(8, DIM)(points(DIM), CASES["pairs"].given),
        "with a memory",
    ),
    "Y above 1": (lambda: labels.pairwise(torch.full((3, 3), 1.5)), "from 0 .negative. to 1"),
    "NaN in Y": (lambda: labels.pairwise(torch.full((3, 3), float("nan"))), "got nan"),
    "Y of another shape": (lambda: labels.pairwise(torch.zeros(3, 4)), "square matrix"),
    "Y for another batch": (lambda: losses.NCA()(points(DIM), labels.pairwise(torch.zeros(3, 3))), "for 7 embeddings"),
    "valid of another shape": (lambda: labels.pairwise(torch.zeros(3, 3), torch.ones(3, 2) > 0), "of the shape of Y"),
    "a matrix with other numbers than 0 and 1": (lambda: labels.multi_label(torch.full((3, 2), 0.5)), "1 where"),
    "an unknown relation": (lambda: labels.multi_label(SETS, "jacard"), "did you mean 'jaccard'"),
    "labels that are not among the classes": (lambda: labels.multi_label([{"a"}, {"b"}], classes=["a"]), "got b"),
    "a class in two groups": (lambda: labels.hierarchical([0, 0], [1, 2]), "expected one for each fine label"),
    "levels of unequal length": (lambda: labels.hierarchical([0, 0], [1]), r"\(2,\) and \(1,\)"),
    "a weight above 1": (lambda: labels.hierarchical([0, 0], [1, 1], weight=2), "from 0 to 1"),
    "positive_above 1": (lambda: labels.multi_label(SETS, positive_above=1.0), "positive_above"),
    "something else as a relation": (lambda: Metrix(losses.NCA()).with_relation(torch.eye(3)), "expected a Hierarchy"),
    "a class beyond the relation": (
        lambda: Metrix(losses.NCA(), mixup="embed").with_relation(labels.Hierarchy([0, 0]))(points(DIM), FINE),
        "0 to 1 for 2 classes of the relation",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    make, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_number_keeps_the_order_of_classes():
    numbers, classes = labels.number(["b", "a", "b"], classes=["b", "c", "a"])
    assert numbers.tolist() == [0, 2, 0]
    assert classes == ["b", "c", "a"]
    with pytest.raises(ValueError, match="got z"):
        labels.number(["z"], classes=["a"])


def test_relations_are_not_in_a_checkpoint():
    objective = Metrix(losses.ProxyAnchor(5, DIM)).with_relation(labels.Hierarchy(GROUP_OF, 0.3))
    assert isinstance(objective.relation, Relation)
    assert not [name for name in objective.state_dict() if "relation" in name]
