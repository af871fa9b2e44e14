from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from metrix import data
from metrix.errors import DataError

from ..conftest import Paint

CUB = {
    1: "001.Albatross/a.png",
    2: "001.Albatross/b.png",
    3: "100.Pelican/c.png",
    4: "101.Wren/d.png",
    5: "101.Wren/e.png",
}
CUB_CLASSES = {1: "001.Albatross", 100: "100.Pelican", 101: "101.Wren"}


@pytest.fixture
def cub(tmp_path: Path, paint: Paint) -> Path:
    root = tmp_path / "CUB_200_2011"
    for path in CUB.values():
        paint(root / "images" / path)
    (root / "images.txt").write_text("".join(f"{i} {path}\n" for i, path in CUB.items()))
    (root / "image_class_labels.txt").write_text("1 1\n2 1\n3 100\n4 101\n5 101\n")
    (root / "classes.txt").write_text("".join(f"{k} {name}\n" for k, name in CUB_CLASSES.items()))
    return root


def test_cub_divides_after_class_100(cub: Path) -> None:
    birds = data.open(cub)
    assert birds.catalogue.layout == "cub"
    assert birds.train.paths == (
        "images/001.Albatross/a.png",
        "images/001.Albatross/b.png",
        "images/100.Pelican/c.png",
    )
    assert birds.train.class_names == ("001.Albatross", "100.Pelican")
    assert birds.train.labels.tolist() == [0, 0, 1]
    assert birds.test.class_names == ("101.Wren",)
    assert birds.test.labels.tolist() == [0, 0]
    assert not birds.separate_gallery


def test_cub_is_found_one_folder_below_and_without_names(cub: Path) -> None:
    (cub / "classes.txt").unlink()
    assert data.open(cub.parent).train.class_names == ("001.Albatross", "100.Pelican")
    assert data.open(f"cub:{cub}").catalogue.layout == "cub"


def test_cub_lists_that_disagree(cub: Path) -> None:
    (cub / "image_class_labels.txt").write_text("1 1\n2 1\n")
    with pytest.raises(DataError, match=r"the ids 3, 4, 5 are only in one"):
        data.open(cub)


def test_cub_class_that_has_no_images(cub: Path) -> None:
    with open(cub / "classes.txt", "a") as file:
        file.write("102 102.Empty\n")
    with pytest.raises(DataError, match=r"no images: 102\.Empty"):
        data.open(cub)


def test_a_broken_line_is_named(cub: Path) -> None:
    (cub / "images.txt").write_text("1 a.png\nnonsense\n")
    with pytest.raises(DataError, match=r"images\.txt, line 2: expected '<number> <text>', got 'nonsense'"):
        data.open(cub)


def test_a_missing_file_is_named(cub: Path) -> None:
    (cub / "images" / CUB[3]).unlink()
    with pytest.raises(DataError, match=r"1 of 5 images are not in .*100\.Pelican/c\.png"):
        data.open(cub)


def structs(**fields: list[object]) -> np.ndarray:
    rows = list(zip(*fields.values(), strict=True))
    array = np.empty((1, len(rows)), dtype=[(name, object) for name in fields])
    for n, row in enumerate(rows):
        array[0, n] = row
    return array


def car_names() -> np.ndarray:
    names = np.empty((1, 100), dtype=object)
    names[0, :] = [f"Car {k}" for k in range(1, 101)]
    return names


def test_cars_in_one_file(tmp_path: Path, paint: Paint) -> None:
    paths = [f"car_ims/{n:06}.png" for n in range(1, 101)]
    for path in paths:
        paint(tmp_path / path)
    # The classification split (`test`) says otherwise on purpose.
    annotations = structs(relative_im_path=paths, **{"class": list(range(1, 101))}, test=[n % 2 for n in range(100)])
    savemat(tmp_path / "cars_annos.mat", {"annotations": annotations, "class_names": car_names()})
    cars = data.open(tmp_path)
    assert cars.catalogue.layout == "cars"
    assert (len(cars.train), len(cars.test)) == (98, 2)
    assert cars.test.class_names == ("Car 99", "Car 100")
    assert cars.test.paths == ("car_ims/000099.png", "car_ims/000100.png")


@pytest.fixture
def devkit(tmp_path: Path, paint: Paint) -> Path:
    for folder, labels in (("cars_train", range(1, 101)), ("cars_test", range(100, 0, -1))):
        names = [f"{n:05}.png" for n in range(1, 101)]
        for name in names:
            paint(tmp_path / folder / name)
        stem = "cars_train_annos" if folder == "cars_train" else "cars_test_annos_withlabels"
        (tmp_path / "devkit").mkdir(exist_ok=True)
        annotations = structs(bbox_x1=[1] * 100, **{"class": list(labels)}, fname=names)
        savemat(tmp_path / "devkit" / f"{stem}.mat", {"annotations": annotations})
    savemat(tmp_path / "devkit" / "cars_meta.mat", {"class_names": car_names()})
    return tmp_path


