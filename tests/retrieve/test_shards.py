"""Images in tar files, from an index to the page that shows them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from metrix.data import load_image
from metrix.errors import InvalidInput
from metrix.explore.pictures import read_picture
from metrix.retrieve.embedding_output import select_images, write_embeddings
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.image_lists import list_images
from metrix.retrieve.indexing import add_images, index_images
from metrix.retrieve.item_images import count_missing, image_file, read_item_image
from metrix.retrieve.queries import embed_queries
from metrix.runs.trained_model import open_run
from tests.photos import write_photos
from tests.shards import pack


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Path:
    return pack(photos, tmp_path / "packed", 3)


def test_ids_and_labels(packed: Path) -> None:
    listed = list_images([packed])
    assert listed.root == packed
    assert listed.ids[0] == "photos-000.tar/kind 0/0.jpg"
    assert listed.columns["label"].to_pylist() == [one.split("/")[1] for one in listed.ids]
    assert list_images([packed / "photos-000.tar"]).ids == listed.ids[:6]
    assert list_images([packed / "photos-00[12].tar"]).ids == listed.ids[6:]
    (packed / "list.txt").write_text("photos-001.tar/kind 0/1.jpg\nphotos-001.tar/nothing.jpg\n")
    some = list_images([packed / "list.txt"])
    assert some.ids == ("photos-001.tar/kind 0/1.jpg",)
    assert [(one.path, one.reason) for one in some.skipped] == [("photos-001.tar/nothing.jpg", "there is no such file")]


def test_an_index_of_tar_files_is_that_of_the_files(run: Path, photos: Path, packed: Path, tmp_path: Path) -> None:
    model = open_run(run)
    of_files = index_images(model, [photos], tmp_path / "f.index").index
    of_shards = index_images(model, [packed], tmp_path / "s.index").index
    names = [f"kind {c}/{n}.jpg" for c in range(3) for n in range(6)]
    members = [f"photos-{k % 3:03d}.tar/{name}" for k, name in enumerate(names)]
    np.testing.assert_array_equal(of_shards.get(members).vectors, of_files.get(names).vectors)
    queries = embed_queries(ImageEncoder(model), of_shards, [packed / members[4], photos / names[4]])
    assert queries.own == (int(of_shards.find([members[4]])[0]), -1)
    assert of_shards.search(queries.vectors, 1).ids[:, 0].tolist() == [members[4], members[4]]
    np.testing.assert_array_equal(read_item_image(of_shards, members[4]), np.array(load_image(photos / names[4])))


def test_pictures_of_the_service(run: Path, photos: Path, packed: Path, tmp_path: Path) -> None:
    index = index_images(open_run(run), [packed], tmp_path / "s.index").index
    path = image_file(index, "photos-000.tar/kind 0/0.jpg")
    shown = read_picture(path, None, 64, 10**7)
    assert shown.content == read_picture(photos / "kind 0" / "0.jpg", None, 64, 10**7).content
    assert read_picture(path, None, 64, 10**7, shown.tag).content is None
    for one in ("photos-000.tar/../../secret.jpg", "../photos-000.tar/x.jpg"):
        with pytest.raises(InvalidInput, match="expected a path below"):
            image_file(index, one)
    assert count_missing(index, 100) == (18, 0)
    assert count_missing(index, 5) == (5, 0)
    (packed / "photos-001.tar").unlink()
    assert count_missing(index, 100) == (18, 6)


def test_more_tar_files_are_added(run: Path, packed: Path, tmp_path: Path) -> None:
    model = open_run(run)
    output = tmp_path / "s.index"
    index_images(model, [packed / "photos-000.tar"], output, root=packed)
    done = add_images(model, [packed / "photos-001.tar", packed / "photos-002.tar"], output)
    assert (done.images, len(done.index)) == (12, 18)


def test_skipped_members_are_counted(run: Path, packed: Path, tmp_path: Path) -> None:
    with tarfile.open(packed / "photos-000.tar", "a") as tar:
        link = tarfile.TarInfo("kind 0/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    done = index_images(open_run(run), [packed], tmp_path / "s.index")
    assert [(one.path, one.reason) for one in done.skipped] == [("photos-000.tar/kind 0/link.jpg", "a link")]
    assert done.index.description.skipped == 1


def test_embeddings_of_tar_files(run: Path, photos: Path, packed: Path, tmp_path: Path) -> None:
    model = open_run(run)
    for folder in (photos, packed):
        spec, images = select_images(model, [str(folder)])
        assert write_embeddings(model, tmp_path / f"{folder.name}.npy", spec, "all", images=images) is not None
    of_files, of_shards = (np.load(tmp_path / f"{name}.npy") for name in ("photos", "packed"))
    order = [n for k in range(3) for n in range(k, 18, 3)]
    np.testing.assert_array_equal(of_shards, of_files[order])
