from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metrix import data
from metrix.data.images import SUFFIXES, image_size

RED = (254, 0, 0)


def colour(path: Path, **options: object) -> tuple[int, ...]:
    image = data.load_image(path, **options)  # type: ignore[arg-type]
    assert image.mode == "RGB"
    return tuple(np.asarray(image)[0, 0].tolist())


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def near(given: tuple[int, ...], expected: tuple[int, ...], tolerance: int = 6) -> bool:
    return all(abs(int(a) - int(b)) <= tolerance for a, b in zip(given, expected, strict=True))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    """Each stored picture is the inverse of its orientation, so all come out alike."""
    upright = Image.new("RGB", (40, 20), "blue")
    upright.paste(RED, (0, 0, 20, 10))  # red at the upper left
    turned = Image.Transpose
    undo = {
        2: [turned.FLIP_LEFT_RIGHT],
        3: [turned.ROTATE_180],
        4: [turned.FLIP_TOP_BOTTOM],
        5: [turned.TRANSPOSE],
        6: [turned.ROTATE_90],
        7: [turned.TRANSVERSE],
        8: [turned.ROTATE_270],
    }
    stored = upright
    for step in undo.get(orientation, []):
        stored = stored.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = np.asarray(data.load_image(save(tmp_path / "a.jpg", stored, exif=exif, quality=95)))
    assert image.shape == (20, 40, 3)
    assert near(tuple(image[2, 2]), RED, 12)
    assert near(tuple(image[17, 37]), (0, 0, 255), 12)


def test_greyscale(tmp_path: Path) -> None:
    assert colour(save(tmp_path / "a.png", Image.new("L", (4, 4), 77))) == (77, 77, 77)


def test_one_bit(tmp_path: Path) -> None:
    assert colour(save(tmp_path / "a.png", Image.new("1", (4, 4), 1))) == (255, 255, 255)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (257 * 77, 77), (65535, 255)])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path, value: int, expected: int, suffix: str) -> None:
    picture = Image.fromarray(np.full((4, 4), value, np.uint16))
    assert colour(save(tmp_path / f"a.{suffix}", picture)) == (expected,) * 3


def test_palette(tmp_path: Path) -> None:
    picture = Image.new("RGB", (4, 4), RED).convert("P", palette=Image.Palette.ADAPTIVE)
    assert colour(save(tmp_path / "a.png", picture)) == RED


def test_transparent_palette_lies_on_white(tmp_path: Path) -> None:
    picture = Image.new("P", (4, 4), 0)
    picture.putpalette([*RED, 0, 0, 255])
    picture.putpixel((3, 3), 1)
    path = save(tmp_path / "a.png", picture, transparency=0)
    assert colour(path) == (255, 255, 255)
    assert np.asarray(data.load_image(path))[3, 3].tolist() == [0, 0, 255]


@pytest.mark.parametrize(("alpha", "expected"), [(255, RED), (0, (255, 255, 255)), (128, (254, 127, 127))])
def test_alpha_lies_on_white(tmp_path: Path, alpha: int, expected: tuple[int, ...]) -> None:
    assert near(colour(save(tmp_path / "a.png", Image.new("RGBA", (4, 4), (*RED, alpha)))), expected, 1)


def test_grey_with_alpha(tmp_path: Path) -> None:
    assert colour(save(tmp_path / "a.png", Image.new("LA", (4, 4), (0, 0)))) == (255, 255, 255)


def test_transparent_colour_of_rgb(tmp_path: Path) -> None:
    assert colour(save(tmp_path / "a.png", Image.new("RGB", (4, 4), RED), transparency=RED)) == (
        255,
        255,
        255,
    )


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk(tmp_path: Path, suffix: str) -> None:
    picture = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert near(colour(save(tmp_path / f"a.{suffix}", picture)), (255, 0, 0), 8)


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), RED), Image.new("RGB", (4, 4), "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert near(colour(tmp_path / "a.gif"), RED, 2)


def test_box_crops_the_upright_image(tmp_path: Path) -> None:
    picture = Image.new("RGB", (20, 40), "blue")
    picture.paste(RED, (10, 0, 20, 10))  # at the upper left once turned
    exif = Image.Exif()
    exif[0x0112] = 8
    path = save(tmp_path / "a.png", picture, exif=exif)
    image = np.asarray(data.load_image(path, box=(0, 0, 10, 10)))
    assert image.reshape(-1, 3).tolist() == [list(RED)] * 100


def test_a_box_over_the_edge_is_cut_and_one_beside_the_image_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.new("RGB", (20, 10)))
    assert data.load_image(path, box=(-5, 2, 8, 99)).size == (8, 8)
    with pytest.raises(data.ImageError, match="is outside the image of 20x10 pixels"):
        data.load_image(path, box=(30, 0, 40, 5))


@pytest.mark.parametrize(
    ("size", "expected"), [((800, 600), (133, 100)), ((600, 800), (100, 133)), ((80, 60), (80, 60))]
)
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_short_side_shrinks_and_never_enlarges(
    tmp_path: Path, size: tuple[int, int], expected: tuple[int, int], suffix: str
) -> None:
    path = save(tmp_path / f"a.{suffix}", Image.new("RGB", size))
    assert data.load_image(path, short_side=100).size == expected


def test_reduced_decoding_of_jpeg_looks_like_the_full_one(tmp_path: Path) -> None:
    waves = 127 + 100 * np.sin(np.arange(1200)[None, :, None] / 60 + np.arange(900)[:, None, None] / 90)
    path = save(tmp_path / "a.jpg", Image.fromarray(np.repeat(waves, 3, axis=2).astype(np.uint8)), quality=95)
    fast = np.asarray(data.load_image(path, short_side=90), dtype=float)
    full = np.asarray(data.load_image(path).resize((120, 90), Image.Resampling.BILINEAR), dtype=float)
    assert abs(fast - full).mean() < 1


@pytest.mark.parametrize("keep", [0, 3, 200, 0.5])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_truncated_files_are_broken(tmp_path: Path, keep: float, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(noise))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(data.ImageError, match=r"cannot read the image .*a\."):
        data.load_image(path)


def test_damage_in_the_middle_is_broken(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", Image.fromarray(noise))
    content = bytearray(path.read_bytes())
    content[500:520] = bytes(20)
    path.write_bytes(content)
    with pytest.raises(data.ImageError):
        data.load_image(path)


def test_text_and_missing_files_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("hello")
    with pytest.raises(data.ImageError, match="not an image in a known format"):
        data.load_image(tmp_path / "a.jpg")
    with pytest.raises(data.ImageError, match="no such file"):
        data.load_image(tmp_path / "b.jpg")
    assert image_size(tmp_path / "a.jpg") is None


def test_formats_that_run_programs_are_never_opened(tmp_path: Path) -> None:
    path = save(tmp_path / "a.eps", Image.new("RGB", (4, 4)))
    path = path.rename(tmp_path / "a.jpg")
    with pytest.raises(data.ImageError, match="not an image in a known format"):
        data.load_image(path)
    assert ".eps" not in SUFFIXES


def test_float_images_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", Image.new("F", (4, 4), 0.5))
    with pytest.raises(data.ImageError, match="expected 8 or 16 bits per channel, got 32-bit floats"):
        data.load_image(path)


def test_the_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(data.ImageError("a.jpg", "truncated")))
    assert (error.path, error.reason) == ("a.jpg", "truncated")
