"""An index of the first numbers of each vector, in memory, for a model whose prefixes were trained (Matryoshka)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metrix.core.prefixes import check_prefix
from metrix.errors import InvalidInput
from metrix.runs.trained_model import open_run
from metrix.search import Index, Items
from metrix.search.faiss_store import FaissStore
from metrix.search.items import join_items, unit_vectors


def shorten_index(index: Index, dim: int, force_dim: bool = False, run: Path | None = None) -> Index:
    """The index with the first `dim` numbers of each vector at unit norm, to be searched exactly; itself for all.

    It is not written anywhere. Thresholds are of whole vectors, so it has none.

    Args:
        index: of whole vectors, or of a longer prefix.
        dim: numbers to keep.
        force_dim: take a prefix that the model was not trained for.
        run: the run that the index was built with, if it has moved.

    Raises:
        InvalidInput: the model was not trained for this prefix, or the index was upgraded to another model.
    """
    now = index.description
    if now.adapter is not None:
        raise InvalidInput(
            f"dim: expected an index whose items and queries are of one model, got {index.folder}, which metrix "
            "upgrade changed; embed its items anew first: metrix index -o INDEX --update --only-old"
        )
    place = run if run is not None else None if now.model is None or now.model.run is None else Path(now.model.run)
    trained = () if place is None or force_dim else open_run(place).trained_prefixes
    if check_prefix(dim, index.dim, [one for one in trained if one < index.dim], force_dim) == index.dim:
        return index
    engine = None if now.model is None else now.model.engine
    if engine is not None and engine.file is not None and not engine.is_exact:
        raise InvalidInput(
            f"dim: expected queries through the network itself, got an index whose queries go through {engine.file}; "
            f"build one of the prefix: metrix index RUN PATH --dim {dim}"
        )
    items = join_items(
        [Items(some.ids, unit_vectors(some.vectors[:, :dim]), some.columns) for _, some in index.store.scan()]
    )
    changes: dict[str, Any] = {
        **{"store": "faiss", "kind": "exact", "place": {}, "recall": None, "threshold": None, "open_set": None},
        **{"dim": dim, "model": None if now.model is None else now.model.model_copy(update={"dim": dim})},
    }
    return Index(FaissStore.build(items), now.model_copy(update=changes), index.folder)
