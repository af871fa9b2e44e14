from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.command_line import Metrix


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six classes of three images."""
    rng = np.random.default_rng(0)
    for k in range(6):
        (tmp_path / "photos" / f"class{k}").mkdir(parents=True)
        for n in range(3):
            pixels = rng.integers(0, 256, (16, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"class{k}" / f"{n}.png")
    return tmp_path / "photos"


def test_a_sound_folder(photos: Path, metrix: Metrix) -> None:
    ended = metrix("data", "check", photos, "--unseen", "0.34")
    assert ended.code == 0
    lines = [[cell.strip() for cell in line.split("│")] for line in ended.out.splitlines() if line.startswith("│")]
    rows = {cells[1]: cells[2:4] for cells in lines}
    assert rows["train"] == ["12", "4"]
    assert rows["test"] == ["6", "2"]
    assert "20×16" in ended.out
    assert "ready to train on" in ended.out


def test_a_broken_image_is_named(photos: Path, metrix: Metrix) -> None:
    (photos / "class0" / "1.png").write_bytes(b"\x89PNG no more")
    strict = metrix("data", "check", photos, "--max-bad", "0")
    assert strict.code == 1
    assert "class0/1.png" in strict.out
    assert "problem" in strict.out
    tolerant = metrix("data", "check", photos, "--max-bad", "1")
    assert tolerant.code == 0
    assert "class0/1.png" in tolerant.out


def test_json(photos: Path, metrix: Metrix) -> None:
    (photos / "class0" / "1.png").write_bytes(b"")
    ended = metrix("data", "check", photos, "--max-bad", "0", "--json")
    report = json.loads(ended.out)
    assert ended.code == 1
    assert report["ok"] is False
    assert [broken["path"] for broken in report["broken"]] == ["class0/1.png"]
    assert report["parts"]["train"]["classes"] == 3


def test_nothing_there(tmp_path: Path, metrix: Metrix) -> None:
    ended = metrix("data", "check", "glyps")
    assert ended.code == 1
    assert "did you mean 'glyphs'" in ended.out


@pytest.mark.parametrize(("option", "value"), [("--unseen", "2"), ("--layout", "cup"), ("--max-bad", "-1")])
def test_mistakes(option: str, value: str, photos: Path, metrix: Metrix) -> None:
    ended = metrix("data", "check", photos, option, value)
    assert ended.code in (1, 2)
    assert "Traceback" not in ended.out + ended.err


def test_one_test_class_is_a_problem_and_few_are_pointed_out(photos: Path, metrix: Metrix) -> None:
    one = metrix("data", "check", photos, "--unseen", "0.04")
    assert one.code == 1
    assert "every measure would be 100 %" in one.out
    assert "not ready to train on" in one.out
    few = metrix("data", "check", photos, "--unseen", "0.34")
    assert few.code == 0
    assert "the test part has 2 classes only" in few.out


def test_an_empty_class_folder_is_a_note(photos: Path, metrix: Metrix) -> None:
    (photos / "empty").mkdir()
    ended = metrix("data", "check", photos)
    assert ended.code == 0
    assert "1 folder has no images and is no class: empty" in ended.out


def test_leaks_are_a_table_json_and_a_file(photos: Path, metrix: Metrix, refused: Any, tmp_path: Path) -> None:
    both = json.loads(metrix("data", "check", photos, "--unseen", "0.5", "--leaks", "--json").out)
    assert both["leaks"] == []
    #   a class is of either part, by the seed of the split; one of these is a copy across
    parts = {k: Image.open(photos / f"class{k}" / "0.png") for k in range(6)}
    for k, image in parts.items():
        image.save(photos / f"class{(k + 1) % 6}" / "copy.jpg", quality=95)
    ended = metrix("data", "check", photos, "--leaks", "--csv", tmp_path / "leaks.csv")
    assert ended.code == 1
    assert "Test images that training has seen" in ended.out
    assert "near-copy" in ended.out
    assert "not ready to train on" in ended.out
    assert f"written: {tmp_path / 'leaks.csv'}" in ended.err
    found = json.loads(metrix("data", "check", photos, "--leaks", "--json").out)
    assert found["ok"] is False
    lines = (tmp_path / "leaks.csv").read_text().splitlines()
    assert lines[0] == "test,train,kind,similarity,test_class,train_class"
    assert len(lines) == 1 + len(found["leaks"]) > 1
    assert lines[1].startswith(f"{found['leaks'][0]['test']},{found['leaks'][0]['train']},near-copy,0.9")
    refused("data", "check", photos, "--flips", words="expected with --leaks")
    refused("data", "check", photos, "--csv", tmp_path / "x.csv", words="expected with --leaks")
