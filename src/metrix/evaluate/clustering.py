"""Clustering metrics: do k-means clusters match the classes?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.evaluate.vectors import Vectors, number_classes, read_labels
from metrix.extras import import_extra


@dataclass(frozen=True)
class Clustering:
    """Agreement of k-means clusters with the classes: 1 is perfect; AMI is 0 on average for random clusters."""

    nmi: float
    ami: float
    clusters: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return asdict(self)


def clustering(
    embeddings: object, labels: object, seed: int = 0, *, iterations: int = 25, restarts: int = 1
) -> Clustering:
    """NMI and AMI between the classes and k-means clusters of the unit embeddings, k the number of classes.

    NMI = I(C; Y) / ((H(C) + H(Y)) / 2) and AMI = (I - E[I]) / ((H(C) + H(Y)) / 2 - E[I]), with the expectation over
    random clusterings of the same sizes. Both are 1 if there is one class only, or one example of each.

    Args:
        embeddings: (n, d), normalised here.
        labels: the class of each.
        seed: of the k-means initialisation.
        iterations: of k-means.
        restarts: how often k-means is started; the clusters with the smallest k-means objective count.

    >>> clustering([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], ["a", "a", "b", "b"]).nmi
    1.0
    """
    if iterations < 1 or restarts < 1:
        raise InvalidInput(
            f"expected iterations ≥ 1 and restarts ≥ 1, got iterations={iterations}, restarts={restarts}"
        )
    vectors = Vectors.read(embeddings)
    names, (number,) = number_classes(read_labels(labels, len(vectors)))
    found = k_means(vectors.unit32(), len(names), seed, iterations, restarts)

    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    return Clustering(
        nmi=float(normalized_mutual_info_score(number, found)),
        ami=float(adjusted_mutual_info_score(number, found)),
        clusters=len(names),
        seed=seed,
    )


def k_means(
    unit: NDArray[np.float32], clusters: int, seed: int = 0, iterations: int = 25, restarts: int = 1
) -> NDArray[np.int64]:
    """The cluster of each row (n,), from k-means on all rows."""
    faiss = import_extra("faiss")

    found = faiss.Kmeans(
        unit.shape[1],
        clusters,
        niter=iterations,
        nredo=restarts,
        seed=seed,
        # The defaults would subsample beyond 256 rows per cluster and warn below 39.
        min_points_per_centroid=1,
        max_points_per_centroid=len(unit),
    )
    found.train(unit)
    nearest: NDArray[np.int64] = found.index.search(unit, 1)[1][:, 0]
    return nearest
