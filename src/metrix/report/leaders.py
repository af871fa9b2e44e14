"""Which values of a column of a table are marked as the best: the noise of measuring decides, not the last digit."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def find_leaders(
    values: Mapping[int, float], differ: Callable[[int, int], bool], higher_is_better: bool = True
) -> set[int]:
    """The rows with the best value, and those that cannot be told from it; none if no row can.

    A row is never among them without all that have better values: where noise hides the difference of a row to the
    best, rows between the two are not called worse.

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
    alike = [value for row, value in known.items() if row == best or not differ(best, row)]
    found = {row for row, value in known.items() if min(alike) <= value <= max(alike)}
    return found if len(found) < len(known) else set()
