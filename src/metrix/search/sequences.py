"""Searches that leave out what is of a query's own sequence: frames of its track, photos of its shoot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from metrix.search.filters import write_value

SEQUENCE = "sequence"  # the column


def group_by_sequence(sequences: Sequence[Any]) -> Iterator[tuple[list[int], list[str]]]:
    """The numbers of the queries of each sequence, and the filter that leaves the items of that sequence out.

    A query without a sequence, None or an empty text, may find everything.

    >>> list(group_by_sequence(["a", None, "a"]))
    [([0, 2], ['not sequence="a"']), ([1], [])]
    """
    groups: dict[Any, list[int]] = {}
    for number, sequence in enumerate(sequences):
        groups.setdefault(None if sequence == "" else sequence, []).append(number)
    for sequence, numbers in groups.items():
        yield numbers, [] if sequence is None else [f"not {SEQUENCE}={write_value(sequence)}"]
