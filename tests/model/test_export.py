"""Models for other programs: the same embeddings as torch, for any number of images."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from metrix.errors import ModelError
from metrix.extras import MissingExtra
from metrix.model import Embedder
from metrix.model.export import (
    TOLERANCE,
    OnnxSession,
    build_onnx,
    build_torch_export,
    check_difference,
    measure_difference,
    quantise,
    read_onnx_about,
    write_onnx,
    write_torch_export,
)
from metrix.model.pooling import POOLS


def small(pool: str = "avg+max", **options: Any) -> Embedder:
    torch.manual_seed(0)
    if pool == "cls":
        return Embedder("vit_tiny_patch16_224", 8, pool, image_size=32, **options).eval()
    embedder = Embedder("glyphs-cnn", 8, pool, **options)
    with torch.no_grad():
        embedder(torch.rand(16, 1, 28, 28))  # running statistics that are not their initial ones
    return embedder.eval()


@pytest.mark.parametrize("pool", POOLS)
def test_onnx_of_every_pooling(pool: str) -> None:
    embedder = small(pool)
    run = OnnxSession(build_onnx(embedder))
    assert measure_difference(embedder, run) < TOLERANCE / 10
    channels, size = embedder.data_config.channels, embedder.data_config.size
    for count in (1, 2, 5):
        assert run(torch.rand(count, channels, size, size)).shape == (count, 8)


def test_onnx_of_a_residual_network_at_another_size() -> None:
    embedder = Embedder("resnet18", 16).eval()
    run = OnnxSession(build_onnx(embedder, 64))
    assert measure_difference(embedder, run, 64) < TOLERANCE / 10


def test_a_frozen_model_is_exported_whole_and_the_embedder_stays_as_it_was() -> None:
    embedder = small(freeze_to="stage3").train()
    before = {name: tensor.clone() for name, tensor in embedder.state_dict().items()}
    assert measure_difference(embedder, OnnxSession(build_onnx(embedder))) < TOLERANCE / 10
    assert embedder.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in embedder.state_dict().items())
    assert any(parameter.requires_grad for parameter in embedder.parameters())


def test_a_file_describes_itself_and_names_no_path_of_this_machine(tmp_path: Path) -> None:
    network = build_onnx(small())
    write_onnx(network, tmp_path / "m.onnx", {"model": "abc", "ü": [1]})
    assert read_onnx_about(tmp_path / "m.onnx") == {"model": "abc", "ü": [1]}
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert str(Path(torch.__file__).parents[1]).encode() not in (tmp_path / "m.onnx").read_bytes()
    assert not network.metadata_props, "writing changed the model"


def test_torch_export_is_read_back(tmp_path: Path) -> None:
    embedder = small("gem")
    write_torch_export(build_torch_export(embedder), tmp_path / "m.pt2", {"model": "abc"})
    extra = {"metrix": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    assert json.loads(extra["metrix"]) == {"model": "abc"}
    assert measure_difference(embedder, program.module()) < TOLERANCE / 10


@pytest.mark.parametrize("way", ["static", "dynamic"])
def test_int8_is_close_and_small(way: str) -> None:
    embedder = small()
    network = build_onnx(embedder)
    images = torch.rand(32, 1, 28, 28)
    quantised = quantise(network, [part.numpy() for part in images.split(8)] if way == "static" else None)
    assert quantised.ByteSize() < 0.4 * network.ByteSize()
    with torch.no_grad():
        cosines = torch.cosine_similarity(OnnxSession(quantised)(images[:5]), embedder(images[:5]))
    assert cosines.min() > 0.99


def test_a_difference_above_the_tolerance_is_an_error() -> None:
    embedder = small()
    wrong = measure_difference(embedder, lambda images: embedder(images) + 2e-4)
    assert wrong == pytest.approx(2e-4, rel=1e-2)
    for difference in (wrong, float("nan")):
        with pytest.raises(ModelError, match="nothing was written"):
            check_difference(difference, "x")
    nan = measure_difference(embedder, lambda images: embedder(images) * float("nan"))
    assert np.isnan(nan)


def test_a_model_that_cannot_be_exported_says_why() -> None:
    class Undecided(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))

    embedder = small()
    embedder.head = Undecided()
    for build in (build_onnx, build_torch_export):
        with pytest.raises(ModelError, match=r"'glyphs-cnn' with pool 'avg\+max' cannot be exported as .*: \w+"):
            build(embedder)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"package onnxruntime, which is not installed; .*'metrix\[onnx\]'"):
        build_onnx(small())


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"no model")
    for name, words in (("x.onnx", "got another"), ("y.onnx", "does not exist")):
        with pytest.raises(ModelError, match=words):
            read_onnx_about(tmp_path / name)
