"""The answer of an index: rows and similarities, with the ids and columns of what was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrix.search.stores import Neighbours, Store


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest items of each query, nearest first; row -1, no id and similarity NaN where there are fewer.

    `ids, similarities = hits` takes apart what is wanted most often.
    """

    rows: NDArray[np.int64]  # (queries, k)
    similarities: NDArray[np.float32]  # (queries, k) cosines
    table: Any  # pyarrow.Table: `id` and the columns of each row that was found, once
    places: NDArray[np.int64]  # (queries, k) the row of `table`, -1 for none

    @classmethod
    def look_up(cls, found: Neighbours, store: Store) -> Hits:
        """What was found, with ids and columns."""
        distinct, places = np.unique(found.rows, return_inverse=True)
        places = places.reshape(found.rows.shape)
        absent = int(len(distinct) > 0 and distinct[0] < 0)
        return cls(found.rows, found.similarities, store.read_table(distinct[absent:]), places - absent)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        yield self.ids
        yield self.similarities

    @property
    def ids(self) -> NDArray[Any]:
        """The ids (queries, k): text, "" for none, or integers, -1 for none."""
        ids = self.table["id"].combine_chunks()
        text = pa.types.is_string(ids.type)
        known = np.append(ids.to_numpy(zero_copy_only=False), "" if text else -1)
        return np.asarray(known[self.places], dtype=object if text else np.int64)

    def records(self, minimum: float | None = None) -> list[list[dict[str, Any]]]:
        """For each query, the items as plain dictionaries: id, similarity and columns, nearest first.

        `minimum` leaves out those that are less similar.
        """
        known = [{"id": record.pop("id"), "similarity": 0.0, **record} for record in self.table.to_pylist()]
        return [
            [
                {**known[place], "similarity": value}
                for place, value in zip(places, similarities, strict=True)
                if place >= 0 and (minimum is None or value >= minimum)
            ]
            for places, similarities in zip(self.places.tolist(), self.similarities.tolist(), strict=True)
        ]
