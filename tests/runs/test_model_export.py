"""The model of a run for other programs: files, their descriptions, what int8 costs, a folder for a hub."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from metrix import Embedder, data
from metrix.model.export import OnnxSession, read_onnx_about
from metrix.runs.model_export import describe_preprocessing
from metrix.runs.trained_model import open_run
from metrix.train import Config, train
from tests.photos import write_photos


@pytest.fixture(scope="module")
def exported(metrix: Any, run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("exported")
    assert metrix("threshold", run, "--recall", "0.9", "--bootstrap", "10").code == 0
    files = ("--onnx", folder / "m.onnx", "--torch-export", folder / "m.pt2", "--hub", folder / "hub")
    outcome = metrix("export", run, *files)
    assert outcome.code == 0, outcome.err
    return folder, outcome.err


def test_all_that_was_asked_for_is_written_and_checked(exported: tuple[Path, str]) -> None:
    folder, told = exported
    names = {"m.onnx", "m.onnx.json", "m.pt2", "m.pt2.json", "hub"}
    assert {path.name for path in folder.iterdir()} == names
    found = [float(number) for number in re.findall(r"largest difference to torch: (\S+)", told)]
    assert len(found) == 2
    assert max(found) <= 1e-4


def test_the_onnx_file_embeds_as_the_run_does(exported: tuple[Path, str], run: Path) -> None:
    part = data.open("glyphs-mini").test.with_transform(data.GlyphTransform.still())
    images, _ = part.batch(range(7))
    expected = open_run(run).embed("test").vectors[:7]
    np.testing.assert_allclose(OnnxSession(exported[0] / "m.onnx")(images), expected, atol=1e-5)


def test_metadata_and_the_json_beside_it_agree(exported: tuple[Path, str], run: Path) -> None:
    folder, _ = exported
    about = json.loads((folder / "m.onnx.json").read_text("utf-8"))
    assert read_onnx_about(folder / "m.onnx") == about
    model = open_run(run)
    assert about["model"] == model.digest
    assert about["embedding"] == {"dim": 64, "of": 64, "trained_prefixes": [], "norm": 1.0, "similarity": "cosine"}
    view = about["preprocessing"]
    assert (view["size"], view["channels"], view["channel_order"], view["mean"]) == (28, 1, "grey", [0.5])
    kept = json.loads((run / "threshold.json").read_text("utf-8"))
    assert about["threshold"]["similarity"] == kept["similarity"]


@pytest.mark.parametrize("cache", ["none", "ram"])
def test_the_described_steps_give_the_test_view(cache: str, small: Config, tmp_path: Path) -> None:
    from PIL import Image
    from torchvision.transforms.v2 import functional as F

    photos = write_photos(tmp_path / "photos", classes=4)
    values = {
        "data": str(photos),
        "backbone": "mobilenetv3_small_050",
        "image_size": 32,
        "holdout": 0.0,
        "max_steps": 1,
    }
    model = open_run(train(small.with_values({**values, "train_classes": None, "cache": cache}), tmp_path / "run").path)
    about = describe_preprocessing(model)
    file = photos / "kind 0" / "0.jpg"
    Image.open(file).resize((700, 600)).save(file)
    pixels = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)
    for step in about["steps"]:
        if side := step.get("shrink_shorter_side_to_at_most"):
            image = Image.open(file)
            image.draft(None, (2 * side, 2 * side))
            shape = (round(image.width * side / min(image.size)), round(image.height * side / min(image.size)))
            pixels = torch.from_numpy(np.array(image.resize(shape, Image.Resampling.BILINEAR))).permute(2, 0, 1)
        elif side := step.get("resize_shorter_side_to"):
            pixels = F.resize(pixels, [side], antialias=step["antialias"])
        elif size := step.get("crop_centre_to"):
            pixels = F.center_crop(pixels, size)
        elif by := step.get("divide_by"):
            pixels = pixels / torch.tensor(by).view(-1, 1, 1)
        elif by := step.get("subtract"):
            pixels = pixels - torch.tensor(by).view(-1, 1, 1)
    dataset = data.open(photos, cache=cache, unseen=0.5)
    part = model.select_part(dataset, "all")
    view = model.with_test_view(dataset, part)
    torch.testing.assert_close(pixels, view[part.paths.index("kind 0/0.jpg")][0], atol=1e-5, rtol=0)
    assert about["size"] == 32


def test_the_folder_for_a_hub_loads_and_says_what_it_is(exported: tuple[Path, str], run: Path) -> None:
    folder = exported[0] / "hub"
    images = torch.rand(3, 1, 28, 28)
    with torch.inference_mode():
        assert torch.equal(Embedder.load(folder).eval()(images), Embedder.load(run).eval()(images))
    assert (folder / "model.safetensors").read_bytes() == (run / "model" / "model.safetensors").read_bytes()
    _, header, card = (folder / "README.md").read_text("utf-8").split("---\n", 2)
    content = yaml.safe_load(header)
    results = json.loads((run / "results.json").read_text("utf-8"))
    (metric, *_) = content["model-index"][0]["results"][0]["metrics"]
    assert metric == {"type": "recall@1", "value": round(results["test"]["recall"]["1"], 6), "name": "Recall@1"}
    for words in ("## Measures", "## Data", "## Settings", "## Usage", "glyphs-mini", "| dim | 64 |", "same thing"):
        assert words in card
    assert str(run) not in card


def test_the_code_of_the_card_embeds_as_the_run_does(
    exported: tuple[Path, str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    card = (exported[0] / "hub" / "README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    test = data.open("glyphs-mini").test
    Image.fromarray(test.image(5)[0].numpy()).save(tmp_path / "photo.png")
    names: dict[str, Any] = {}
    given = code.replace("path/to/this/folder", str(exported[0] / "hub")).replace("photo.jpg", "photo.png")
    monkeypatch.chdir(tmp_path)
    exec(given, names)
    np.testing.assert_allclose(names["embeddings"][0], open_run(run).embed("test").vectors[5], atol=1e-5)


def test_int8_tells_what_it_loses_and_embed_uses_it(metrix: Any, run: Path, tmp_path: Path) -> None:
    outcome = metrix("export", run, "--onnx", tmp_path / "m.onnx", "--int8")
    assert outcome.code == 0, outcome.err
    assert re.search(r"int8 \((static|dynamic)\): Recall@1 0\.\d+, in float 0\.\d+: a loss of", outcome.err)
    about = read_onnx_about(tmp_path / "m.onnx")["int8"]
    assert abs(about["recall@1"]["loss"]) < 0.05
    low, high = about["loss_interval"]
    assert low <= about["recall@1"]["loss"] <= high
    outcome = metrix("embed", run, "-o", tmp_path / "x.npy", "--engine", tmp_path / "m.onnx")
    assert outcome.code == 0, outcome.err
    found = np.load(tmp_path / "x.npy")
    files = ("--embeddings", tmp_path / "x.npy", "--labels", tmp_path / "x.csv")
    measured = metrix("evaluate", *files, "--json", "--bootstrap", "0", "--no-clustering").json
    assert measured["retrieval"]["measures"]["recall@1"] == pytest.approx(about["recall@1"]["int8"], abs=0.003)
    exact = open_run(run).embed("test").vectors
    assert not np.array_equal(found, exact)
    assert (found * exact).sum(1).min() > 0.9


def test_mistakes(refused: Any, metrix: Any, run: Path, other_run: Path, tmp_path: Path) -> None:
    refused("export", run, words=("--onnx FILE.onnx, --torch-export FILE.pt2 or --hub FOLDER",))
    refused("export", run, "--hub", tmp_path / "hub", "--int8", words=("--int8", "--onnx"))
    refused("export", run, "--onnx", tmp_path / "m.pt", words=("ends in .onnx", "m.pt"))
    refused("export", tmp_path, "--hub", tmp_path / "hub", words=("is no run",))
    for _ in range(2):  # the same again changes nothing
        assert metrix("export", run, "--hub", tmp_path / "hub").code == 0
    refused("export", other_run, "--hub", tmp_path / "hub", words=("already exists", "--overwrite"))
    assert metrix("export", other_run, "--hub", tmp_path / "hub", "--overwrite").code == 0
    assert (tmp_path / "hub/model.safetensors").read_bytes() == (other_run / "model/model.safetensors").read_bytes()
    (tmp_path / "file").write_text("")
    (tmp_path / "own.onnx").write_text("of another program")
    refused("export", run, "--onnx", tmp_path / "own.onnx", words=("own.onnx already exists", "--overwrite"))
    refused("export", run, "--hub", tmp_path / "file" / "hub", words=("cannot be created",))
    refused("export", run, "--torch-export", tmp_path / "file" / "m.pt2", words=("cannot be written",))
    refused("embed", run, "-o", tmp_path / "x.npy", "--engine", "onx", words=("unknown engine 'onx'", "'onnx'"))
