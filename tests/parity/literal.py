"""The paper's equations, transcribed to the letter: loops over anchors, pairs and examples.

Nothing here is taken from the library. Embeddings are assumed to have unit norm.
"""

from __future__ import annotations

import math

import torch


def relu(x):
    return torch.clamp(x, min=0)


# Table 1: tau, sigma+, sigma-, rho+, rho-
def contrastive(m):
    return (lambda x: x), (lambda x: x), (lambda x: x), (lambda x: -x), (lambda x: relu(x - m))


def lifted_structure(m):
    return relu, torch.log, torch.log, (lambda x: torch.exp(-x)), (lambda x: torch.exp(x - m))


def binomial_deviance(beta, gamma, m):
    return (
        (lambda x: x),
        (lambda x: torch.log(1 + x)),
        (lambda x: torch.log(1 + x)),
        (lambda x: torch.exp(-beta * (x - m))),
        (lambda x: torch.exp(gamma * (x - m))),
    )


def multi_similarity(beta, gamma, m, m_neg=None):
    m_neg = m if m_neg is None else m_neg
    return (
        (lambda x: x),
        (lambda x: torch.log(1 + x) / beta),
        (lambda x: torch.log(1 + x) / gamma),
        (lambda x: torch.exp(-beta * (x - m))),
        (lambda x: torch.exp(gamma * (x - m_neg))),
    )


class MeanOfPositives(tuple):
    """Five functions whose σ⁺ is of the mean over positives, weighted by labels, and not of their sum."""


class EachPositive(tuple):
    """Five functions of which τ(ρ⁺ + σ⁻(Σ ρ⁻)) is taken for each positive; the mean of these, weighted by labels."""


def nt_xent(T):
    """Sohn, eq. 6, with a temperature: -log(e^{s_p/T} / (e^{s_p/T} + Σ_n e^{s_n/T})) for each positive."""
    return EachPositive(
        ((lambda x: torch.log(1 + torch.exp(x))), None, torch.log, (lambda x: -x / T), (lambda x: torch.exp(x / T)))
    )


def tuplet_margin(m, s):
    """Yu and Tao, eq. 4: log(1 + Σ_n e^{s(cos θ_n - cos(θ_p - m))}) for each positive."""

    def minus_slackened(x):
        # equal vectors: cos(θ - m) has no derivative in x = cos θ, the part of x alone is taken
        near = 1 - x.detach() ** 2 <= 4 * torch.finfo(x.dtype).eps
        return -s * (x * math.cos(m) if near else torch.cos(torch.acos(x) - m))

    return EachPositive(
        ((lambda x: torch.log(1 + torch.exp(x))), None, torch.log, minus_slackened, (lambda x: torch.exp(s * x)))
    )


def potential_field(radius, decay):
    """Bhatnagar and Ahuja, eq. 1 and 2, times radius^decay: -1/max(d, δ)^α and 1/min(d, δ)^α."""

    def attraction(x):
        d = torch.sqrt(2 - 2 * x) if x < 1 - radius**2 / 2 else torch.as_tensor(radius, dtype=x.dtype)
        return -((radius / d) ** decay)

    def repulsion(x):
        nearest = 1 - (radius / 2) ** 2 / 2  # more similar ones are on the tangent there, which is ours
        if x > nearest:
            slope = decay * radius**decay / (radius / 2) ** (decay + 2)
            return 2**decay + slope * (x - nearest)
        d = torch.sqrt(2 - 2 * x) if x > 1 - radius**2 / 2 else torch.as_tensor(radius, dtype=x.dtype)
        return (radius / d) ** decay

    return (lambda x: x), (lambda x: x), (lambda x: x), attraction, repulsion


def supcon(T):
    """Khosla et al., eq. 2: -1/|P| Σ_p log(e^{s_p/T} / Σ_a e^{s_a/T})."""
    return MeanOfPositives(((lambda x: x), (lambda x: x), torch.log, (lambda x: -x / T), (lambda x: torch.exp(x / T))))


