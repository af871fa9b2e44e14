"""Datasets of labelled images in any layout: open, check, transform, and sample batches.

>>> from metrix import data
>>> glyphs = data.open("glyphs-mini")
>>> train = glyphs.train.with_transform(data.GlyphTransform(), seed=0)
>>> sampler = data.BalancedSampler(train.labels, classes_per_batch=20, per_class=5)
>>> images, labels = next(iter(data.loader(train, sampler)))
>>> images.shape, labels.shape
(torch.Size([100, 1, 28, 28]), torch.Size([100]))
"""

from metrix.data.cache import PixelCache, build_cache
from metrix.data.catalogue import PARTS, Catalogue
from metrix.data.checking import CheckReport, PartSummary, check
from metrix.data.copies import Copy
from metrix.data.dataset import Dataset, Part
from metrix.data.images import ImageError, load_image
from metrix.data.item_seeds import Repeat
from metrix.data.leaks import Leak
from metrix.data.loading import loader
from metrix.data.opening import open_dataset as open
from metrix.data.opening import read_catalogue
from metrix.data.samplers import BalancedSampler, BatchSampler, RandomSampler
from metrix.data.survey import Broken
from metrix.data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    GlyphTransform,
    PhotoTransform,
    inference_transform,
    still_transform,
    train_transform,
    transforms_for,
)
from metrix.files import cache_folder

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "PARTS",
    "BalancedSampler",
    "BatchSampler",
    "Broken",
    "Catalogue",
    "CheckReport",
    "Copy",
    "Dataset",
    "GlyphTransform",
    "ImageError",
    "Leak",
    "Part",
    "PartSummary",
    "PhotoTransform",
    "PixelCache",
    "RandomSampler",
    "Repeat",
    "build_cache",
    "cache_folder",
    "check",
    "inference_transform",
    "load_image",
    "loader",
    "open",
    "read_catalogue",
    "still_transform",
    "train_transform",
    "transforms_for",
]
