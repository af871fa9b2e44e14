"""From images to vectors: `Embedder.encode`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metrix import data
from metrix.data import ImageError
from metrix.errors import DataError, ModelError
from metrix.model import Embedder
from metrix.runs.trained_model import open_run
from metrix.train import Config, train
from tests.command_line import Metrix
from tests.photos import write_photos


def test_load_is_for_inference(tmp_path: Path) -> None:
    trained = Embedder("glyphs-cnn", dim=8)
    trained.save(tmp_path)
    loaded = Embedder.load(tmp_path)
    assert not any(module.training for module in loaded.modules())
    images = torch.rand(5, 1, 28, 28)
    torch.testing.assert_close(loaded(images)[:1], loaded(images[:1]))  # does not depend on the batch


@pytest.mark.parametrize("cache", ["none", "ram"])
def test_vectors_are_those_of_metrix_embed(cache: str, small: Config, tmp_path: Path, metrix: Metrix) -> None:
    photos = write_photos(tmp_path / "photos", classes=4, per_class=3)
    for file in list(photos.rglob("*.jpg"))[:3]:  # large enough for the cache to shrink them
        Image.open(file).resize((700, 600)).save(file)
    values = {"data": str(photos), "image_size": 28, "cache": cache, "train_classes": None, "max_steps": 1}
    run = train(small.with_values({**values, "batch_size": 4, "per_class": 2}), tmp_path / "run")
    model = open_run(run.path)
    part = model.select_part(model.open_data(), "test")
    vectors = Embedder.load(run.path).encode([photos / path for path in part.paths])
    assert np.array_equal(vectors, model.embed("test").vectors)
    ended = metrix("embed", run.path, "-o", tmp_path / "test.npy", "--engine", "torch")
    assert ended.code == 0, ended.err
    assert np.array_equal(vectors, np.load(tmp_path / "test.npy"))


def test_glyphs_are_seen_as_in_the_run(run: Path) -> None:
    part = data.open("glyphs-mini").test
    embedder = Embedder.load(run)
    vectors = embedder.encode([part.image(i)[0].numpy() for i in range(len(part))])
    assert np.array_equal(vectors, open_run(run).embed("test").vectors)


def test_every_kind_of_image_gives_the_same_vector(tmp_path: Path) -> None:
    embedder = Embedder("glyphs-cnn", dim=8).eval()
    file = write_photos(tmp_path, classes=1, per_class=1) / "kind 0" / "0.jpg"
    picture = Image.open(file)
    pixels = np.array(picture)
    with file.open("rb") as opened:
        kinds = [file, str(file), picture, pixels, opened]
        vectors = embedder.encode(kinds)
    assert all(np.array_equal(vector, vectors[0]) for vector in vectors[1:])
    for alone in (file, str(file), picture, pixels, pixels[None]):
        np.testing.assert_allclose(embedder.encode(alone), vectors[:1], atol=1e-6)


def test_training_goes_on_as_before_and_progress_is_reported() -> None:
    embedder, heard = Embedder("glyphs-cnn", dim=8), list[tuple[int, int]]()
    embedder.train()
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28, 1), dtype=np.uint8)
    found = embedder.encode(images, batch_size=2, progress=lambda done, of: heard.append((done, of)))
    assert embedder.training
    assert heard == [(2, 5), (4, 5), (5, 5)]
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert embedder.encode([]).shape == (0, 8)


def test_what_is_no_image(tmp_path: Path) -> None:
    embedder = Embedder("glyphs-cnn", dim=8)
    with pytest.raises(ImageError, match="no such file"):
        embedder.encode(tmp_path / "nowhere.png")
    for wrong in (np.zeros((4, 4, 3)), np.zeros(4, np.uint8), np.zeros((4, 4, 2), np.uint8)):
        with pytest.raises(DataError, match="expected uint8 of shape"):
            embedder.encode(wrong)


def test_a_model_saved_without_its_view_says_so(tmp_path: Path) -> None:
    embedder = Embedder("glyphs-cnn", dim=8)
    embedder.view = None
    embedder.save(tmp_path)
    with pytest.raises(ModelError, match="without its view"):
        Embedder.load(tmp_path).encode(np.zeros((28, 28), np.uint8))


def test_tensors_and_batches_give_the_vectors_of_arrays() -> None:
    embedder = Embedder("glyphs-cnn", dim=8).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 30, 40, 3), dtype=np.uint8)
    expected = embedder.encode(list(pixels))
    tensors = torch.from_numpy(pixels).movedim(-1, 1)
    for given in (pixels, tensors, list(tensors), [pixels[0], tensors[1], Image.fromarray(pixels[2])]):
        assert np.array_equal(embedder.encode(given), expected)
    assert embedder.encode(tensors[0]) == pytest.approx(expected[:1], abs=1e-6)  # a batch of one
    with pytest.raises(ModelError, match=r"expected tensors of uint8 .* got float32 of shape"):
        embedder.encode(tensors / 255)
