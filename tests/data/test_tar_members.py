"""Headers of tar files: the formats against Python's tarfile, and what hostile files are answered with."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from metrix.data.tar_members import Listing, list_members
from metrix.errors import DataError

from ..shards import write_tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def list_file(path: Path) -> Listing:
    content = path.read_bytes()
    return list_members(lambda offset, size: content[offset : offset + size], len(content), path)


@pytest.mark.parametrize("name", FORMATS)
def test_members_are_those_of_tarfile(tmp_path: Path, name: str) -> None:
    names = ["a/1.jpg", "./b/2.jpg", "c//3.jpg", "d/" + "x" * 80 + "/" + "y" * 90 + ".jpg", "top.png", "a/empty.png"]
    if name != "ustar":
        names += ["é/ü.jpg", "e/" + "z" * 300 + ".jpg"]
    path = write_tar(
        tmp_path / "a.tar", {one: bytes([n]) * (700 * n) for n, one in enumerate(reversed(names))}, FORMATS[name]
    )
    content = path.read_bytes()
    found = list_file(path)
    with tarfile.open(path) as tar:
        expected = {
            one.name.removeprefix("./").replace("//", "/"): content[one.offset_data :][: one.size]
            for one in tar.getmembers()
        }
    assert {one.name: content[one.offset :][: one.size] for one in found.members} == expected
    assert [one.name for one in found.members] == sorted(expected)
    assert (found.skipped, found.notes) == ([], [])
    assert {one.name: one.label for one in found.members}["a/1.jpg"] == "a"
    assert {one.name: one.label for one in found.members}["top.png"] is None


def test_large_sizes_are_binary_or_in_a_pax_header(tmp_path: Path) -> None:
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("a/big.jpg")
        info.size = 9 << 30
        header = info.tobuf(format)
        total = len(header) + info.size

        def read(offset: int, size: int, header: bytes = header) -> bytes:
            return header[offset : offset + size].ljust(size, b"\0")

        found = list_members(read, total, tmp_path / "a.tar")
        assert found.skipped == [("a/big.jpg", "more than 536,870,912 bytes")]


def test_labels_beside_the_images(tmp_path: Path) -> None:
    members = {
        **{"0.jpg": b"0", "0.cls": b" 7\n", "1.left.jpg": b"1", "1.json": b'{"label": "cat"}'},
        **{"d/2.jpg": b"2", "d/2.json": b'{"class": 3}', "d/3.jpg": b"3", "d/3.json": b"[" * 60_000, "d/4.jpg": b"4"},
    }
    found = list_file(write_tar(tmp_path / "a.tar", members))
    labels = {one.name: one.label for one in found.members}
    assert labels == {"0.jpg": "7", "1.left.jpg": "cat", "d/2.jpg": "3", "d/3.jpg": "d", "d/4.jpg": "d"}


def test_what_is_no_plain_file_is_skipped_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        kinds = {tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard", tarfile.CHRTYPE: "device", tarfile.FIFOTYPE: "pipe"}
        for kind, name in kinds.items():
            info = tarfile.TarInfo(f"a/{name}.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        sparse = tarfile.TarInfo("a/sparse.jpg")
        sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 4
        tar.addfile(sparse, io.BytesIO(b"spar"))
        for name in (
            "../up.jpg",
            "/etc/abs.jpg",
            "a/../../in.jpg",
            "b/\udcff.jpg",
            "a/ok.jpg",
            "a/._ok.jpg",
            "a/dir.jpg/",
        ):
            info = tarfile.TarInfo(name)
            info.size = 3
            if name.endswith("/"):
                info.type, info.size = tarfile.DIRTYPE, 0
            tar.addfile(info, io.BytesIO(b"abc"))
    found = list_file(path)
    assert [one.name for one in found.members] == ["a/ok.jpg"]
    assert dict(found.skipped) == {
        "a/link.jpg": "a link",
        "a/hard.jpg": "a link",
        "a/device.jpg": "not a plain file",
        "a/pipe.jpg": "not a plain file",
        "a/sparse.jpg": "a sparse file",
        "../up.jpg": "its name leads out of the tar file",
        "/etc/abs.jpg": "its name leads out of the tar file",
        "../in.jpg": "its name leads out of the tar file",
        "'b/\\udcff.jpg'": "its name is not text in UTF-8",
    }


def test_of_two_members_with_one_name_the_last_counts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for content in (b"old", b"new"):
            info = tarfile.TarInfo("a/1.jpg")
            info.size = 3
            tar.addfile(info, io.BytesIO(content))
    found = list_file(tmp_path / "a.tar")
    assert [(tmp_path / "a.tar").read_bytes()[one.offset :][:3] for one in found.members] == [b"new"]
    assert found.notes == ["has 1 file again under the same name; the last one counts"]


@pytest.mark.parametrize("cut", [100, 700, 1536 + 100, 1536 + 512 + 10])
def test_a_tar_file_that_was_cut_is_damaged(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"1" * 1000, "a/2.jpg": b"2" * 1000})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"a\.tar is damaged at byte [\d,]+, after \d members?: it ends within"):
        list_file(path)


def test_a_cut_at_a_border_is_noted(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"1" * 1000, "a/2.jpg": b"2" * 1000})
    path.write_bytes(path.read_bytes()[:1536])
    found = list_file(path)
    assert [one.name for one in found.members] == ["a/1.jpg"]
    assert found.notes == ["has no end mark: it may have been cut short"]


def test_bytes_after_the_end_are_noted(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"1"})
    path.write_bytes(path.read_bytes() + b"x" * (2 << 20))
    assert "after its end mark, which are not read" in list_file(path).notes[0]


def test_a_damaged_header_is_an_error_not_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"1" * 1000, "a/2.jpg": b"2" * 1000})
    content = bytearray(path.read_bytes())
    content[1536] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="at byte 1,536, after 1 member: a header has another checksum; copy it again"):
        list_file(path)


def test_a_name_of_gigabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 6 << 30
    path = tmp_path / "a.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT).ljust(2048, b"x"))
    with pytest.raises(DataError, match="a name of 6,442,450,944 bytes"):
        list_file(path)


def test_what_is_no_tar_file(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"nothing " * 200)
    with pytest.raises(DataError, match="expected a tar file, got something else"):
        list_file(tmp_path / "a.tar")
    packed = gzip.compress(
        write_tar(tmp_path / "b.tar", {f"a/{n}.jpg": bytes([n, 9 * n % 256]) * 99 for n in range(99)}).read_bytes()
    )
    (tmp_path / "b.tar").write_bytes(packed)
    with pytest.raises(DataError, match="got one compressed by gzip, which has no random access; decompress it"):
        list_file(tmp_path / "b.tar")


def test_damaged_bytes_anywhere_never_end_in_another_error(tmp_path: Path) -> None:
    import random

    content = write_tar(tmp_path / "a.tar", {"a/" + "n" * 150 + ".jpg": b"1" * 900, "a/2.jpg": b"2"}).read_bytes()
    chance = random.Random(0)
    for _ in range(2000):
        hurt = bytearray(content[: chance.randrange(len(content))] if chance.random() < 0.3 else content)
        for _ in range(chance.randrange(1, 5)):
            if hurt:
                hurt[chance.randrange(min(len(hurt), 4096))] = chance.randrange(256)
        try:
            found = list_members(
                lambda offset, size, hurt=hurt: bytes(hurt[offset : offset + size]), len(hurt), tmp_path
            )
        except DataError:
            continue
        assert all(one.offset + one.size <= len(hurt) for one in found.members)
