"""How well a network fits its training classes, and how far unseen classes stay behind.

MAP@R depends on how many classes and images are searched, so both sides are measured on equally many: classes of
both are drawn and paired from the largest to the smallest, and of each pair the larger one gives up images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrix.data import Part
from metrix.evaluate.retrieval import retrieval
from metrix.train.batches import ImageBatches
from metrix.train.distributed import Team

IMAGES = 2000  # of either side, at most
DRAWS = 5  # of unseen classes
FITTED_FROM = 0.95  # MAP@R of training classes
MEASURES = ("map@r", "recall@1")


def measure_fit(batches: ImageBatches, team: Team, held: Part, held_vectors: Tensor) -> dict[str, Any] | None:
    """MAP@R within training images and within images of unseen classes, where both have equally many to search.

    Args:
        batches: the training images; at most `IMAGES` of them are embedded, under the test view
        team: the processes that train together
        held: images of classes that were not trained on
        held_vectors: their embeddings (m, d)

    Returns:
        MAP@R and Recall@1 of both, the gap between their MAP@R, and the numbers of classes and images, as means over
        draws; None where either side has no two classes of two images.
    """
    labels = batches.part.labels.numpy()
    draws = list(draw_matched(labels, held.labels.numpy(), np.random.default_rng(0)))
    if not draws:
        return None
    rows = np.unique(np.concatenate([own for own, _ in draws]))
    vectors = batches.embed(batches.part.select(rows), team.device)
    training = [_measure(vectors, batches.part, np.searchsorted(rows, own), own, team) for own, _ in draws]
    unseen = [_measure(held_vectors, held, others, others, team) for _, others in draws]
    own = draws[0][0]
    found = {
        f"{side}_{key}": float(np.mean([one[key] for one in several]))
        for side, several in (("training", training), ("unseen", unseen))
        for key in MEASURES
    }
    return {
        **found,
        "gap": found["training_map@r"] - found["unseen_map@r"],
        "classes": len(np.unique(labels[own])),
        "images": round(float(np.mean([len(own) for own, _ in draws]))),
        "draws": len(draws),
    }


def describe_training_fit(results: Mapping[str, Any]) -> str:
    """The sentence on fit of the results of a run; empty where it was not measured.

    >>> found = {"training_map@r": 0.998, "unseen_map@r": 0.812, "gap": 0.186, "classes": 30, "images": 570}
    >>> describe_training_fit({"fit": found}).partition(";")[0]
    'training classes fitted: MAP@R 99.8 % among their examples'
    """
    found = results.get("fit")
    if not found:
        return ""
    training, unseen, gap = (100 * found[key] for key in ("training_map@r", "unseen_map@r", "gap"))
    return (
        f"training classes fitted: MAP@R {training:.1f} % among their examples; among as many of unseen classes "
        f"{unseen:.1f} %, a gap of {gap:.1f} points (either side {found['images']:,} of {found['classes']:,} classes)"
    )


def average_fit(several: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """MAP@R of training and of unseen classes as means over the results of runs; None unless all measured it."""
    found = [results.get("fit") for results in several]
    if not found or not all(found):
        return None
    keys = ("training_map@r", "unseen_map@r")
    return {key: float(np.mean([one[key] for one in found if one])) for key in keys}


def describe_outlook(fit: Mapping[str, float] | None) -> str:
    """What the fit of clean runs lets expect of mixup, for those who compare the two; empty without a fit.

    >>> describe_outlook({"training_map@r": 0.62, "unseen_map@r": 0.41}).partition(":")[0]
    'The clean runs do not fit their training classes (MAP@R 62.0 %, unseen ones 41.0 %)'
    """
    if fit is None:
        return ""
    training, unseen = 100 * fit["training_map@r"], 100 * fit["unseen_map@r"]
    if fit["training_map@r"] < FITTED_FROM:
        return (
            f"The clean runs do not fit their training classes (MAP@R {training:.1f} %, unseen ones {unseen:.1f} %): "
            "mixup was mostly behind or level in such runs, as it learns more slowly; train both sides for longer, or "
            "a larger network, before you judge."
        )
    return (
        f"The clean runs fit their training classes (MAP@R {training:.1f} %, unseen ones {unseen:.1f} %): mixup was "
        "level or ahead in such runs, and further ahead in longer ones."
    )


def draw_matched(
    own: NDArray[np.int64], held: NDArray[np.int64], rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows of two sets of labels such that both have equally many classes, in pairs of equal size.

    The classes of the first set are the same in every draw; those of the second differ where it has more. Nothing is
    drawn where either set has no two classes of two examples.
    """
    sides = [_rows_of_classes(labels, rng) for labels in (own, held)]
    classes = min(*map(len, sides), IMAGES // 2)
    if classes < 2:
        return
    first = _draw(sides[0], classes, rng)
    for _ in range(DRAWS if len(sides[1]) > classes else 1):
        second = _draw(sides[1], classes, rng)
        sizes = [min(len(a), len(b), IMAGES // classes) for a, b in zip(first, second, strict=True)]
        yield _first_rows(first, sizes), _first_rows(second, sizes)


def _rows_of_classes(labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The rows of each class of two examples or more, shuffled."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    edges = np.flatnonzero(np.diff(labels[order])) + 1
    return [rows for rows in np.split(order, edges) if len(rows) > 1]


def _draw(found: list[NDArray[np.int64]], classes: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Some of the classes, from the largest to the smallest."""
    chosen = [found[k] for k in rng.permutation(len(found))[:classes]]
    return sorted(chosen, key=len, reverse=True)


def _first_rows(found: list[NDArray[np.int64]], sizes: list[int]) -> NDArray[np.int64]:
    return np.sort(np.concatenate([rows[:size] for rows, size in zip(found, sizes, strict=True)]))


def _measure(
    vectors: Tensor, part: Part, rows: NDArray[np.int64], positions: NDArray[np.int64], team: Team
) -> dict[str, float]:
    """The measures of some rows of vectors among each other; `positions` are theirs in the part."""
    sequences = None if part.sequences is None else part.sequences[positions]
    chosen = vectors[torch.from_numpy(rows)].to(team.device)
    labels = part.labels[torch.from_numpy(positions)]
    return retrieval(chosen, labels, (1,), resamples=0, sequences=sequences).means
