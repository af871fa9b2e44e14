from __future__ import annotations

import json
from pathlib import Path

import pytest

from metrix import data
from metrix.errors import ChoiceError, DataError, MetrixWarning

from .conftest import Paint


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("glyhps", "did you mean 'glyphs'"),
        (
            "no/such/folder",
            r"neither an embedded dataset nor a file or folder.*cub, cars, sop, inshop, folder, manifest",
        ),
        ("cub:no/such/folder", "'no/such/folder' is neither"),
    ],
)
def test_unknown_specs(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.open(spec)


def test_unknown_choices(photos: Path) -> None:
    with pytest.raises(ChoiceError, match="did you mean 'folder'"):
        data.open(photos, layout="foldr")
    with pytest.raises(ChoiceError, match="did you mean 'disk'"):
        data.open(photos, cache="disc")
    with pytest.raises(DataError, match="does not hold the files of the layout 'cub'"):
        data.open(photos, layout="cub")
    with pytest.raises(DataError, match=r"from 0 to 1; got 1\.5"):
        data.open(photos, unseen=1.5)
    with pytest.raises(DataError, match="root is for manifests"):
        data.open(photos, root=photos)
    with pytest.raises(DataError, match=r"short_side .* at least 1; got 0"):
        data.open(photos, short_side=0)


def test_a_part_that_is_not_there(photos: Path) -> None:
    with pytest.raises(DataError, match="no test part; it has train"):
        _ = data.open(photos, unseen=0.0).test
    with pytest.raises(DataError, match="no val part; it has train, test; use hold_out"):
        _ = data.open(photos).val


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


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
    assert "2 of 18 images cannot be read and are left out: class1/0.png (" in str(caught[0].message)
    assert [b.path for b in dataset.broken] == ["class1/0.png", "class4/2.png"]
    assert len(dataset.train) + len(dataset.test) == 16
    assert not {"class1/0.png", "class4/2.png"} & {*dataset.train.paths, *dataset.test.paths}


@pytest.mark.parametrize("max_bad", [1, 0, 0.05])
@pytest.mark.parametrize("cache", ["none", "disk"])
def test_more_broken_images_than_allowed(photos: Path, max_bad: float, cache: str) -> None:
    damage(photos / "class1" / "0.png")
    damage(photos / "class4" / "2.png")
    with pytest.raises(DataError, match=r"2 of 18 images cannot be read, more than max_bad=.*class4/2\.png"):
        data.open(photos, max_bad=max_bad, cache=cache)


@pytest.mark.parametrize("max_bad", [-1, 1.0, 1.5])
def test_max_bad_that_means_nothing(photos: Path, max_bad: float) -> None:
    with pytest.raises(DataError, match="whole number of images, or a share below 1"):
        data.open(photos, max_bad=max_bad)


def test_a_class_of_broken_images_only(photos: Path) -> None:
    for n in range(3):
        damage(photos / "class1" / f"{n}.png")
    with (
        pytest.warns(MetrixWarning),
        pytest.raises(DataError, match="every image of these classes is broken: class1"),
    ):
        data.open(photos, max_bad=5)


def test_a_file_that_vanishes_later_is_named(photos: Path) -> None:
    train = data.open(photos).train
    (photos / train.paths[4]).unlink()
    with pytest.raises(data.ImageError, match=rf"{train.paths[4]}: there is no such file"):
        _ = train[4]


def test_verification_is_remembered_until_a_file_changes(photos: Path, own_cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    data.open(photos, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 18) for n in range(1, 19)]
    seen.clear()
    data.open(photos, progress=lambda done, total: seen.append((done, total)))
    assert seen == []
    damage(photos / "class1" / "0.png")
    with pytest.warns(MetrixWarning):
        assert len(data.open(photos).broken) == 1


def test_damage_that_keeps_the_size_is_noticed_too(photos: Path, own_cache: Path) -> None:
    data.open(photos)
    path = photos / "class1" / "0.png"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.warns(MetrixWarning):
        assert len(data.open(photos).broken) == 1


def test_a_damaged_memory_of_verification_is_made_anew(photos: Path, own_cache: Path) -> None:
    data.open(photos)
    (remembered,) = (own_cache / "decoded").iterdir()
    remembered.write_text("{")
    data.open(photos)
    assert len(json.loads(remembered.read_text())["sizes"]) == 18


def test_verification_can_be_left_out(photos: Path, own_cache: Path) -> None:
    damage(photos / "class1" / "0.png")
    assert data.open(photos, verify=False).broken == ()
    assert not own_cache.exists()


def test_a_sound_dataset_checks_out(photos: Path) -> None:
    report = data.check(photos, seed=3)
    dataset = data.open(photos, seed=3)
    assert report.ok
    assert report.layout == "folder"
    assert report.fingerprint == dataset.catalogue.fingerprint()
    assert report.parts == {part: data.PartSummary(9, 3, 3, 3.0, 3) for part in ("train", "test")}
    assert report.sizes[0] == (20, 16)
    assert report.sizes[2] == (22, 21)
    assert json.loads(json.dumps(report.to_dict()))["parts"]["train"]["images"] == 9


def test_check_tells_all_problems_instead_of_raising(photos: Path) -> None:
    damage(photos / "class1" / "0.png")
    (photos / "nothing").mkdir()
    report = data.check(photos, max_bad=0)
    assert not report.ok
    assert [b.path for b in report.broken] == ["class1/0.png"]
    assert len(report.problems) == 3  # the empty class, too many broken, and the class is empty of good ones
    assert "nothing" in report.problems[0]
    assert "max_bad=0 allows 0" in report.problems[1]


def test_check_of_what_cannot_be_read_at_all(tmp_path: Path) -> None:
    assert "neither an embedded" in data.check(tmp_path / "nowhere").problems[0]


def test_check_counts_what_has_no_answer(tmp_path: Path, paint: Paint) -> None:
    for path in (
        "train/a/1.png",
        "train/b/1.png",
        "train/b/2.png",
        "query/c/1.png",
        "query/d/1.png",
        "gallery/c/2.png",
    ):
        paint(tmp_path / path)
    report = data.check(tmp_path)
    assert report.ok
    assert report.notes == (
        "1 training class with a single image, so without a positive pair",
        "1 query image without any image of the same class to find",
    )


def test_check_of_missing_files(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "a.png")
    (tmp_path / "list.csv").write_text("label,path\ncat,a.png\ndog,b.png\n")
    assert "1 of 2 images are not in" in data.check(tmp_path / "list.csv").problems[0]
