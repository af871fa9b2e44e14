"""The published formulas of the rival mixing methods, transcribed with loops over examples.

Nothing here is taken from the library. Embeddings are assumed to have unit norm.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.parity.literal import average, hardest, loss_labels, negatives, positives


def mixed(u, v, share):
    return F.normalize(share * u + (1 - share) * v, dim=0)


def mochi(five, f, labels, lam, kinds, k):
    """Kalantidis et al., section 3: synthetic hard negatives, appended to the negatives of each anchor."""
    labels = labels.tolist()
    fixed = f.detach()
    losses = []
    for a in range(len(f)):
        N = negatives(labels, a)
        U = [(f[a] @ f[p], 1.0) for p in positives(labels, a)] + [(f[a] @ f[n], 0.0) for n in N]
        N = hardest([f[a] @ f[n] for n in range(len(f))], N, k)
        if "neg-neg" in kinds:
            U += [(f[a] @ mixed(fixed[n], fixed[m], float(lam[n, m])), 0.0) for n in N for m in N]
        if "anc-neg" in kinds:
            U += [(f[a] @ mixed(fixed[a], fixed[n], float(lam[a, n]) / 2), 0.0) for n in N]
        losses.append(loss_labels(five, U))
    return average(losses)


def imix_cross_entropy(f, labels, f_lam, lam, partner, temperature):
    """Lee et al., eq. 5: λ CE over instances with target i, 1-λ with target j; classmates do not count."""
    labels = labels.tolist()
    losses = []
    for i in range(len(f)):
        j, share = partner[i], max(float(lam[i]), 1 - float(lam[i]))
        v = f_lam(i, j, share)
        counted = [x for x in range(len(f)) if x in (i, j) or labels[x] not in (labels[i], labels[j])]
        total = sum(torch.exp(v @ f[x] / temperature) for x in counted)
        for target, weight in ((i, share), (j, 1 - share)):
            losses.append(-weight * torch.log(torch.exp(v @ f[target] / temperature) / total))
    return sum(losses) / len(f)


def imix(five, f, labels, f_lam, lam, partner, targets):
    """The same labels in the generic loss of a mixed anchor."""
    labels = labels.tolist()
    losses = []
    for i in range(len(f)):
        j, share = partner[i], max(float(lam[i]), 1 - float(lam[i]))
        v = f_lam(i, j, share)
        U = []
        for x in range(len(f)):
            if targets == "classes":
                U.append((v @ f[x], share * (labels[x] == labels[i]) + (1 - share) * (labels[x] == labels[j])))
            elif x in (i, j):
                U.append((v @ f[x], share if x == i else 1 - share))
            elif labels[x] not in (labels[i], labels[j]):
                U.append((v @ f[x], 0.0))
        losses.append(loss_labels(five, U))
    return average(losses)


def with_synthetic_classes(f, labels, proxies, lam, partner):
    """Gu et al., algorithm 1: real and synthetic examples, their classes, and all proxies."""
    labels = labels.tolist()
    examples, proxies, classes = list(f), list(proxies), list(labels)
    for i in range(len(f)):
        j, share = partner[i], float(lam[i])
        examples.append(mixed(f[i], f[j], share))
        classes.append(len(proxies))
        proxies.append(mixed(proxies[labels[i]], proxies[labels[j]], share))
    return torch.stack(examples), torch.tensor(classes), torch.stack(proxies)


def with_virtual_examples(f, labels, lam):
    """Patel et al., section 3.3: each pair of a class, in order, gives one more example of it, whose similarities are mixed.

    Similarities s(v, z) = λ s(x_i, z) + (1-λ) s(x_j, z) are the products of vectors that are mixed and not normalised.
    """
    labels = labels.tolist()
    examples, classes = list(f), list(labels)
    pairs = [(i, j) for i in range(len(f)) for j in range(i + 1, len(f)) if labels[i] == labels[j]]
    for number, (i, j) in enumerate(pairs):
        share = float(lam[number])
        examples.append(share * f[i] + (1 - share) * f[j])
        classes.append(labels[i])
    return torch.stack(examples), torch.tensor(classes)
