"""Batches read ahead by threads are those that are read one after another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from metrix import data
from metrix.data import ImageError, Part
from metrix.data.reading_ahead import read_ahead
from tests.photos import write_photos


@pytest.fixture
def part(tmp_path: Path) -> Part:
    dataset = data.open(write_photos(tmp_path / "photos", classes=2, per_class=10), unseen=0.0)
    return dataset.train.with_transform(data.inference_transform(28))


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_are_the_same_bit_for_bit(part: Part, threads: int) -> None:
    batches = [[0, 1, 2], [19], list(range(5, 15)), [3, 3]]
    before = torch.get_rng_state(), torch.get_num_threads()
    found = list(read_ahead(part, batches, threads))
    assert len(found) == len(batches)
    for images, batch in zip(found, batches, strict=True):
        assert torch.equal(images, part.batch(batch)[0])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


def test_pixels_in_memory_are_not_given_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrix.data.reading_ahead.ThreadPoolExecutor", None)
    glyphs = data.open("glyphs-mini").test.with_transform(data.GlyphTransform.still())
    (images,) = read_ahead(glyphs, [[4, 2]])
    assert torch.equal(images, glyphs.batch([4, 2])[0])


def test_few_images_wait_in_memory(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = Part.image

    def image(self: Any, index: int) -> torch.Tensor:
        read.append(index)
        return plain(self, index)

    monkeypatch.setattr(Part, "image", image)
    before = set(threading.enumerate())
    batches = read_ahead(part, [[n] for n in range(20)], threads=1)
    next(batches)
    assert set(threading.enumerate()) > before
    for _ in range(200):  # let the thread do all that it may
        threading.Event().wait(0.001)
    assert len(read) <= 1 + 4
    batches.close()
    assert len(read) <= 1 + 4
    assert set(threading.enumerate()) <= before


def test_an_image_that_disappeared_is_an_error(part: Part, tmp_path: Path) -> None:
    (tmp_path / "photos" / part.paths[3]).unlink()
    with pytest.raises(ImageError, match="moved or deleted"):
        list(read_ahead(part, [[0, 1], [2, 3]], threads=2))


def test_a_broken_image_is_left_out_and_told(part: Part, tmp_path: Path) -> None:
    for row in (0, 3, 6, 7):
        (tmp_path / "photos" / part.paths[row]).write_bytes(b"no image")
    told: list[tuple[int, str]] = []
    batches = read_ahead(part, [[0, 1, 2], [3, 4, 5], [6, 7], [8]], 2, lambda *found: told.append(found))
    seen = [(images, [row for row, _ in told]) for images in batches]
    assert [rows for _, rows in seen] == [[0], [0, 3], [0, 3, 6, 7], [0, 3, 6, 7]]  # before the batch, not later
    for (images, _), good in zip(seen, [[1, 2], [4, 5], [], [8]], strict=True):
        assert len(images) == len(good)
        assert not good or torch.equal(images, part.batch(good)[0])
    assert {reason for _, reason in told} == {"not an image in a known format"}
    with pytest.raises(ImageError, match="not an image"):
        list(read_ahead(part, [[0, 1]], 2))
