"""Relational distillation as the paper writes it: loops over pairs and triplets, of vectors."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor


def huber(x: Tensor) -> Tensor:
    return 0.5 * x * x if float(x.detach().abs()) <= 1 else x.abs() - 0.5


def length(v: Tensor) -> Tensor:
    """The norm of a vector, with the gradient 0 at 0."""
    return (v * v).sum().sqrt() if bool((v != 0).any()) else (v * 0.0).sum()


def mean(terms: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(terms).mean() if terms else 0.0 * like.sum()


def distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Each distance as a multiple of the mean one."""
    pairs = list(permutations(range(len(student)), 2))
    of = [[length(x[i] - x[j]) for i, j in pairs] for x in (student, teacher)]
    if not pairs or any(float(sum(lengths).detach()) == 0 for lengths in of):
        return 0.0 * student.sum()
    own, wanted = ([d / (sum(lengths) / len(pairs)) for d in lengths] for lengths in of)
    return mean([huber(t - s) for s, t in zip(own, wanted, strict=True)], student)


def angle(student: Tensor, teacher: Tensor) -> Tensor:
    """cos ∠ x_i x_j x_k, of triplets whose edges have a direction for both networks."""
    terms = []
    for i, j, k in permutations(range(len(student)), 3):
        cosines = []
        for x in (student, teacher):
            a, b = x[i] - x[j], x[k] - x[j]
            if bool((a != 0).any()) and bool((b != 0).any()):
                cosines.append((a / length(a)) @ (b / length(b)))
        if len(cosines) == 2:
            terms.append(huber(cosines[1] - cosines[0]))
    return mean(terms, student)


def cosine(student: Tensor, teacher: Tensor) -> Tensor:
    return mean([1 - (s @ t) / (length(s) * length(t)) for s, t in zip(student, teacher, strict=True)], student)


LITERAL = {"distance": distance, "angle": angle, "cosine": cosine}
