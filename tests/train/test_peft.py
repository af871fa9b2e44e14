"""A run with adapters: train, resume, load."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from metrix import Embedder
from metrix.search import Index
from metrix.train import train
from metrix.train.config import Config
from metrix.train.presets import preset
from tests.photos import write_photos

SETTINGS = {
    "backbone": "test_vit",
    "image_size": 32,
    "dim": 8,
    "pool": "avg",
    "mixup": ("embed",),
    "batch_size": 8,
    "per_class": 4,
    "epochs": 2,
    "max_steps": 4,
    "holdout": 0.0,
    "lr": 0.01,
    "peft": "lora",
    "lora_rank": 2,
    "lora_targets": ("qkv", "fc1"),
}


def test_a_run_is_resumed_and_its_model_is_plain(tmp_path, metrix):
    photos = write_photos(tmp_path / "photos", classes=6, per_class=4)
    config = Config().with_values({**SETTINGS, "data": str(photos)})
    whole = train(config, tmp_path / "whole")
    plain = Embedder("test_vit", dim=8, pool="avg", image_size=32)
    loaded = Embedder.load(whole.path)
    assert set(loaded.state_dict()) == set(plain.state_dict())
    assert whole.results["trained_parameters"] < 0.2 * sum(p.numel() for p in plain.parameters())

    torch.manual_seed(config.train.seed)
    start = Embedder("test_vit", dim=8, pool="avg", image_size=32).state_dict()
    changed = {n for n, t in loaded.backbone.state_dict().items() if not torch.equal(t, start[f"backbone.{n}"])}
    assert changed == {n for n in loaded.backbone.state_dict() if n.endswith(("qkv.weight", "fc1.weight"))}

    found = metrix("evaluate", whole.path, "--json", "--bootstrap", "0").json["retrieval"]["measures"]
    assert found["recall@1"] == pytest.approx(whole.results["test"]["recall"]["1"], abs=1e-6)

    part = train(config.with_values({"max_steps": 2}), tmp_path / "part")
    resumed = train(resume=part.path, max_steps=4)
    again = Embedder.load(resumed.path)
    for name, tensor in loaded.state_dict().items():
        assert torch.allclose(again.state_dict()[name], tensor, atol=1e-6), name


def test_targets_without_adapters_are_refused(tmp_path):
    photos = write_photos(tmp_path / "photos", classes=6, per_class=4)
    config = Config().with_values({**SETTINGS, "data": str(photos), "peft": "none"})
    with pytest.raises(ValueError, match="expected peft=lora"):
        train(config, tmp_path / "run")


def test_embed_export_and_index_equal_the_model_in_memory(tmp_path, metrix):
    photos = write_photos(tmp_path / "photos", classes=6, per_class=4)
    config = Config().with_values({**SETTINGS, "data": str(photos), "max_steps": 3})
    run = train(config, tmp_path / "run").path
    table = _embed(metrix, run, photos, tmp_path / "exact.parquet", "torch")
    files = [photos / path for path in table["path"]]
    expected = Embedder.load(run).encode(files)
    np.testing.assert_allclose(np.array(table["vector"]), expected, atol=1e-5)

    torch.manual_seed(config.train.seed)
    start = Embedder("test_vit", dim=8, pool="avg", image_size=32)
    start.view = Embedder.load(run).view
    assert np.abs(start.encode(files) - expected).max() > 1e-3  # the adapters are part of the embeddings

    index = metrix("index", run, photos, "-o", tmp_path / "i")
    assert index.code == 0, index.err
    kept = Index.open(tmp_path / "i").get(table["path"]).vectors
    np.testing.assert_allclose(kept, expected, atol=1e-5)

    pytest.importorskip("onnxruntime")
    exported = metrix("export", run, "--onnx", tmp_path / "m.onnx")
    assert exported.code == 0, exported.err
    by_file = _embed(metrix, run, photos, tmp_path / "onnx.parquet", tmp_path / "m.onnx")
    np.testing.assert_allclose(np.array(by_file["vector"]), expected, atol=1e-4)


def _embed(metrix, run, photos, output, engine):
    outcome = metrix("embed", run, photos, "-o", output, "--engine", engine)
    assert outcome.code == 0, outcome.err
    return pq.read_table(output).to_pydict()


@pytest.mark.parametrize("name", ["dinov2", "lora/dinov2"])
def test_a_preset_of_a_large_backbone_takes_a_step_with_a_small_one(tmp_path, name):
    settings = preset(name)
    assert (settings.train.patience, settings.train.batch_size, settings.train.per_class) == (3, 256, 4)
    small = {"backbone": "test_vit", "weights": None, "image_size": 32, "dim": 8, "max_steps": 1, "workers": 0}
    photos = str(write_photos(tmp_path / "photos", classes=8, per_class=6))
    settings = settings.with_values({**small, "data": photos, "lr": 0.01, "select_from": 1})
    run = train(settings, tmp_path / "run")
    assert run.config.train.batch_size == 16  # 4 training classes
    trained = load_file(run.model / "model.safetensors")
    untrained = load_file(train(settings.with_values({"epochs": 0}), tmp_path / "before").model / "model.safetensors")
    changed = {key for key in trained if not torch.equal(trained[key], untrained[key])}
    assert any("qkv.weight" in key for key in changed)
    assert any("norm" in key for key in changed) == (name == "dinov2")
    assert Embedder.load(run.path).config.pool == "cls"
