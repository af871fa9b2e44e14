"""The losses of the paper's Table 1, more of that form, your own, those of pytorch-metric-learning, and baselines.

`functions` has what rows of your own are written with.
"""

from metrix.core import baselines, functions, pair_losses, softmax_losses, table1
from metrix.core.baselines import *  # noqa: F403
from metrix.core.loss import GenericLoss
from metrix.core.pair_losses import *  # noqa: F403
from metrix.core.pml import from_pml
from metrix.core.softmax_losses import *  # noqa: F403
from metrix.core.table1 import *  # noqa: F403

__all__ = ["GenericLoss", "from_pml", "functions"]
__all__ += table1.__all__
__all__ += pair_losses.__all__
__all__ += softmax_losses.__all__
__all__ += baselines.__all__
