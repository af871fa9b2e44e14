"""Embedding models: backbones, pooling heads, weights, freezing, and cached activations of a frozen trunk."""

from metrix.model.activations import ActivationCache
from metrix.model.backbones import DataConfig
from metrix.model.embedder import Embedder
from metrix.model.saving import ImageView

__all__ = ["ActivationCache", "DataConfig", "Embedder", "ImageView"]
