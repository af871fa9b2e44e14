"""Other ways to mix for metric learning, each an objective that stands where `Metrix` does.

IMix             mixed anchors, labels interpolated over the instances of the batch
MoCHi            synthetic negatives of clean anchors
ProxySynthesis   synthetic classes: embeddings and proxies mixed alike
"""

from metrix.core.rivals.imix import IMix
from metrix.core.rivals.mochi import MoCHi
from metrix.core.rivals.proxy_synthesis import ProxySynthesis

__all__ = ["IMix", "MoCHi", "ProxySynthesis"]
