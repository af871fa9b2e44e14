from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from metrix import Clean, Metrix
from metrix.cli.flags import NOT_FLAGS, with_config_flags
from metrix.errors import InvalidInput
from metrix.train import Config, config, presets
from metrix.train.build import build_embedder, build_loss, build_objective, build_optimizer
from metrix.train.names import LOSSES, METHODS
from metrix.train.sections import LossChoice


def test_yaml_and_back(tmp_path: Path) -> None:
    given = Config().with_values({"mixup": ["input", "embed"], "hard_negatives": [3, None], "lr": 3e-5, "clip": 1.0})
    (tmp_path / "c.yaml").write_text(given.to_yaml(), "utf-8")
    assert config.read_config(tmp_path / "c.yaml") == given
    assert given.mixing.hard_negatives == (3, None)


def test_left_out_keys_have_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train:\n  epochs: 7\n", "utf-8")
    assert config.read_config(tmp_path / "c.yaml") == Config().with_values({"epochs": 7})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  epocs: 3\n", "unknown key in train 'epocs'; did you mean 'epochs'"),
        ("trian:\n  epochs: 3\n", "unknown section 'trian'; did you mean 'train'"),
        ("train: 3\n", "section 'train': expected a mapping of keys to values, got 3"),
        ("- 1\n", "mapping of sections"),
        ("train:\n  epochs: many\n", "epochs: expected an integer, got 'many'"),
        ("train:\n  epochs: -1\n", "epochs: expected a number ≥ 0, got -1"),
        ("train:\n  lr: 0\n", "lr: expected a number > 0, got 0"),
        ("data:\n  unseen: 1\n", "unseen: expected a number < 1, got 1"),
        ("train:\n  device: gpu\n", "device: expected auto, cpu, cuda, mps, or one of several GPUs"),
        (
            "train:\n  precision: fp16\n",
            "precision: expected 'auto', '32-true', 'bf16-mixed' or '16-mixed', got 'fp16'",
        ),
        ("train:\n  log: [cvs]\n", "log: expected 'csv', 'wandb' or 'mlflow', got 'cvs'"),
        ("model:\n  frozen_bn: maybe\n", "frozen_bn: expected true or false, got 'maybe'"),
        ("mixing:\n  mixup_after: 3\n", "mixup_after: expected a share of the steps from 0 to below 1, or fit, got 3"),
        ("mixing:\n  mixup: [feture]\n", "unknown mixup 'feture'; did you mean 'feature'"),
        ("a: [\n", "is not YAML"),
        ("data:\n  root: 2020-13-45\n", "is not YAML"),
        ("train:\n  epochs: 3\n  lr: 0.1\n  epochs: 4\n", "c.yaml, line 4: expected each key once, got 'epochs' again"),
        ("train: {epochs: 3}\nmodel: {dim: 8}\n'train': {lr: 1}\n", "got 'train' again, which is in line 1 already"),
    ],
)
def test_mistakes_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text, "utf-8")
    with pytest.raises(InvalidInput) as caught:
        config.read_config(tmp_path / "c.yaml")
    assert message in str(caught.value)
    assert "Input should" not in str(caught.value)
    assert "Value error" not in str(caught.value)


def test_what_an_alias_brings_may_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train: {<<: {epochs: 3, lr: 0.5}, epochs: 7}\n")
    read = config.read_config(tmp_path / "c.yaml")
    assert (read.train.epochs, read.train.lr) == (7, 0.5)


def test_an_unknown_preset_has_a_short_answer() -> None:
    with pytest.raises(InvalidInput) as caught:
        presets.preset("paper/cub/contrastiv")
    assert "did you mean 'paper/cub/contrastive'?" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_no_file() -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        config.read_config(Path("nowhere.yaml"))


def test_every_key_is_a_flag() -> None:
    def verb(*, flags: dict[str, object]) -> None: ...

    flags = set(inspect.signature(with_config_flags(verb)).parameters)
    assert flags == set(config.sections()) - set(NOT_FLAGS)  # the data is the verb's argument

    from metrix.cli.distil import NO_PART

    every = set(inspect.signature(with_config_flags(verb, without=NO_PART)).parameters) | set(NO_PART)
    assert every == set(config.sections())
    assert {"distance_weight", "angle_weight", "cosine_weight", "label_weight", "compatible"}.isdisjoint(NO_PART)


