"""Low-rank adapters of ViTs and ConvNeXts: what is trained, what is saved, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from metrix import Embedder
from metrix.errors import ModelError
from metrix.model import lora

SIZES = {"test_vit": 32, "test_convnext": 64}


def build(backbone: str, freeze_to: str | None = None) -> Embedder:
    torch.manual_seed(0)
    size = SIZES[backbone] if backbone == "test_vit" else None
    return Embedder(backbone, dim=8, pool="avg", freeze_to=freeze_to, image_size=size)


def train_a_little(embedder: Embedder) -> torch.Tensor:
    """Two steps of everything that has a gradient; returns images."""
    side = SIZES[embedder.config.backbone]
    images = torch.randn(2, 3, side, side)
    optimizer = torch.optim.SGD([p for p in embedder.parameters() if p.requires_grad], lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        (embedder(images)[0] @ embedder(images)[1]).backward()
        optimizer.step()
    return images


def test_a_layer_is_the_literal_formula():
    torch.manual_seed(0)
    plain = nn.Linear(5, 3).double()
    layer = lora.LowRankLinear(plain, rank=2, alpha=6.0)
    x = torch.randn(4, 5, dtype=torch.float64)
    assert torch.equal(layer(x), plain(x))
    nn.init.normal_(layer.lora_b)
    expected = x @ (plain.weight + 6.0 / 2 * layer.lora_b @ layer.lora_a).T + plain.bias
    assert torch.allclose(layer(x), expected, atol=1e-12)
    merged = nn.Linear(5, 3).double()
    merged.load_state_dict(lora.merge(layer.state_dict(), layer.scale))
    assert torch.allclose(merged(x), expected, atol=1e-12)


@pytest.mark.parametrize("backbone", ["test_vit", "test_convnext"])
def test_only_adapters_and_head_are_trained_and_the_saved_model_is_plain(backbone, tmp_path):
    reference = build(backbone)
    embedder = build(backbone).add_adapters(rank=2, alpha=4.0)
    side = SIZES[backbone]
    still = torch.randn(2, 3, side, side)
    assert torch.equal(embedder.eval()(still), reference.eval()(still))
    embedder.train()
    trained = {name.rpartition(".")[2] for name, p in embedder.backbone.named_parameters() if p.requires_grad}
    assert trained == {"lora_a", "lora_b"}
    images = train_a_little(embedder)
    for name, tensor in reference.backbone.state_dict().items():
        assert torch.equal(embedder.backbone.state_dict()[name], tensor), name
    embedder.eval()
    assert not torch.allclose(embedder(images), reference(images), atol=1e-3)
    embedder.save(tmp_path / "model")
    loaded = Embedder.load(tmp_path / "model")
    assert set(loaded.state_dict()) == set(reference.state_dict())
    assert torch.allclose(loaded(images), embedder(images), atol=1e-5)


def test_targets_and_frozen_blocks_have_adapters_where_they_should():
    embedder = build("test_vit", freeze_to="blocks.2").add_adapters(rank=1, targets=("qkv", "proj"))
    names = [name for name, _ in embedder.backbone.named_parameters() if name.endswith("lora_a")]
    assert names
    assert all(name.split(".")[-2] in ("qkv", "proj") for name in names)
    assert all(int(name.split(".")[1]) > 2 for name in names)
    assert "blocks.2" in embedder.stages()
    train_a_little(embedder)


REFUSALS = {
    "no such layer": (lambda: build("test_vit").add_adapters(targets=("qvk",)), "got qvk"),
    "all frozen": (lambda: build("test_vit", freeze_to="all").add_adapters(), "freezes all of it"),
    "twice": (lambda: build("test_vit").add_adapters().add_adapters(), "without adapters"),
    "no linear layers": (lambda: Embedder("glyphs-cnn", dim=8).add_adapters(), "such as a ViT or a ConvNeXt"),
    "a rank of 0": (lambda: build("test_vit").add_adapters(rank=0), "lora_rank: expected an integer"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    make, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_weight_that_is_read_without_calling_its_layer_is_noticed():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward_features(self, x):
            return nn.functional.linear(x, self.layer.weight)

    network = Reader()
    paths = lora.add_adapters(network, None, 1, 1.0)
    with pytest.raises(ModelError, match="does not call layer"):
        lora.check_called(network, torch.randn(1, 3), paths)
