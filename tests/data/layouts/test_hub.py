"""Data sets of Hugging Face: saved folders, copies of repositories, the cache without a network, addresses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from metrix import data
from metrix.data.layouts.hub import parse_address
from metrix.errors import DataError
from metrix.extras import MissingExtra

from ...tables import build_table, list_files, of_classes, save_split, save_splits, write_parquet


@pytest.fixture
def saved(photos: Path, tmp_path: Path) -> Path:
    files = list_files(photos)
    seen, unseen = (of_classes(files, lambda name, seen=seen: (name < "class3") == seen) for seen in (True, False))
    tables = {"train": build_table(seen), "test": build_table(unseen)}
    return save_splits(tmp_path / "saved", tables)


@pytest.fixture
def repository(photos: Path, tmp_path: Path) -> Path:
    """A copy of a repository, whose metadata say what the columns are."""
    folder = tmp_path / "birds"
    for split, files in {"train": list_files(photos)[::2], "test": list_files(photos)[1::2]}.items():
        write_parquet(folder / "data" / f"{split}-00000-of-00001.parquet", build_table(files, numbers=True))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Birds\n")
    return folder


def test_a_folder_of_save_to_disk(saved: Path, photos: Path) -> None:
    for spec in (f"hf:{saved}", saved):
        dataset = data.open(spec)
        assert dataset.catalogue.layout == "hf"
        assert dataset.train.class_names == ("class0", "class1", "class2")
        assert dataset.test.class_names == ("class3", "class4", "class5")
        assert dataset.test.paths[0] == "test/data-00000-of-00001.arrow/image/0"
        assert dataset.train.image(0).shape == (3, 16, 20)


def test_a_folder_of_one_split_and_one_that_is_damaged(photos: Path, tmp_path: Path) -> None:
    folder = save_split(tmp_path / "one", build_table(list_files(photos), numbers=True))
    assert data.read_catalogue(f"hf:{folder}").part_names == ("train", "test")
    (folder / "data-00000-of-00001.arrow").rename(folder / "other.arrow")
    with pytest.raises(DataError, match=r"expected the files that state\.json names, got none named data-00000"):
        data.read_catalogue(folder)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../other.arrow"}]}))
    with pytest.raises(DataError, match=r"got none named \.\./other\.arrow"):
        data.read_catalogue(folder)
    (folder / "state.json").write_text("{")
    with pytest.raises(DataError, match=r"state\.json cannot be read"):
        data.read_catalogue(folder)


def test_a_copy_of_a_repository_is_read_in_place(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrix.data.layouts.hub.import_extra", None)  # datasets is not needed
    catalogue = data.read_catalogue(f"hf:{repository}")
    assert (catalogue.layout, len(catalogue), len(catalogue.class_names)) == ("hf", 18, 6)
    assert "classes are split at random" in catalogue.notes[0]


def test_a_configuration_and_the_cache_without_a_network(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    catalogue = data.read_catalogue(f"hf:{repository}:default")
    assert (len(catalogue), len(catalogue.class_names)) == (18, 6)
    shutil.move(cache / "birds", cache / "owner___birds")  # as if it had been downloaded
    offline = data.open("hf:owner/birds")
    assert offline.catalogue.class_names == catalogue.class_names
    assert offline.train.image(0).shape[0] == 3
    with pytest.raises(DataError, match=r"hf:owner/cars is not in the cache of Hugging Face, and the hub cannot be"):
        data.read_catalogue("hf:owner/cars")
    with pytest.raises(DataError, match=r"hf:owner/birds:large is not in the cache"):
        data.read_catalogue("hf:owner/birds:large")


def test_without_a_network_the_hub_is_not_asked_for_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("metrix.data.layouts.hub.network_answers", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match=r"is not in the cache .* HF_HOME, or give hf:FOLDER"):
        data.read_catalogue("hf:owner/nothing@main")
    assert datasets.config.HF_HUB_OFFLINE is False


def test_readers_that_unpickle_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("no images\n")
    with pytest.raises(DataError, match="of the package datasets read, got text"):
        data.read_catalogue(f"hf:{folder}")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    monkeypatch.setattr("metrix.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'metrix\[hf\]'"):
        data.read_catalogue("hf:owner/birds")


def test_addresses(tmp_path: Path) -> None:
    assert parse_address("owner/birds") == (None, "owner/birds", None, None)
    assert parse_address("owner/birds:large@refs/pr/1") == (None, "owner/birds", "large", "refs/pr/1")
    assert parse_address("birds@v1.0") == (None, "birds", None, "v1.0")
    assert parse_address(str(tmp_path)).folder == tmp_path
    assert parse_address(f"{tmp_path}:small") == (tmp_path, "", "small", None)
    for wrong in ("", "a/b/c", "/no/such/folder", "./nothing", "a b", "owner/birds:", "owner/birds@"):
        with pytest.raises(DataError, match=r"expected hf:owner/name, optionally with :config and @revision"):
            parse_address(wrong)
    with pytest.raises(DataError, match="for manifests only"):
        data.read_catalogue(f"hf:{tmp_path}", root=tmp_path)
