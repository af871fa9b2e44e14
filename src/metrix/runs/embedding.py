"""Embed any data with the model of a run: each image once, in blocks, and kept.

A block is a file of its own until all are there, so what was embedded before an interruption is not
embedded again, and several processes can each take their share. The embeddings of a run's own parts stay
in its folder (`embeddings/test.safetensors`) for as long as the model and the images are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix import data
from metrix.data import Dataset, Part
from metrix.errors import InvalidInput, MetrixWarning, unknown_choice
from metrix.files import lock, write_atomically
from metrix.model import Embedder
from metrix.model.saving import RUN_MODEL, WEIGHTS_FILE
from metrix.train.batches import Report, build_views, open_data, select_training_part
from metrix.train.build import build_embedder
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder, open_run_folder

BLOCK = 256  # images embedded at a time, and rows of a file
PARTS = ("test", "train", "all")
FOLDER = "embeddings"
STALLED = 120.0  # seconds without a new block from other processes, after which theirs are embedded here
_KEY = "metrix_key"


def ignore_report(what: str, done: int, of: int) -> None:
    """A report that nobody hears."""


@dataclasses.dataclass(frozen=True, eq=False)
class Embedded:
    """Unit embeddings of a part, with the class name of each."""

    vectors: NDArray[np.float32]  # (n, d)
    labels: NDArray[np.str_]  # (n,)
    fingerprint: str  # of the images

    def __len__(self) -> int:
        return len(self.vectors)


class TrainedModel:
    """The model of a finished run, and the data that it was trained and measured on.

    `initial` is the model before the first step, made again from the settings and the seed. Of several processes,
    `share` = (rank, world size), each embeds its share and waits for the others.
    """

    def __init__(
        self, path: Path, report: Report = ignore_report, *, initial: bool = False, share: tuple[int, int] = (0, 1)
    ) -> None:
        self.run: RunFolder = open_run_folder(Path(path))
        self.share = share
        self.report, self.initial = report, initial
        self._datasets: dict[str | None, Dataset] = {}
        self.weights = self.run.path / RUN_MODEL / WEIGHTS_FILE
        if not initial and not self.weights.is_file():
            raise InvalidInput(
                f"{path} has no trained model yet: the run is not finished; go on with metrix train --resume {path}"
            )

    @cached_property
    def config(self) -> Config:
        """The settings of the run."""
        return self.run.config

    @cached_property
    def embedder(self) -> Embedder:
        """The network, ready to embed; loaded when it is first needed."""
        network = self._initial() if self.initial else Embedder.load(self.run.path)
        return network.to(_device()).eval()

    def _initial(self) -> Embedder:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.train.seed)
            return build_embedder(self.config)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights."""
        digest = hashlib.sha256()
        if self.initial:
            for name, tensor in self.embedder.state_dict().items():
                digest.update(name.encode() + tensor.cpu().numpy().tobytes())
            return digest.hexdigest()
        with self.weights.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def dataset(self, spec: str | None = None) -> Dataset:
        """The run's data, or other data under the run's settings of the split."""
        if spec not in self._datasets:
            values = {} if spec is None else {"data": spec, "layout": None, "holdout": 0.0}
            self._datasets[spec] = open_data(self.config.with_values(values), self.report, in_memory=False)
        return self._datasets[spec]

    def part(self, dataset: Dataset, name: str) -> Part:
        """A part of a dataset: `train` of the run's own data is what it was trained on, `all` is everything."""
        if name == "all":
            good = np.setdiff1d(np.arange(len(dataset.catalogue)), [b.position for b in dataset.broken])
            return Part(dataset, good, np.unique(dataset.catalogue.labels))
        if name == "train" and dataset is self._datasets.get(None):
            return select_training_part(self.config, dataset)
        if name not in (*PARTS, *data.PARTS):
            raise unknown_choice("part", name, PARTS)
        return dataset.part(name)

    def still(self, dataset: Dataset, part: Part) -> Part:
        """A part under the view without randomness that the model is measured on."""
        _, view = build_views(self.config, self.embedder.data_config, dataset.catalogue.layout)
        return part.with_transform(view)

    def key(self, dataset: Dataset, part: Part, mark: str | None = None) -> str:
        """What embeddings of a part depend on: weights, images (and when they last changed), view."""
        catalogue = dataset.catalogue
        mark = mark or fingerprint(dataset, part)
        digest = hashlib.sha256(f"{self.digest}|{mark}|{self.config.data.image_size}".encode())
        if catalogue.root is not None:
            changed = [catalogue.file(i).stat().st_mtime_ns for i in part.indices.tolist()]
            digest.update(np.array(changed, dtype=np.int64).tobytes())
            digest.update(self.config.data.cache.encode())  # kept images are smaller, and read otherwise
        return digest.hexdigest()

    def embed(self, dataset: Dataset, part: Part, blocks: Blocks, share: tuple[int, int] = (0, 1)) -> None:
        """Embed the blocks that are not there yet; of `share` = (rank, world size) only that process's."""
        import torch

        rank, world = share
        mine = range(rank, blocks.count, world)
        missing = [number for number in mine if not blocks.has(number)]
        if not missing:
            return
        still, device = self.still(dataset, part), _device()
        batches: Any = [list(blocks.rows(number)) for number in missing]
        loader = data.loader(still, batches, workers=self.config.data.workers)
        done = sum(len(blocks.rows(number)) for number in mine) - sum(map(len, batches))
        of = done + sum(map(len, batches))
        with torch.inference_mode():
            for number, (images, _) in zip(missing, loader, strict=True):
                blocks.write(number, self.embedder(images.to(device)).float().cpu().numpy())
                done += len(images)
                self.report("embedding", done, of)

    def embedded(self, name: str = "test", spec: str | None = None) -> Embedded:
        """Embeddings of a part, from the run's folder if they are there, and put there if not."""
        dataset = self.dataset(spec)
        part = self.part(dataset, name)
        mark = fingerprint(dataset, part)
        key = self.key(dataset, part, mark)
        labels = np.array(part.class_names)[part.labels.numpy()]
        stem = f"{name}-initial" if self.initial else name
        stem = stem if spec is None else f"{stem}-{mark[:12]}"
        kept = self.run.path / FOLDER / f"{stem}.safetensors"
        vectors = _read_kept(kept, key)
        if vectors is None:
            vectors = self._embedded(dataset, part, kept, key)
        return Embedded(vectors, labels, mark)

    def _embedded(self, dataset: Dataset, part: Part, kept: Path, key: str) -> NDArray[np.float32]:
        from safetensors.numpy import save_file

        try:
            kept.parent.mkdir(exist_ok=True)
            blocks = Blocks(kept.parent / f".{kept.stem}-{key[:16]}", len(part))
            blocks.folder.mkdir(exist_ok=True)
        except OSError as error:
            warnings.warn(
                f"{kept.parent} cannot be written ({error.strerror}): embeddings are not kept",
                MetrixWarning,
                stacklevel=4,
            )
            blocks = _InMemory(len(part))
        alone = self.share[1] == 1 or isinstance(blocks, _InMemory)
        self.embed(dataset, part, blocks, (0, 1) if alone else self.share)
        if not alone:
            _wait_for_others(blocks, lambda: _read_kept(kept, key) is not None)
        if isinstance(blocks, _InMemory):
            return blocks.together()
        with blocks.alone():
            vectors = _read_kept(kept, key)
            if vectors is None:
                self.embed(dataset, part, blocks)  # nothing, unless another process took blocks away
                vectors = found = blocks.together()
                write_or_explain(kept, lambda path: save_file({"embeddings": found}, path, metadata={_KEY: key}))
            blocks.remove()
        return vectors


