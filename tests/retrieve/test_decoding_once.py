"""An index is built with every image decoded once: what is broken is found, left out, limited and named all the same."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import DataError
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.image_lists import list_images
from metrix.retrieve.indexing import add_images, index_images
from metrix.retrieve.queries import embed_queries
from metrix.runs import embedding_blocks
from metrix.runs.trained_model import open_run
from metrix.search import Index
from tests.photos import draw_photo, write_photos

BROKEN = ("kind 0/0.jpg", "kind 0/4.jpg", "kind 0/5.jpg", "kind 1/0.jpg", "kind 1/1.jpg", "kind 2/5.jpg")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4: the second of the photos has no image that can be read."""
    monkeypatch.setattr(embedding_blocks, "BLOCK", 4)
    monkeypatch.setattr("metrix.retrieve.indexing.BLOCKS_AT_ONCE", 1)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = write_photos(tmp_path / "photos")
    for name in BROKEN:
        (folder / name).write_bytes(b"no image")
    return folder


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was decoded, by whichever way."""
    from metrix.data import dataset, images, survey

    found: Counter[str] = Counter()
    plain = images._decode

    def decode(path: Any, *rest: Any) -> Any:
        found[Path(path).relative_to(Path(path).parents[1]).as_posix()] += 1
        return plain(path, *rest)

    monkeypatch.setattr(images, "_decode", decode)
    assert dataset.load_image is survey.load_image is images.load_image
    return found


def everything(index: Index) -> dict[str, tuple[bytes, str | None]]:
    """Vector and label of each item."""
    found = {}
    for _, lot in index.store.scan(100):
        for record, vector in zip(lot.records(), lot.vectors, strict=True):
            found[record["id"]] = vector.tobytes(), record.get("label")
    return found


def test_a_first_build_decodes_each_image_once(run: Path, photos: Path, tmp_path: Path, decoded: Counter[str]) -> None:
    model = open_run(run)
    done = index_images(model, [photos], tmp_path / "p.index")
    assert len(decoded) == 18
    assert set(decoded.values()) == {1}
    names = [f"kind {c}/{n}.jpg" for c in range(3) for n in range(6) if f"kind {c}/{n}.jpg" not in BROKEN]
    assert (done.images, len(done.index), done.index.description.skipped) == (12, 12, 6)
    assert [one.path for one in done.skipped] == list(BROKEN)
    assert done.skipped == list_images([photos]).skipped
    found = everything(done.index)
    assert sorted(found) == sorted(names)
    assert {name: label for name, (_, label) in found.items()} == {name: name.split("/")[0] for name in names}
    vectors, _, _ = ImageEncoder(model).embed_files([photos / name for name in names])
    stored = np.stack([np.frombuffer(found[name][0], np.float32) for name in names])
    np.testing.assert_allclose(stored, vectors, atol=1e-5)


def test_an_addition_decodes_each_image_once(run: Path, photos: Path, tmp_path: Path, decoded: Counter[str]) -> None:
    model = open_run(run)
    index_images(model, [photos / "kind 0"], tmp_path / "p.index", root=photos)
    decoded.clear()
    done = add_images(model, [photos / "kind 1"], tmp_path / "p.index")
    assert (done.images, len(done.skipped), len(done.index)) == (4, 2, 7)
    assert decoded == {f"kind 1/{n}.jpg": 1 for n in range(6)}


def test_a_query_is_decoded_once(run: Path, photos: Path, tmp_path: Path, decoded: Counter[str]) -> None:
    model = open_run(run)
    index = index_images(model, [photos], tmp_path / "p.index").index
    decoded.clear()
    queries = embed_queries(ImageEncoder(model), index, [photos / "kind 1"])
    assert decoded == {f"kind 1/{n}.jpg": 1 for n in range(6)}
    assert queries.own == tuple(index.find([f"kind 1/{n}.jpg" for n in range(2, 6)]))
    assert min(queries.own) >= 0
    assert [one.path for one in queries.skipped] == ["0.jpg", "1.jpg"]
    with pytest.raises(DataError, match=r"2 of 6 images cannot be read: 0\.jpg .*max_bad=1 allows 1.*--max-bad 2"):
        embed_queries(ImageEncoder(model), index, [photos / "kind 1"], max_bad=1)


@pytest.mark.parametrize("max_bad", [0, 2, 5, 0.25])
def test_too_many_broken_images_are_all_named_and_the_old_index_stays(
    run: Path, photos: Path, tmp_path: Path, max_bad: int | float, decoded: Counter[str]
) -> None:
    target = tmp_path / "p.index"
    before = everything(index_images(open_run(run), [photos / "kind 2"], target, root=photos).index)
    with pytest.raises(DataError) as checked:
        list_images([photos], max_bad=max_bad)
    seen: list[str] = []
    model = open_run(run, lambda what, done, of: seen.append(what))
    with pytest.raises(DataError) as refused:
        index_images(model, [photos], target, max_bad=max_bad)
    assert str(refused.value) == str(checked.value)
    assert "6 of 18 images cannot be read: kind 0/0.jpg (not an image in a known format), " in str(refused.value)
    assert seen.count("embedding") == {0: 0, 2: 1, 5: 4, 0.25: 4}[max_bad]  # blocks before the one that was too many
    assert everything(Index.open(target)) == before
    decoded.clear()
    done = index_images(open_run(run), [photos], target, max_bad=6)
    assert (done.images, len(done.skipped)) == (12, 6)
    assert sum(decoded.values()) == 18 - min(4 * seen.count("embedding"), 18)  # the other blocks were kept
    with pytest.raises(DataError, match="6 of 18"):
        index_images(open_run(run), [photos], target, max_bad=max_bad)
    assert len(Index.open(target)) == 12


def test_missing_files_are_limited_before_anything_is_embedded(run: Path, photos: Path, tmp_path: Path) -> None:
    (photos / "list.txt").write_text("kind 0/0.jpg\nkind 0/1.jpg\nkind 0/9.jpg\n")
    seen: list[str] = []
    model = open_run(run, lambda what, done, of: seen.append(what))
    message = r"2 of 3 images cannot be read: kind 0/9\.jpg .*kind 0/0\.jpg .*max_bad=0 allows 0.*--max-bad 2"
    with pytest.raises(DataError, match=message):
        index_images(model, [photos / "list.txt"], tmp_path / "p.index", max_bad=0)
    assert "embedding" not in seen
    assert not (tmp_path / "p.index").exists()


def test_a_folder_without_a_sound_image_is_refused(run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 1, 6)
    for file in photos.glob("*/*.jpg"):
        file.write_bytes(b"no image")
    for max_bad in (None, 2):
        with pytest.raises(DataError, match=r"expected images, got none that can be read: kind 0/0\.jpg"):
            index_images(open_run(run), [photos], tmp_path / "p.index", max_bad=max_bad)
    assert not (tmp_path / "p.index" / "description.json").exists()


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_an_interrupted_build_resumes_to_the_same_index(
    run: Path, photos: Path, tmp_path: Path, after: int, decoded: Counter[str]
) -> None:
    whole = index_images(open_run(run), [photos], tmp_path / "whole.index")

    def interrupt(what: str, done: int, of: int) -> None:
        if what == "embedding" and done > 4 * after:
            raise KeyboardInterrupt

    target = tmp_path / "p.index"
    with pytest.raises(KeyboardInterrupt):
        index_images(open_run(run, interrupt), [photos], target)
    assert len(list(target.glob(".embedding-*/0*.npy"))) == after
    decoded.clear()
    done = index_images(open_run(run), [photos], target, max_bad=6)
    assert sum(decoded.values()) == 18 - 4 * after  # of the blocks that were kept, none again
    assert everything(done.index) == everything(whole.index)
    assert done.skipped == whole.skipped
    assert done.index.description.skipped == 6
    assert not list(target.glob(".embedding-*"))


def test_an_image_that_disappears_meanwhile_is_skipped(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrix.data.reading_ahead.MOST_THREADS", 1)  # so that the last ones are not read ahead
    photos = write_photos(tmp_path / "photos")

    def remove(what: str, done: int, of: int) -> None:
        if what == "embedding" and done == 4:
            shutil.rmtree(photos / "kind 2")

    done = index_images(open_run(run, remove), [photos], tmp_path / "p.index")
    assert 12 <= done.images < 18
    assert done.images + len(done.skipped) == 18
    assert {one.reason for one in done.skipped} == {"no such file; it was moved or deleted"}


def test_a_repaired_image_is_found_the_next_time(run: Path, photos: Path, tmp_path: Path) -> None:
    model = open_run(run)
    index_images(model, [photos], tmp_path / "p.index")
    draw_photo(0, 0).save(photos / BROKEN[0])
    done = add_images(model, [photos / BROKEN[0]], tmp_path / "p.index")
    assert (done.images, len(done.index), done.skipped) == (1, 13, ())
