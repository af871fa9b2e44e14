from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import timm
import torch
from torch.nn import functional as F

from metrix.core.head import PoolLinear
from metrix.errors import ChoiceError, InvalidInput, ModelError
from metrix.model import DataConfig, Embedder


@pytest.mark.parametrize(
    ("backbone", "channels", "size", "shape"),
    [
        ("glyphs-cnn", 1, 28, (2, 128, 4, 4)),
        ("resnet10t", 3, 64, (2, 512, 2, 2)),
        ("efficientnet_lite0", 3, 64, (2, 1280, 2, 2)),
        ("convnext_atto", 3, 64, (2, 320, 2, 2)),
        ("mobilenetv3_small_050", 3, 64, (2, 288, 2, 2)),
        ("vit_tiny_patch16_224", 3, 224, (2, 196, 192)),
        ("swin_tiny_patch4_window7_224", 3, 224, (2, 768, 7, 7)),
    ],
)
def test_features_come_before_pooling_and_embeddings_have_unit_norm(
    backbone: str, channels: int, size: int, shape: tuple[int, ...]
) -> None:
    embedder = Embedder(backbone, dim=16).eval()
    x = torch.rand(2, channels, size, size)
    with torch.no_grad():
        features = embedder.features(x)
        embeddings = embedder(x)
    assert features.shape == shape
    assert embeddings.shape == (2, 16)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(2))
    assert torch.equal(embeddings, embedder.head(features))


def test_a_channels_last_backbone_gives_the_same_values_in_a_map() -> None:
    embedder = Embedder("swin_tiny_patch4_window7_224", dim=4).eval()
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        raw = embedder.backbone.forward_features(x)  # (1, 7, 7, 768)
        assert torch.equal(embedder.features(x), raw.permute(0, 3, 1, 2))


@pytest.mark.parametrize("backbone", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_class_and_other_prefix_tokens_are_not_pooled(backbone: str) -> None:
    patches = Embedder(backbone, dim=4, pool="avg").eval()
    of_class = Embedder(backbone, dim=4, pool="cls").eval()
    of_class.backbone.load_state_dict(patches.backbone.state_dict())
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        tokens = patches.backbone.forward_features(x)
        assert torch.equal(patches.features(x), tokens[:, -196:])
        assert torch.equal(of_class.features(x), tokens[:, :1])


def test_parameters_that_the_features_do_not_use_are_gone() -> None:
    """convnext's norm before the classifier would never get a gradient."""
    embedder = Embedder("convnext_atto", dim=4)
    embedder(torch.rand(2, 3, 64, 64)).sum().backward()
    assert [name for name, parameter in embedder.named_parameters() if parameter.grad is None] == []


def test_a_child_that_is_used_without_being_called_stays() -> None:
    """eva asks its rope for a table; it is never called."""
    embedder = Embedder("eva02_tiny_patch14_224", dim=4).eval()
    with torch.no_grad():
        assert embedder.features(torch.rand(1, 3, 224, 224)).shape == (1, 256, 192)


def test_features_are_those_of_timm() -> None:
    reference = timm.create_model("resnet10t", num_classes=10).eval()
    embedder = Embedder("resnet10t", dim=4).eval()
    embedder.backbone.load_state_dict(reference.state_dict(), strict=False)
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(embedder.features(x), reference.forward_features(x))


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        ("glyphs-cnn", DataConfig(28, (0.5,), (0.5,), 1)),
        ("efficientnet_lite0", DataConfig(224, (0.498,) * 3, (0.502,) * 3, 3, "bicubic")),
        ("efficientnet_lite1", DataConfig(240, (0.498,) * 3, (0.502,) * 3, 3, "bicubic")),
        ("resnet18", DataConfig(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 3, "bicubic")),
    ],
)
def test_data_config(backbone: str, expected: DataConfig) -> None:
    assert Embedder(backbone, dim=4).data_config == expected


def test_another_image_size() -> None:
    cnn = Embedder("resnet10t", dim=4, image_size=96)
    vit = Embedder("vit_tiny_patch16_224", dim=4, image_size=64).eval()
    assert (cnn.data_config.size, vit.data_config.size) == (96, 64)
    with torch.no_grad():
        assert vit.features(torch.rand(1, 3, 64, 64)).shape == (1, 16, 192)


@pytest.mark.parametrize("pool", ["avg", "max", "avg+max"])
def test_the_papers_heads_are_the_ones_mixup_knows(pool: str) -> None:
    head = Embedder("glyphs-cnn", dim=8, pool=pool).head
    assert isinstance(head, PoolLinear)
    assert head.pool == pool


def test_glyphs_cnn_learns() -> None:
    """Four noisy patterns are told apart after a few steps: gradients reach every layer."""
    embedder = Embedder("glyphs-cnn", dim=8)
    generator = torch.Generator().manual_seed(1)
    patterns = torch.rand(4, 1, 28, 28, generator=generator)
    labels = torch.arange(4).repeat(8)
    optimizer = torch.optim.AdamW(embedder.parameters(), lr=1e-3)
    before = copy.deepcopy(embedder.state_dict())
    losses = []
    for _ in range(15):
        x = patterns[labels] + 0.1 * torch.randn(32, 1, 28, 28, generator=generator)
        embeddings = embedder(x)
        loss = F.cross_entropy(10 * embeddings @ embeddings.detach()[:4].T, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    unmoved = [n for n, p in embedder.named_parameters() if torch.equal(p, before[n])]
    assert unmoved == []


def test_a_copy_of_a_frozen_embedder_is_its_own() -> None:
    embedder = Embedder("glyphs-cnn", dim=4, freeze_to="stage2").eval()
    other = copy.deepcopy(embedder)
    x = torch.rand(2, 1, 28, 28)
    expected = embedder(x)
    with torch.no_grad():
        for parameter in embedder.parameters():
            parameter.zero_()
    assert torch.equal(other(x), expected)


def test_unknown_backbone_names_the_nearest() -> None:
    with pytest.raises(ChoiceError, match=r"unknown backbone 'resnet5'; did you mean .*'resnet50'"):
        Embedder("resnet5")


def test_each_backbone_is_suggested_once() -> None:
    with pytest.raises(ChoiceError) as found:  # this one is a network of ours and of timm
        Embedder("efficientnet_lite00")
    suggested = str(found.value).partition("did you mean ")[2].partition("?")[0].split(" or ")
    assert "'efficientnet_lite0'" in suggested
    assert len(set(suggested)) == len(suggested)


def test_unknown_pool() -> None:
    with pytest.raises(ChoiceError, match=r"unknown pool 'gen'; did you mean 'gem'\?"):
        Embedder("glyphs-cnn", pool="gen")


def test_class_token_of_a_network_without_one() -> None:
    with pytest.raises(ModelError, match=r"pool 'cls' with 'resnet10t', which has no class token"):
        Embedder("resnet10t", pool="cls")


def test_a_backbone_with_several_outputs() -> None:
    with pytest.raises(ModelError, match="forward_features of CoaT returns a list"):
        Embedder("coat_tiny")


@pytest.mark.parametrize("dim", [0, -1, 1.5, True])
def test_dim_must_be_a_positive_whole_number(dim: int) -> None:
    with pytest.raises(InvalidInput, match="dim: expected an integer ≥ 1, got"):
        Embedder("glyphs-cnn", dim=dim)


def test_importing_the_models_imports_no_model_library() -> None:
    code = "import sys, metrix.model; print(sorted({'timm', 'torchvision', 'safetensors'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
