from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from metrix import data
from metrix.data.survey import map_in_order
from metrix.errors import MetrixWarning

from .conftest import damage


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


def test_what_is_not_asked_for_leaves_the_filters_of_warnings_alone() -> None:
    left = map_in_order(abs, range(10), workers=1)
    next(left)
    with pytest.warns(UserWarning, match="told"):  # noqa: PT031
        left.close()  # as when it is collected, at any time
        warnings.warn("told", UserWarning, stacklevel=1)
