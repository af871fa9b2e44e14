"""Transforms from a uint8 image to the input of a model: crops for photographs, small affine moves for glyphs.

A transform is any callable from a uint8 tensor (channels, height, width) to a tensor, such as torchvision's
`transforms.v2`. A transform that also has a method `batch(images, keys)` is called with whole batches, which is faster;
the random numbers of an image follow from its key (see `item_seeds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrix.data.item_seeds import seed_torch, uniform
from metrix.errors import DataError, unknown_choice

Transform = Callable[[Tensor], Tensor]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
AUGMENTATIONS = ("standard", "none")
LONGEST = 100  # times its shorter side: what a longer image has beyond is not enlarged, since no crop shows it


@runtime_checkable
class BatchTransform(Protocol):
    """A transform that can be applied to whole batches."""

    def __call__(self, image: Tensor) -> Tensor:
        """Transform one image."""

    def batch(self, images: Sequence[Tensor], keys: NDArray[np.uint64]) -> Tensor:
        """Transform n images with their keys (n, 4) to a tensor (n, channels, height, width)."""


class PhotoTransform:
    """A transform of torchvision that gives uint8 images one size, then normalisation: (x / 255 - mean) / std.

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
        """Transform one image; random numbers come from torch's global generator, as in torchvision."""
        return (self.view(image) - self._shift) * self._factor

    def batch(self, images: Sequence[Tensor], keys: NDArray[np.uint64]) -> Tensor:
        """Transform images of any sizes; the random numbers of each follow from its key."""
        batch: Tensor | None = None
        for n, (image, key) in enumerate(zip(images, keys, strict=True)):
            with seed_torch(key):
                view = self.view(image)
            if batch is None:
                batch = torch.empty(len(images), *view.shape)
            # One image at a time stays in the cache of the processor, a whole batch does not.
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
    """The transform of the paper for training: a random crop resized to `size`, and a random horizontal flip.

    Args:
        size: side of the resulting image in pixels.
        scale: smallest and largest area of the crop, as a fraction of the image.
        flip: probability of a flip.
        mean: subtracted from each channel of values in [0, 1].
        std: divisor of each channel after that.

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
    """The transform of the paper for testing: resize the shorter side, then crop the centre.

    Args:
        size: side of the crop in pixels.
        resize: length of the shorter side before the crop; by default 256 / 224 of `size`.
        mean: subtracted from each channel of values in [0, 1].
        std: divisor of each channel after that.

    >>> inference_transform(28)(torch.zeros(3, 50, 40, dtype=torch.uint8)).shape
    torch.Size([3, 28, 28])
    """
    from torchvision.transforms import v2

    resize = round(size * 256 / 224) if resize is None else resize
    _require_sizes(size=size, resize=resize)
    if resize < size:
        raise DataError(f"resize: expected at least size={size}, got {resize}")
    return PhotoTransform(v2.Compose([_cut_ends, v2.Resize(resize, antialias=True), v2.CenterCrop(size)]), mean, std)


def _cut_ends(image: Tensor) -> Tensor:
    """The middle of a very long image: enlarged whole, 3 kB of a strip of 1 x 1,000,000 pixels would be gigabytes."""
    height, width = image.shape[-2:]
    most = LONGEST * min(height, width)
    top, left = (max(0, side - most) // 2 for side in (height, width))
    return image[..., top : height - top, left : width - left]


class GlyphTransform:
    """Small random rotations, shears, scalings and shifts of glyphs; no flips, which change the character.

    Args:
        degrees: largest rotation.
        shear: largest shear, in degrees.
        scale: smallest and largest scaling.
        shift: largest shift, as a fraction of the side.
        mean: subtracted from grey values in [0, 1].
        std: divisor after that.

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
        """A transform that only normalises grey values, for testing."""
        return cls(0.0, 0.0, (1.0, 1.0), 0.0, mean=mean, std=std)

    @property
    def moves(self) -> bool:
        """Whether glyphs are moved at random."""
        return bool(self.degrees or self.shear or self.shift or self.scale != (1.0, 1.0))

    def __call__(self, image: Tensor) -> Tensor:
        """Normalise one image, without moving it."""
        return (image.float() / 255 - self.mean) / self.std

    def batch(self, images: Sequence[Tensor], keys: NDArray[np.uint64]) -> Tensor:
        """Transform images (1, height, width); the moves of each follow from its key."""
        pixels = torch.stack(list(images)).float() / 255
        if self.moves:
            grid = torch.nn.functional.affine_grid(self.matrices(keys), list(pixels.shape), align_corners=False)
            pixels = torch.nn.functional.grid_sample(pixels, grid, align_corners=False)  # black outside
        return (pixels - self.mean) / self.std

    def matrices(self, keys: NDArray[np.uint64]) -> Tensor:
        """Affine matrices (n, 2, 3) from output to input coordinates."""
        turn, slant, size, right, down = uniform(keys, 5).T
        angle = np.deg2rad(self.degrees) * (2 * turn - 1)
        skew = np.tan(np.deg2rad(self.shear) * (2 * slant - 1))
        grow = self.scale[0] + (self.scale[1] - self.scale[0]) * size
        # Coordinates run from -1 to 1, so a shift by a fraction of the side is twice that fraction.
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
    """The default transforms for training and for testing.

    Args:
        layout: the `layout` of the catalogue; glyphs have transforms of their own and keep their 28x28 grey pixels.
        size: side of the resulting image in pixels.
        augment: `standard`, or `none` to train with the transform for testing.
        mean: subtracted from each channel of values in [0, 1].
        std: divisor of each channel after that.

    Returns:
        (transform for training, transform for testing)
    """
    if augment not in AUGMENTATIONS:
        raise unknown_choice("augment", augment, AUGMENTATIONS)
    if layout.startswith("glyphs"):
        still = GlyphTransform.still()
        return (GlyphTransform() if augment == "standard" else still), still
    test = inference_transform(size, mean=mean, std=std)
    return (train_transform(size, mean=mean, std=std) if augment == "standard" else test), test


def still_transform(
    layout: str,
    *,
    size: int = 224,
    channels: int = 3,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> Transform:
    """The transform for testing, with grey images converted for a network that wants colours, and the reverse.

    Args:
        layout: the `layout` of the catalogue; see `transforms_for`.
        size: side of the resulting image in pixels.
        channels: of the resulting image.
        mean: subtracted from each channel of values in [0, 1].
        std: divisor of each channel after that.

    >>> still_transform("folder", size=28, channels=1, mean=(0.5,), std=(0.5,))(
    ...     torch.zeros(3, 40, 50, dtype=torch.uint8)
    ... ).shape
    torch.Size([1, 28, 28])
    """
    if (1 if layout.startswith("glyphs") else 3) == channels:
        return transforms_for(layout, size=size, mean=mean, std=std)[1]
    from torchvision.transforms import v2

    return PhotoTransform(v2.Compose([v2.Grayscale(channels), inference_transform(size).view]), mean, std)


def _require_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise DataError(f"{name}: expected a number of pixels ≥ 1, got {value}")
