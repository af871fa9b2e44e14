"""Images without labels that join the batches of a student: what they show, nobody needs to know."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metrix.data import Catalogue, Dataset, Part, RandomSampler, loader
from metrix.data.catalogue import ImageRow
from metrix.data.copies import digest_file
from metrix.data.images import readable_suffixes
from metrix.data.layouts.folder import walk_files
from metrix.data.opening import open_images
from metrix.data.shards import image_status
from metrix.errors import DataError, InvalidInput
from metrix.messages import count

if TYPE_CHECKING:
    from metrix.train.batches import Report
    from metrix.train.config import Config

NO_LABEL = -1  # of an example without one
MEASURED = (
    "val",
    "test",
)  # parts that a run is measured on, or its epoch selected by; test is queries and gallery, too


def open_unlabelled(config: Config, dataset: Dataset, report: Report) -> tuple[Part | None, str]:
    """The images of the folders `unlabelled`, and a note on them; None without such folders.

    Files with the content of an image that the run is measured on, or selects its epoch by, are left out: a student
    that has seen what its teacher says of them embeds them better than others.

    Args:
        config: the settings of the run
        dataset: its labelled images
        report: is called with the progress of checking images

    Raises:
        InvalidInput: the data are vectors
        DataError: a folder has no images, or too many that cannot be read
    """
    folders = [Path(folder) for folder in config.distil.unlabelled]
    if not folders:
        return None, ""
    if dataset.catalogue.vectors is not None:
        raise InvalidInput(
            f"unlabelled: expected nothing with vectors, got {', '.join(map(str, folders))}; leave it out"
        )
    choice = config.data
    files = sorted({file for folder in folders for file in _list_images(folder, choice.follow_links)})
    measured = _find_measured(dataset.catalogue, files)
    kept = [file for file in files if file not in measured]
    if not kept:
        raise DataError(
            f"unlabelled: expected other images than those that the run is measured on, got only these {len(files):,}"
        )
    root = Path(os.path.commonpath(folders))
    rows = [ImageRow(file.relative_to(root).as_posix(), "", "train") for file in kept]
    catalogue = Catalogue.from_rows("folder", root, rows)
    opened = open_images(
        dataclasses.replace(catalogue, follow_links=choice.follow_links),
        max_bad=choice.max_bad if choice.max_bad < 1 else int(choice.max_bad),
        cache=choice.cache,
        workers=choice.workers or None,
        progress=lambda done, of: report("checking images without label", done, of),
    )
    left_out = f"; {len(measured):,} more are left out, because the run is measured on them" if measured else ""
    return opened.train, f"{count(len(opened.train), 'image')} without label join the batches{left_out}"


def fingerprint_data(dataset: Dataset, unlabelled: Part | None) -> str:
    """SHA-256 of the data of a run, of images without label, too, if there are any."""
    own = dataset.catalogue.fingerprint()
    if unlabelled is None:
        return own
    return hashlib.sha256(f"{own}{unlabelled.fingerprint()}".encode()).hexdigest()


def _list_images(folder: Path, follow_links: bool) -> list[Path]:
    if not folder.is_dir():
        what = "a file" if folder.exists() else "nothing there"
        raise DataError(f"unlabelled: expected a folder of images, got {folder}, {what}")
    suffixes = readable_suffixes()
    found = [file for file in walk_files(folder, follow_links) if file.suffix.lower() in suffixes]
    found = [file for file in found if not file.name.startswith(".") and file.is_file()]
    if not found:
        raise DataError(f"unlabelled: expected images ({', '.join(sorted(suffixes))}) in {folder} or below, got none")
    return found


def _find_measured(catalogue: Catalogue, files: list[Path]) -> set[Path]:
    """The files with the content of an image of the parts that a run is measured on."""
    if catalogue.root is None:
        return set()
    own = [catalogue.file(i) for part in MEASURED for i in catalogue.where(part).tolist()]
    of_size: dict[int, list[Path]] = defaultdict(list)
    for file in own:
        of_size[image_status(file).size].append(file)
    contents: dict[int, set[bytes]] = {}
    found = set()
    for file in files:
        size = file.stat().st_size
        if size in of_size:
            if size not in contents:
                contents[size] = {digest_file(other) for other in of_size[size]}
            if digest_file(file) in contents[size]:
                found.add(file)
    return found


class UnlabelledBatches:
    """Batches of images without label, one for each batch with labels.

    Args:
        part: the images
        config: the settings of the run
        view: the training view
        batches: in an epoch
        share: (rank, world size) of this process
        pinned: whether a GPU copies them
    """

    def __init__(
        self, part: Part, config: Config, view: Any, batches: int, share: tuple[int, int], pinned: bool = False
    ) -> None:
        rank, world = share
        self.part = part.with_transform(view, seed=config.train.seed)
        self.workers, self.pinned = config.data.workers, pinned
        size = min(config.distil.unlabelled_batch or config.train.batch_size, len(part))
        self.sampler = RandomSampler(
            len(part), size, batches=batches, seed=config.train.seed, rank=rank, world_size=world
        )
        self._loader: Any = None

    def join(
        self, labelled: Iterator[tuple[Tensor, Tensor]], epoch: int, start: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number `start` on, each with images without label at its end."""
        self.part.set_epoch(epoch)
        self.sampler.set_epoch(epoch, start)
        for (images, labels), others in zip(labelled, self._images(), strict=True):
            yield torch.cat([images, others]), torch.cat([labels, labels.new_full((len(others),), NO_LABEL)])

    def _images(self) -> Iterator[Tensor]:
        if self.workers == 0:
            yield from (self.part.batch(indices)[0] for indices in self.sampler)
            return
        if self._loader is None:
            self._loader = loader(self.part, self.sampler, workers=self.workers, pinned=self.pinned)
        yield from (images for images, _ in self._loader)
