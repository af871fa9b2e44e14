"""Metrics of embeddings as the paper defines them, computed exactly and in bounded memory.

    recall_at_k, retrieval     does a query find examples of its class?
    compare                    do two models differ on the same queries, by a paired bootstrap?
    clustering                 do k-means clusters match the classes?
    alignment, uniformity      how tight are the classes, how evenly do the embeddings cover the sphere?
    utilization                how near are test examples to the training examples, clean or mixed?
    positivity                 when does a mixed example act as a positive?

Embeddings are (n, d) arrays or tensors and need not be normalised; labels are n integers or strings. With
`sequences`, retrieval leaves out the examples of a query's own sequence, such as the other frames of its track.
"""

from metrix.evaluate.approximate import RowSearcher, Searcher
from metrix.evaluate.bootstrap import Comparison, Difference, compare
from metrix.evaluate.clustering import Clustering, clustering
from metrix.evaluate.confusion import ConfusedPair, Confusion
from metrix.evaluate.estimate import Estimate
from metrix.evaluate.geometry import alignment, uniformity
from metrix.evaluate.mixing import mixed_embeddings
from metrix.evaluate.positivity import Positivity, positivity
from metrix.evaluate.retrieval import recall_at_k, retrieval
from metrix.evaluate.retrieved import Retrieval
from metrix.evaluate.utilization import utilization

__all__ = [
    "Clustering",
    "Comparison",
    "ConfusedPair",
    "Confusion",
    "Difference",
    "Estimate",
    "Positivity",
    "Retrieval",
    "RowSearcher",
    "Searcher",
    "alignment",
    "clustering",
    "compare",
    "mixed_embeddings",
    "positivity",
    "recall_at_k",
    "retrieval",
    "uniformity",
    "utilization",
]
