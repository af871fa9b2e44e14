"""What all tests share: one cache, one thread, the command line, and tiny trained runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# Some virtual machines announce AMX and then forbid it: bfloat16 products would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start

import pytest
import torch

from metrix.train import Config
from tests import command_line
from tests.photos import write_photos
from tests.trained_runs import SMALL, own_copy


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Sums in another order are other sums, and networks this small are fastest on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all its processes (pytest -n) share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def cache_folder(shared_folder: Path) -> Iterator[Path]:
    """Nothing of the tests reaches the user's cache; drawn glyphs are shared by all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METRIX_CACHE", str(shared_folder / "cache"))
        yield shared_folder / "cache"


@pytest.fixture(scope="session")
def metrix() -> command_line.Metrix:
    """`metrix(ARGUMENTS)`: the command in this process; returns exit code, output and errors."""
    return command_line.metrix


@pytest.fixture(scope="session")
def refused() -> object:
    """`refused(ARGUMENTS, words=…)`: a command that must end with exit code 2 and an error with these words."""
    return command_line.refused


@pytest.fixture
def small() -> Config:
    """Settings with which a step takes milliseconds."""
    return Config().with_values(SMALL)


@pytest.fixture(scope="session")
def run(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps."""
    return own_copy(shared_folder, tmp_path_factory.mktemp("runs"), "run")


@pytest.fixture(scope="session")
def other_run(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 3 steps with another seed and validation classes."""
    return own_copy(shared_folder, tmp_path_factory.mktemp("runs"), "other", seed=1, max_steps=3, holdout=0.1)


@pytest.fixture(scope="session")
def indexed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos` and `photos.index`, the index of them."""
    from metrix.retrieve.indexing import index_images
    from metrix.runs.trained_model import open_run

    folder = tmp_path_factory.mktemp("indexed")
    photos = write_photos(folder / "photos")
    index_images(open_run(run), [photos], folder / "photos.index").index.close()
    return folder


@pytest.fixture
def own_index(indexed: Path, tmp_path: Path) -> Path:
    """A copy of the index to change; its photos are those of `indexed`."""
    return Path(shutil.copytree(indexed / "photos.index", tmp_path / "photos.index"))