def test_key_names_are_unique() -> None:
    fields = [key for part in config._parts().values() for key in part.model_fields]
    assert len(fields) == len(set(fields))


@pytest.mark.parametrize("name", presets.list_presets())
def test_presets_build(name: str) -> None:
    settings = presets.preset(name)
    loss = build_loss(settings.loss, num_classes=4, dim=8)
    objective = build_objective(settings, loss, torch.Generator())
    value = objective.loss(torch.eye(8)[[0, 1, 2, 3, 4, 5, 6, 7]], torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    assert torch.isfinite(value)
    if LOSSES[settings.loss.loss].takes_mixup and "dinov2" not in name:
        assert isinstance(objective, Metrix)
        assert objective.strength == (0.8 if name == "glyphs" else 0.4)
    else:
        assert isinstance(objective, Clean)


@pytest.mark.parametrize(
    ("dataset", "loss", "lr", "decay_by"),
    [
        ("cub", "contrastive", 1e-4, 0.1),
        ("cars", "proxy-anchor", 1e-4, 0.5),
        ("sop", "contrastive", 3e-5, 0.25),
        ("cub", "triplet", 1e-4, 0.5),
        ("sop", "margin", 3e-5, 0.25),
    ],
)
def test_presets_of_the_paper(dataset: str, loss: str, lr: float, decay_by: float) -> None:
    train = presets.preset(f"paper/{dataset}/{loss}").train
    assert (train.lr, train.decay_by, train.batch_size, train.epochs) == (lr, decay_by, 100, 100)


@pytest.mark.parametrize("dataset", presets.DATASETS)
@pytest.mark.parametrize("loss", presets.LOSSES)
def test_presets_where_the_paper_is_silent(dataset: str, loss: str) -> None:
    """As the commands of the reference code, and of Proxy Anchor, on which it is built."""
    import timm

    settings = presets.preset(f"paper/{dataset}/{loss}")
    train, model = settings.train, settings.model
    assert model.backbone in timm.list_pretrained()
    assert str(timm.get_pretrained_cfg(model.backbone).url).endswith("/resnet50-0676ba61.pth")  # torchvision's first
    assert (train.clip, train.clip_by) == (10.0, "value")
    assert (train.decay_every, train.warmup_epochs) == ((5, 1) if dataset == "inshop" else (10, 5))
    assert model.frozen_bn == model.frozen_affine == (dataset in ("cub", "cars"))
    assert (settings.mixing.strength, settings.mixing.lam_per) == (0.4, "batch")
    assert (settings.data.cache, settings.data.augment, settings.data.image_size) == ("none", "standard", None)
    assert timm.get_pretrained_cfg(model.backbone).input_size[-1] == 224
    if loss == "proxy-anchor":
        small = settings.with_values({"backbone": "glyphs-cnn", "weights": None})
        optimizer = build_optimizer(small, build_embedder(small), build_loss(settings.loss, 4, model.dim))
        assert optimizer.param_groups[-1]["lr"] == pytest.approx(100 * train.lr)


def test_unknown_preset() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'paper/cub'"):
        presets.preset("paper/cup")


@pytest.mark.parametrize("name", LOSSES)
def test_losses_build(name: str) -> None:
    loss = build_loss(LossChoice(loss=name), num_classes=3, dim=4)
    assert type(loss) is LOSSES[name].make


def test_losses_that_cannot_be_mixed_are_clean_unless_mixup_is_asked_for(tmp_path: Path) -> None:
    for name, entry in LOSSES.items():
        of_flags = Config().with_values({"loss": name})
        of_preset = presets.preset("paper/cub").with_values({"loss": name})
        (tmp_path / "c.yaml").write_text(f"loss:\n  loss: {name}\n", "utf-8")
        for settings in (of_flags, of_preset, config.read_config(tmp_path / "c.yaml")):
            assert settings.mixing.mixup == (("feature",) if entry.takes_mixup else ()), name
            (tmp_path / "whole.yaml").write_text(settings.to_yaml(), "utf-8")
            assert config.read_config(tmp_path / "whole.yaml") == settings
    for asked in (Config().with_values({"loss": "triplet", "mixup": ["embed"]}), Config().with_values({"loss": "nca"})):
        assert asked.mixing.mixup
    settings = Config().with_values({"loss": "triplet", "mixup": ["embed"]})
    with pytest.raises(InvalidInput, match=r"Triplet cannot be mixed: it compares a positive with.*--mixup none"):
        build_objective(settings, build_loss(settings.loss, 3, 4), torch.Generator())
    assert settings.with_values({"lr": 1.0}).mixing.mixup == ("embed",)
    for method in METHODS:
        settings = Config().with_values({"loss": "triplet", "mixup_method": method})
        assert bool(settings.mixing.mixup) == (method != "metrix")  # another one was asked for, so it is an error


@pytest.mark.parametrize(
    ("name", "given", "rate"),
    [
        ("proxy-anchor", None, 0.1),
        ("margin", None, 5e-4),
        ("soft-triple", None, 1e-2),
        ("margin", 0.3, 0.3),
        ("triplet", None, None),
    ],
)
def test_the_learning_rate_of_a_losses_own_parameters(name: str, given: float | None, rate: float | None) -> None:
    from metrix import Embedder

    settings = Config().with_values({"loss": name, "proxy_lr": given, "lr": 1e-3})
    optimizer = build_optimizer(settings, Embedder("glyphs-cnn", 4), build_loss(settings.loss, 3, 4))
    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates.get("proxies") == rate


def test_losses_draw_from_the_generator_of_the_run() -> None:
    generator = torch.Generator()
    assert build_loss(LossChoice(loss="margin"), 3, 4, generator).generator is generator
    assert build_loss(LossChoice(loss="margin", beta=0.7), 3, 4).beta.tolist() == pytest.approx([0.7] * 3)
    assert build_loss(LossChoice(loss="soft-triple", centers=2, la=5.0, tau=0.0), 3, 4).centers.shape == (3, 2, 4)
    assert build_loss(LossChoice(loss="triplet", mining="all"), 3, 4).mining == "all"


def test_loss_mistakes() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'contrastive'"):
        build_loss(LossChoice(loss="contrastiv"), 3, 4)
    with pytest.raises(InvalidInput, match="'contrastive' has no beta; it has margin, reduction"):
        build_loss(LossChoice(loss="contrastive", beta=2.0), 3, 4)


def test_no_mixup_is_the_clean_loss() -> None:
    settings = Config().with_values({"mixup": []})
    objective = build_objective(settings, build_loss(LossChoice(loss="contrastive"), 3, 4), torch.Generator())
    assert isinstance(objective, Clean)


def test_another_loss_has_its_own_parameters() -> None:
    of_preset = presets.preset("paper/cub/contrastive")
    assert (of_preset.loss.margin, of_preset.loss.reduction) == (0.5, "mean_nonzero")
    other = of_preset.with_values({"loss": "multi-similarity", "beta": 2.0})
    assert (other.loss.margin, other.loss.reduction, other.loss.beta) == (None, None, 2.0)
    assert of_preset.dropped_by({"loss": "multi-similarity", "margin": 0.3}) == {"reduction": "mean_nonzero"}
    assert of_preset.with_values({"loss": "contrastive"}).loss == of_preset.loss
    assert of_preset.dropped_by({"loss": "contrastive"}) == of_preset.dropped_by({"epochs": 3}) == {}


def test_precision_for_short() -> None:
    assert Config().with_values({"precision": "bf16"}).train.precision == "bf16-mixed"
    with pytest.raises(InvalidInput, match="precision"):
        Config().with_values({"precision": "bf"})


def test_brackets_within_brackets_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("[" * 20_000)
    with pytest.raises(InvalidInput, match="is not YAML"):
        config.read_config(tmp_path / "config.yaml")
