"""Which values of a column of a table are marked as the best: the noise of measuring decides, not the last digit."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def find_leaders(
    values: Mapping[int, float], differ: Callable[[int, int], bool], higher_is_better: bool = True
) -> set[int]:
    """The rows with the best value, and those that cannot be told from it; none if no row can.

    Args:
        values: by row.
        differ: whether the values of two rows differ by more than noise.
        higher_is_better: the direction.

    >>> close = lambda a, b: abs(shown[a] - shown[b]) > 1
    >>> shown = {0: 70.0, 1: 74.8, 2: 75.0}
    >>> sorted(find_leaders(shown, close)), sorted(find_leaders({1: 74.8, 2: 75.0}, close))
    ([1, 2], [])
    """
    known = {row: value for row, value in values.items() if value == value}
    if not known:
        return set()
    best = (max if higher_is_better else min)(known, key=known.__getitem__)
    found = {row for row in known if row == best or not differ(best, row)}
    return found if len(found) < len(known) else set()
