"""Every choice that a configuration can name, collected from the tables beside the code.

The tables come with the classes and functions they name, so importing this module imports torch.
"""

from __future__ import annotations

from metrix.core.baselines import BASELINES
from metrix.core.choices import Choice, by_name
from metrix.core.loss import LossEntry
from metrix.core.metrix import METRIX
from metrix.core.mixup import MIXUP_TYPES
from metrix.core.objective import ACCEPTED_LOSSES, Method
from metrix.core.pair_losses import PAIR_LOSSES
from metrix.core.pairs import PAIR_KINDS
from metrix.core.relations import SET_RELATIONS
from metrix.core.rivals import RIVALS
from metrix.core.softmax_losses import SOFTMAX_LOSSES
from metrix.core.table1 import TABLE1
from metrix.model.pooling import POOLS

__all__ = [
    "ACCEPTED_LOSSES",
    "LOSSES",
    "METHODS",
    "MIXUP_TYPES",
    "PAIR_KINDS",
    "POOLS",
    "SCHEMES",
    "SET_RELATIONS",
    "Choice",
    "LossEntry",
    "Method",
]

LOSSES: dict[str, LossEntry] = by_name(
    *TABLE1.values(), *PAIR_LOSSES.values(), *SOFTMAX_LOSSES.values(), *BASELINES.values()
)
METHODS: dict[str, Method] = by_name(METRIX, *RIVALS.values())
SCHEMES: dict[str, Choice] = by_name(
    Choice("none", "every batch trains the whole embedding", ""),
    Choice(
        "divide-and-conquer",
        "batches of one cluster train one slice of the embedding",
        "Sanakoyeu et al., CVPR 2019",
    ),
)
