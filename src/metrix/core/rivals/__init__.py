"""Other ways to mix for metric learning, each an objective that stands where `Metrix` does.

IMix             mixed anchors, labels interpolated over the instances of the batch
MoCHi            synthetic negatives of clean anchors
ProxySynthesis   synthetic classes: embeddings and proxies mixed alike
SiMix            synthetic examples of a class: similarities mixed
"""

from metrix.core.choices import by_name
from metrix.core.objective import Method
from metrix.core.rivals.imix import IMIX, IMix
from metrix.core.rivals.mochi import MOCHI, MoCHi
from metrix.core.rivals.proxy_synthesis import PROXY_SYNTHESIS, ProxySynthesis
from metrix.core.rivals.simix import SIMIX, SiMix

RIVALS: dict[str, Method] = by_name(IMIX, MOCHI, PROXY_SYNTHESIS, SIMIX)

__all__ = ["RIVALS", "IMix", "MoCHi", "ProxySynthesis", "SiMix"]
