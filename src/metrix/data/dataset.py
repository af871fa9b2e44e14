"""Datasets and their parts, which a torch DataLoader can read.

>>> from metrix import data
>>> train = data.open("glyphs-mini").train.with_transform(data.GlyphTransform(), seed=0)
>>> image, label = train[0]
>>> image.shape
torch.Size([1, 28, 28])
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from metrix.data.cache import PixelCache
from metrix.data.catalogue import Catalogue
from metrix.data.images import load_image
from metrix.data.item_seeds import item_keys, seed_torch
from metrix.data.survey import Broken
from metrix.data.transforms import BatchTransform, Transform
from metrix.errors import DataError


class Part(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """The (image, label) pairs of one part of a dataset, or (vector, label) pairs where the data are vectors.

    Labels count from 0 without gaps, and `class_names[label]` is the name of the class. Query and gallery share the
    labels of the test part. `indices` are positions in the catalogue: an image that is both a query and in the
    gallery has the same index in both.

    Without a transform, an image is a uint8 tensor (channels, height, width). A random transform depends only on
    seed, epoch and index of the image, not on the order, the batch or the number of loader processes. The global
    random state does not change.
    """

    def __init__(self, source: Dataset, indices: NDArray[np.int64], classes: NDArray[np.int64]) -> None:
        self._source = source
        self.indices = indices
        self.labels = torch.from_numpy(np.searchsorted(classes, source.catalogue.labels[indices]))
        self.class_names = tuple(source.catalogue.class_names[k] for k in classes.tolist())
        self.transform: Transform | None = None
        self.seed = 0
        self._epoch = _shared_zero()

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Part({len(self):,} images, {self.num_classes:,} classes)"

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the images, relative to the root of the dataset."""
        return tuple(self._source.catalogue.paths[i] for i in self.indices.tolist())

    def fingerprint(self) -> str:
        """SHA-256 of the data that it is a part of: see `Catalogue.fingerprint`."""
        return self._source.catalogue.fingerprint()

    @property
    def layout(self) -> str:
        """The layout of the data that it is a part of, such as `folder`."""
        return self._source.catalogue.layout

    @property
    def sequences(self) -> NDArray[np.str_] | None:
        """The sequence of each image, "" for none; None if the dataset has no sequences."""
        found = self._source.catalogue.sequences
        return None if found is None else np.array(found)[self.indices]

    @property
    def epoch(self) -> int:
        """The epoch, which random transforms depend on."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which gives every image a new random view, also in loader processes that are running."""
        self._epoch.fill_(epoch)

    @property
    def in_memory(self) -> bool:
        """Whether the images, or vectors, need no decoding."""
        return self._source.catalogue.in_memory

    def with_transform(self, transform: Transform | None, seed: int = 0) -> Part:
        """A copy of this part with another transform; `seed` is that of its random numbers."""
        other = copy.copy(self)
        other.transform, other.seed, other._epoch = transform, seed, _shared_zero()
        return other

    def select(self, rows: NDArray[np.int64]) -> Part:
        """Some of the images, with their labels; classes keep their numbers."""
        other = copy.copy(self)
        other.indices, other.labels = self.indices[rows], self.labels[torch.from_numpy(rows)]
        return other

    def image(self, index: int) -> Tensor:
        """An image before the transform, uint8 (channels, height, width).

        Raises:
            DataError: the examples are vectors, not images
        """
        return self._source.pixels(int(self.indices[index]))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Several items at once, which is how DataLoader fetches a batch."""
        images = self._transform(indices)
        return [(image, int(self.labels[i])) for image, i in zip(images, indices, strict=True)]

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images (n, channels, height, width) and labels (n,); the transform must give all images one size."""
        images = self._transform(indices)
        stacked = images if isinstance(images, Tensor) else torch.stack(images)
        return stacked, self.labels[[int(i) for i in indices]]

    def _transform(self, indices: Sequence[int]) -> Tensor | list[Tensor]:
        vectors = self._source.catalogue.vectors
        if vectors is not None:
            return torch.from_numpy(vectors[self.indices[[int(i) for i in indices]]])
        images = [self.image(i) for i in indices]
        if self.transform is None:
            return images
        keys = self._keys(indices)
        if isinstance(self.transform, BatchTransform):
            return self.transform.batch(images, keys)
        views: list[Tensor] = []
        for image, key in zip(images, keys, strict=True):
            with seed_torch(key):
                views.append(self.transform(image))
        return views

    def _keys(self, indices: Sequence[int]) -> NDArray[np.uint64]:
        positions = self.indices[[int(i) for i in indices]]
        return item_keys(self.seed, self.epoch, positions, [getattr(i, "visit", 0) for i in indices])


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """The images of a catalogue, in parts: `train` and `test`, or `train`, `query` and `gallery`.

    `test` is every image that is neither `train` nor `val`. Without a separate gallery, both query and gallery are
    the whole test part. The `broken` images are in no part.
    """

    catalogue: Catalogue
    broken: tuple[Broken, ...] = ()
    cache: PixelCache | None = None
    short_side: int | None = None

    def __repr__(self) -> str:
        return f"Dataset({self.catalogue!r}, {len(self.broken)} broken)"

    @property
    def train(self) -> Part:
        """The images of the training classes."""
        return self.part("train")

    @property
    def val(self) -> Part:
        """The images of training classes held out for model selection."""
        return self.part("val")

    @property
    def test(self) -> Part:
        """The images of the unseen classes."""
        return self.part("test")

    @property
    def query(self) -> Part:
        """The test images to search with."""
        return self.part("query")

    @property
    def gallery(self) -> Part:
        """The test images to search in."""
        return self.part("gallery")

    @property
    def separate_gallery(self) -> bool:
        """Whether queries and gallery are different images."""
        return bool(np.isin(self.catalogue.parts, ("query", "gallery")).any())

    def part(self, name: str) -> Part:
        """A part by its name; a DataError if it has no images."""
        catalogue = self.catalogue
        good = np.setdiff1d(catalogue.where(name), [b.position for b in self.broken])
        if not len(good):
            held = ", ".join(catalogue.part_names)
            hint = "; create one with hold_out" if name == "val" else ""
            raise DataError(f"this dataset has no {name} part; it has {held}{hint}")
        space = "test" if name in ("query", "gallery") else name
        classes = np.unique(catalogue.labels[catalogue.where(space)])
        return Part(self, good, classes)

    def hold_out(self, fraction: float = 0.1, seed: int = 0) -> Dataset:
        """The same images with a fraction of the training classes as `val`; the test classes stay the same."""
        return dataclasses.replace(self, catalogue=self.catalogue.hold_out(fraction, seed))

    def pixels(self, position: int) -> Tensor:
        """The image at a position in the catalogue, uint8 (channels, height, width)."""
        if self.catalogue.vectors is not None:
            raise DataError("expected images, got vectors, which cannot be shown")
        if self.catalogue.pixels is not None:
            return torch.from_numpy(self.catalogue.pixels[position]).unsqueeze(0)
        if self.cache is not None:
            array = self.cache[position]
        else:
            file, box = self.catalogue.file(position), self.catalogue.box(position)
            array = np.array(load_image(file, box, self.short_side))
        return torch.from_numpy(array).permute(2, 0, 1)


def _shared_zero() -> Tensor:
    """A zero in memory that loader processes share with this one."""
    shared = torch.zeros((), dtype=torch.int64)
    shared.share_memory_()  # type: ignore[no-untyped-call]
    return shared
