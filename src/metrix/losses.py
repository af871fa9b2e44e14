"""The losses of the paper's Table 1, your own, those of pytorch-metric-learning, and baselines of other forms."""

from metrix.core.baselines import EPSHN, Margin, SoftTriple, Triplet
from metrix.core.loss import GenericLoss
from metrix.core.pml import from_pml
from metrix.core.table1 import (
    NCA,
    BinomialDeviance,
    Contrastive,
    LiftedStructure,
    MultiSimilarity,
    ProxyAnchor,
    ProxyNCA,
    ProxyNCAPlusPlus,
)

__all__ = [
    "EPSHN",
    "NCA",
    "BinomialDeviance",
    "Contrastive",
    "GenericLoss",
    "LiftedStructure",
    "Margin",
    "MultiSimilarity",
    "ProxyAnchor",
    "ProxyNCA",
    "ProxyNCAPlusPlus",
    "SoftTriple",
    "Triplet",
    "from_pml",
]
