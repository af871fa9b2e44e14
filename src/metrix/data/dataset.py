"""A catalogue with its images: parts that a torch DataLoader can read.

>>> from metrix import data
>>> birds = data.open("CUB_200_2011")                                       # doctest: +SKIP
>>> train = birds.train.with_transform(data.train_transform(224), seed=0)   # doctest: +SKIP
>>> image, label = train[0]                                                 # doctest: +SKIP
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from metrix.data.cache import PixelCache
from metrix.data.catalogue import Catalogue
from metrix.data.images import load_image
from metrix.data.item_seeds import drawing_from, item_keys
from metrix.data.samplers import BatchSampler
from metrix.data.survey import Broken
from metrix.data.transforms import BatchTransform, Transform
from metrix.errors import DataError


class Part(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """(image, label) pairs of one part.

    Labels count from 0 without gaps; `class_names[label]` is the class. Query and gallery share the labels
    of the whole test part. `indices` are the positions in the catalogue, so that an image that is both a
    query and in the gallery can be told.

    Without a transform an image is a uint8 tensor (channels, height, width). What is random in a transform
    depends on (seed, epoch, index) and nothing else: not on the order, the batch or the number of loader
    processes. Global random state stays as it was.
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
        """How many classes its labels are of."""
        return len(self.class_names)

    @property
    def paths(self) -> tuple[str, ...]:
        """The images' paths, relative to the dataset's root."""
        return tuple(self._source.catalogue.paths[i] for i in self.indices.tolist())

    @property
    def epoch(self) -> int:
        """The epoch that random views are of."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Give every image new random views; loader processes that already run see it too."""
        self._epoch.fill_(epoch)

    def with_transform(self, transform: Transform | None, seed: int = 0) -> Part:
        """The same part under another transform; this one stays as it is."""
        other = copy.copy(self)
        other.transform, other.seed, other._epoch = transform, seed, _shared_zero()
        return other

    def image(self, index: int) -> Tensor:
        """An image without its transform, uint8 (channels, height, width)."""
        return self._source.pixels(int(self.indices[index]))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Several items at once, as DataLoader asks for a batch."""
        images = self._transformed(indices)
        return [(image, int(self.labels[i])) for image, i in zip(images, indices, strict=True)]

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images (n, channels, height, width) and labels (n,); needs images of one size, so a transform."""
        images = self._transformed(indices)
        stacked = images if isinstance(images, Tensor) else torch.stack(images)
        return stacked, self.labels[[int(i) for i in indices]]

    def _transformed(self, indices: Sequence[int]) -> Tensor | list[Tensor]:
        images = [self.image(i) for i in indices]
        if self.transform is None:
            return images
        keys = self._keys(indices)
        if isinstance(self.transform, BatchTransform):
            return self.transform.batch(images, keys)
        views: list[Tensor] = []
        for image, key in zip(images, keys.tolist(), strict=True):
            with drawing_from(key):
                views.append(self.transform(image))
        return views

    def _keys(self, indices: Sequence[int]) -> NDArray[np.uint64]:
        positions = self.indices[[int(i) for i in indices]]
        return item_keys(self.seed, self.epoch, positions, [getattr(i, "visit", 0) for i in indices])


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """The images of a catalogue, in parts: `train` and `test`, or `train`, `query` and `gallery`.

    `test` is everything that is not for training; without a separate gallery, query and gallery are both
    all of it. `broken` are the images left out.
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
        """A part by its name; an error if it holds nothing."""
        catalogue = self.catalogue
        good = np.setdiff1d(catalogue.where(name), [b.position for b in self.broken])
        if not len(good):
            held = ", ".join(catalogue.part_names)
            hint = "; use hold_out to get one" if name == "val" else ""
            raise DataError(f"this dataset has no {name} part; it has {held}{hint}")
        space = "test" if name in ("query", "gallery") else name
        classes = np.unique(catalogue.labels[catalogue.where(space)])
        return Part(self, good, classes)

    def hold_out(self, fraction: float = 0.1, seed: int = 0) -> Dataset:
        """The same images with a share of the training classes as `val`; the test classes stay untouched."""
        return dataclasses.replace(self, catalogue=self.catalogue.hold_out(fraction, seed))

    def pixels(self, position: int) -> Tensor:
        """The image at a position of the catalogue, uint8 (channels, height, width)."""
        if self.catalogue.pixels is not None:
            return torch.from_numpy(self.catalogue.pixels[position]).unsqueeze(0)
        if self.cache is not None:
            array = self.cache[position]
        else:
            box = self.catalogue.boxes[position] if self.catalogue.boxes is not None else None
            array = np.array(load_image(self.catalogue.file(position), box, self.short_side))
        return torch.from_numpy(array).permute(2, 0, 1)


def loader(
    part: Part, sampler: BatchSampler | None = None, *, batch_size: int = 256, workers: int = 0
) -> torch.utils.data.DataLoader[Any]:
    """Batches of (images, labels): those of a sampler, or without one all images in order.

    >>> batches = loader(train, BalancedSampler(train.labels, 20, 5), workers=2)  # doctest: +SKIP
    """
    # The loader draws a seed of its own at each start; its own generator keeps that off the global one.
    common: dict[str, Any] = {
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "generator": torch.Generator(),
    }
    whole = _Whole(part)
    if sampler is not None:
        return torch.utils.data.DataLoader(whole, batch_sampler=sampler, collate_fn=_as_is, **common)
    return torch.utils.data.DataLoader(whole, batch_size=batch_size, collate_fn=_as_is, **common)


class _Whole(torch.utils.data.Dataset[Any]):
    """A part that gives batches already put together, which saves DataLoader a copy of each."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.part[index]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.part.batch(indices)


def _as_is(batch: Any) -> Any:
    return batch


def _shared_zero() -> Tensor:
    """A number that loader processes share with this one."""
    shared = torch.zeros((), dtype=torch.int64)
    shared.share_memory_()  # type: ignore[no-untyped-call]
    return shared
