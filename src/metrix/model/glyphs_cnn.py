"""The built-in backbone for small grey images: five convolutions, which train in seconds."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

WIDTHS = (1, 32, 64, 64, 128, 128)
STRIDES = (2, 2, 1, 2, 1)


def _convolution(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class GlyphsCNN(nn.Module):
    """A small network from grey images (n, 1, 28, 28) to maps (n, 128, 4, 4).

    >>> import torch
    >>> GlyphsCNN().forward_features(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 128, 4, 4])

    The first layers have the strides, because they take most of the time on a CPU: at full resolution, a training
    step takes twice as long.
    """

    num_features = WIDTHS[-1]

    def __init__(self) -> None:
        super().__init__()
        for number, ((channels, width), stride) in enumerate(zip(pairwise(WIDTHS), STRIDES, strict=True), 1):
            self.add_module(f"stage{number}", _convolution(channels, width, stride))

    def forward_features(self, x: Tensor) -> Tensor:
        """Maps (n, 128, ⌈h/8⌉, ⌈w/8⌉) of grey images (n, 1, h, w)."""
        for stage in self.children():
            x = stage(x)
        return x
