"""From a uint8 image to what a model takes: the paper's crops for photographs, small affine moves for glyphs.

A transform is any callable from a uint8 tensor (channels, height, width) to a tensor; torchvision's
`transforms.v2` are such. One with a method `batch(images, keys)`, as those here, is given whole batches with
one random key per image, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrix.data.item_seeds import drawing_from, uniform
from metrix.errors import DataError, unknown_choice

Transform = Callable[[Tensor], Tensor]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
AUGMENTATIONS = ("standard", "none")


@runtime_checkable
class BatchTransform(Protocol):
    """A transform that takes whole batches."""

    def __call__(self, image: Tensor) -> Tensor:
        """One image, without randomness."""

    def batch(self, images: Sequence[Tensor], keys: NDArray[np.uint64]) -> Tensor:
        """Images with a random key for each, as (n, channels, height, width)."""


class PhotoTransform:
    """A view of fixed size by steps of torchvision on uint8, then float values with `mean` 0 and `std` 1.

    >>> from torchvision.transforms import v2
    >>> PhotoTransform(v2.CenterCrop(2), mean=(0,), std=(1,))(torch.full((1, 4, 4), 255, dtype=torch.uint8))
    tensor([[[1., 1.],
             [1., 1.]]])
    """

    def __init__(self, view: Callable[[Tensor], Tensor], mean: Sequence[float], std: Sequence[float]) -> None:
        self.view = view
        self._shift = 255 * torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)  # (channels, 1, 1)
        self._factor = 1 / (255 * torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def __call__(self, image: Tensor) -> Tensor:
        """One image; what is random draws from torch's global generator, as in torchvision."""
        return (self.view(image) - self._shift) * self._factor

    def batch(self, images: Sequence[Tensor], keys: NDArray[np.uint64]) -> Tensor:
        """Images of any sizes, each drawn from its key."""
        batch: Tensor | None = None
        for n, (image, key) in enumerate(zip(images, keys.tolist(), strict=True)):
            with drawing_from(key):
                view = self.view(image)
            if batch is None:
                batch = torch.empty(len(images), *view.shape)
            # One image at a time stays in the processor's cache; a batch would pass through memory thrice.
            torch.sub(view, self._shift, out=batch[n]).mul_(self._factor)
        return torch.empty(0) if batch is None else batch


def train_transform(
    size: int = 224,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    flip: float = 0.5,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> PhotoTransform:
    """The paper's training views: a random crop resized to `size`, flipped left to right half of the time.

    >>> train_transform(32)(torch.zeros(3, 50, 40, dtype=torch.uint8)).shape
    torch.Size([3, 32, 32])
    """
    from torchvision.transforms import v2

    _require_sizes(size=size)
    crop = v2.RandomResizedCrop(size, scale=scale, antialias=True)
    return PhotoTransform(v2.Compose([crop, v2.RandomHorizontalFlip(flip)]), mean, std)


def inference_transform(
    size: int = 224,
    *,
    resize: int | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> PhotoTransform:
    """The paper's inference view: shorter side to `resize` (default: 256 for 224), then the centre of `size`.

    >>> inference_transform(28)(torch.zeros(3, 50, 40, dtype=torch.uint8)).shape
    torch.Size([3, 28, 28])
    """
    from torchvision.transforms import v2

    resize = round(size * 256 / 224) if resize is None else resize
    _require_sizes(size=size, resize=resize)
    if resize < size:
        raise DataError(f"resize={resize} is smaller than the crop of size={size}")
    return PhotoTransform(v2.Compose([v2.Resize(resize, antialias=True), v2.CenterCrop(size)]), mean, std)


class GlyphTransform:
    """Small random turns, slants, sizes and shifts of a glyph; never a flip, which would make it another.

    >>> GlyphTransform.still()(torch.zeros(1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([1, 28, 28])
    """

    def __init__(
        self,
        degrees: float = 10.0,
        shear: float = 10.0,
        scale: tuple[float, float] = (0.85, 1.15),
        shift: float = 0.08,
        *,
        mean: float = 0.5,
        std: float = 0.5,
    ) -> None:
        self.degrees, self.shear, self.scale, self.shift = degrees, shear, scale, shift
        self.mean, self.std = mean, std

    @classmethod
    def still(cls, *, mean: float = 0.5, std: float = 0.5) -> GlyphTransform:
        """No moves, only the scaling of grey values."""
        return cls(0.0, 0.0, (1.0, 1.0), 0.0, mean=mean, std=std)

    @property
    def moves(self) -> bool:
        """Whether anything is random."""
        return bool(self.degrees or self.shear or self.shift or self.scale != (1.0, 1.0))

    def __call__(self, image: Tensor) -> Tensor:
        """One image, not moved."""
        return (image.float() / 255 - self.mean) / self.std

    def batch(self, images: Sequence[Tensor], keys: NDArray[np.uint64]) -> Tensor:
        """Images (1, height, width), each moved as its key says."""
        pixels = torch.stack(list(images)).float() / 255
        if self.moves:
            grid = torch.nn.functional.affine_grid(self.matrices(keys), list(pixels.shape), align_corners=False)
            pixels = torch.nn.functional.grid_sample(pixels, grid, align_corners=False)  # black outside
        return (pixels - self.mean) / self.std

    def matrices(self, keys: NDArray[np.uint64]) -> Tensor:
        """(n, 2, 3): where each output pixel comes from."""
        turn, slant, size, right, down = uniform(keys, 5).T
        angle = np.deg2rad(self.degrees) * (2 * turn - 1)
        skew = np.tan(np.deg2rad(self.shear) * (2 * slant - 1))
        grow = self.scale[0] + (self.scale[1] - self.scale[0]) * size
        # Coordinates run from -1 to 1, so a shift by a share of the side is twice that.
        across, along = (2 * self.shift * (2 * u - 1) for u in (right, down))
        cos, sin = np.cos(angle) / grow, np.sin(angle) / grow
        rows = [[cos, skew * cos - sin, across], [sin, skew * sin + cos, along]]
        return torch.from_numpy(np.stack([np.stack(row, axis=-1) for row in rows], axis=1)).float()


def transforms_for(
    layout: str,
    *,
    size: int = 224,
    augment: str = "standard",
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> tuple[Transform, Transform]:
    """The usual transforms for training and for testing, by the catalogue's layout.

    `augment="none"` trains on the test view. Glyphs keep their size of 28 and a grey channel.
    """
    if augment not in AUGMENTATIONS:
        raise unknown_choice("augment", augment, AUGMENTATIONS)
    if layout.startswith("glyphs"):
        still = GlyphTransform.still()
        return (GlyphTransform() if augment == "standard" else still), still
    test = inference_transform(size, mean=mean, std=std)
    return (train_transform(size, mean=mean, std=std) if augment == "standard" else test), test


def _require_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise DataError(f"{name} is a number of pixels, at least 1; got {value}")
