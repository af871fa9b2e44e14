from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from metrix import data
from metrix.data import glyphs


def pixel_recall(part: data.Part, every: int = 1) -> float:
    """Share of images whose nearest other image, by the cosine of pixels, is of the same class."""
    pixels = torch.stack([part.image(n) for n in range(len(part))]).flatten(1).float()
    pixels = torch.nn.functional.normalize(pixels, dim=1)
    queries = torch.arange(0, len(pixels), every)
    similarity = pixels[queries] @ pixels.T
    similarity[torch.arange(len(queries)), queries] = -2
    return float((part.labels[similarity.argmax(1)] == part.labels[queries]).float().mean())


@pytest.fixture(scope="module")
def full() -> data.Dataset:
    started = time.monotonic()
    dataset = data.open("glyphs")
    assert time.monotonic() - started < 60
    return dataset


def test_about_two_thousand_characters_in_twelve_to_sixteen_faces(full: data.Dataset) -> None:
    catalogue = full.catalogue
    assert 2000 < len(catalogue.class_names) < 2300
    assert 27_000 < len(catalogue) < 31_000
    assert catalogue.pixels is not None
    assert catalogue.pixels.shape == (len(catalogue), 28, 28)
    counts = np.bincount(catalogue.labels)
    assert counts.min() >= 8
    assert np.median(counts) >= 12
    assert counts.max() == 16
    assert len(set(catalogue.paths)) == len(catalogue)


def test_halves_share_no_class(full: data.Dataset) -> None:
    train, test = set(full.train.class_names), set(full.test.class_names)
    assert not train & test
    assert abs(len(train) - len(test)) <= 1
    assert len(train | test) == len(full.catalogue.class_names)


def test_no_image_is_blank_or_cut_off(full: data.Dataset) -> None:
    pixels = full.catalogue.pixels
    assert pixels is not None
    assert (pixels.max(axis=(1, 2)) > 20).all()
    edges = np.concatenate(
        [pixels[:, [0, -1], :].reshape(len(pixels), -1), pixels[:, :, [0, -1]].reshape(len(pixels), -1)], 1
    )
    assert (edges.max(axis=1) > 0).mean() < 0.05  # only what is wider than the square fills it


def test_alike_outlines_are_one_class(full: data.Dataset) -> None:
    names = set(full.catalogue.class_names)
    greek_and_cyrillic = (("A", "\u0391", "\u0410"), ("o", "\u03bf", "\u043e"))
    signs = (
        ("\u00c5", "\u212b"),
        ("\u03a9", "\u2126"),
        ("\u00b2", "\u2082"),
    )  # Ångström, Ohm, raised and lowered 2
    for first, *others in (*greek_and_cyrillic, *signs):
        assert f"U+{ord(first):04X}" in names
        assert not names & {f"U+{ord(other):04X}" for other in others}
    for first, second in (("l", "I"), ("O", "0"), ("a", "ɑ"), ("e", "é"), ("b", "d")):
        assert {f"U+{ord(first):04X}", f"U+{ord(second):04X}"} <= names


def test_no_image_belongs_to_two_classes(full: data.Dataset) -> None:
    """Pixel for pixel, in whatever face: of such classes only the first is there."""
    catalogue = full.catalogue
    assert catalogue.pixels is not None
    seen: dict[bytes, int] = {}
    for image, label in zip(catalogue.pixels, catalogue.labels.tolist(), strict=True):
        assert seen.setdefault(image.tobytes(), label) == label
    names = set(catalogue.class_names)
    for first, second in (("K", "\u041a"), ("\u00cb", "\u0401"), ("3", "\u0417")):  # Latin or a digit, and Cyrillic
        assert f"U+{ord(first):04X}" in names
        assert f"U+{ord(second):04X}" not in names
    assert f"U+004B/{glyphs.FACES[0]}" in catalogue.paths  # the first keeps all of its images


def test_pixels_alone_find_about_two_thirds(full: data.Dataset) -> None:
    assert 0.62 < pixel_recall(full.test, every=5) < 0.75


def test_drawing_again_gives_the_same_bytes() -> None:
    pixels, labels, faces, names = glyphs.draw(mini=True)
    catalogue = glyphs.load("glyphs-mini")
    assert np.array_equal(pixels, catalogue.pixels)
    assert np.array_equal(labels, catalogue.labels)
    assert tuple(names) == catalogue.class_names
    assert [f"{names[k]}/{glyphs.FACES[f]}" for k, f in zip(labels, faces, strict=True)] == list(catalogue.paths)


def test_the_mini_dataset_is_a_piece_of_the_whole(full: data.Dataset) -> None:
    mini = data.open("glyphs-mini")
    assert (mini.train.num_classes, mini.test.num_classes) == (60, 60)
    assert 1200 < len(mini.catalogue) < 2000
    whole = dict(zip(full.catalogue.paths, full.catalogue.pixels, strict=True))  # type: ignore[arg-type]
    assert mini.catalogue.pixels is not None
    for path, image in zip(mini.catalogue.paths, mini.catalogue.pixels, strict=True):
        assert np.array_equal(whole[path], image)
    assert 0.5 < pixel_recall(mini.test) < 0.85


def test_the_cached_file_is_used_checked_and_holds_no_objects(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data.open("glyphs-mini").catalogue.fingerprint()
    (file,) = (own_cache / "glyphs").iterdir()
    with np.load(file, allow_pickle=False) as content:
        assert set(content.files) == {"pixels", "labels", "faces", "class_names", "sha256"}
    whole = file.read_bytes()
    drawing = glyphs.draw(mini=True)
    drawn: list[bool] = []

    def draw(mini: bool) -> tuple[object, ...]:
        drawn.append(mini)
        return drawing

    monkeypatch.setattr(glyphs, "draw", draw)
    assert data.open("glyphs-mini").catalogue.fingerprint() == first
    assert drawn == []
    for damaged in (b"", whole[:1000], whole[:50_000] + b"\x01" + whole[50_001:]):
        file.write_bytes(damaged)
        drawn.clear()
        assert data.open("glyphs-mini").catalogue.fingerprint() == first
        assert drawn == [True]
        assert file.read_bytes() == whole


def test_check_knows_the_embedded_dataset() -> None:
    report = data.check("glyphs-mini")
    assert report.ok
    assert report.sizes == ((28, 28),) * 3
    assert report.parts["train"].classes + report.parts["val"].classes == 60