class Blocks:
    """Embeddings of `rows` images in files of a folder, one for each block, each whole or not there."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.total = folder, rows
        self.count = -(-rows // BLOCK)

    def rows(self, number: int) -> range:
        """The images of a block."""
        return range(number * BLOCK, min((number + 1) * BLOCK, self.total))

    def file(self, number: int) -> Path:
        """The file of a block."""
        return self.folder / f"{number:08d}.npy"

    def has(self, number: int) -> bool:
        """Whether a block was embedded."""
        return self.file(number).is_file()

    @property
    def missing(self) -> list[int]:
        """The blocks that were not."""
        return [number for number in range(self.count) if not self.has(number)]

    def write(self, number: int, vectors: NDArray[np.float32]) -> None:
        """Keep a block."""
        self.folder.mkdir(parents=True, exist_ok=True)

        def save(path: Path) -> None:
            with path.open("wb") as file:
                np.save(file, vectors)

        write_or_explain(self.file(number), save)

    def read(self, number: int) -> NDArray[np.float32]:
        """A block that was embedded."""
        vectors: NDArray[np.float32] = np.load(self.file(number), allow_pickle=False)
        return vectors

    def together(self) -> NDArray[np.float32]:
        """All blocks as one array (rows, d)."""
        first = self.read(0)
        vectors = np.empty((self.total, first.shape[1]), dtype=np.float32)
        for number in range(self.count):
            rows = self.rows(number)
            vectors[rows.start : rows.stop] = self.read(number)
        return vectors

    def remove(self) -> None:
        """Forget all blocks."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One process at a time."""
        path = self.folder.with_name(f"{self.folder.name}.lock")
        with lock(path):
            yield
            with suppress(OSError):  # an open file cannot be removed on Windows
                path.unlink()


class _InMemory(Blocks):
    """Blocks where no file can be written."""

    def __init__(self, rows: int) -> None:
        super().__init__(Path(), rows)
        self.held: dict[int, NDArray[np.float32]] = {}

    def has(self, number: int) -> bool:
        return number in self.held

    def write(self, number: int, vectors: NDArray[np.float32]) -> None:
        self.held[number] = vectors

    def read(self, number: int) -> NDArray[np.float32]:
        return self.held[number]


def _wait_for_others(blocks: Blocks, kept: Callable[[], bool]) -> None:
    """Until the blocks of other processes are there, or nothing more comes of them."""
    missing, since = len(blocks.missing), time.monotonic()
    while missing and time.monotonic() - since < STALLED and not kept():
        time.sleep(0.2)
        now = len(blocks.missing)
        if now != missing:
            missing, since = now, time.monotonic()


def write_or_explain(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all; a place that cannot be written is a clear error."""
    try:
        write_atomically(path, write)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}; choose another place") from error


def fingerprint(dataset: Dataset, part: Part) -> str:
    """SHA-256 of the images of a part alone: two runs with it in common were measured on the same images."""
    whole, at = dataset.catalogue, part.indices
    chosen = at.tolist()
    only = dataclasses.replace(
        whole,
        paths=tuple(whole.paths[i] for i in chosen),
        labels=whole.labels[at],
        parts=np.full(len(at), "", dtype=np.str_),
        boxes=None if whole.boxes is None else tuple(whole.boxes[i] for i in chosen),
        categories=None,
        pixels=None if whole.pixels is None else whole.pixels[at],
    )
    return only.fingerprint()


def _read_kept(path: Path, key: str) -> NDArray[np.float32] | None:
    """Embeddings that were kept under this key; None if there are none, or a damaged file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            if (file.metadata() or {}).get(_KEY) != key:
                return None
            vectors: NDArray[np.float32] = file.get_tensor("embeddings")
            return vectors
    except (SafetensorError, OSError):
        return None


def _device() -> Any:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
