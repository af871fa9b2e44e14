from __future__ import annotations

from pathlib import Path

import pytest

from metrix import data
from metrix.errors import ChoiceError, DataError, MetrixWarning
from metrix.train.config import Config
from metrix.train.data_place import with_absolute_paths

from .conftest import damage


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("glyhps", "did you mean 'glyphs'"),
        (
            "no/such/folder",
            r"neither a built-in one nor an existing file or folder.*cub, cars, sop, inshop, folder, shards, parquet, hf, manifest",
        ),
        ("cub:no/such/folder", "no dataset 'no/such/folder': neither"),
    ],
)
def test_unknown_specs(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.open(spec)


@pytest.mark.parametrize("spec", ["", "hf:", "cub:", "folder:"])
def test_nothing_is_not_the_current_folder(spec: str, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    with pytest.raises(DataError, match=r"expected a name or a path.*, got none"):
        data.open(spec)
    with pytest.raises(DataError, match=r"expected a name or a path.*, got none"):
        with_absolute_paths(Config().with_values({"data": spec}))


def test_unknown_choices(photos: Path) -> None:
    with pytest.raises(ChoiceError, match="did you mean 'folder'"):
        data.open(photos, layout="foldr")
    with pytest.raises(ChoiceError, match="did you mean 'disk'"):
        data.open(photos, cache="disc")
    with pytest.raises(DataError, match="does not have the files of the layout 'cub'"):
        data.open(photos, layout="cub")
    with pytest.raises(DataError, match=r"from 0 to 1, got 1\.5"):
        data.open(photos, unseen=1.5)
    with pytest.raises(DataError, match="is for manifests only"):
        data.open(photos, root=photos)
    with pytest.raises(DataError, match=r"short_side: expected a number of pixels ≥ 1, got 0"):
        data.open(photos, short_side=0)


def test_a_part_that_is_not_there(photos: Path) -> None:
    with pytest.raises(DataError, match="no test part; it has train"):
        _ = data.open(photos, unseen=0.0).test
    with pytest.raises(DataError, match="no val part; it has train, test; create one with hold_out"):
        _ = data.open(photos).val


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
def test_broken_images_are_listed_once_and_left_out(photos: Path, cache: str) -> None:
    damage(photos / "class1" / "0.png")
    damage(photos / "class4" / "2.png")
    with pytest.warns(MetrixWarning) as caught:
        dataset = data.open(photos, max_bad=2, cache=cache)
    assert len(caught) == 1
    for part in (dataset.train, dataset.test):  # a second warning would be an error
        for n in range(len(part)):
            _ = part[n]
    assert "2 of 18 images cannot be read: class1/0.png (" in str(caught[0].message)
    assert [b.path for b in dataset.broken] == ["class1/0.png", "class4/2.png"]
    assert len(dataset.train) + len(dataset.test) == 16
    assert not {"class1/0.png", "class4/2.png"} & {*dataset.train.paths, *dataset.test.paths}


@pytest.mark.parametrize("max_bad", [1, 0, 0.05])
@pytest.mark.parametrize("cache", ["none", "disk"])
def test_more_broken_images_than_allowed(photos: Path, max_bad: float, cache: str) -> None:
    damage(photos / "class1" / "0.png")
    damage(photos / "class4" / "2.png")
    with pytest.raises(DataError, match=r"2 of 18 images cannot be read: .*class4/2\.png.*; max_bad=.* allows"):
        data.open(photos, max_bad=max_bad, cache=cache)


@pytest.mark.parametrize("max_bad", [-1, 1.0, 1.5])
def test_max_bad_that_means_nothing(photos: Path, max_bad: float) -> None:
    with pytest.raises(DataError, match="expected a number of images, or a fraction below 1"):
        data.open(photos, max_bad=max_bad)


def test_a_class_of_broken_images_only(photos: Path) -> None:
    for n in range(3):
        damage(photos / "class1" / f"{n}.png")
    with pytest.raises(DataError, match="every image of these classes is broken: class1"):
        data.open(photos, max_bad=5)


def test_a_file_that_vanishes_later_is_named(photos: Path) -> None:
    train = data.open(photos).train
    (photos / train.paths[4]).unlink()
    with pytest.raises(data.ImageError, match=rf"{train.paths[4]}: no such file"):
        _ = train[4]
