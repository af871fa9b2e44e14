from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from metrix.errors import ChoiceError, ModelError
from metrix.model import Embedder
from metrix.model.stages import examine, run_up_to


def images(embedder: Embedder, count: int = 2) -> Tensor:
    size = embedder.data_config.size
    return torch.rand(count, embedder.data_config.channels, size, size)


@pytest.mark.parametrize(
    ("backbone", "stages"),
    [
        ("glyphs-cnn", [f"stage{n}" for n in range(1, 6)]),
        ("resnet18", ["stem", "layer1", "layer2", "layer3", "layer4"]),
        ("efficientnet_lite0", ["stem", *(f"blocks.{n}" for n in range(7)), "tail"]),
        ("vit_tiny_patch16_224", ["stem", *(f"blocks.{n}" for n in range(12)), "tail"]),
        ("convnext_atto", ["stem", *(f"stages.{n}" for n in range(4))]),
    ],
)
def test_stages(backbone: str, stages: list[str]) -> None:
    assert Embedder(backbone, dim=4).stages() == stages


@pytest.mark.parametrize(
    ("backbone", "freeze_to", "size"),
    [
        ("glyphs-cnn", "stage3", 28),
        ("glyphs-cnn", "all", 28),
        ("glyphs-cnn", None, 28),
        ("resnet10t", "stem", 64),
        ("resnet10t", "layer3", 64),
        ("efficientnet_lite0", "blocks.4", 64),
        ("efficientnet_lite0", "tail", 64),
        ("vit_tiny_patch16_224", "stem", 32),
        ("vit_tiny_patch16_224", "blocks.9", 32),
        ("convnext_atto", "stages.2", 64),
        ("mobilenetv3_small_050", "blocks.3", 64),
    ],
)
def test_features_are_the_rest_after_the_trunk(backbone: str, freeze_to: str | None, size: int) -> None:
    """Against an embedder that is not cut: the same network run whole."""
    cut = Embedder(backbone, dim=4, freeze_to=freeze_to, image_size=size).eval()
    whole = Embedder(backbone, dim=4, image_size=size).eval()
    whole.load_state_dict(cut.state_dict())
    x = images(cut)
    with torch.no_grad():
        activations = cut.trunk(x)
        kept = activations.clone()
        rest = cut.features_from(activations)
        assert torch.equal(activations, kept), "the rest wrote into the activations it was given"
        assert torch.equal(rest, whole.features(x))
        from_file = activations.clone(memory_format=torch.contiguous_format)
        assert torch.equal(cut.features_from(from_file), whole.features(x))
        assert torch.equal(cut.features(x), whole.features(x))
        assert torch.equal(cut(x), whole(x))


def test_without_freezing_the_trunk_is_empty_and_with_all_it_is_everything() -> None:
    free, frozen = Embedder("glyphs-cnn", dim=4), Embedder("glyphs-cnn", dim=4, freeze_to="all")
    x = images(free)
    assert torch.equal(free.trunk(x), x)
    activations = frozen.trunk(x)
    assert frozen.features_from(activations) is activations
    assert activations.shape == (2, 128, 4, 4)


@pytest.mark.parametrize("freeze_to", ["stem", "blocks.3", "all"])
def test_only_what_follows_the_boundary_learns(freeze_to: str) -> None:
    embedder = Embedder("vit_tiny_patch16_224", dim=4, freeze_to=freeze_to, image_size=32)
    embedder(images(embedder)).sum().backward()
    learning = {name for name, p in embedder.named_parameters() if p.grad is not None}
    first_free = {"stem": 0, "blocks.3": 4, "all": 12}[freeze_to]
    blocks = {int(name.split(".")[2]) for name in learning if name.startswith("backbone.blocks.")}
    assert blocks == set(range(first_free, 12))
    others = {name for name in learning if not name.startswith(("backbone.blocks.", "head."))}
    assert others == (set() if freeze_to == "all" else {"backbone.norm.weight", "backbone.norm.bias"})
    assert {name for name, p in embedder.named_parameters() if p.requires_grad} == learning