def circle(m, g):
    """Sun et al., eq. 6 and 7; the weights α are constants to the gradient."""
    return (
        (lambda x: torch.log(1 + torch.exp(x))),
        torch.log,
        torch.log,
        (lambda x: torch.exp(-g * relu(1 + m - x.detach()) * (x - (1 - m)))),
        (lambda x: torch.exp(g * relu(x.detach() + m) * (x - m))),
    )


def softmax_with_margin(turn, s):
    """-log(e^{s turn(x)} / (e^{s turn(x)} + Σ e^{s x})) = log(1 + Σ e^{s x} / e^{s turn(x)})."""
    return (
        (lambda x: torch.log(1 + torch.exp(x))),
        (lambda x: -torch.log(x)),
        torch.log,
        (lambda x: torch.exp(s * turn(x))),
        (lambda x: torch.exp(s * x)),
    )


def cosface(m, s):
    return softmax_with_margin(lambda x: x - m, s)


def arcface(m, s):
    def turn(x):
        angle = torch.acos(x)
        return torch.cos(angle + m) if angle <= math.pi - m else torch.cos(angle) - m * math.sin(m)

    return softmax_with_margin(turn, s)


def nca(T=1.0):
    return (
        (lambda x: x),
        (lambda x: -torch.log(x)),
        torch.log,
        (lambda x: torch.exp(x / T)),
        (lambda x: torch.exp(x / T)),
    )


def loss_labels(five, labelled, include_positive=False):
    """eq. loss-labels / loss-mixed for one anchor with labelled = [(similarity, y)]; None if undefined."""
    if isinstance(five, EachPositive):
        return mean_of_each_positive(five, labelled)
    tau, sigma_pos, sigma_neg, rho_pos, rho_neg = five
    if not labelled:
        return None
    zero = torch.zeros((), dtype=torch.float64)
    pos = sum((y * rho_pos(s) for s, y in labelled if y > 0), zero)
    neg = sum(((1 if include_positive else 1 - y) * rho_neg(s) for s, y in labelled if include_positive or y < 1), zero)
    has_pos = any(y > 0 for _, y in labelled)
    if isinstance(five, MeanOfPositives):
        if not has_pos:
            return None
        pos = pos / sum(y for _, y in labelled)
    has_neg = include_positive or any(y < 1 for _, y in labelled)
    if not has_pos and not math.isfinite(float(sigma_pos(zero))):
        return None
    if not has_neg and not math.isfinite(float(sigma_neg(zero))):
        return None
    return tau(sigma_pos(pos) + sigma_neg(neg))


def mean_of_each_positive(five, labelled):
    """1/ΣY Σ_p Y_p τ(ρ⁺(s_p) + σ⁻(Σ (1-Y) ρ⁻)); None without positives or without negatives."""
    tau, _, sigma_neg, rho_pos, rho_neg = five
    positive = [(s, y) for s, y in labelled if y > 0]
    negative = [(1 - y) * rho_neg(s) for s, y in labelled if y < 1]
    if not positive or not negative:
        return None
    total = sum(y for _, y in positive)
    return sum(y * tau(rho_pos(s) + sigma_neg(sum(negative))) for s, y in positive) / total


def average(losses):
    """The mean over anchors for which the loss is defined, or None."""
    defined = [x for x in losses if x is not None]
    return sum(defined) / len(defined) if defined else None


def positives(labels, a):
    return [p for p in range(len(labels)) if labels[p] == labels[a] and p != a]


def negatives(labels, a):
    return [n for n in range(len(labels)) if labels[n] != labels[a]]


def clean_pairs(five, f, labels, include_positive=False, anchors=None):
    """eq. generic with examples in all roles; the first `anchors` of them are anchors, or those listed, or all."""
    labels = labels.tolist()
    losses = []
    for a in anchors if isinstance(anchors, list) else range(len(f) if anchors is None else anchors):
        U = [(f[a] @ f[p], 1.0) for p in positives(labels, a)] + [(f[a] @ f[n], 0.0) for n in negatives(labels, a)]
        losses.append(loss_labels(five, U, include_positive))
    return average(losses)


