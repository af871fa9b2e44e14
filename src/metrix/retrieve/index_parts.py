"""An index by several processes: each embeds its share of the images into a part, the last to finish joins the parts.

INDEX/.parts-JOB/       of all processes that were started for the same images with the same settings
    engine.json         the engine that all of them use
    0/                  blocks of embeddings of the process of rank 0, so that a killed one resumes
    0.json              the names of its files, once they are complete, and what it skipped
    vectors-….npy, items-….arrow
    joined.json         the generation of the index that was made of all parts
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metrix.data import Broken
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.data.survey import bad_limit
from metrix.errors import DataError, InvalidInput
from metrix.files import describe_failure, lock, parse_stored, write_json
from metrix.messages import first_few
from metrix.model.engines import TORCH
from metrix.retrieve.encoder import fingerprint
from metrix.retrieve.engine_choice import ChosenEngine, agree_on_engine, read_engine
from metrix.retrieve.image_lists import ImageList
from metrix.retrieve.indexing import Indexed, embed_into, list_for_model, read_batches, require_same
from metrix.runs.embedding_blocks import EmbeddingBlocks
from metrix.runs.thresholds import read_threshold
from metrix.runs.trained_model import TrainedModel
from metrix.search import Index, Settings
from metrix.search.generations import read_sound_description, require_index_folder
from metrix.search.parts import IndexPart, write_index_part


@dataclass(frozen=True)
class WrittenPart:
    """The part of a process, once it is complete."""

    key: str  # changes when an image of the part does
    vectors: str
    items: str
    images: int
    skipped: tuple[tuple[str, str], ...]  # path and reason

    @property
    def broken(self) -> tuple[Broken, ...]:
        """The images that were skipped."""
        return tuple(Broken(-1, path, reason) for path, reason in self.skipped)


def index_share(
    model: TrainedModel,
    images: Sequence[str | os.PathLike[str]],
    output: Path,
    share: tuple[int, int],
    *,
    kind: str = "exact",
    root: Path | None = None,
    max_bad: int | float | None = None,
    follow_links: bool = False,
    columns: ColumnChoice = ColumnChoice(),  # noqa: B008 - it cannot change
    settings: Settings | None = None,
    engine: str = TORCH,
    overwrite: bool = True,
) -> Indexed | WrittenPart:
    """Embed a share of the images and write it as a part of an index; the last process joins all parts.

    A process that was killed is started again, alone; it resumes. The index has the rows of `index_images`.

    Args:
        share: (rank, world size) of this process; all get the same other arguments, which are those of `index_images`.

    Returns:
        The index if all parts are complete, else the part of this process.

    Raises:
        InvalidInput, DataError: as `index_images`; an index that is there stays as it is.
    """
    require_index_folder(output)
    if model.embedder.takes_vectors:
        raise InvalidInput(f"WORLD_SIZE: expected 1 for a run on vectors, got {share[1]}; start one process")
    rank, world = share
    settings = settings or Settings()
    wanted = read_engine(engine, model)
    given = list_for_model(
        model, images, root, max_bad=max_bad, follow_links=follow_links, columns=columns, check=False, share=share
    )
    if not overwrite:
        require_same(output, fingerprint(model, given.data), given)
    weights = str(model.digest) if model.is_whole else f"{model.digest}, first {model.dim}"
    asked = [weights, wanted.name, kind, str(settings), str(world), str(given.root), given.all_images]
    folder = output / f".parts-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {describe_failure(error)}; choose another place") from error
    if _is_joined(folder, output):
        return Indexed(Index.open(output), 0, ())
    with lock(folder / f"{rank}.lock"):
        chosen = agree_on_engine(model, folder, given.dataset, given.part, wanted)
        part = _write_part(model, given, folder, rank, chosen, settings, max_bad)
    with lock(folder / "join.lock"):
        if _is_joined(folder, output):
            return Indexed(Index.open(output), part.images, part.broken, chosen.to_dict())
        parts = [_read_part(folder, number) for number in range(world)]
        written = [one for one in parts if one is not None]
        if len(written) < world:
            return part
        skipped = [one for part in written for one in part.broken]
        _require_few(skipped, sum(one.images for one in written), max_bad)
        index = Index.join(
            output,
            [IndexPart(folder / one.vectors, folder / one.items) for one in written],
            kind,
            settings=settings,
            model=fingerprint(model, given.data).model_copy(update={"engine": chosen.to_record()}),
            root=None if given.root is None else str(given.root),
            follow_links=follow_links,
            skipped=len(skipped),
            threshold=read_threshold(model),
        )
        write_json(folder / "joined.json", {"generation": index.description.generation})
        _tidy(output, folder)
    return Indexed(index, sum(one.images for one in written), tuple(skipped), chosen.to_dict())


def _write_part(
    model: TrainedModel,
    given: ImageList,
    folder: Path,
    rank: int,
    chosen: ChosenEngine,
    settings: Settings,
    max_bad: int | float | None,
) -> WrittenPart:
    """The part of a process, embedded unless it is there."""
    key = hashlib.sha256(f"{model.embeddings_key(given.dataset, given.part)}|{chosen.engine.name}".encode()).hexdigest()
    known = _read_part(folder, rank)
    if known is not None and known.key == key:
        return known
    blocks = EmbeddingBlocks(folder / str(rank) / key[:16], len(given))
    blocks.folder.mkdir(parents=True, exist_ok=True)
    embed_into(blocks, model, given, max_bad, chosen.engine)
    listed = given.without(blocks.broken())
    listed.require_few(max_bad)
    files = write_index_part(folder, read_batches(blocks, listed), settings.half)
    skipped = tuple((one.path, one.reason) for one in listed.skipped)
    part = WrittenPart(key, files.vectors.name, files.items.name, len(listed), skipped)
    write_json(folder / f"{rank}.json", asdict(part))
    shutil.rmtree(folder / str(rank), ignore_errors=True)
    return part


def _read_part(folder: Path, rank: int) -> WrittenPart | None:
    """The complete part of a process; None if there is none."""
    path = folder / f"{rank}.json"
    if not path.is_file():
        return None
    part = parse_stored(WrittenPart, path.read_text(encoding="utf-8"), path)
    there = all((folder / name).is_file() and Path(name).name == name for name in (part.vectors, part.items))
    return part if there else None


def _is_joined(folder: Path, output: Path) -> bool:
    """Whether the index is what was made of the parts in a folder."""
    try:
        found: Any = json.loads((folder / "joined.json").read_bytes())
        now = read_sound_description(output)
        return now is not None and found["generation"] == now.generation
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _tidy(output: Path, folder: Path) -> None:
    """Remove parts, which the index has now, and those of other attempts."""
    for file in (*folder.glob("vectors-*"), *folder.glob("items-*"), *folder.glob("*.json")):
        if file.name != "joined.json":
            file.unlink(missing_ok=True)
    for other in output.glob(".parts-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


def _require_few(skipped: Sequence[Broken], read: int, max_bad: int | float | None) -> None:
    if max_bad is None or len(skipped) <= bad_limit(max_bad, read + len(skipped)):
        return
    listed = first_few([f"{one.path} ({one.reason})" for one in skipped], limit=10)
    raise DataError(
        f"{len(skipped):,} of {read + len(skipped):,} images cannot be read: {listed}; repair or remove them, or allow "
        f"more (--max-bad {len(skipped)})"
    )
