"""Which unlabelled images to label next, given what an index already has.

    for one in suggest_images("photos.index", ["unlabelled/"], n=100).suggestions:
        print(one.rank, one.id, one.reason)

The embeddings of the unlabelled images are kept in the cache folder, so that the next round begins at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.data import Broken
from metrix.errors import DataError, InvalidInput, LabelError, check_integer, unknown_choice
from metrix.files import cache_folder, lock, mark_used
from metrix.retrieve.indexing import index_images, list_for_model
from metrix.retrieve.queries import open_model
from metrix.runs.trained_model import TrainedModel
from metrix.search import LABEL, Hits, Index, choose_duplicate_threshold, nearest_others
from metrix.search.choosing import BY_CLASSES, DEFAULT, STRATEGIES, Candidates, choose_places
from metrix.search.class_scores import EnrolledClasses
from metrix.search.description import FILE, VectorEngine
from metrix.search.filters import EVERYTHING
from metrix.search.suggesting import NearLabelled, compare_with_labelled
from metrix.train.batches import Report, ignore_report

POOLS = "pools"  # the folder of the cache
NEIGHBOURS = 5  # labelled items that are shown beside a suggestion


@dataclass(frozen=True)
class Suggestion:
    """An image to label, and why."""

    rank: int
    id: str
    file: str | None  # where it is; None if it is not a file
    reason: str
    similarity: float | None  # to the nearest labelled item; None if there is none
    best: Any  # the class with the most votes of the nearest labelled items
    share: float  # its share of the votes
    second: Any
    second_share: float
    neighbours: tuple[dict[str, Any], ...]  # labelled items: id, similarity and columns, the nearest first


@dataclass(frozen=True, eq=False)
class Suggestions:
    """What to label next, the most useful first."""

    suggestions: tuple[Suggestion, ...]
    wanted: int  # how many were asked for; there are fewer if all others are near-copies
    strategy: str
    threshold: float  # from which on two images are near-copies
    candidates: int
    copies: int  # candidates that are near-copies of labelled images, which are never suggested
    labelled: int  # items of the index that they were compared with
    skipped: int  # images that could not be read
    broken: tuple[Broken, ...]  # those of them that were found this time
    pool: Index  # with the candidates

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        names = ("wanted", "strategy", "threshold", "candidates", "copies", "labelled", "skipped")
        return {
            **{name: getattr(self, name) for name in names},
            "suggestions": [asdict(one) for one in self.suggestions],
            "skipped_images": [{"path": one.path, "reason": one.reason} for one in self.broken],
        }


def suggest_images(
    index: Index | str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]] = (),
    n: int = 100,
    *,
    strategy: str = DEFAULT,
    threshold: float | None = None,
    seed: int = 0,
    run: str | os.PathLike[str] | None = None,
    root: Path | None = None,
    max_bad: int | float | None = None,
    follow_links: bool = False,
    report: Report = ignore_report,
) -> Suggestions:
    """Choose unlabelled images to label next.

    Args:
        index: what is labelled already. Without any label in it, all of its items count.
        images: the unlabelled images, as `list_images` takes them, or an index of them by the same model; none for the
            items of the index itself that have no label.
        n: how many.
        strategy: one of `STRATEGIES`.
        threshold: the similarity from which on two images are near-copies, of which at most one is suggested, and none
            of a labelled image; that of `choose_duplicate_threshold` by default.
        seed: of the random strategy, and of samples.
        run: the run that the index was built with, if it has moved.
        root: as for `list_images`.
        max_bad: how many images may be unreadable; any number by default.
        follow_links: allow symbolic links that lead outside the root.
        report: is called with the progress.

    Raises:
        LabelError: the strategy needs classes, and the index has fewer than two.
        InvalidInput: there is nothing to choose from.
    """
    check_integer("n", n, 1)
    if strategy not in STRATEGIES:
        raise unknown_choice("strategy", strategy, STRATEGIES)
    if threshold is not None and not -1 <= threshold <= 1:
        raise InvalidInput(f"threshold: expected a cosine from -1 to 1, got {threshold:g}")
    opened = index if isinstance(index, Index) else Index.open(index)
    classes = _read_classes(opened, strategy, report)
    broken: tuple[Broken, ...] = ()
    if not images:
        pool, rows = opened, _unlabelled_rows(opened, classes)
    else:
        reading = {"root": root, "max_bad": max_bad, "follow_links": follow_links}
        pool, broken = _open_pool(opened, images, None if run is None else Path(run), reading, report)
        rows = np.concatenate([some for some, _ in pool.store.scan()])

    def read(places: NDArray[np.int64]) -> NDArray[np.float32]:
        return pool.store.read_vectors(rows[places])

    found = compare_with_labelled(
        read, len(rows), opened.store, classes, progress=lambda done, of: report("comparing", done, of)
    )
    labelled = len(opened) if classes is None else int(classes.sizes.sum())
    if not images and classes is None:
        found.similarity[:], labelled = -1, 0  # they are no labelled items of their own
    same = choose_duplicate_threshold(opened if len(opened) > 1 else pool) if threshold is None else threshold
    copies = int((found.similarity >= same).sum())
    places = choose_places(
        Candidates(read, found.similarity, found.margin if strategy in BY_CLASSES else None),
        n,
        strategy,
        same,
        seed=seed,
        progress=lambda done, of: report("choosing", done, of),
    )
    chosen = np.array(places, dtype=np.int64)
    listed = _describe(opened, classes, pool, rows[chosen], found.part(chosen), strategy)
    skipped = pool.description.skipped if images else 0
    return Suggestions(listed, n, strategy, same, len(rows), copies, labelled, skipped, broken, pool)


def _read_classes(index: Index, strategy: str, report: Report) -> EnrolledClasses | None:
    """The classes of the index; None if nothing in it has a label."""
    try:
        found = EnrolledClasses.read(index.store, lambda done, of: report("reading classes", done, of))
    except LabelError:
        found = None
    if strategy in BY_CLASSES and (found is None or len(found) < 2):
        raise LabelError(
            f"strategy: expected an index of two classes or more for {strategy!r}, got "
            f"{0 if found is None else len(found)}; choose another, such as --strategy typical"
        )
    return found


def _unlabelled_rows(index: Index, classes: EnrolledClasses | None) -> NDArray[np.int64]:
    rows = np.concatenate([some for some, _ in index.store.scan()])
    if classes is not None:
        rows = rows[classes.of_row[rows] < 0]
    elif LABEL not in index.columns:
        rows = rows[:0]
    if not len(rows):
        raise InvalidInput(
            "suggest: expected unlabelled images, or an index that has items without a label, got neither; name a "
            "folder: metrix suggest INDEX unlabelled/"
        )
    return rows


def _open_pool(
    index: Index, images: Sequence[str | os.PathLike[str]], run: Path | None, reading: dict[str, Any], report: Report
) -> tuple[Index, tuple[Broken, ...]]:
    """The unlabelled images as an index of their own, embedded unless the cache has them, and those left out now."""
    if len(images) == 1 and (Path(images[0]) / FILE).is_file():
        pool = Index.open(images[0])
        if index.description.model is not None and pool.description.model is not None:
            index.require_model(pool.description.model)
        if pool.dim != index.dim:
            raise InvalidInput(f"{images[0]}: expected vectors of dimension {index.dim}, got {pool.dim}")
        return pool, ()
    model = open_model(index, run, report)
    used = VectorEngine() if index.description.model is None else index.description.model.engine
    engine = used.file or used.name
    folder = cache_folder() / POOLS / _key_of_pool(model, images, reading, engine)
    with lock(folder.with_name(f"{folder.name}.lock")):
        kept = _open_kept(folder)
        if kept is None:
            built = index_images(model, images, folder, engine=engine, **reading)
            return built.index, built.skipped
    if reading["max_bad"] is not None and kept.description.skipped:
        list_for_model(model, images, **reading)  # an error that names all, if there are too many
    return kept, ()


def _open_kept(folder: Path) -> Index | None:
    """The candidates that were embedded before; None if they were not, or are damaged."""
    try:
        kept = Index.open(folder)
    except DataError:
        if (folder / FILE).exists():
            shutil.rmtree(folder, ignore_errors=True)
        return None
    mark_used(folder / FILE)
    return kept


def _key_of_pool(
    model: TrainedModel, images: Sequence[str | os.PathLike[str]], reading: dict[str, Any], engine: str
) -> str:
    """A name of these images, as their files are now, under this model."""
    how = {**reading, "max_bad": None}
    listed = list_for_model(model, images, **how, check=False)
    said = f"{model.embeddings_key(listed.dataset, listed.part)}|{listed.root}|{listed.data}|{engine}"
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def _describe(
    index: Index,
    classes: EnrolledClasses | None,
    pool: Index,
    rows: NDArray[np.int64],
    found: NearLabelled,
    strategy: str,
) -> tuple[Suggestion, ...]:
    """Chosen candidates with what is known of them."""
    if not len(rows):
        return ()
    names = pool.store.read_table(rows)["id"].to_pylist()
    neighbours: list[list[dict[str, Any]]] = [[] for _ in names]
    if (found.similarity > -1).any():
        where = EVERYTHING if classes is None else classes.labelled
        near = nearest_others(pool.store.read_vectors(rows), index.store, NEIGHBOURS, where=where)
        neighbours = Hits.look_up(near, index.store).records()
    listed = []
    for n, name in enumerate(map(str, names)):
        similarity = neighbours[n][0]["similarity"] if neighbours[n] else None
        best, second = (None if c < 0 or classes is None else classes.names[c] for c in found.best[n].tolist())
        shares = found.shares[n].tolist()
        votes = (best, shares[0], second, shares[1])
        reason = _explain(strategy, similarity, *votes)
        listed.append(Suggestion(n + 1, name, _file_of(pool, name), reason, similarity, *votes, tuple(neighbours[n])))
    return tuple(listed)


def _file_of(pool: Index, name: str) -> str | None:
    root = pool.description.root
    return None if root is None else str(Path(root) / name)


def _explain(strategy: str, similarity: float | None, best: Any, share: float, second: Any, second_share: float) -> str:
    """Why an image was chosen, in a sentence."""
    far = "nothing is labelled" if similarity is None else f"{similarity:.3f} similar to the nearest labelled"
    votes = f"{100 * share:.0f} % {best}" + ("" if second is None else f", {100 * second_share:.0f} % {second}")
    if strategy == "margin":
        return f"unsure: {votes}"
    if strategy == "unsure":
        return f"typical of images whose class is unsure; it is {votes}"
    said = {"coverage": "far from all labelled and chosen ones", "typical": "many images like it have no near label"}
    return f"{said.get(strategy, 'chosen at random')}; {far}"
