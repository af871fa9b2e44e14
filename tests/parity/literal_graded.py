"""eq. loss-labels and loss-mixed with any Y in [0, 1], in loops; nothing here is taken from the library."""

from __future__ import annotations

from tests.parity.literal import average, hardest, loss_labels, to_class


def jaccard(a: set, b: set) -> float:
    return len(a & b) / len(a | b) if a | b else 0.0


def sides(Y, valid, a, above, n):
    """P(a) and N(a) of an anchor with the labels Y[a]."""
    counted = [x for x in range(n) if valid[a][x]]
    return [x for x in counted if Y[a][x] > above], [x for x in counted if not Y[a][x] > above]


def pairs_of(kind, P, N, anchor):
    """M(a), as pairs of examples by number."""
    return {
        "pos-neg": [(p, n) for p in P for n in N],
        "anc-neg": [(anchor, n) for n in N],
        "pos-pos": [(p, q) for p in P for q in P],
        "neg-neg": [(n, m) for n in N for m in N],
    }[kind]


def clean(five, S, Y, valid, include_positive=False):
    """Anchors are the rows of S, Y and valid; candidates are the columns."""
    losses = []
    for a in range(len(S)):
        U = [(S[a, x], float(Y[a][x])) for x in range(S.shape[1]) if valid[a][x]]
        losses.append(loss_labels(five, U, include_positive))
    return average(losses)


def mixed(five, S, Y, valid, similarity, lam, kind, above, k=None, include_positive=False):
    """Mixed examples as candidates; `similarity(a, i, j, λ)` is s(a, v), i may be the anchor itself."""
    losses = []
    for a in range(len(S)):
        P, N = sides(Y, valid, a, above, S.shape[1])
        N = hardest(list(S[a]), N, k)
        V = []
        for i, j in pairs_of(kind, P, N, a):
            share = float(lam[i, j])
            y = 1.0 if kind == "anc-neg" else float(Y[a][i])
            V.append((similarity(a, i, j, share), share * y + (1 - share) * float(Y[a][j])))
        losses.append(loss_labels(five, V, include_positive))
    return average(losses)


def mixed_anchors(
    five, f, proxies, Y_proxies, Y_examples, f_lam, lam, above, include_positive=False, k=None, centers=1
):
    """The mixed example is the anchor; j is a negative of i by the labels of examples, Y_proxies (n, proxies)."""
    losses = []
    for i in range(len(f)):
        partners = [j for j in range(len(f)) if not Y_examples[i][j] > above]
        for j in hardest([f[i] @ f[x] for x in range(len(f))], partners, k):
            share = float(lam[i, j])
            v = f_lam(i, j, share)
            U = [
                (
                    to_class(v, proxies, c, centers),
                    share * float(Y_proxies[i][c]) + (1 - share) * float(Y_proxies[j][c]),
                )
                for c in range(len(proxies) // centers)
            ]
            losses.append(loss_labels(five, U, include_positive))
    return average(losses)
