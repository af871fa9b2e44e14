from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from metrix.data import load_image
from metrix.errors import DataError
from metrix.explore.pictures import count_pixels, read_picture


@pytest.mark.parametrize("size", [(70_000, 20), (20, 70_000)])
def test_an_image_longer_than_a_jpeg_is_shown_shrunk(tmp_path: Path, size: tuple[int, int]) -> None:
    Image.new("RGB", size).save(tmp_path / "strip.png")
    found = read_picture(tmp_path / "strip.png", None, 512, 50_000_000)
    (tmp_path / "shown.jpg").write_bytes(found.content or b"")
    assert sorted(load_image(tmp_path / "shown.jpg").size) == [19, 65_500]


def test_an_upload_with_thousands_of_scans_is_refused() -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG", progressive=True)
    image = file.getvalue()
    scan = image[image.rindex(b"\xff\xda") : -2]
    assert count_pixels(image, 4096) == 4096
    with pytest.raises(DataError, match="at most 500 scans"):
        count_pixels(image[:-2] + 500 * scan + image[-2:], 4096)
