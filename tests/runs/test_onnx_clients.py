"""The clients of an ONNX file in `examples/` prepare images as metrix does, in Python without torch and in JavaScript."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.runs.model_export import describe_preprocessing
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.train import Config, train
from tests.command_line import metrix
from tests.photos import write_photos

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = [(700, 600), (301, 500), (97, 64), (640, 427), (40, 200)]


@pytest.fixture(params=["none", "ram"])
def photos(request: pytest.FixtureRequest, small: Config, tmp_path: Path) -> Any:
    """A run and some noisy photos of odd sizes, which show every difference in rounding."""
    from PIL import Image

    folder = tmp_path
    values = {"data": str(write_photos(folder / "photos", classes=4)), "backbone": "mobilenetv3_small_050"}
    values |= {"image_size": 64, "holdout": 0.0, "max_steps": 1, "train_classes": None, "cache": request.param}
    run = train(small.with_values(values), folder / "run")
    draws, files = np.random.default_rng(0), []
    for n, (width, height) in enumerate(SIZES):
        coarse = Image.fromarray(draws.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8))
        coarse.resize((width, height)).save(folder / f"{n}.png")
        files.append(folder / f"{n}.png")
    return open_run(run.path), files


def build_inputs(model: TrainedModel, files: list[Path]) -> np.ndarray[Any, Any]:
    view = model.embedder._build_view()
    return np.stack([view(file).numpy() for file in files])


def test_python_without_torch(photos: Any, tmp_path: Path) -> None:
    model, files = photos
    spec = importlib.util.spec_from_file_location("onnx_client", EXAMPLES / "onnx_client.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    client = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)
    assert "import torch" not in (EXAMPLES / "onnx_client.py").read_text("utf-8")
    ended = metrix("export", tmp_path / "run", "--onnx", tmp_path / "m.onnx")
    assert ended.code == 0, ended.err
    vectors = client.embed(client.onnxruntime.InferenceSession(str(tmp_path / "m.onnx")), files)
    cosines = (vectors * model.embedder.encode(files)).sum(1)
    assert cosines.min() > 0.9999
    command = [sys.executable, str(EXAMPLES / "onnx_client.py"), str(tmp_path / "m.onnx"), *map(str, files)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert [float(line.split()[0]) for line in printed.splitlines()] == pytest.approx(
        vectors[0] @ vectors[1:].T, abs=2e-4
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
def test_javascript(photos: Any, tmp_path: Path) -> None:
    from PIL import Image

    model, files = photos
    about, expected = describe_preprocessing(model), build_inputs(model, files)
    (tmp_path / "about.json").write_text(json.dumps(about), "utf-8")
    (tmp_path / "run.mjs").write_text(
        f"""import {{ preprocess }} from {json.dumps((EXAMPLES / "onnx_client.mjs").as_uri())};
import {{ readFileSync, writeFileSync }} from "node:fs";
const [about, pixels, width, height, output] = process.argv.slice(2);
const input = preprocess(readFileSync(pixels), Number(width), Number(height), JSON.parse(readFileSync(about)));
writeFileSync(output, Buffer.from(input.buffer));
""",
        "utf-8",
    )
    found = []
    for file in files:
        image = Image.open(file)
        (tmp_path / "pixels").write_bytes(image.tobytes())
        arguments = [tmp_path / "about.json", tmp_path / "pixels", *image.size, tmp_path / "input"]
        subprocess.run(["node", str(tmp_path / "run.mjs"), *map(str, arguments)], check=True, timeout=60)
        found.append(np.fromfile(tmp_path / "input", np.float32).reshape(expected.shape[1:]))
    grey_levels = np.abs(np.stack(found) - expected) * np.array(about["std"]).reshape(-1, 1, 1) * 255
    assert grey_levels.max() < 2.01  # a rounding in each of two resizes
    assert (grey_levels > 0.5).mean() < 0.02