def clean_proxy_anchor(five, f, labels, proxies):
    losses = []
    for c in range(len(proxies)):
        U = [(proxies[c] @ f[i], 1.0 if labels[i] == c else 0.0) for i in range(len(f))]
        losses.append(loss_labels(five, U))
    return average(losses)


def to_class(v, proxies, c, centers):
    """The similarity to a class: to the nearest of its proxies, which are one after the other."""
    return torch.stack([v @ p for p in proxies[c * centers : (c + 1) * centers]]).max()


def clean_proxy_candidates(five, f, labels, proxies, include_positive, centers=1):
    losses = []
    for a in range(len(f)):
        classes = range(len(proxies) // centers)
        U = [(to_class(f[a], proxies, c, centers), 1.0 if labels[a] == c else 0.0) for c in classes]
        losses.append(loss_labels(five, U, include_positive))
    return average(losses)


def hardest(similarities, candidates, k):
    """The k candidates most similar to the anchor."""
    if k is None:
        return candidates
    return sorted(candidates, key=lambda n: -similarities[n].item())[:k]


def mixing_pairs(kind, P, N, anchor):
    """M(a) of section "Mixing pairs", as ((x, y), (x', y')) with examples by number."""
    if kind == "pos-neg":
        return [((p, 1), (n, 0)) for p in P for n in N]
    if kind == "anc-neg":
        return [((anchor, 1), (n, 0)) for n in N]
    if kind == "pos-pos":
        return [((p, 1), (q, 1)) for p in P for q in P]
    return [((n, 0), (m, 0)) for n in N for m in N]


def mixed_pairs(five, f, labels, f_lam, lam, kind, k=None, include_positive=False, anchors=None):
    """eq. loss-mixed, examples as anchors; f_lam(i, j, lam) is eq. mix-embed, lam(i, j) the factor."""
    labels = labels.tolist()
    losses = []
    for a in range(len(f) if anchors is None else anchors):
        N = hardest([f[a] @ f[n] for n in range(len(f))], negatives(labels, a), k)
        V = []
        for (i, y), (j, y2) in mixing_pairs(kind, positives(labels, a), N, a):
            share = float(lam[i, j])
            V.append((f[a] @ f_lam(i, j, share), share * y + (1 - share) * y2))
        losses.append(loss_labels(five, V, include_positive))
    return average(losses)


def mixed_proxy_anchor(five, f, labels, proxies, f_lam, mix_with_proxy, lam, kind, k=None):
    """Proxies as anchors: examples are mixed by f_lam, a proxy with an example by mix_with_proxy."""
    labels = labels.tolist()
    losses = []
    for c in range(len(proxies)):
        P = [i for i in range(len(f)) if labels[i] == c]
        N = hardest([proxies[c] @ f[n] for n in range(len(f))], [i for i in range(len(f)) if labels[i] != c], k)
        V = []
        for (i, y), (j, y2) in mixing_pairs(kind, P, N, c):
            share = float(lam[i, j])
            v = mix_with_proxy(c, j, share) if kind == "anc-neg" else f_lam(i, j, share)
            V.append((proxies[c] @ v, share * y + (1 - share) * y2))
        losses.append(loss_labels(five, V))
    return average(losses)


def mixed_proxy_candidates(five, f, labels, proxies, f_lam, lam, include_positive, k=None, centers=1):
    """Proxies as positives and negatives: the mixed example is the anchor."""
    labels = labels.tolist()
    losses = []
    for i in range(len(f)):
        for j in hardest([f[i] @ f[n] for n in range(len(f))], negatives(labels, i), k):
            share = float(lam[i, j])
            v = f_lam(i, j, share)
            U = []
            for c in range(len(proxies) // centers):
                y = share * (c == labels[i]) + (1 - share) * (c == labels[j])
                U.append((to_class(v, proxies, c, centers), y))
            losses.append(loss_labels(five, U, include_positive))
    return average(losses)
