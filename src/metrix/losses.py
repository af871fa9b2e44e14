"""The losses of the paper's Table 1, your own, those of pytorch-metric-learning, and baselines of other forms."""

from metrix.core import baselines, table1
from metrix.core.baselines import *  # noqa: F403
from metrix.core.loss import GenericLoss
from metrix.core.pml import from_pml
from metrix.core.table1 import *  # noqa: F403

__all__ = ["GenericLoss", "from_pml"]
__all__ += table1.__all__
__all__ += baselines.__all__
