"""Lists in messages: the first few, then how many more."""

from __future__ import annotations

from collections.abc import Sequence


def some(names: Sequence[object], limit: int = 5) -> str:
    """The first names and how many are left.

    >>> some(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    shown = ", ".join(str(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "image"), count(3, "image"), count(2, "class")
    ('1 image', '3 images', '2 classes')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
