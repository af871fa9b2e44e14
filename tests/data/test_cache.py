from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metrix import data
from metrix.data import cache as caching
from metrix.errors import DataError


@pytest.fixture
def jpegs(tmp_path: Path) -> Path:
    root = tmp_path / "jpegs"
    rng = np.random.default_rng(0)
    for k in range(4):
        (root / str(k)).mkdir(parents=True)
        for n in range(4):
            noise = rng.integers(0, 256, (50 + 10 * n, 70, 3), dtype=np.uint8)
            Image.fromarray(noise).save(root / str(k) / f"{n}.jpg")
    return root


def images(dataset: data.Dataset) -> list[torch.Tensor]:
    return [part[n][0].clone() for part in (dataset.train, dataset.test) for n in range(len(part))]


def only_cache(folder: Path) -> Path:
    (found,) = (p for p in (folder / "images").iterdir() if p.is_dir())
    return found


def test_all_kinds_give_the_same_pixels(jpegs: Path) -> None:
    plain, ram, disk = (images(data.open(jpegs, cache=kind, short_side=40)) for kind in ("none", "ram", "disk"))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(plain, ram, disk, strict=True))
    assert {min(image.shape[1:]) for image in plain} == {40}


def test_a_cache_on_disk_is_used_again_and_nothing_is_decoded(
    jpegs: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = images(data.open(jpegs, cache="disk", short_side=40))

    def refuse(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(caching, "load_image", refuse)
    after = images(data.open(jpegs, cache="disk", short_side=40))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_changed_file_or_another_size_is_another_cache(jpegs: Path, own_cache: Path) -> None:
    data.open(jpegs, cache="disk", short_side=40)
    data.open(jpegs, cache="disk", short_side=30)
    Image.new("RGB", (70, 50), "red").save(jpegs / "0" / "0.jpg")
    dataset = data.open(jpegs, cache="disk", short_side=40)
    assert len([p for p in (own_cache / "images").iterdir() if p.is_dir()]) == 3
    at = dataset.catalogue.paths.index("0/0.jpg")
    assert dataset.pixels(at)[0].min() > 240


def test_the_index_is_plain_json_and_the_pixels_are_plain_bytes(jpegs: Path, own_cache: Path) -> None:
    data.open(jpegs, cache="disk", short_side=40)
    folder = only_cache(own_cache)
    index = json.loads((folder / "index.json").read_text())
    assert sorted(p.name for p in folder.iterdir()) == ["index.json", "pixels.raw"]
    assert index["starts"][-1] == (folder / "pixels.raw").stat().st_size
    assert index["shapes"][0] == [40, 56]


@pytest.mark.parametrize("damage", ["pixels.raw", "index.json", "empty index"])
def test_a_cache_that_is_not_whole_is_built_anew(jpegs: Path, own_cache: Path, damage: str) -> None:
    before = images(data.open(jpegs, cache="disk", short_side=40))
    folder = only_cache(own_cache)
    if damage == "empty index":
        (folder / "index.json").write_text("{}")
    else:
        (folder / damage).write_bytes((folder / damage).read_bytes()[:-5])
    after = images(data.open(jpegs, cache="disk", short_side=40))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_an_interrupted_build_leaves_nothing(jpegs: Path, own_cache: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.open(jpegs, cache="disk", short_side=40, progress=interrupt)
    assert [p for p in (own_cache / "images").iterdir() if p.is_dir()] == []
    assert len(images(data.open(jpegs, cache="disk", short_side=40))) == 16


KILLED = """
import sys, time
from metrix import data

def wait(done, total):
    if done == 9:
        print("building", flush=True)
        time.sleep(60)

data.open(sys.argv[1], cache="disk", short_side=40, progress=wait)
"""


def test_a_killed_build_is_not_taken_for_a_cache(jpegs: Path, own_cache: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(jpegs)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [p.suffix for p in (own_cache / "images").iterdir() if p.is_dir()] == [".building"]
    started = time.monotonic()
    assert len(images(data.open(jpegs, cache="disk", short_side=40))) == 16
    assert time.monotonic() - started < 20  # the dead process holds no lock
    assert only_cache(own_cache).suffix == ""


def test_two_builders_end_with_one_cache(jpegs: Path, own_cache: Path) -> None:
    code = "import sys; from metrix import data; print(len(data.open(sys.argv[1], cache='disk', short_side=40).train))"
    command = [sys.executable, "-c", code, str(jpegs)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["8\n", "8\n"]
    assert only_cache(own_cache).suffix == ""


def test_no_room_is_said_before_anything_is_decoded(
    jpegs: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "_total_memory", lambda: 1000)
    with pytest.raises(DataError, match=r"GB of memory; use cache='disk'"):
        data.open(jpegs, cache="ram")
    monkeypatch.setattr(caching.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(DataError, match=r"free disk space .* use a smaller short_side"):
        data.open(jpegs, cache="disk")


def test_the_estimate_is_near_the_real_size(jpegs: Path, own_cache: Path) -> None:
    dataset = data.open(jpegs, cache="disk", short_side=40)
    real = (only_cache(own_cache) / "pixels.raw").stat().st_size
    assert abs(caching._estimate_size(dataset.catalogue, 40) / real - 1) < 0.05
