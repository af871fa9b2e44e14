"""The adapter of an index in a folder: kept beside its items, which stay as they are, and taken away again.

Whoever changes it holds the index for writing.
"""

from __future__ import annotations

from pathlib import Path

from metrix.errors import DataError, InvalidInput
from metrix.files import ABANDONED, remove_temporaries, write_atomically
from metrix.search.adapters import FittedAdapter
from metrix.search.description import Description, Fingerprint, IndexAdapter, OpenSet, Threshold
from metrix.search.faiss_files import name_files
from metrix.search.generations import hold_for_writing, tidy


def open_adapter(folder: Path | None, description: Description) -> FittedAdapter | None:
    """The adapter that a description names; None if it names none.

    Raises:
        FileNotFoundError: its file is missing, as it is when it was replaced meanwhile.
        DataError: it is damaged, or of other dimensions.
    """
    record, model = description.adapter, description.model
    if folder is None or record is None:
        return None
    found = FittedAdapter.read(folder / record.file)
    wanted = (record.kind, None if model is None else model.dim, description.dim)
    if (found.kind, found.new_dim, found.dim) != wanted:
        raise DataError(
            f"{folder}: its adapter does not fit its description ({found.kind}, {found.new_dim} to {found.dim} "
            "entries); undo it with metrix upgrade --undo, and repeat metrix upgrade"
        )
    return found


def keep_adapter(
    folder: Path,
    now: Description,
    adapter: FittedAdapter,
    record: IndexAdapter,
    model: Fingerprint,
    *,
    threshold: Threshold | None,
    open_set: OpenSet | None,
) -> None:
    """Write an adapter, then switch to it by the description, in one step."""
    made_by = now.model_of_items
    if made_by is None or (made_by.digest, made_by.view) != (record.before.model.digest, record.before.model.view):
        raise InvalidInput(f"{folder}: it was replaced by an index of another model meanwhile; repeat the command")
    file = folder / f"adapter-{name_files(now.generation)}.safetensors"
    remove_temporaries(folder, ABANDONED)  # of a process that was killed
    write_atomically(file, adapter.save)
    found = {"adapter": record.model_copy(update={"file": file.name}), "model": model}
    switched = now.model_copy(update={**found, "threshold": threshold, "open_set": open_set})
    switched.write(folder)
    tidy(folder, switched, now)


def undo_upgrade(folder: Path) -> Description:
    """Let the queries of an index go through the model that made its items again; returns its description.

    The thresholds that were chosen for that model are back, too. A damaged adapter does not matter.
    """
    Description.read(folder)  # else a folder that is none would get a lock
    with hold_for_writing(folder):
        now = Description.read(folder)
        if now.adapter is None:
            raise InvalidInput(f"{folder}: expected an index that metrix upgrade changed, got one without an adapter")
        before = now.adapter.before
        found = {"model": before.model, "threshold": before.threshold, "open_set": before.open_set, "adapter": None}
        switched = now.model_copy(update=found)
        switched.write(folder)
        tidy(folder, switched, now)
    return switched
