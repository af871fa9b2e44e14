"""Replace the vectors of an index by those of a new model, in portions, while the index answers.

New vectors are collected beside the index until there is one for each item; then all are switched to in one step. So a
query is never compared with vectors of two models: until the switch it goes through the old model, or the new one and
its adapter, after it through the new model alone. A mixture would rank items by when they were embedded, because mapped
vectors are more similar to each other than to vectors of the old model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metrix.data.shards import image_status
from metrix.data.survey import bad_limit
from metrix.errors import DataError, InvalidInput, MetrixError, check_integer
from metrix.files import describe_failure, lock
from metrix.messages import first_few
from metrix.retrieve.encoder import BATCH, ImageEncoder, fingerprint
from metrix.retrieve.image_lists import split_id
from metrix.retrieve.item_images import embed_items
from metrix.retrieve.staged_vectors import PREFIX, StagedVectors
from metrix.runs.open_set import read_open_set
from metrix.runs.thresholds import read_threshold
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.search import Fingerprint, Index, Items
from metrix.search.changing import ItemsChangedError
from metrix.train.batches import Report, ignore_report


@dataclass(frozen=True, eq=False)
class Replaced:
    """How far the replacement is."""

    index: Index
    embedded: int  # this time
    waiting: int  # items without a vector of the new model; 0 once all are switched to
    left_out: tuple[str, ...]  # items that are gone, because their images cannot be read
    run: Path

    @property
    def complete(self) -> bool:
        """Whether queries and items are of the new model."""
        return self.waiting == 0


def replace_items(
    folder: Path,
    run: Path | None = None,
    *,
    store: str | None = None,
    root: Path | None = None,
    limit: int | None = None,
    max_bad: int | float | None = None,
    report: Report = ignore_report,
) -> Replaced:
    """Embed the items of an index that are not of the new model yet, and switch to it once all are.

    It can be interrupted at any time and goes on where it was. Items may be added, deleted and relabelled meanwhile.

    Args:
        folder: the index, of images that are at hand.
        run: of the new model; that of its adapter by default.
        store, root: as for `Index.open`.
        limit: images that are embedded this time, at most.
        max_bad: items that may be left out of the index because their images cannot be read; none by default.
        report: is called with the progress.

    Raises:
        DataError: more images cannot be read; everything else is embedded, and the index stays as it is.
    """
    index = Index.open(folder, store, root)
    now = index.description
    if run is None and now.adapter is None:
        raise InvalidInput(
            f"{folder}: expected the run of the new model, or an index that metrix upgrade changed, got neither: "
            "metrix index RUN -o INDEX --update --only-old"
        )
    if limit is not None:
        check_integer("limit", limit, 1)
    if now.root is None and now.data is None:
        raise InvalidInput(f"{folder}: expected an index of images, got one of vectors; build it anew")
    place = run or Path(str(now.model.run if now.model is not None else None))
    model = open_run(place, report)
    new = _require_model(index, model)
    if (made_by := now.model_of_items) is not None and (made_by.digest, made_by.view) == (new.digest, new.view):
        return Replaced(index, 0, 0, (), place)
    try:
        with lock(folder / ".replacing.lock"):
            return _replace(index, model, new, limit, max_bad, report)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {describe_failure(error)}; make room, and repeat") from error


def _require_model(index: Index, model: TrainedModel) -> Fingerprint:
    if model.embedder.takes_vectors:
        raise InvalidInput(f"--only-old: expected a run on images, got {model.run.path}, which was trained on vectors")
    new, now = fingerprint(model, index.description.data), index.description
    if now.adapter is not None and now.model is not None and now.model.digest != new.digest:
        raise InvalidInput(
            f"--only-old: expected the model that queries go through ({now.model.run}), got {model.run.path}; upgrade "
            "the index to that first"
        )
    return new


def _replace(
    index: Index, model: TrainedModel, new: Fingerprint, limit: int | None, max_bad: int | float | None, report: Report
) -> Replaced:
    assert index.folder is not None
    encoder = ImageEncoder(model, index.description.data)
    staged = StagedVectors(index.folder / f"{PREFIX}{new.digest[:16]}", new.dim)
    embedded, unreadable = 0, dict[str, str]()
    while True:
        index = index.reopen()
        ids = [one for _, items in index.store.scan() for one in items.ids.to_pylist()]
        stamps = {one: _stamp(index, one) for one in ids}
        waiting = [one for one in ids if unreadable.get(one) != stamps[one] and not staged.has(one, stamps[one])]
        some = waiting if limit is None else waiting[: limit - embedded]
        for start in range(0, len(some), BATCH):
            report("embedding items", start, len(some))
            lot = some[start : start + BATCH]
            vectors, places = embed_items(index, encoder, lot)
            read = [lot[place] for place in places.tolist()]
            if read:
                staged.add(read, vectors, [stamps[one] for one in read])
            unreadable |= {one: stamps[one] for one in set(lot) - set(read)}
        if some:
            report("embedding items", len(some), len(some))
        embedded += len(some)
        if len(some) < len(waiting):
            return Replaced(index, embedded, len(waiting) - len(some), (), model.run.path)
        left_out = [one for one in ids if one in unreadable and not staged.has(one, stamps[one])]
        _require_readable(index, left_out, len(ids), max_bad)
        staged.forget(left_out)
        try:
            _switch(index, model, new, staged, left_out)
        except ItemsChangedError:  # some were added meanwhile
            continue
        staged.remove()
        return Replaced(index, embedded, 0, tuple(left_out), model.run.path)


def _stamp(index: Index, one: str) -> str:
    """What changes when the image of an item does; empty where it is part of an embedded dataset, or missing."""
    if index.description.root is None:
        return ""
    try:
        status = image_status(Path(index.description.root) / split_id(one)[0])
    except (OSError, ValueError, MetrixError):
        return ""
    return f"{status.mtime_ns}-{status.size}"


def _require_readable(index: Index, left_out: Sequence[str], count: int, max_bad: int | float | None) -> None:
    if len(left_out) == count:
        raise DataError(
            f"{index.folder}: none of its {count:,} images can be read in "
            f"{index.description.root or index.description.data}: {first_few(left_out)}; the index is as it was: if "
            "they have moved, say where with --root"
        )
    if len(left_out) > (0 if max_bad is None else bad_limit(max_bad, count)):
        raise DataError(
            f"{index.folder}: {len(left_out):,} of {count:,} images are missing or cannot be read, so the new model "
            f"cannot embed them: {first_few(left_out)}; the others are embedded, and the index is as it was: put them "
            f"back and repeat, delete them (--delete ID), or leave them out (--max-bad {len(left_out)})"
        )


def _switch(
    index: Index, model: TrainedModel, new: Fingerprint, staged: StagedVectors, left_out: Sequence[str]
) -> None:
    gone = set(left_out)

    def replace(items: Items) -> Items | None:
        ids = items.ids.to_pylist()
        vectors, places = staged.take(ids)
        if not gone.issuperset(ids[n] for n in np.setdiff1d(np.arange(len(ids)), places).tolist()):
            raise ItemsChangedError
        if not len(places):
            return None
        kept = items.part(places)
        return Items(kept.ids, vectors, kept.columns)

    threshold, open_set = read_threshold(model), read_open_set(model.run.path, model.digest)
    index.replace_vectors(new, replace, skipped=len(left_out), threshold=threshold, open_set=open_set)
