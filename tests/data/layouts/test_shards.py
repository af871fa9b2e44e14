"""Tar files as a dataset: the same as the folder that they were packed from."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch

from metrix import data
from metrix.errors import DataError, MetrixWarning

from ...shards import pack, write_tar
from ..conftest import Paint


def test_a_folder_of_tar_files_is_what_was_packed(photos: Path, tmp_path: Path) -> None:
    shards = pack(photos, tmp_path / "packed", 3)
    unpacked, packed = data.open(photos), data.open(shards)
    assert packed.catalogue.layout == "shards"
    assert packed.catalogue.paths[0] == "photos-000.tar/class0/0.png"
    assert packed.train.class_names == unpacked.train.class_names
    for part in ("train", "test"):
        pixels = {path: unpacked.part(part).image(n) for n, path in enumerate(unpacked.part(part).paths)}
        read = {path.partition("/")[2]: packed.part(part).image(n) for n, path in enumerate(packed.part(part).paths)}
        assert pixels.keys() == read.keys()
        assert all(torch.equal(pixels[path], read[path]) for path in pixels)


@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_a_cache_of_pixels(photos: Path, tmp_path: Path, own_cache: Path, cache: str) -> None:
    shards = pack(photos, tmp_path / "packed")
    plain, cached = data.open(shards, short_side=256), data.open(shards, cache=cache)
    assert torch.equal(plain.train.image(4), cached.train.image(4))


def test_loader_processes_read_tar_files(photos: Path, tmp_path: Path) -> None:
    part = data.open(pack(photos, tmp_path / "packed")).train.with_transform(data.still_transform("shards", size=16))
    alone = [images for images, _ in data.loader(part, batch_size=4)]
    several = [images for images, _ in data.loader(part, batch_size=4, workers=2)]
    assert all(torch.equal(a, b) for a, b in zip(alone, several, strict=True))


def test_one_tar_file_a_pattern_and_a_named_layout(photos: Path, tmp_path: Path) -> None:
    shards = pack(photos, tmp_path / "packed", 3)
    assert len(data.read_catalogue(shards / "photos-001.tar")) == 6
    assert len(data.read_catalogue(shards / "photos-00[01].tar")) == 12
    assert len(data.read_catalogue(f"shards:{shards}")) == 18
    assert data.read_catalogue(shards / "photos-*.tar").root == shards
    with pytest.raises(DataError, match="expected tar files, got none with such a name"):
        data.read_catalogue(shards / "pictures-*.tar")
    with pytest.raises(DataError, match=r"expected tar files \(NAME\.tar\), got none"):
        data.read_catalogue(f"shards:{photos}")


def test_folders_of_parts_are_above_or_in_the_tar_files(photos: Path, tmp_path: Path) -> None:
    for name in ("class4", "class5"):
        (photos / name).rename(tmp_path / name)
        (tmp_path / "test").mkdir(exist_ok=True)
        (tmp_path / name).rename(tmp_path / "test" / name)
    above = tmp_path / "above"
    pack(photos, above / "train")
    pack(tmp_path / "test", above / "test")
    within = tmp_path / "within"
    within.mkdir()
    with tarfile.open(within / "all.tar", "w") as tar:
        tar.add(photos, "train")
        tar.add(tmp_path / "test", "test")
    for folder in (above, within):
        dataset = data.open(folder)
        assert dataset.train.class_names == tuple(f"class{k}" for k in range(4))
        assert dataset.test.class_names == ("class4", "class5")
        assert len(dataset.test) == 6


def test_shards_of_webdataset(photos: Path, tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for n, file in enumerate(sorted(photos.rglob("*.png"))):
        members |= {f"{n:06d}.png": file.read_bytes(), f"{n:06d}.cls": str(n // 3).encode()}
    write_tar(tmp_path / "wds" / "shard-000000.tar", members)
    catalogue = data.read_catalogue(tmp_path / "wds")
    assert catalogue.class_names == tuple("012345")
    assert len(catalogue) == 18
    write_tar(tmp_path / "bare" / "a.tar", {"1.png": members["000000.png"]})
    with pytest.raises(DataError, match=r"1 image of the tar files have no class: a\.tar/1\.png; expected a folder"):
        data.read_catalogue(tmp_path / "bare")


def test_tar_files_beside_class_folders_are_left_alone(photos: Path, tmp_path: Path) -> None:
    pack(photos, photos)
    catalogue = data.read_catalogue(photos)
    assert (catalogue.layout, len(catalogue)) == ("folder", 18)


def test_skipped_members_are_noted(photos: Path, tmp_path: Path) -> None:
    shards = pack(photos, tmp_path / "packed", 1)
    with tarfile.open(shards / "photos-000.tar", "a") as tar:
        link = tarfile.TarInfo("class0/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    catalogue = data.read_catalogue(shards)
    assert len(catalogue) == 18
    assert catalogue.notes == ("1 image skipped: photos-000.tar/class0/link.png (a link)",)


def test_broken_images_and_damaged_files(photos: Path, tmp_path: Path) -> None:
    (photos / "class0" / "1.png").write_bytes(b"no picture")
    shards = pack(photos, tmp_path / "packed", 2)
    with pytest.warns(MetrixWarning, match=r"photos-001\.tar/class0/1\.png"):
        assert len(data.open(shards, max_bad=1).broken) == 1
    broken = shards / "photos-001.tar"
    broken.write_bytes(broken.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"photos-001\.tar is damaged at byte .* copy it again"):
        data.open(shards)


def test_data_check_finds_the_same_picture_in_two_classes(photos: Path, tmp_path: Path) -> None:
    (photos / "class1" / "9.png").write_bytes((photos / "class0" / "0.png").read_bytes())
    report = data.check(pack(photos, tmp_path / "packed"))
    assert any("same content" in note for note in report.notes), report


def test_a_manifest_names_members(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "packed", 1)
    lines = [f"photos-000.tar/class{k}/{n}.png,thing {k % 3}" for k in range(6) for n in range(3)]
    (tmp_path / "packed" / "list.csv").write_text("path,label\n" + "\n".join(lines))
    dataset = data.open(tmp_path / "packed" / "list.csv", unseen=0)
    assert dataset.train.class_names == ("thing 0", "thing 1", "thing 2")
    lines.append("photos-000.tar/class0/nothing.png,thing 0")
    (tmp_path / "packed" / "list.csv").write_text("path,label\n" + "\n".join(lines))
    with pytest.raises(DataError, match=r"1 of 19 images are not in .*photos-000\.tar/class0/nothing\.png"):
        data.open(tmp_path / "packed" / "list.csv")


def test_a_tar_file_behind_a_link_out_of_the_folder(photos: Path, tmp_path: Path, paint: Paint) -> None:
    shards = pack(photos, tmp_path / "packed", 2)
    (shards / "photos-001.tar").rename(tmp_path / "elsewhere.tar")
    (shards / "photos-001.tar").symlink_to(tmp_path / "elsewhere.tar")
    with pytest.raises(DataError, match="lead outside it through a symbolic link"):
        data.open(shards)
    assert len(data.open(shards, follow_links=True).catalogue) == 18
