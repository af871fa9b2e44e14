"""One image at a time through a run's model: what a query goes through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrix.data import Broken, ImageError, glyphs
from metrix.data.cache import SHORT_SIDE
from metrix.data.catalogue import Box
from metrix.data.images import ImageSource, load_image, read_pixels
from metrix.data.layouts.vectors import NAME as VECTORS
from metrix.data.survey import map_in_order
from metrix.errors import InvalidInput
from metrix.model.engines import TORCH, Engine, build_engine
from metrix.runs.trained_model import TrainedModel
from metrix.search import Fingerprint
from metrix.search.adapters import FittedAdapter
from metrix.train.batches import Report, build_views, ignore_report

BATCH = 256


class ImageEncoder:
    """Images to vectors, by the network and the test view of a run.

    `view` (decoding and preprocessing, safe to call in threads) and `embed` (the network, in batches) are apart, so
    that a service can decode requests in parallel and embed them together.

    Args:
        model: of the run, from `open_run`.
        data: the embedded dataset that is searched, such as `glyphs`, if it is not image files: its images have a
            view of their own.
        engine: what runs the network; the exact one, torch, by default.
        adapter: maps its vectors to those of the model that made the items of an index, if that is another.
    """

    def __init__(
        self,
        model: TrainedModel,
        data: str | None = None,
        engine: Engine | None = None,
        adapter: FittedAdapter | None = None,
    ) -> None:
        self.model, self.grey = model, data in glyphs.NAMES
        wanted = model.embedder.data_config
        layout = data if data in glyphs.NAMES else VECTORS if model.embedder.takes_vectors else "folder"
        assert layout is not None
        _, self._view = build_views(model.config, wanted, layout)
        self._side = short_side(model)
        self.engine = engine or build_engine(TORCH, model.embedder)
        self.fingerprint, self.adapter = fingerprint(model, data), adapter

    @property
    def dim(self) -> int:
        """The number of entries of the vectors that come out."""
        return self.fingerprint.dim if self.adapter is None else self.adapter.dim

    def view(self, image: ImageSource, box: Box | None = None) -> Tensor:
        """An image as the network's input (channels, h, w): a file, an open one, or pixels; cropped to a box, if given.

        Raises:
            ImageError: it cannot be decoded.
            InvalidInput: the run was trained on vectors.
        """
        if self._view is None:
            raise InvalidInput(f"expected a run on images, got {self.model.run.path}, which was trained on vectors")
        found: Tensor = self._view(self._pixels(image if box is None else load_image(image, box, self._side)))
        return found

    def _pixels(self, image: Any) -> Tensor:
        return read_pixels(image, grey_size=glyphs.SIZE) if self.grey else read_pixels(image, short_side=self._side)

    def embed(self, views: Sequence[Tensor]) -> NDArray[np.float32]:
        """Unit vectors (n, d) of views, or of vectors for a network that takes those, in one pass through it."""
        images = torch.stack(list(views))
        with torch.inference_mode():
            pieces = torch.split(images, self.engine.at_once or len(images))
            found: NDArray[np.float32] = torch.cat([self.engine.run(piece) for piece in pieces]).numpy()
        return found if self.adapter is None else self.adapter(found)

    def embed_files(
        self,
        paths: Sequence[Path],
        boxes: Sequence[Box | None] | None = None,
        report: Report = ignore_report,
    ) -> tuple[NDArray[np.float32], list[int], list[Broken]]:
        """Vectors of image files, the position of each in `paths`, and the files that cannot be read.

        `boxes` has the box to crop each to, or None for the whole image; `report` is called after each batch, if there
        are several.
        """

        def view(item: tuple[Path, Box | None]) -> Tensor | str:
            try:
                return self.view(*item)
            except ImageError as error:
                return error.reason

        vectors: list[NDArray[np.float32]] = []
        rows: list[int] = []
        skipped: list[Broken] = []
        waiting: list[Tensor] = []
        for n, found in enumerate(map_in_order(view, list(zip(paths, boxes or [None] * len(paths), strict=True)))):
            if isinstance(found, str):
                skipped.append(Broken(n, str(paths[n]), found))
            else:
                rows.append(n)
                waiting.append(found)
            if len(waiting) == BATCH:
                vectors.append(self.embed(waiting))
                waiting = []
                if len(paths) > BATCH:
                    report("embedding queries", n + 1, len(paths))
        if waiting:
            vectors.append(self.embed(waiting))
            if len(paths) > BATCH:
                report("embedding queries", len(paths), len(paths))
        embedded = np.concatenate(vectors) if vectors else np.empty((0, self.dim), np.float32)
        return embedded, rows, skipped


def short_side(model: TrainedModel) -> int | None:
    """The shorter side that images have before the test view: that of the run's image cache, if it has one."""
    return None if model.config.data.cache == "none" else SHORT_SIDE


def fingerprint(model: TrainedModel, data: str | None = None) -> Fingerprint:
    """What an index remembers of the model that made its vectors."""
    wanted = model.embedder.data_config
    distil, size = model.config.distil, model.config.data.image_size or wanted.size
    if model.embedder.takes_vectors:
        view = f"vectors of {wanted.size}"
    else:
        kind, side = ("glyphs", None) if data in glyphs.NAMES else ("photos", short_side(model))
        mean, std = (",".join(f"{value:g}" for value in values) for values in (wanted.mean, wanted.std))
        view = f"{kind} at {size} px, mean {mean}, std {std}{f', shorter side {side} px' if side else ''}"
    return Fingerprint(
        digest=model.digest,
        view=view,
        dim=model.dim,
        run=str(model.run.path.resolve()),
        compatible_with=distil.teacher_digest if distil.compatible and model.is_whole else None,
    )
