"""An index of a few photos, built once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.photos import write_photos


@pytest.fixture(scope="session")
def indexed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos` and `photos.index`, the index of them."""
    from metrix.runs.indexing import index_images
    from metrix.runs.trained_model import open_run

    folder = tmp_path_factory.mktemp("indexed")
    photos = write_photos(folder / "photos")
    index_images(open_run(run), [photos], folder / "photos.index").index.close()
    return folder


@pytest.fixture
def own_index(indexed: Path, tmp_path: Path) -> Path:
    """A copy of the index to change; its photos are those of `indexed`."""
    return Path(shutil.copytree(indexed / "photos.index", tmp_path / "photos.index"))
