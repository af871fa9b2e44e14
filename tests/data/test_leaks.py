"""Near-copies between training and test: found as planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from metrix import data
from metrix.data import leaks
from metrix.data.leaks import MIRRORED, NEAR_COPY, SAME_FILE, SAME_PIXELS, SAME_VECTOR, choose_likeness
from tests.photos import draw_photo


def draw(seed: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
    """A smooth picture, as photographs are: no two seeds are alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four classes of training and four of test, of four photos each."""
    for k in range(8):
        folder = tmp_path / "photos" / ("train" if k < 4 else "test") / f"class {k}"
        folder.mkdir(parents=True)
        for n in range(4):
            draw(10 * k + n).save(folder / f"{n}.png")
    return tmp_path / "photos"


COPIES: dict[str, Callable[[Image.Image, Path], None]] = {
    "half.jpg": lambda image, path: image.resize((60, 45)).save(path, quality=75),
    "quality 30.jpg": lambda image, path: image.save(path, quality=30),
    "64 colours.gif": lambda image, path: image.quantize(64).save(path),
    "grey.png": lambda image, path: image.convert("L").save(path),
    "twice.webp": lambda image, path: image.resize((240, 180)).save(path),
    "brighter.jpg": lambda image, path: image.point(lambda value: min(255, int(1.1 * value))).save(path),
}


def test_nothing_leaks_between_different_photos(photos: Path) -> None:
    report = data.check(photos, leaks=True, flips=True)
    assert report.ok
    assert report.leaks == ()


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_found_with_its_original(photos: Path, name: str) -> None:
    COPIES[name](draw(2), photos / "test" / "class 6" / name)
    assert data.check(photos).ok  # only if it is asked for
    report = data.check(photos, leaks=True)
    assert not report.ok
    (leak,) = report.leaks
    assert (leak.test, leak.train) == (f"test/class 6/{name}", "train/class 0/2.png")
    assert (leak.test_class, leak.train_class) == ("class 6", "class 0")
    assert leak.kind == NEAR_COPY
    assert 0.94 <= leak.similarity <= 1
    assert "1 test image is a copy of what is trained on" in report.problems[0]


def test_the_same_file_and_the_same_pixels(photos: Path) -> None:
    (photos / "test" / "class 5" / "a.png").write_bytes((photos / "train" / "class 1" / "0.png").read_bytes())
    draw(10).save(photos / "test" / "class 5" / "b.bmp")
    flat = Image.new("RGB", (50, 40), "white")
    flat.save(photos / "train" / "class 3" / "white.png")
    flat.resize((80, 70)).save(photos / "test" / "class 4" / "white.png")
    Image.new("RGB", (50, 40), (250, 250, 250)).save(photos / "test" / "class 4" / "off-white.png")
    found = {leak.test: (leak.train, leak.kind) for leak in data.check(photos, leaks=True).leaks}
    assert found == {
        "test/class 5/a.png": ("train/class 1/0.png", SAME_FILE),
        "test/class 5/b.bmp": ("train/class 1/0.png", SAME_PIXELS),
        "test/class 4/white.png": ("train/class 3/white.png", SAME_PIXELS),
    }


def test_mirrored_copies_are_found_on_request(photos: Path) -> None:
    ImageOps.mirror(draw(21)).resize((60, 45)).save(photos / "test" / "class 7" / "mirror.jpg", quality=60)
    assert data.check(photos, leaks=True).leaks == ()
    (leak,) = data.check(photos, leaks=True, flips=True).leaks
    assert (leak.test, leak.train, leak.kind) == ("test/class 7/mirror.jpg", "train/class 2/1.png", MIRRORED)


def test_classes_held_out_for_selection_count_as_training_and_broken_images_are_left_out(photos: Path) -> None:
    (photos / "val").mkdir()
    (photos / "train" / "class 3").rename(photos / "val" / "class 3")
    draw(31).resize((60, 45)).save(photos / "test" / "class 4" / "copy.png")
    (photos / "test" / "class 4" / "broken.png").write_bytes(b"no image")
    report = data.check(photos, leaks=True, max_bad=1)
    assert "val" in report.parts
    assert [(leak.test, leak.train) for leak in report.leaks] == [("test/class 4/copy.png", "val/class 3/1.png")]


def test_the_bar_is_higher_where_all_images_are_alike() -> None:
    """Drawings on a common frame: similar to each other, but no copies."""
    rng = np.random.default_rng(0)
    apart = rng.integers(0, 256, (50, leaks.SIDE**2), dtype=np.uint8)
    frame = apart[0] * 0.8
    alike = (frame + rng.integers(0, 40, (50, leaks.SIDE**2))).astype(np.uint8)
    assert choose_likeness(apart) == leaks.ALIKE
    assert leaks.ALIKE < choose_likeness(alike) <= leaks.STRICTEST


def test_at_most_ten_training_images_are_listed_for_a_test_image(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(15):
        draw(33, (120 + 2 * n, 90)).save(photos / "train" / "class 2" / f"same {n}.png")
    draw(33).save(photos / "test" / "class 5" / "seen.png")
    monkeypatch.setattr(leaks, "ROWS_AT_ONCE", 2)  # several blocks of either
    found = data.check(photos, leaks=True).leaks
    assert len(found) == leaks.MOST
    assert {leak.test for leak in found} == {"test/class 5/seen.png"}
    similarities = [leak.similarity for leak in found]
    assert similarities == sorted(similarities, reverse=True)


def test_vectors_and_glyphs_leak_if_they_are_equal(tmp_path: Path) -> None:
    assert data.check("glyphs-mini", leaks=True).leaks == ()
    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    vectors[30] = vectors[3]
    vectors[31] = vectors[4] * 1.5
    labels, split = [f"class {n // 5}" for n in range(40)], ["train"] * 20 + ["test"] * 20
    pq.write_table(pa.table({"vector": list(vectors), "label": labels, "split": split}), tmp_path / "v.parquet")
    report = data.check(tmp_path / "v.parquet", leaks=True)
    assert [(leak.test, leak.train, leak.kind) for leak in report.leaks] == [("30", "3", SAME_VECTOR)]
    assert "1 test vector is a copy" in report.problems[0]


def test_copies_within_a_class_are_reported_too(photos: Path) -> None:
    original = photos / "train" / "class 1" / "0.png"
    (photos / "train" / "class 1" / "again.png").write_bytes(original.read_bytes())
    (photos / "train" / "class 2" / "other.png").write_bytes(original.read_bytes())
    draw_photo(1, 1).save(photos / "train" / "class 1" / "new.png")
    report = data.check(photos)
    assert report.ok
    pair = "train/class 1/again.png and train/class 1/0.png"
    assert f"1 image with the same content as another of its class: {pair}" in report.notes
    assert any("1 image with the same content as one of another class" in note for note in report.notes)
    assert [(one.path, one.other, one.same_class) for one in report.copies] == [
        ("train/class 1/again.png", "train/class 1/0.png", True),
        ("train/class 2/other.png", "train/class 1/0.png", False),
    ]
