"""What can be trained, by name: the command line and configuration files know exactly what is listed here."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from metrix.core import baselines
from metrix.core import table1 as catalog
from metrix.core.loss import Loss


@dataclass(frozen=True)
class LossEntry:
    """A loss by name: its class, whose parameters are keys of the configuration, and where it comes from.

    A class with parameters `num_classes`, `dim` and `generator` gets them from the data, the model and the run.
    """

    make: type[nn.Module]
    line: str
    reference: str
    own_lr: float | None = None  # learning rate of its own parameters; 100 times the head's where it is None
    pairs: bool = True  # whether it needs several images of a class in a batch

    @property
    def takes_mixup(self) -> bool:
        """Whether it is of the generic form, which mixed examples have a place in."""
        return issubclass(self.make, Loss)


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
        catalog.ProxyAnchor,
        "multi-similarity with a learnt proxy per class as the anchor",
        "Kim et al., CVPR 2020",
        pairs=False,
    ),
    "proxy-nca": LossEntry(
        catalog.ProxyNCA,
        "NCA with learnt proxies as positives and negatives",
        "Movshovitz-Attias et al., ICCV 2017",
        pairs=False,
    ),
    "proxy-nca++": LossEntry(
        catalog.ProxyNCAPlusPlus,
        "ProxyNCA with a low temperature and all proxies below",
        "Teh et al., ECCV 2020",
        pairs=False,
    ),
    "triplet": LossEntry(
        baselines.Triplet, "a hinge on triplets with semi-hard negatives", "Schroff et al., CVPR 2015"
    ),
    "margin": LossEntry(
        baselines.Margin,
        "hinges on both sides of a learnt boundary, negatives drawn by distance",
        "Wu et al., ICCV 2017",
        own_lr=5e-4,
    ),
    "epshn": LossEntry(
        baselines.EPSHN, "the easiest positive against a semi-hard negative in a softmax", "Xuan et al., WACV 2020"
    ),
    "soft-triple": LossEntry(
        baselines.SoftTriple,
        "cross entropy over classes with several learnt centres each",
        "Qian et al., ICCV 2019",
        own_lr=1e-2,
        pairs=False,
    ),
}
