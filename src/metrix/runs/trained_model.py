"""The model of a finished run: open it, and embed any data with it, each image once.

Embeddings of a part are kept in the run's folder (`embeddings/test.safetensors`) and used again for as long as the
model and the images stay the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix import data
from metrix.core.prefixes import Prefixes, check_prefix
from metrix.data import Dataset, Part
from metrix.data.reading_ahead import read_ahead
from metrix.data.shards import image_status
from metrix.errors import InvalidInput, MetrixWarning, unknown_choice
from metrix.files import describe_failure, remove_abandoned
from metrix.machine.devices import choose_device, seed_cpu
from metrix.model import Embedder
from metrix.model.engines import TORCH, Engine, build_engine
from metrix.model.mlp import MLP_BACKBONE
from metrix.model.saving import RUN_MODEL, WEIGHTS_FILE, digest_weights
from metrix.runs.embedding_blocks import BlocksInMemory, EmbeddingBlocks
from metrix.runs.output import CannotWrite, write_output
from metrix.train.batches import (
    Report,
    build_views,
    ignore_report,
    open_data,
    select_training_part,
)
from metrix.train.build import build_embedder
from metrix.train.config import Config
from metrix.train.data_place import exists, path_of
from metrix.train.network import standardise_vectors, vector_length
from metrix.train.run_folder import RunFolder, open_run_folder
from metrix.train.whitening import whiten_head

PARTS = ("test", "train", "all")
FOLDER = "embeddings"
# settings that a command may change for the images that it reads
READING = ("max_bad", "root", "follow_links", "image_column", "label_column")
# what holds for the run's own data and not for other data
OTHER_DATA = {
    **{"layout": None, "root": None, "follow_links": False, "image_column": None, "label_column": None},
    "holdout": 0.0,
}
_KEY = "metrix_key"


def open_run(
    path: Path,
    report: Report = ignore_report,
    *,
    initial: bool = False,
    share: tuple[int, int] = (0, 1),
    reading: Mapping[str, Any] | None = None,
    dim: int | None = None,
    force_dim: bool = False,
) -> TrainedModel:
    """Open a finished run: its model, and the data that it was trained and measured on.

    Args:
        path: the folder of the run
        report: is called with the progress of long work, such as embedding
        initial: take the model before the first step, built again from the settings and the seed
        share: (rank, world size) of this process, if several processes embed the same data
        reading: other values for settings of how images are read, `READING`
        dim: only so many numbers of each embedding, brought to unit length; all by default
        force_dim: take a prefix that the model was not trained for

    Raises:
        InvalidInput: there is no run at this path, it is not finished, or it was not trained for such a prefix
    """
    run = open_run_folder(Path(path))
    model = TrainedModel(run, report, initial, share, reading, dim, force_dim)
    if not initial and not model.weights.is_file():
        raise InvalidInput(
            f"{path} has no trained model yet, because the run is not finished; resume it with metrix train "
            f"--resume {path}, or make the model of its best epoch so far with metrix train --finish {path}"
        )
    return model


@dataclasses.dataclass(frozen=True, eq=False)
class PartEmbeddings:
    """Unit embeddings of a part, with the class name and the sequence of each."""

    vectors: NDArray[np.float32]  # (n, d)
    labels: NDArray[np.str_]  # (n,)
    fingerprint: str  # of the images
    sequences: NDArray[np.str_] | None = None  # (n,) "" for none

    def __len__(self) -> int:
        return len(self.vectors)


class TrainedModel:
    """The model of a run and its data; `open_run` gives one."""

    def __init__(
        self,
        run: RunFolder,
        report: Report,
        initial: bool,
        share: tuple[int, int],
        reading: Mapping[str, Any] | None = None,
        dim: int | None = None,
        force_dim: bool = False,
    ) -> None:
        self.run, self.report, self.initial, self.share = run, report, initial, share
        self.reading = {key: value for key, value in (reading or {}).items() if value is not None}
        if unknown := set(self.reading) - set(READING):
            raise unknown_choice("setting of how images are read", min(unknown), READING)
        self.weights = run.path / RUN_MODEL / WEIGHTS_FILE
        self._datasets: dict[str | None, Dataset] = {}
        whole = run.config.model.dim
        self.dim = whole if dim is None else check_prefix(dim, whole, self.trained_prefixes, force_dim)

    @cached_property
    def config(self) -> Config:
        """The settings of the run."""
        return self.run.config

    @property
    def trained_prefixes(self) -> tuple[int, ...]:
        """The lengths of the prefixes that were trained, without the whole."""
        model = self.run.config.model
        return Prefixes.of(model.matryoshka).within(model.dim).dims if model.matryoshka else ()

    @property
    def is_whole(self) -> bool:
        """Whether its embeddings are the whole ones, which the measures and thresholds of the run are of."""
        return self.dim == self.run.config.model.dim

    @cached_property
    def embedder(self) -> Embedder:
        """The network in evaluation mode, loaded when it is first needed."""
        network = self._build_initial() if self.initial else Embedder.load(self.run.path)
        network = network if self.is_whole else network.shorten(self.dim, force_dim=True)
        return network.to(choose_device()).eval()

    def _build_initial(self) -> Embedder:
        with seed_cpu(self.config.train.seed):
            if self.config.model.backbone == MLP_BACKBONE:
                dataset = self.open_data()
                network = build_embedder(self.config, vector_length(dataset))
                standardise_vectors(network, select_training_part(self.config, dataset))
            else:
                network = build_embedder(self.config)
        if self.config.model.head_init == "whiten":
            self._whiten_head(network.to(choose_device()).eval())
        return network

    def _whiten_head(self, network: Embedder) -> None:
        """Give the head the principal components of the training images, as training does before its first step."""
        import torch

        dataset = self.open_data()
        part = select_training_part(self.config, dataset)
        _, view = build_views(self.config, network.data_config, dataset.catalogue.layout)
        engine = build_engine(TORCH, network)
        pieces = _split(range(len(part)), self.config.train.batch_size)

        def embed() -> None:
            done = 0
            for images in read_ahead(part.with_transform(view), pieces, self.config.data.workers or None):
                done += len(engine.run(images))
                self.report("whitening", done, len(part))

        with torch.no_grad():
            whiten_head(network.head, embed, lambda moments: moments)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights."""
        if self.initial:
            digest = hashlib.sha256()
            for name, tensor in self.embedder.state_dict().items():
                digest.update(name.encode() + tensor.cpu().numpy().tobytes())
            return digest.hexdigest()
        return digest_weights(self.weights)

    def open_data(self, spec: str | None = None) -> Dataset:
        """The run's own data, or the data `spec`, split with the run's settings."""
        if spec not in self._datasets:
            if spec is None and not exists(self.config.data.data):
                raise InvalidInput(
                    f"the data of {self.run.path} is no longer at {path_of(self.config.data.data)}; give its place "
                    "with --data (in Python, `data` or `spec`)"
                )
            values = {} if spec is None else {**OTHER_DATA, "data": spec}
            if spec is not None and self.config.data.unseen == 0:  # it is about the run's own data
                values["unseen"] = type(self.config.data)().unseen
            config = self.config.with_values({**values, **self.reading})
            dataset = open_data(config, self.report, in_memory=False)
            self._check_kind(dataset)
            self._datasets[spec] = dataset
        return self._datasets[spec]

    def _check_kind(self, dataset: Dataset) -> None:
        """Raise `InvalidInput` unless the data are what the network takes: images, or vectors of its length."""
        given, takes_vectors = vector_length(dataset), self.config.model.backbone == MLP_BACKBONE
        if takes_vectors and given is None:
            raise InvalidInput(f"data: expected vectors, which {self.run.path} was trained on, got images")
        if not takes_vectors and given is not None:
            raise InvalidInput(f"data: expected images, which {self.run.path} was trained on, got vectors")
        if takes_vectors and not self.initial and given != self.embedder.config.inputs:
            raise InvalidInput(
                f"data: expected vectors of {self.embedder.config.inputs} numbers, as {self.run.path} was trained on, "
                f"got vectors of {given}"
            )

    def select_part(self, dataset: Dataset, name: str) -> Part:
        """A part of a dataset: `all` is every image, `train` of the run's own data what the run was trained on."""
        if name == "all":
            good = np.setdiff1d(np.arange(len(dataset.catalogue)), [b.position for b in dataset.broken])
            return Part(dataset, good, np.unique(dataset.catalogue.labels))
        if name == "train" and dataset is self._datasets.get(None):
            return select_training_part(self.config, dataset)
        if name not in (*PARTS, *data.PARTS):
            raise unknown_choice("part", name, PARTS)
        return dataset.part(name)

    def with_test_view(self, dataset: Dataset, part: Part) -> Part:
        """A part under the test view, which has no randomness."""
        _, view = build_views(self.config, self.embedder.data_config, dataset.catalogue.layout)
        return part.with_transform(view)

    def embeddings_key(self, dataset: Dataset, part: Part, images: str | None = None) -> str:
        """SHA-256 of all that the embeddings of a part depend on: weights, images, when files last changed, view.

        `images` is the fingerprint of the part's images, if it is known.
        """
        catalogue = dataset.catalogue
        images = images or fingerprint_images(dataset, part)
        digest = hashlib.sha256(f"{self.digest}|{images}|{self.config.data.image_size}".encode())
        if not self.is_whole:
            digest.update(f"|first {self.dim}".encode())
        if catalogue.root is not None:
            changed = [image_status(catalogue.file(i)).mtime_ns for i in part.indices.tolist()]
            digest.update(np.array(changed, dtype=np.int64).tobytes())
            digest.update(self.config.data.cache.encode())  # cached images are resized, so their pixels differ
        return digest.hexdigest()

    @property
    def image_size(self) -> int:
        """Side in pixels of the images that the network gets."""
        return self.config.data.image_size or self.embedder.data_config.size

    def fill_blocks(
        self,
        blocks: EmbeddingBlocks,
        dataset: Dataset,
        part: Part,
        share: tuple[int, int] = (0, 1),
        engine: Engine | None = None,
        on_broken: Callable[[int, str], object] | None = None,
    ) -> None:
        """Embed the missing blocks of a part, with each image decoded once.

        Args:
            blocks: where embeddings are kept
            dataset: the data
            part: the images
            share: (rank, world size): only the blocks of that process
            engine: what runs the network; the exact one, torch, by default
            on_broken: called with the row and the reason of each image that cannot be read, which its block then leaves
                out; without it, such an image is an error

        Raises:
            ImageError: an image cannot be read, and there is no `on_broken`
        """
        import torch

        rank, world = share
        mine = range(rank, blocks.count, world)
        missing = [number for number in mine if not blocks.has(number)]
        if not missing:
            return
        still = self.with_test_view(dataset, part)
        engine = engine or build_engine(TORCH, self.embedder)
        pieces = {n: _split(blocks.rows(n), engine.at_once) for n in missing}
        of = sum(len(blocks.rows(number)) for number in mine)
        done = of - sum(len(blocks.rows(number)) for number in missing)
        batches = [piece for n in missing for piece in pieces[n]]
        broken: dict[int, str] = {}

        def leave_out(row: int, reason: str) -> None:
            assert on_broken is not None
            broken[row] = reason
            on_broken(row, reason)

        hear = None if on_broken is None else leave_out
        with (
            torch.inference_mode(),
            closing(read_ahead(still, batches, self.config.data.workers or None, hear)) as images,
        ):
            for number in missing:
                found = [torch.empty(0, self.dim)]  # all of a block may be broken
                broken.clear()
                for piece in pieces[number]:
                    if len(batch := next(images)):
                        found.append(engine.run(batch))
                    done += len(piece)
                    self.report("embedding", done, of)
                blocks.write(number, torch.cat(found).numpy(), broken)

    def embed(self, name: str = "test", spec: str | None = None) -> PartEmbeddings:
        """Embeddings of a part of the run's data, or of the data `spec`; kept in the run's folder.

        >>> open_run(Path("runs/a")).embed("test").vectors.shape
        (732, 64)
        """
        dataset = self.open_data(spec)
        part = self.select_part(dataset, name)
        images = fingerprint_images(dataset, part)
        key = self.embeddings_key(dataset, part, images)
        labels = np.array(part.class_names)[part.labels.numpy()]
        stem = f"{name}-initial" if self.initial else name
        stem = stem if spec is None else f"{stem}-{images[:12]}"
        stem = stem if self.is_whole else f"{stem}-first-{self.dim}"
        kept = self.run.path / FOLDER / f"{stem}.safetensors"
        vectors = _read_kept(kept, key)
        if vectors is None:
            vectors = self._embed_and_keep(dataset, part, kept, key)
        elif self.share[1] == 1:  # perhaps of a process that was killed after it wrote them
            remove_abandoned(kept)
            shutil.rmtree(_blocks_folder(kept, key), ignore_errors=True)
        return PartEmbeddings(vectors, labels, images, part.sequences)

    def _embed_and_keep(self, dataset: Dataset, part: Part, kept: Path, key: str) -> NDArray[np.float32]:
        try:
            return self._embed_into_files(dataset, part, kept, key)
        except (OSError, CannotWrite) as error:
            warnings.warn(
                f"{kept.parent} cannot be written ({describe_failure(error)}): embeddings are not kept",
                MetrixWarning,
                stacklevel=4,
            )
        if self.share[1] == 1:
            shutil.rmtree(_blocks_folder(kept, key), ignore_errors=True)  # those that could be written
        blocks = BlocksInMemory(len(part))
        self.fill_blocks(blocks, dataset, part)
        return blocks.read_all()

    def _embed_into_files(self, dataset: Dataset, part: Part, kept: Path, key: str) -> NDArray[np.float32]:
        from safetensors.numpy import save_file

        kept.parent.mkdir(exist_ok=True)
        blocks = EmbeddingBlocks(_blocks_folder(kept, key), len(part))
        blocks.folder.mkdir(exist_ok=True)
        self.fill_blocks(blocks, dataset, part, self.share)
        if self.share[1] > 1:
            blocks.wait_for_others(lambda: _read_kept(kept, key) is not None)
        with blocks.locked():
            vectors = _read_kept(kept, key)  # another process may have assembled the blocks
            if vectors is None:
                self.fill_blocks(blocks, dataset, part)  # blocks of processes that died
                vectors = found = blocks.read_all()
                write_output(kept, lambda path: save_file({"embeddings": found}, path, metadata={_KEY: key}))
            blocks.remove()
        return vectors


def fingerprint_images(dataset: Dataset, part: Part) -> str:
    """SHA-256 of the images of a part and their labels: equal for runs that were measured on the same images."""
    whole, at = dataset.catalogue, part.indices
    chosen = at.tolist()
    only = dataclasses.replace(
        whole,
        paths=tuple(whole.paths[i] for i in chosen),
        labels=whole.labels[at],
        parts=np.full(len(at), "", dtype=np.str_),
        boxes=None if whole.boxes is None else tuple(whole.boxes[i] for i in chosen),
        categories=None,
        sequences=None,
        pixels=None if whole.pixels is None else whole.pixels[at],
        vectors=None if whole.vectors is None else whole.vectors[at],
    )
    return only.fingerprint()


def _blocks_folder(kept: Path, key: str) -> Path:
    """Where embeddings are collected before they are kept in one file."""
    return kept.parent / f".{kept.stem}-{key[:16]}"


def _split(rows: range, at_once: int | None) -> list[list[int]]:
    step = at_once or len(rows)
    return [list(rows[start : start + step]) for start in range(0, len(rows), step)]


def _read_kept(path: Path, key: str) -> NDArray[np.float32] | None:
    """Embeddings kept under this key; None if there are none, or the file is damaged."""
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
