"""Damage that mutated inputs found: each was a traceback or a wrong answer once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from faults.material import write_photos
from metrix import data
from metrix.data.vector_files import read_embeddings
from metrix.errors import DataError, InvalidInput
from metrix.files import cache_folder
from metrix.train import train
from metrix.train.config import read_config
from metrix.train.run_folder import RunFolder


@pytest.fixture
def unfinished(run: Path, tmp_path: Path) -> RunFolder:
    copy = RunFolder(Path(shutil.copytree(run, tmp_path / "run")))
    (copy.path / "results.json").unlink()
    return copy


@pytest.mark.parametrize("change", [{"x": 1}, {"step": "2"}, {"sums": None}, {"step": -1}, {"done": 3}])
def test_progress_of_a_checkpoint(unfinished: RunFolder, change: dict[str, object]) -> None:
    with safe_open(unfinished.last, "pt") as file:
        ((key, header),) = file.metadata().items()
    save_file(load_file(unfinished.last), unfinished.last, {key: json.dumps(json.loads(header) | change)})
    with pytest.raises(InvalidInput, match=r"last\.safetensors is damaged"):
        train(resume=unfinished.path)


def test_tensors_of_a_checkpoint(unfinished: RunFolder) -> None:
    with safe_open(unfinished.last, "pt") as file:
        header = file.metadata()
    tensors = load_file(unfinished.last)
    del tensors["random/torch"]
    save_file(tensors, unfinished.last, header)
    with pytest.raises(InvalidInput, match="its tensors do not fit the run"):
        train(resume=unfinished.path)


def test_measures_and_lines_of_a_run(unfinished: RunFolder) -> None:
    lines = unfinished.metrics()
    with (unfinished.path / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{"epoch": null}\n')
    assert unfinished.metrics() == lines
    for content in (b"\xa6", b"{", b"[]"):
        (unfinished.path / "results.json").write_bytes(content)
        with pytest.raises(InvalidInput, match=r"results\.json is damaged"):
            _ = unfinished.results


def test_numbers_of_an_image_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIX_CACHE", str(tmp_path / "cache"))
    photos = write_photos(tmp_path / "photos")

    def pixels() -> np.ndarray:
        return np.stack([np.asarray(image) for image, _ in data.open(photos, cache="disk", short_side=16).train])

    expected = pixels()
    (file,) = (cache_folder() / "images").glob("*/index.json")
    index = json.loads(file.read_bytes())
    index["starts"][1] -= 3
    file.write_text(json.dumps(index))
    assert np.array_equal(pixels(), expected)


@pytest.mark.parametrize("shape", [b"(6, 4", b"(6, 99999999999999)"])
def test_header_of_an_array(shape: bytes, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((6, 4)))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(6, 4), }" + b" " * (len(shape) - 6), shape + b", }"[:3]))
    with pytest.raises(DataError, match="cannot be read as a NumPy array"):
        read_embeddings(tmp_path / "a.npy")


@pytest.mark.parametrize("key", ["loss: {loss: {a: 1}}", "loss: {loss: null}", "mixing: {mixup_method: {}}"])
def test_names_in_a_configuration(key: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(key)
    with pytest.raises(InvalidInput, match="unknown"):
        read_config(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_bytes(b"loss: {loss: caf\xe9}")
    with pytest.raises(InvalidInput, match="UTF-8"):
        read_config(tmp_path / "a.yaml")


@pytest.mark.parametrize("damage", [{"data_fingerprint": 7}, {"asked": [1]}, {"data_relative_to_run": {}}])
def test_environment_of_a_run(unfinished: RunFolder, damage: dict[str, object]) -> None:
    file = unfinished.path / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    with pytest.raises(InvalidInput, match=r"environment\.json is damaged: \w+: Input should be"):
        train(resume=unfinished.path)


@pytest.mark.parametrize("key", ["backbone", "pool"])
def test_names_in_the_configuration_of_a_model(run: Path, tmp_path: Path, key: str) -> None:
    from metrix.runs.trained_model import open_run

    copy = Path(shutil.copytree(run, tmp_path / "run"))
    file = copy / "model" / "model.safetensors"
    with safe_open(file, "pt") as opened:
        ((name, text),) = opened.metadata().items()
    save_file(load_file(file), file, {name: json.dumps(json.loads(text) | {key: ["avg"]})})
    with pytest.raises(InvalidInput):
        _ = open_run(copy).embedder


def test_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    (tmp_path / "a.csv").write_text(f"path,label\nkind-0/0.jpg,a\n{'x' * 5000}.jpg,b\n")
    report = data.check(tmp_path / "a.csv", root=photos, workers=1)
    assert any("1 of 2 images are not in" in problem for problem in report.problems), report.problems


@pytest.mark.parametrize("key", ["train: {epochs: *i}", "loss: {loss: *i}", "train: *i", "mixing: {mixup: *i}"])
def test_yaml_that_repeats_itself(key: str, tmp_path: Path) -> None:
    """Ten aliases of ten aliases …: 10^9 values, which must be neither counted nor printed."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join(['*' + before] * 10)}]")
    text = "data: {layout: {" + ", ".join(lines) + "}}\n" + key + "\n"
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_config(tmp_path / "a.yaml")
    assert len(str(refused.value)) < 2000
