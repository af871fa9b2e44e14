"""Labels that are not one class: several labels of an example, two levels of classes, or a degree for each pair.

Of one batch, to give an objective or a loss in place of integers:

    multi_label(sets)                      each example has several labels
    hierarchical(fine, coarse, weight)     a class lies in a coarser one
    pairwise(Y, valid)                     Y (n, n) in [0, 1]: how positive example k is to anchor a

Of all classes, so that labels stay integers (`objective.with_relation(…)`, `evaluate.retrieval(…, relation=…)`):
`LabelSets`, `Hierarchy`, `ClassMatrix`. Names of classes can be given as they are; `number` numbers them for losses
with proxies.

>>> import torch
>>> from metrix import Metrix, labels, losses
>>> objective = Metrix(losses.MultiSimilarity(), mixup="embed")
>>> loss = objective(torch.randn(3, 8), labels.multi_label([{"sea", "sand"}, {"sea"}, {"snow"}]))
"""

from metrix.core.labels import hierarchical, multi_label, number, pairwise
from metrix.core.relations import SET_RELATIONS, ClassMatrix, GradedLabels, Hierarchy, LabelSets, Relation

__all__ = [
    "SET_RELATIONS",
    "ClassMatrix",
    "GradedLabels",
    "Hierarchy",
    "LabelSets",
    "Relation",
    "hierarchical",
    "multi_label",
    "number",
    "pairwise",
]
