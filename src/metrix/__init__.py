"""Deep metric learning with mixup.

>>> from metrix import Metrix, losses
>>> objective = Metrix(losses.MultiSimilarity(), mixup="embed")
>>> loss = objective(embeddings, labels)
"""

from metrix import losses
from metrix.core.head import PoolLinear
from metrix.core.objective import Metrix, StepOutput
from metrix.core.split import split
from metrix.errors import MetrixError, MetrixWarning

__version__ = "0.1.0"
__all__ = ["Metrix", "MetrixError", "MetrixWarning", "PoolLinear", "StepOutput", "losses", "split"]
