"""The cache folder: what is listed, and what is never deleted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix import data
from metrix.errors import InvalidInput
from metrix.files import lock
from metrix.machine.caches import DAY, find_open_files, list_cache, prune_cache, summarise_cache
from tests.photos import write_photos


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with decoded photos, and things that metrix did not make."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("METRIX_CACHE", str(folder))
    data.open(write_photos(tmp_path / "photos", 2, 2), cache="disk")
    data.open(tmp_path / "photos")
    (folder / "notes.txt").write_text("mine")
    (folder / "images" / "holiday.jpg").write_bytes(b"mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("mine")
    (folder / "images" / ("a" * 32)).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    return folder


def age(folder: Path, days: float) -> None:
    then = time.time() - days * DAY
    for path in folder.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def mine(cache: Path) -> bool:
    """Whether all that metrix did not make is still there."""
    elsewhere = cache.parent / "elsewhere" / "precious"
    return all(path.exists() for path in (cache / "notes.txt", cache / "images" / "holiday.jpg", elsewhere))


def test_only_what_metrix_made_is_listed(cache: Path) -> None:
    assert [entry.kind for entry in list_cache()] == ["images", "decoded"]
    assert list_cache(["decoded"])[0].path.suffix == ".json"
    found = summarise_cache()
    assert found["kinds"]["images"]["entries"] == 1
    assert found["bytes"] >= 4 * 48 * 48 * 3
    assert found["writable"]


def test_all_is_deleted_but_what_is_not_ours(cache: Path) -> None:
    found = prune_cache()
    assert {entry.kind for entry in found.deleted} == {"images", "decoded"}
    assert found.kept == ()
    assert list_cache() == []
    assert mine(cache)
    assert not [path for path in cache.rglob("*") if path.name.startswith(".pruned")]
    assert len(data.open(cache.parent / "photos", cache="disk").catalogue) == 4  # it is computed again
    assert len(list_cache()) == 1


def test_what_was_used_lately_stays(cache: Path) -> None:
    age(cache, 10)
    assert prune_cache(unused_days=20).deleted == ()
    data.open(cache.parent / "photos", cache="disk")  # used
    assert [entry.kind for entry in prune_cache(unused_days=5).deleted] == ["decoded"]
    assert [entry.kind for entry in list_cache()] == ["images"]


def test_the_longest_unused_goes_first(cache: Path) -> None:
    age(cache / "decoded", 3)
    images = list_cache(["images"])[0].size
    assert [entry.kind for entry in prune_cache(max_bytes=images).deleted] == ["decoded"]
    assert prune_cache(max_bytes=images).deleted == ()
    assert [entry.kind for entry in prune_cache(max_bytes=0).deleted] == ["images"]


def test_a_dry_run_deletes_nothing(cache: Path) -> None:
    found = prune_cache(dry_run=True)
    assert len(found.deleted) == 2
    assert found.size > 0
    assert len(list_cache()) == 2


def test_what_is_being_built_stays(cache: Path) -> None:
    entry = list_cache(["images"])[0]
    with lock(entry.path.with_suffix(".lock")):
        found = prune_cache(["images"])
    assert found.deleted == ()
    assert "being built" in found.kept[0][1] or "in use" in found.kept[0][1]
    assert entry.path.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux says which files are open")
def test_what_another_process_has_mapped_stays(cache: Path) -> None:
    pixels = list_cache(["images"])[0].path / "pixels.raw"
    code = "import numpy, sys; x = numpy.memmap(sys.argv[1], mode='r'); print(x[0], flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(pixels)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert str(pixels) in find_open_files(cache)
        found = prune_cache()
        assert [entry.kind for entry in found.deleted] == ["decoded"]
        assert [reason for _, reason in found.kept] == ["in use by a process"]
        other.communicate("")
    assert len(prune_cache().deleted) == 1


def test_what_a_killed_process_left_is_deleted(cache: Path) -> None:
    (cache / "images" / f"{'b' * 32}.building").mkdir()
    (cache / "decoded" / f".{'c' * 32}.json.0a1b2c3d").write_text("{")
    (cache / "images" / ".pruned-00112233").mkdir()
    assert len(prune_cache().deleted) == 5
    assert mine(cache)


def test_mistakes(cache: Path) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'images'"):
        prune_cache(["image"])
    with pytest.raises(InvalidInput, match="unused_days"):
        prune_cache(unused_days=-1)


def test_a_cache_that_was_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIX_CACHE", str(tmp_path / "none"))
    assert summarise_cache()["bytes"] == 0
    assert prune_cache().deleted == ()
    assert not (tmp_path / "none").exists()


def test_the_command(cache: Path, metrix: Any, refused: Any) -> None:
    shown = metrix("cache", "show")
    assert shown.code == 0, shown.err
    assert "images" in shown.out
    assert "metrix cache prune" in shown.err
    assert metrix("cache", "show", "--json").json["kinds"]["images"]["entries"] == 1
    refused("cache", "prune", words=("--unused DAYS", "--all"))
    refused("cache", "prune", "--max-size", "much", words=("500M", "'much'"))
    refused("cache", "prune", "--all", "--unused", "3", words=("--all alone",))
    assert "would be deleted: 2 entries" in metrix("cache", "prune", "--all", "--dry-run").out
    assert metrix("cache", "prune", "decoded", "--all", "--json").json["bytes"] > 0
    assert "deleted: 1 entry" in metrix("cache", "prune", "--max-size", "0").out
    assert mine(cache)


def test_pixels_of_a_cache_are_the_same_after_pruning(cache: Path) -> None:
    photos = cache.parent / "photos"
    before = data.open(photos, cache="disk").train.image(0).numpy().copy()
    assert len(prune_cache().deleted) == 2
    np.testing.assert_array_equal(data.open(photos, cache="disk").train.image(0).numpy().copy(), before)