def test_cars_in_the_devkit(devkit: Path) -> None:
    cars = data.open(devkit)
    assert (len(cars.train), len(cars.test)) == (196, 4)
    assert sorted(cars.test.paths) == [
        "cars_test/00001.png",
        "cars_test/00002.png",
        "cars_train/00099.png",
        "cars_train/00100.png",
    ]
    by_path = dict(zip(cars.test.paths, (cars.test.class_names[k] for k in cars.test.labels), strict=True))
    assert by_path["cars_test/00001.png"] == "Car 100"
    assert by_path["cars_train/00099.png"] == "Car 99"


def test_cars_labels_of_the_test_may_lie_beside_the_devkit(devkit: Path) -> None:
    name = "cars_test_annos_withlabels.mat"
    (devkit / "devkit" / name).rename(devkit / name)
    assert len(data.open(devkit).train) == 196
    (devkit / name).unlink()
    with pytest.raises(DataError, match="of the devkit does not have"):
        data.open(devkit)


def test_cars_file_that_is_no_matlab_file(tmp_path: Path) -> None:
    (tmp_path / "cars_annos.mat").write_text("hello")
    with pytest.raises(DataError, match="cannot be read as a MATLAB file"):
        data.open(tmp_path)


@pytest.fixture
def products(tmp_path: Path, paint: Paint) -> Path:
    for part, rows in (
        ("train", ["1 1 1 bicycle_final/1_0.png", "2 1 1 bicycle_final/1_1.png", "3 2 2 mug_final/2_0.png"]),
        ("test", ["4 3 2 mug_final/3_0.png", "5 3 2 mug_final/3_1.png"]),
    ):
        for row in rows:
            paint(tmp_path / row.split()[-1])
        (tmp_path / f"Ebay_{part}.txt").write_text("\n".join(["image_id class_id super_class_id path", *rows]))
    return tmp_path


def test_products(products: Path) -> None:
    shop = data.open(products)
    assert shop.catalogue.layout == "sop"
    assert shop.train.labels.tolist() == [0, 0, 1]
    assert shop.test.paths == ("mug_final/3_0.png", "mug_final/3_1.png")
    assert shop.catalogue.categories == ("bicycle", "bicycle", "mug", "mug", "mug")


def test_products_without_one_of_the_lists(products: Path) -> None:
    (products / "Ebay_test.txt").unlink()
    with pytest.raises(DataError, match=r"Ebay_test\.txt is missing"):
        data.open(products)


def test_products_with_a_wrong_header(products: Path) -> None:
    (products / "Ebay_test.txt").write_text("id class path\n1 1 a.png\n")
    with pytest.raises(DataError, match="expected the header 'image_id class_id super_class_id path'"):
        data.open(products)


@pytest.mark.parametrize(("list_in", "images_in"), [("", ""), ("Eval", "Img"), ("Anno", "")])
def test_in_shop(tmp_path: Path, paint: Paint, list_in: str, images_in: str) -> None:
    rows = [
        "img/WOMEN/Dresses/id_1/01_front.png    id_1    train",
        "img/WOMEN/Dresses/id_1/02_side.png     id_1    train",
        "img/MEN/Shirts/id_2/01_front.png       id_2    query",
        "img/MEN/Shirts/id_2/02_side.png        id_2    gallery",
        "img/MEN/Shirts/id_3/01_front.png       id_3    gallery",
    ]
    for row in rows:
        paint(tmp_path / images_in / row.split()[0])
    (tmp_path / list_in).mkdir(exist_ok=True)
    text = "\n".join(["5", "image_name item_id evaluation_status", *rows])
    (tmp_path / list_in / "list_eval_partition.txt").write_text(text)
    shop = data.open(tmp_path)
    assert shop.catalogue.layout == "inshop"
    assert shop.separate_gallery
    assert shop.train.labels.tolist() == [0, 0]
    # Labels of query and gallery are of the same classes, so that they can be compared.
    assert shop.query.class_names == shop.gallery.class_names == ("id_2", "id_3")
    assert shop.query.labels.tolist() == [0]
    assert shop.gallery.labels.tolist() == [0, 1]
    assert len(shop.test) == 3
    assert shop.query[0][0].shape == (3, 10, 12)


def test_in_shop_with_an_unknown_status(tmp_path: Path) -> None:
    (tmp_path / "list_eval_partition.txt").write_text(
        "1\nimage_name item_id evaluation_status\nimg/a.png id_1 galery\n"
    )
    with pytest.raises(DataError, match="did you mean 'gallery'"):
        data.open(tmp_path)


def test_two_datasets_in_one_folder_have_to_be_told_apart(cub: Path) -> None:
    other = cub.parent / "copy"
    other.mkdir()
    for name in ("images.txt", "image_class_labels.txt"):
        (other / name).write_text((cub / name).read_text())
    with pytest.raises(DataError, match="more than one dataset: CUB_200_2011, copy"):
        data.open(cub.parent)
