"""The losses of the paper's Table 1, your own, those of pytorch-metric-learning, and baselines of other forms."""

from metrix.core.baselines import EPSHN, Margin, SoftTriple, Triplet
from metrix.core.catalog import (
    NCA,
    BinomialDeviance,
    Contrastive,
    LiftedStructure,
    MultiSimilarity,
    ProxyAnchor,
    ProxyNCA,
    ProxyNCAPlusPlus,
)
from metrix.core.loss import GenericLoss
from metrix.core.peers import from_pml

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
