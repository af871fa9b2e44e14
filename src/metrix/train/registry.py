"""What can be trained, by name: the command line and configuration files know exactly what is listed here."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from metrix.core import catalog


@dataclass(frozen=True)
class LossEntry:
    """A loss by name: its class, whose parameters are keys of the configuration, and where it comes from.

    A class with parameters `num_classes` and `dim` gets them from the data and the model.
    """

    make: type[nn.Module]
    line: str
    reference: str


LOSSES: dict[str, LossEntry] = {
    "contrastive": LossEntry(
        catalog.Contrastive, "positives attract, negatives repel within a margin", "Hadsell et al., CVPR 2006"
    ),
    "lifted-structure": LossEntry(
        catalog.LiftedStructure, "a hinge on soft extremes of positives and negatives", "Hermans et al., 2017"
    ),
    "binomial-deviance": LossEntry(
        catalog.BinomialDeviance, "soft thresholds on positives and negatives", "Yi et al., ICPR 2014"
    ),
    "multi-similarity": LossEntry(
        catalog.MultiSimilarity, "soft thresholds, each pair weighted against the others", "Wang et al., CVPR 2019"
    ),
    "nca": LossEntry(catalog.NCA, "positives against negatives in a softmax", "Goldberger et al., NIPS 2004"),
    "proxy-anchor": LossEntry(
        catalog.ProxyAnchor, "multi-similarity with a learnt proxy per class as the anchor", "Kim et al., CVPR 2020"
    ),
    "proxy-nca": LossEntry(
        catalog.ProxyNCA, "NCA with learnt proxies as positives and negatives", "Movshovitz-Attias et al., ICCV 2017"
    ),
    "proxy-nca++": LossEntry(
        catalog.ProxyNCAPlusPlus, "ProxyNCA with a low temperature and all proxies below", "Teh et al., ECCV 2020"
    ),
}
