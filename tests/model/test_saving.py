from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from metrix.errors import ModelError
from metrix.model import Embedder


@pytest.mark.parametrize(
    "embedder",
    [
        lambda: Embedder("glyphs-cnn", dim=8, pool="gem", freeze_to="stage2", frozen_bn=True),
        lambda: Embedder("resnet10t", dim=8, image_size=64),
        lambda: Embedder("vit_tiny_patch16_224", dim=8, pool="attention", image_size=32),
    ],
)
def test_load_gives_back_the_same_model_without_a_network(
    tmp_path: Path, embedder: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Embedder = embedder()  # type: ignore[operator]
    size, channels = original.data_config.size, original.data_config.channels
    original.train()(torch.rand(4, channels, size, size))  # batch norm statistics of its own
    original.eval().save(tmp_path / "m")

    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("a network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    loaded = Embedder.load(tmp_path / "m").eval()
    assert loaded.config == original.config
    assert loaded.data_config == original.data_config
    x = torch.rand(2, channels, size, size)
    with torch.no_grad():
        assert torch.equal(loaded(x), original(x))
    assert {n for n, p in loaded.named_parameters() if p.requires_grad} == {
        n for n, p in original.named_parameters() if p.requires_grad
    }


def test_a_run_a_folder_and_a_file_are_accepted(tmp_path: Path) -> None:
    original = Embedder("glyphs-cnn", dim=8)
    original.save(tmp_path / "run" / "model")
    for path in ("run", "run/model", "run/model/model.safetensors"):
        loaded = Embedder.load(tmp_path / path)
        assert torch.equal(loaded.head.linear.weight, original.head.linear.weight)  # type: ignore[union-attr,arg-type]


def test_the_folder_holds_weights_and_a_readable_config(tmp_path: Path) -> None:
    Embedder("glyphs-cnn", dim=8).save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {
        "format": 1,
        "backbone": "glyphs-cnn",
        "dim": 8,
        "pool": "avg+max",
        "freeze_to": None,
        "frozen_bn": False,
        "image_size": None,
        "data": {"size": 28, "mean": [0.5], "std": [0.5], "channels": 1, "interpolation": "bilinear"},
        "view": {"layout": "folder", "short_side": None},
    }


def test_an_interrupted_save_leaves_the_model_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Embedder("glyphs-cnn", dim=8), Embedder("glyphs-cnn", dim=16, pool="max")
    first.save(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            second.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(Embedder.load(tmp_path).head.linear.weight, first.head.linear.weight)  # type: ignore[union-attr,arg-type]


def test_a_save_cut_between_its_files_is_the_new_model(tmp_path: Path) -> None:
    Embedder("glyphs-cnn", dim=8).save(tmp_path)
    old_config = (tmp_path / "config.json").read_text()
    Embedder("glyphs-cnn", dim=16).save(tmp_path)
    (tmp_path / "config.json").write_text(old_config)
    assert Embedder.load(tmp_path).config.dim == 16


def test_weights_written_again_by_another_program_use_the_config_beside(tmp_path: Path) -> None:
    Embedder("glyphs-cnn", dim=8).save(tmp_path)
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors")
    assert Embedder.load(tmp_path).config.dim == 8
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"not written by Embedder.save.*--weights FILE"):
        Embedder.load(tmp_path)


def test_no_model_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model in .*expected a folder with model.safetensors.*run folder"):
        Embedder.load(tmp_path)


def test_a_truncated_file(tmp_path: Path) -> None:
    Embedder("glyphs-cnn", dim=8).save(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="is the file complete"):
        Embedder.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "got format 2"),
        ({"pol": "avg"}, "'pol'"),
        ({"data": None}, "cannot be parsed"),
        ({"dim": 9}, "does not have the weights that its config describes"),
    ],
)
def test_a_config_that_does_not_fit(tmp_path: Path, change: dict[str, object], message: str) -> None:
    Embedder("glyphs-cnn", dim=8).save(tmp_path)
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=message):
        Embedder.load(tmp_path)
