"""Cars196: `cars_annos.mat` with `car_ims/`, or the devkit with `cars_train/` and `cars_test/`.

The retrieval split is by class, 1-98 train and 99-196 test, whatever the classification split in the
files says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metrix.data.catalogue import Catalogue, Row
from metrix.errors import DataError

NAME = "cars"
LAST_TRAINING_CLASS = 98


def recognises(root: Path) -> bool:
    """Whether the folder holds either form of the annotations."""
    return (root / "cars_annos.mat").is_file() or (root / "devkit" / "cars_train_annos.mat").is_file()


def read(root: Path) -> Catalogue:
    """The catalogue of either form."""
    if (root / "cars_annos.mat").is_file():
        content = _mat(root / "cars_annos.mat", "annotations", "class_names")
        names = [str(name) for name in content["class_names"]]
        listed = [(str(a["relative_im_path"]), int(a["class"])) for a in content["annotations"]]
    else:
        names, listed = _devkit(root)
    beyond = sorted({label for _, label in listed if not 1 <= label <= len(names)})
    if beyond:
        raise DataError(f"{root}: the annotations use the classes {beyond[:5]}, but {len(names)} are named")
    rows = [Row(path, names[label - 1], "train" if label <= LAST_TRAINING_CLASS else "test") for path, label in listed]
    return Catalogue.from_rows(NAME, root, rows, class_names=names)


def _devkit(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    devkit = root / "devkit"
    test = devkit / "cars_test_annos_withlabels.mat"
    if not test.is_file():
        test = root / test.name
    if not test.is_file():
        raise DataError(
            f"cars_test_annos_withlabels.mat is neither in {devkit} nor in {root}; the classes are needed, "
            "and the devkit's own cars_test_annos.mat does not have them"
        )
    names = [str(name) for name in _mat(devkit / "cars_meta.mat", "class_names")["class_names"]]
    listed: list[tuple[str, int]] = []
    for folder, path in (("cars_train", devkit / "cars_train_annos.mat"), ("cars_test", test)):
        # Some copies have the folder twice, as cars_train/cars_train.
        base = f"{folder}/{folder}" if (root / folder / folder).is_dir() else folder
        for annotation in _mat(path, "annotations")["annotations"]:
            if "class" not in (annotation.dtype.names or ()):
                raise DataError(f"{path} has no field 'class'; its fields are {annotation.dtype.names}")
            listed.append((f"{base}/{annotation['fname']}", int(annotation["class"])))
    return names, listed


def _mat(path: Path, *wanted: str) -> dict[str, Any]:
    """Variables of a MATLAB file, each as a one-dimensional array."""
    import numpy as np
    from scipy.io import loadmat

    if not path.is_file():
        raise DataError(f"{path} is missing; this layout needs it")
    try:
        content = loadmat(str(path), squeeze_me=True)
    except Exception as error:
        raise DataError(f"{path} is not a MATLAB file that can be read: {error}") from error
    missing = [name for name in wanted if name not in content]
    if missing:
        present = [name for name in content if not name.startswith("__")]
        raise DataError(f"{path} has no variable {missing[0]!r}; it has {present}")
    return {name: np.atleast_1d(content[name]) for name in wanted}
