"""The baselines as their papers write them, in loops over anchors, positives and negatives.

Nothing here is taken from the library. Embeddings are assumed to have unit norm.
"""

from __future__ import annotations

import torch

from tests.parity.literal import negatives, positives, relu


def distance(x, y):
    """‖x - y‖, with gradient 0 where the two are equal."""
    return torch.linalg.vector_norm(x - y)


def triplet(f, labels, margin, semi_hard):
    """The mean of [D_ap - D_an + m]₊ over the triplets that are chosen and not zero; None without any."""
    labels, terms = labels.tolist(), []
    for a in range(len(f)):
        for p in positives(labels, a):
            for n in negatives(labels, a):
                D_ap, D_an = distance(f[a], f[p]), distance(f[a], f[n])
                if (D_ap < D_an or not semi_hard) and D_an < D_ap + margin:
                    terms.append(D_ap - D_an + margin)
    return sum(terms) / len(terms) if terms else None


def margin(f, labels, m, beta, drawn):
    """drawn[a] are the negatives of anchor a; beta[a] the boundary of its class."""
    labels, terms = labels.tolist(), []
    for a in range(len(f)):
        terms += [relu(distance(f[a], f[p]) - beta[a] + m) for p in positives(labels, a)]
        terms += [relu(beta[a] - distance(f[a], f[n]) + m) for n in drawn[a]]
    nonzero = [t for t in terms if t > 0]
    return sum(nonzero) / len(nonzero) if nonzero else None


def weights(f, labels, a, nearest, farthest):
    """The probability of each negative of anchor a, in inverse proportion to the density q(D) of distances."""
    d, out = f.shape[1], [0.0] * len(f)
    for n in negatives(labels.tolist(), a):
        D = max(float(distance(f[a], f[n])), nearest)
        if farthest > D:
            out[n] = 1.0 / (D ** (d - 2) * (1.0 - D * D / 4.0) ** ((d - 3) / 2.0))
    total = sum(out)
    return [w / total if total else 0.0 for w in out]


def epshn(f, labels, T):
    labels, terms = labels.tolist(), []
    for a in range(len(f)):
        P, N = positives(labels, a), negatives(labels, a)
        if not P:
            continue
        s_p = max((f[a] @ f[p] for p in P), key=torch.Tensor.item)
        below = [f[a] @ f[n] for n in N if f[a] @ f[n] < s_p]
        if below:
            s_n = max(below, key=torch.Tensor.item)
            terms.append(-torch.log(torch.exp(s_p / T) / (torch.exp(s_p / T) + torch.exp(s_n / T))))
    return sum(terms) / len(terms) if terms else None


def soft_triple(f, labels, w, la, gamma, tau, delta):
    """w are unit centres (C, K, d)."""
    C, K, _ = w.shape
    terms = []
    for i, y in enumerate(labels.tolist()):
        S = []
        for c in range(C):
            s = [f[i] @ w[c, k] for k in range(K)]
            q = [torch.exp(x / gamma) for x in s]
            S.append(sum(a * b for a, b in zip(q, s, strict=True)) / sum(q))
        own = torch.exp(la * (S[y] - delta))
        terms.append(-torch.log(own / (own + sum(torch.exp(la * S[c]) for c in range(C) if c != y))))
    spread = sum(
        (torch.sqrt(2 + 1e-5 - 2 * w[c, j] @ w[c, k]) for c in range(C) for j in range(K) for k in range(j + 1, K)),
        torch.zeros((), dtype=f.dtype),
    )
    return sum(terms) / len(terms) + (tau * spread / (C * K * (K - 1)) if K > 1 else 0.0)


def recall_at_k(f, labels, ks, temperature, rank_temperature):
    """Patel et al., eq. 4 to 6: the mean over queries of 1 - Recall@k, averaged over k; at most min(k, |P|) are found."""
    labels, losses = labels.tolist(), []
    for q in range(len(f)):
        P = positives(labels, q)
        if not P:
            continue
        of_ks = []
        for n, k in enumerate(min(k, len(f)) for k in ks):
            found = 0.0
            scale = rank_temperature[n] if isinstance(rank_temperature, tuple) else rank_temperature * k
            for p in P:
                others = [z for z in range(len(f)) if z not in (q, p)]
                above = [torch.sigmoid((f[q] @ f[z] - f[q] @ f[p]) / temperature) for z in others]
                rank = sum(above, 1 + 0 * (f[q] @ f[p]))  # of a query with one candidate it is 1
                found = found + torch.sigmoid((k - rank) / scale)
            of_ks.append(1 - found.clamp(max=k) / min(k, len(P)))
        losses.append(sum(of_ks) / len(ks))
    return sum(losses) / len(losses) if losses else None
