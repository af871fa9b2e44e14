"""Files of precomputed vectors become a catalogue; what cannot be used is refused with the place and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from metrix import data
from metrix.data.layouts import vectors as layout
from metrix.errors import DataError

X = np.arange(24, dtype=np.float32).reshape(8, 3)
LABELS = ["a", "a", "b", "b", "c", "c", "d", "d"]


def write(path: Path, /, **columns: Any) -> Path:
    """A file of the vectors X, or of others given as `vector`, with these columns."""
    vectors = columns.pop("vector", X)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"vector": list(vectors), **columns}), path)
    elif path.suffix == ".npz":
        np.savez(path, vectors=vectors, **columns)
    else:
        np.save(path, vectors)
        lines = zip(*columns.values(), strict=True)
        text = "\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines)])
        path.with_suffix(".csv").write_text(text + "\n")
    return path


@pytest.mark.parametrize("name", ["v.parquet", "v.npz", "v.npy"])
def test_every_kind_of_file_gives_the_same_data(name: str, tmp_path: Path) -> None:
    dataset = data.open(write(tmp_path / name, label=LABELS), unseen=0.5)
    catalogue = dataset.catalogue
    assert catalogue.layout == "vectors"
    assert catalogue.vectors is not None
    np.testing.assert_array_equal(catalogue.vectors, X)
    assert [catalogue.class_names[k] for k in catalogue.labels] == LABELS
    train, test = dataset.train, dataset.test
    assert set(train.class_names).isdisjoint(test.class_names)
    values, labels = train.batch([1, 0])
    torch.testing.assert_close(values, torch.from_numpy(X[train.indices[[1, 0]]]))
    assert values.dtype == torch.float32
    assert [train.class_names[k] for k in labels] == [LABELS[i] for i in train.indices[[1, 0]]]
    with pytest.raises(DataError, match="expected images, got vectors"):
        train.image(0)


def test_splits_of_a_table_and_parts_of_metrix_embed_are_taken_over(tmp_path: Path) -> None:
    split = ["train"] * 4 + ["validation"] * 2 + ["test"] * 2
    given = data.read_catalogue(write(tmp_path / "a.parquet", label=LABELS, split=split))
    assert given.parts.tolist() == ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    part = ["train"] * 4 + ["query", "gallery", "query", "gallery"]
    given = data.read_catalogue(write(tmp_path / "b.npy", label=LABELS, part=part, id=range(8)))
    assert given.parts.tolist() == part


def test_names_are_those_of_a_column_if_they_differ(tmp_path: Path) -> None:
    paths = [f"x/{n}.jpg" for n in range(8)]
    found = data.read_catalogue(write(tmp_path / "a.parquet", label=LABELS, path=paths))
    assert found.paths == tuple(paths)
    assert any("manifest:FILE" in note for note in found.notes)
    assert data.read_catalogue(write(tmp_path / "b.npz", label=LABELS, id=["same"] * 8)).paths[:2] == ("0", "1")


def test_the_fingerprint_follows_a_number_and_a_label(tmp_path: Path) -> None:
    before = data.read_catalogue(write(tmp_path / "a.npz", label=LABELS)).fingerprint()
    assert data.read_catalogue(write(tmp_path / "b.parquet", label=LABELS)).fingerprint() == before
    other = X.copy()
    other[7, 2] = np.nextafter(other[7, 2], np.float32(0))
    assert data.read_catalogue(write(tmp_path / "c.npz", label=LABELS, vector=other)).fingerprint() != before
    swapped = ["b", *LABELS[1:]]
    assert data.read_catalogue(write(tmp_path / "d.npz", label=swapped)).fingerprint() != before


def test_half_and_double_precision_and_integers_become_float32(tmp_path: Path) -> None:
    for kind in (np.float16, np.float64, np.int32, np.uint8):
        found = data.read_catalogue(write(tmp_path / "v.npz", label=LABELS, vector=X.astype(kind)))
        assert found.vectors is not None
        assert found.vectors.dtype == np.float32
        np.testing.assert_array_equal(found.vectors, X)


NAN, HUGE = X.copy(), X.astype(np.float64)
NAN[2, 1], HUGE[5, 0] = np.nan, 1e300


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "has no labels: expected an array 'label'"),
        ({"label": LABELS[:7]}, "expected 8 values in 'label', as vectors, got 7"),
        ({"label": ["", *LABELS[1:]]}, "row 1: expected a label"),
        ({"label": LABELS, "vector": NAN}, r"got others in 1 row \(3\); drop these rows"),
        ({"label": LABELS, "vector": HUGE}, r"got others in 1 row \(6\)"),
        ({"label": LABELS, "vector": X[0]}, r"expected vectors \(n, d\) of numbers.*shape \(3,\)"),
        ({"label": LABELS, "vector": np.array([["x"] * 3] * 8)}, "of numbers"),
        ({"label": LABELS, "vector": X[:0]}, r"shape \(0, 3\)"),
        ({"label": LABELS, "split": ["trian"] * 8}, "did you mean 'train'"),
        ({"label": LABELS, "part": ["tset"] * 8}, "did you mean 'test'"),
        ({"label": LABELS, "split": ["train", "test"] * 4}, "in more than one part"),
    ],
)
def test_what_cannot_be_used_is_refused(columns: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "v.npz", **columns)
    with pytest.raises(DataError, match=words):
        data.open(path)
    assert not data.check(path).ok


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", vectors=np.array([{}], dtype=object), label=["a"])
    with pytest.raises(DataError, match="objects are not read"):
        data.open(tmp_path / "v.npz")
    (tmp_path / "w.npz").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(DataError, match="cannot be read as NumPy arrays"):
        data.open(tmp_path / "w.npz")


def test_a_table_of_paths_without_vectors_is_still_a_manifest(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": ["a.jpg"], "label": ["a"], "vector": ["text"]}), tmp_path / "m.parquet")
    assert not layout.recognises(tmp_path / "m.parquet")
    assert layout.recognises(write(tmp_path / "v.parquet", label=LABELS))


def test_check_says_how_long_vectors_are_and_which_contradict_each_other(tmp_path: Path) -> None:
    repeated = X.copy()
    repeated[2] = repeated[0]
    report = data.check(write(tmp_path / "v.npz", label=LABELS, vector=repeated))
    assert report.dim == 3
    assert "1 vector equal to one of another class: 2 and 0" in report.notes
    assert report.to_dict()["dim"] == 3
