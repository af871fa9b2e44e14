"""Images read from where they are in tar files: the index beside them, open files, threads, changes."""

from __future__ import annotations

import io
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metrix.data import ImageError, load_image, shards
from metrix.data.images import image_size
from metrix.data.member_index import MemberIndex
from metrix.data.shards import find_member, image_status, open_shard
from metrix.errors import DataError, MetrixWarning

from ..shards import pack, write_tar


@pytest.fixture(autouse=True)
def nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_shards", shards._OpenFiles(shards.Shard))


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Path:
    return pack(photos, tmp_path / "packed")


def encode_picture(red: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (9, 7), (red, 0, 0)).save(file, "PNG")
    return file.getvalue()


def test_a_member_is_read_as_the_file_that_it_was(photos: Path, packed: Path) -> None:
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        path = packed / f"photos-{number % 2:03d}.tar" / file.relative_to(photos)
        np.testing.assert_array_equal(np.array(load_image(path)), np.array(load_image(file)))
        assert image_size(path) == image_size(file)
        assert image_status(path).size == file.stat().st_size
        assert image_status(path).mtime_ns == path.parents[1].stat().st_mtime_ns


def test_an_index_is_written_beside_and_used_again(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_shard(packed / "photos-000.tar").list()
    assert (packed / "photos-000.tar.members").is_file()
    shards._shards._open.clear()
    monkeypatch.setattr("metrix.data.member_index.list_members", None)
    assert open_shard(packed / "photos-000.tar").list() == before
    assert len(before.members) == 9


def test_a_changed_tar_file_gets_a_new_index(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a/1.png": encode_picture(10)})
    assert np.array(load_image(path / "a" / "1.png"))[0, 0, 0] == 10
    write_tar(path, {"a/0.png": encode_picture(30), "a/1.png": encode_picture(20)})
    assert np.array(load_image(path / "a" / "1.png"))[0, 0, 0] == 20
    write_tar(path, {"a/0.png": encode_picture(40), "a/1.png": encode_picture(50)})  # the same size
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert np.array(load_image(path / "a" / "1.png"))[0, 0, 0] == 50
    path.unlink()
    with pytest.raises(ImageError, match="no such file"):
        load_image(path / "a" / "1.png")


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "text", "header"])
def test_a_damaged_index_is_made_again(tmp_path: Path, damage: str) -> None:
    path = write_tar(tmp_path / "a.tar", {f"a/{n}.png": encode_picture(n) for n in range(20)})
    expected = open_shard(path).list()
    beside = tmp_path / "a.tar.members"
    content = bytearray(beside.read_bytes())
    content[300] ^= 1
    sound = beside.read_bytes()
    changed = {"cut": sound[:-5], "bit": bytes(content), "empty": b"", "text": b"[1]" * 200, "header": b"{" + sound[1:]}
    beside.write_bytes(changed[damage] if damage != "header" else sound.replace(b'"format": 1', b'"format": 9'))
    shards._shards._open.clear()
    assert open_shard(path).list() == expected
    assert beside.read_bytes() == sound


def test_a_folder_that_cannot_be_written_uses_the_cache(
    packed: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrix.data import member_index

    write = member_index.write_atomically

    def refuse(path: Path, content: object) -> None:
        if path.parent == packed:
            raise OSError(30, "Read-only file system")
        write(path, content)  # type: ignore[arg-type]

    monkeypatch.setattr(member_index, "write_atomically", refuse)
    expected = open_shard(packed / "photos-000.tar").list()
    assert not (packed / "photos-000.tar.members").exists()
    assert len(list((own_cache / "members").iterdir())) == 1
    shards._shards._open.clear()
    monkeypatch.setattr(member_index, "list_members", None)
    assert open_shard(packed / "photos-000.tar").list() == expected


def test_an_index_that_can_be_written_nowhere_is_kept_in_memory(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("metrix.data.member_index.write_atomically", refuse)
    with pytest.warns(MetrixWarning, match=r"indexes of tar files are not kept.*Read-only file system"):
        assert len(open_shard(packed / "photos-000.tar").list().members) == 9


def test_few_files_are_open_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MOST_OPEN", 4)
    for n in range(12):
        write_tar(tmp_path / f"{n}.tar", {"a/1.png": encode_picture(n)})

    def count_open() -> int:
        places = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        return sum(place.startswith(str(tmp_path)) for place in places)

    for _ in range(2):
        for n in range(12):
            assert np.array(load_image(tmp_path / f"{n}.tar" / "a" / "1.png"))[0, 0, 0] == n
            assert count_open() <= 8  # a tar file and its index each


def test_threads_and_forked_processes_read_at_the_same_time(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {f"a/{n}.png": encode_picture(n) for n in range(100)})

    def red(n: int) -> int:
        return int(np.array(load_image(path / "a" / f"{n}.png"))[0, 0, 0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(red, [*range(100)] * 5)) == [*range(100)] * 5
    with multiprocessing.get_context("fork").Pool(2) as workers:
        reds = workers.map(_read_red, [str(path / "a" / f"{n}.png") for n in range(100)])
    assert reds == [*range(100)]


def _read_red(path: str) -> int:
    return int(np.array(load_image(path))[0, 0, 0])


def test_names_that_are_not_there(packed: Path) -> None:
    with pytest.raises(ImageError, match="no such file; it was moved or deleted"):
        load_image(packed / "photos-000.tar" / "class0" / "nothing.png")
    with pytest.raises(ImageError, match="no such file"):
        load_image(packed / "nothing.tar" / "1.png")
    assert find_member(packed / "photos-000.txt" / "1.png") is None
    (packed / "folder.tar").mkdir()
    Image.new("RGB", (3, 3)).save(packed / "folder.tar" / "1.png")
    assert load_image(packed / "folder.tar" / "1.png").size == (3, 3)


def test_a_damaged_tar_file_is_the_reason_of_an_image(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a/1.png": b"x" * 3000})
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="it ends within a member; copy it again"):
        open_shard(path)
    with pytest.raises(ImageError, match="is damaged at byte"):
        load_image(path / "a" / "1.png")


def test_names_with_the_same_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrix.data.member_index._hash", lambda name: len(name))
    path = write_tar(tmp_path / "a.tar", {f"a/{n}.png": encode_picture(n) for n in range(10)})
    for n in range(10):
        assert np.array(load_image(path / "a" / f"{n}.png"))[0, 0, 0] == n
    with pytest.raises(FileNotFoundError):
        open_shard(path).find("a/x.png")


def test_an_index_says_which_format_it_has(tmp_path: Path) -> None:
    open_shard(write_tar(tmp_path / "a.tar", {"a/1.png": b"1"}))
    content = (tmp_path / "a.tar.members").read_bytes()
    with pytest.raises(ValueError, match="another format"):
        MemberIndex(content.replace(b'"format": 1', b'"format": 2'))
