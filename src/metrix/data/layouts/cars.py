"""Cars196: `cars_annos.mat` with `car_ims/`, or the devkit with `cars_train/` and `cars_test/`.

The split for retrieval is by class: 1-98 train, 99-196 test. The split in the files is for classification and ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metrix.data.catalogue import Catalogue, ImageRow
from metrix.errors import DataError
from metrix.messages import first_few

NAME = "cars"
LAST_TRAINING_CLASS = 98


def recognises(root: Path) -> bool:
    """Whether the folder has the annotations in either form."""
    return (root / "cars_annos.mat").is_file() or (root / "devkit" / "cars_train_annos.mat").is_file()


def read(root: Path) -> Catalogue:
    """The catalogue of a folder with the annotations in either form."""
    if (root / "cars_annos.mat").is_file():
        content = _read_mat(root / "cars_annos.mat", "annotations", "class_names")
        names = [str(name) for name in content["class_names"]]
        listed = [(str(a["relative_im_path"]), int(a["class"])) for a in content["annotations"]]
    else:
        names, listed = _read_devkit(root)
    beyond = sorted({label for _, label in listed if not 1 <= label <= len(names)})
    if beyond:
        raise DataError(f"{root}: expected classes from 1 to {len(names)} in the annotations, got {first_few(beyond)}")
    rows = [
        ImageRow(path, names[label - 1], "train" if label <= LAST_TRAINING_CLASS else "test") for path, label in listed
    ]
    return Catalogue.from_rows(NAME, root, rows, class_names=names)


def _read_devkit(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    devkit = root / "devkit"
    test = devkit / "cars_test_annos_withlabels.mat"
    if not test.is_file():
        test = root / test.name
    if not test.is_file():
        raise DataError(
            f"cars_test_annos_withlabels.mat is neither in {devkit} nor in {root}; it is required for the classes, "
            "which cars_test_annos.mat of the devkit does not have"
        )
    names = [str(name) for name in _read_mat(devkit / "cars_meta.mat", "class_names")["class_names"]]
    listed: list[tuple[str, int]] = []
    for folder, path in (("cars_train", devkit / "cars_train_annos.mat"), ("cars_test", test)):
        # Some copies have the folder twice: cars_train/cars_train.
        base = f"{folder}/{folder}" if (root / folder / folder).is_dir() else folder
        for annotation in _read_mat(path, "annotations")["annotations"]:
            if "class" not in (annotation.dtype.names or ()):
                raise DataError(f"{path} has no field 'class'; its fields are {annotation.dtype.names}")
            listed.append((f"{base}/{annotation['fname']}", int(annotation["class"])))
    return names, listed


def _read_mat(path: Path, *wanted: str) -> dict[str, Any]:
    """Variables of a MATLAB file, each as a one-dimensional array."""
    import numpy as np
    from scipy.io import loadmat

    if not path.is_file():
        raise DataError(f"{path} is missing; it is required by this layout")
    try:
        content = loadmat(str(path), squeeze_me=True)
    except Exception as error:
        raise DataError(f"{path} cannot be read as a MATLAB file: {error}") from error
    missing = [name for name in wanted if name not in content]
    if missing:
        present = [name for name in content if not name.startswith("__")]
        raise DataError(f"{path} has no variable {missing[0]!r}; it has {present}")
    return {name: np.atleast_1d(content[name]) for name in wanted}
