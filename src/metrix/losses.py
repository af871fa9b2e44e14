"""The losses of the paper's Table 1, your own, and those of pytorch-metric-learning."""

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
    "NCA",
    "BinomialDeviance",
    "Contrastive",
    "GenericLoss",
    "LiftedStructure",
    "MultiSimilarity",
    "ProxyAnchor",
    "ProxyNCA",
    "ProxyNCAPlusPlus",
    "from_pml",
]