def test_the_frozen_part_never_trains() -> None:
    """Batch norm before the boundary keeps its statistics, after it updates them."""
    embedder = Embedder("glyphs-cnn", dim=4, freeze_to="stage2").train()
    before = {name: t.clone() for name, t in embedder.state_dict().items()}
    embedder(images(embedder, 8))
    moved = {n.split(".")[1] for n, t in embedder.state_dict().items() if not torch.equal(t, before[n])}
    assert moved == {"stage3", "stage4", "stage5"}
    assert not embedder.trunk(images(embedder)).requires_grad


def test_frozen_batch_norm_keeps_statistics_and_trains_scale() -> None:
    embedder = Embedder("resnet10t", dim=4, frozen_bn=True).train()
    before = {name: t.clone() for name, t in embedder.backbone.named_buffers()}
    embedder(torch.rand(2, 3, 64, 64)).sum().backward()
    assert all(torch.equal(t, before[name]) for name, t in embedder.backbone.named_buffers())
    norms = [m for m in embedder.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert all(m.weight.grad is not None and not m.training for m in norms)
    assert embedder.backbone.training
    embedder.eval().train()
    assert not any(m.training for m in norms)


def test_statistics_move_without_frozen_batch_norm() -> None:
    embedder = Embedder("resnet10t", dim=4).train()
    before = embedder.backbone.layer1[0].bn1.running_mean.clone()  # type: ignore[union-attr,index]
    embedder(torch.rand(2, 3, 64, 64))
    assert not torch.equal(embedder.backbone.layer1[0].bn1.running_mean, before)  # type: ignore[union-attr,index]


def test_unknown_stage_names_the_stages() -> None:
    with pytest.raises(ChoiceError, match=r"'layer9'; did you mean 'layer\d'\? expected one of: 'stem', .*'all'"):
        Embedder("resnet10t", freeze_to="layer9")


def test_fingerprint_is_of_the_trunk_alone() -> None:
    embedder = Embedder("glyphs-cnn", dim=4, freeze_to="stage2")
    first = embedder.trunk_fingerprint()
    with torch.no_grad():
        embedder.head.linear.weight.add_(1)  # type: ignore[union-attr]
        embedder.backbone.get_parameter("stage3.0.weight").add_(1)
    assert embedder.trunk_fingerprint() == first
    with torch.no_grad():
        embedder.backbone.get_buffer("stage2.1.running_mean")[0] += 1e-6
    assert embedder.trunk_fingerprint() != first


class BetweenStages(nn.Module):
    """A backbone with code between its stages: `work` is applied to what stage2 gives."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.stage1, self.stage2, self.stage3 = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.in_place = in_place

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.stage2(self.stage1(x))
        x = x.mul_(2) if self.in_place else x * 2
        out: Tensor = self.stage3(x)
        return out


def test_no_cut_is_offered_before_code_between_stages() -> None:
    anatomy = examine(BetweenStages(in_place=False), torch.rand(1, 3, 4, 4))
    assert [stage.name for stage in anatomy.stages] == ["stage3"]


def test_a_cut_before_hidden_in_place_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing shows that the tensor was changed on its way; only the values tell."""
    monkeypatch.setattr("metrix.model.backbones.GlyphsCNN", lambda: InPlaceGrey())
    assert Embedder("glyphs-cnn", dim=4, freeze_to="stage3").stages() == ["stage1", "stage2", "stage3"]
    with pytest.raises(ModelError, match="cannot be frozen up to 'stage2'"):
        Embedder("glyphs-cnn", dim=4, freeze_to="stage2")


class InPlaceGrey(BetweenStages):
    def __init__(self) -> None:
        super().__init__(in_place=True)
        self.stage1 = nn.Conv2d(1, 3, 1)


def test_running_up_to_a_module_runs_nothing_after_it() -> None:
    network = BetweenStages(in_place=False)
    ran: list[str] = []
    network.stage2.register_forward_hook(lambda *_: ran.append("stage2"))
    out = run_up_to(network, "stage1", torch.ones(1, 3, 2, 2))
    assert torch.equal(out, network.stage1(torch.ones(1, 3, 2, 2)))
    assert ran == []
    assert not network.stage1._forward_hooks, "the hook must not outlive the call"
