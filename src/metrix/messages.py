"""What messages to the user share: lists cut short, numbers with their noun, and reports of progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

OnProgress = Callable[[int, int], None]  # called with (done, total) while something takes long


def first_few(names: Iterable[object], limit: int = 5) -> str:
    """The first `limit` names, separated by commas, and how many follow.

    >>> first_few(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    >>> first_few(range(3))
    '0, 1, 2'
    """
    listed = [str(name) for name in names]
    shown = ", ".join(listed[:limit])
    return shown if len(listed) <= limit else f"{shown} and {len(listed) - limit:,} more"


def count(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1.

    >>> count(1, "image"), count(3, "image"), count(2, "class"), count(2, "query")
    ('1 image', '3 images', '2 classes', '2 queries')
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("ry"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def format_duration(seconds: float) -> str:
    """A duration for reading.

    >>> format_duration(0.42), format_duration(50), format_duration(1500), format_duration(9000), format_duration(4e5)
    ('0.4 s', '50 s', '25 min', '2.5 h', '4.6 days')
    """
    for size, unit in ((86400, "days"), (3600, "h")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.1f} {unit}"
    if seconds >= 90:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"


# control characters (ESC among them), what reverses the direction of text, and bytes that are not UTF-8
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def make_printable(text: str) -> str:
    r"""A text that is safe to print: a terminal would obey what control characters of a file name ask for.

    >>> make_printable("a\x1b]52;c;ZXZpbA==\x07.png")
    'a\\x1b]52;c;ZXZpbA==\\x07.png'
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)
