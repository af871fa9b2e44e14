"""Distillation: a student learns to embed as its teacher does.

relational   the losses: distances, angles and directions
parts        which of them are compared, and how much each weighs: one table
objective    both networks on a batch, and on mixtures of it
"""

from metrix.core.distillation.objective import Distil
from metrix.core.distillation.parts import DISTILLATION, DistillationLoss, DistillationPart

__all__ = ["DISTILLATION", "Distil", "DistillationLoss", "DistillationPart"]
