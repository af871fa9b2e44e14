"""Files and tables from strangers: pipes, images that take gigabytes, names that are not text, odd tables."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from metrix import data
from metrix.data import ImageError, images, load_image
from metrix.data.images import PixelBudget, image_size
from metrix.errors import DataError
from tests.command_line import Metrix
from tests.photos import write_photos

from .conftest import Paint


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")  # opening it would wait for a writer, for ever
    with pytest.raises(ImageError, match="not a regular file"):
        load_image(tmp_path / "pipe.png")
    assert image_size(tmp_path / "pipe.png") is None


def test_a_pipe_in_a_folder_is_left_out(tmp_path: Path) -> None:
    photos = write_photos(tmp_path, classes=4, per_class=2)
    os.mkfifo(photos / "kind 0" / "pipe.png")
    report = data.check(photos)
    assert report.ok
    assert "kind 0/pipe.png" in report.notes[0]


def test_a_pipe_in_a_manifest_is_refused(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    (tmp_path / "list.csv").write_text("label,path\nx,a.png\ny,b.png\n")
    with pytest.raises(DataError, match=r"no regular file.*b\.png"):
        data.open(tmp_path / "list.csv")


def test_an_image_beyond_the_limit_is_not_decoded(
    tmp_path: Path, paint: Paint, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = paint(tmp_path / "large.png", size=(40, 30))
    monkeypatch.setenv("METRIX_MAX_PIXELS", "1199")
    with pytest.raises(ImageError, match=r"1,200 pixels are more than the limit of 1,199 \(METRIX_MAX_PIXELS"):
        load_image(file)
    photo = paint(tmp_path / "large.jpg", size=(40, 30))
    with pytest.raises(ImageError, match="1,200 pixels"):
        load_image(photo, short_side=5)  # JPEG could be decoded at an eighth of its size
    monkeypatch.setenv("METRIX_MAX_PIXELS", "1200")
    assert load_image(file).size == (40, 30)
    monkeypatch.setenv("METRIX_MAX_PIXELS", "many")
    with pytest.raises(DataError, match="expected a number of pixels, got 'many'"):
        load_image(file)


def test_an_image_that_pillow_warns_of_is_reported_without_the_warning(tmp_path: Path) -> None:
    file = tmp_path / "bomb.png"
    Image.new("1", (10_000, 9_000)).save(file)  # 90 million pixels in a few kB
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        images.readable_formats.cache_clear()
        with pytest.raises(ImageError, match="90,000,000 pixels are more than the limit"):
            load_image(file)
    assert [one for one in heard if "pixels" in str(one.message)] == []


def test_threads_share_a_budget_of_pixels() -> None:
    budget, most, guard = PixelBudget(100), [0], threading.Lock()

    def decode(pixels: int) -> None:
        with budget.hold(pixels), guard:
            most[0] = max(most[0], budget.held)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [40] * 50 + [100] * 5))
    assert most[0] <= 100
    assert budget.held == 0
    decode(1000)  # alone, a larger one passes


def test_decoding_takes_from_the_budget(tmp_path: Path, paint: Paint, monkeypatch: pytest.MonkeyPatch) -> None:
    file = paint(tmp_path / "a.png", size=(40, 30))
    held: list[int] = []
    convert = images._convert_to_rgb
    monkeypatch.setattr(
        images, "_convert_to_rgb", lambda image: (held.append(images._decoding.held), convert(image))[1]
    )
    load_image(file)
    assert held == [1200]


READ_WITH_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from metrix.data import images

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

images._decoding.most = int(sys.argv[1])
images.load_image(Path(sys.argv[2]), short_side=64)  # imports what decoding needs
before = peak()
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda file: images.load_image(Path(file), short_side=64), sys.argv[3:] * 3))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_memory_of_threads_stays_within_the_budget(tmp_path: Path, paint: Paint) -> None:
    side = 2001
    limit = side * side + 1
    files = []
    for mode in ("RGBA", "LA"):
        files.append(tmp_path / f"{mode}.png")
        Image.new(mode, (side, side)).save(files[-1], compress_level=1)
    files.append(tmp_path / "wide.png")
    Image.fromarray(np.zeros((side, side), np.uint16)).save(files[-1], compress_level=1)
    small = paint(tmp_path / "small.png", size=(70, 70))
    command = [sys.executable, "-c", READ_WITH_THREADS, str(limit), str(small), *map(str, files)]
    # Without a fixed threshold, glibc keeps what a thread has freed for that thread: the peak then depends on their turns.
    environment = {**os.environ, "METRIX_MAX_PIXELS": str(limit), "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    used = int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert used > 3 * limit, "nothing was decoded"
    assert used < 24 * limit + 16 * 2**20, f"{used / limit:.1f} bytes per pixel of the limit"  # 16 MB for the threads


def test_wide_grey_is_scaled_as_before(tmp_path: Path) -> None:
    values = np.array([[0, 256, 257, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert np.array(load_image(tmp_path / "a.png"))[0, :, 0].tolist() == [0, 0, 1, 255]


def test_heic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_photos(tmp_path / "photos", classes=2, per_class=2)
    (photos / "kind 0" / "IMG_1.HEIC").write_bytes(b"no image")
    monkeypatch.setattr("metrix.data.images.reads_heic", lambda: False)
    assert data.read_catalogue(photos).notes[0] == "1 HEIC image cannot be read without pip install metrix[heic]"
    monkeypatch.undo()
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(photos / "kind 0" / "IMG_1.HEIC", format="HEIF")
    assert "kind 0/IMG_1.HEIC" in data.read_catalogue(photos).paths
    assert load_image(photos / "kind 0" / "IMG_1.HEIC").size == (64, 48)


def test_names_that_are_not_utf8(tmp_path: Path, metrix: Metrix) -> None:
    photos = write_photos(tmp_path / "photos", classes=3, per_class=2)
    os.rename(os.fsencode(photos / "kind 2"), os.fsencode(photos) + b"/caf\xe9")
    with pytest.raises(DataError, match=r"not UTF-8: 'caf\\udce9"):
        data.open(photos)
    ended = metrix("data", "check", photos)
    assert ended.code == 1
    assert "not UTF-8" in ended.out


def test_control_characters_and_markup_of_names_are_shown(tmp_path: Path, metrix: Metrix) -> None:
    photos = write_photos(tmp_path / "[bold]photos[/bold]", classes=4, per_class=2)
    evil = "\x1b]52;c;ZXZpbA==\x07[red].jpg"
    (photos / "kind 0" / evil).write_bytes(b"no image")
    ended = metrix("data", "check", photos, "--max-bad", "5")
    assert "\x1b]" not in ended.out + ended.err
    assert "\x07" not in ended.out + ended.err
    assert r"\x1b]52;c;ZXZpbA==" in ended.out
    assert "[red].jpg" in ended.out
    assert "[bold]photos[/bold]" in ended.out
    ended = metrix("train", photos, "--max-bad", "0")
    assert r"\x1b]52" in ended.err
    assert "\x1b]" not in ended.err


def test_a_repeated_column_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("label,path,label\nx,a.png,y\n")
    with pytest.raises(DataError, match="expected each column once, got 'label' more than once"):
        data.read_catalogue(tmp_path / "list.csv")
    table = pa.Table.from_arrays([pa.array(["x"])] * 2 + [pa.array(["a.png"])], names=["label", "label", "path"])
    pyarrow.parquet.write_table(table, tmp_path / "list.parquet")
    with pytest.raises(DataError, match="expected each column once"):
        data.read_catalogue(tmp_path / "list.parquet")


@pytest.mark.parametrize("value", ["inf", "-inf", "1e999", "nan"])
def test_boxes_are_finite(value: str, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(f"label,path,x_1,y_1,x_2,y_2\nx,a.png,0,0,{value},5\n")
    with pytest.raises(DataError, match="crop box: expected four finite numbers"):
        data.read_catalogue(tmp_path / "list.csv")


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.date32(), pa.list_(pa.int64())])
def test_labels_are_text_or_integers(kind: pa.DataType, tmp_path: Path) -> None:
    values = [[1]] if pa.types.is_list(kind) else [1]
    table = pa.table({"label": pa.array(values, kind), "path": ["a.png"]})
    pyarrow.parquet.write_table(table, tmp_path / "list.parquet")
    with pytest.raises(DataError, match="column 'label': expected text or integers, got"):
        data.read_catalogue(tmp_path / "list.parquet")
