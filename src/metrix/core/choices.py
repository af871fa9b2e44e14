"""Tables of choices: what a configuration, the command line and `metrix methods` can name.

Each table stands beside the code that it names (losses in `table1`, mixup types in `mixup`, kinds of mixing pairs in
`pairs`, mixing methods beside their classes), so that a new entry is one addition in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from metrix.errors import InvalidInput, describe_value, unknown_choice

METRIX_PAPER = "Venkataramanan et al., ICLR 2022"


@dataclass(frozen=True)
class Choice:
    """An entry of a table: a name, one line that says what it is, and the publication it comes from."""

    name: str
    line: str
    reference: str


Entry = TypeVar("Entry", bound=Choice)


def by_name(*entries: Entry) -> dict[str, Entry]:
    """A table from its entries, in their order.

    >>> list(by_name(Choice("avg", "average", ""), Choice("max", "maximum", "")))
    ['avg', 'max']
    """
    table = {entry.name: entry for entry in entries}
    if len(table) < len(entries):
        raise InvalidInput(f"a name occurs twice in the table {', '.join(entry.name for entry in entries)}")
    return table


def find(what: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """The entry called `name`.

    Args:
        what: what is chosen, for the message, such as "loss".
        name: the name that was given.
        table: entries by name.

    Raises:
        ChoiceError: there is no such entry; the message has the nearest name.
    """
    if not isinstance(name, str) or name not in table:
        raise unknown_choice(what, name, table)
    return table[name]


def find_several(what: str, given: str | Sequence[str], table: Mapping[str, Entry]) -> tuple[str, ...]:
    """One or several names of a table.

    Raises:
        InvalidInput: it is neither a name nor a list of names, or the list is empty.
        ChoiceError: there is no such entry.

    >>> find_several("pool", "avg", by_name(Choice("avg", "average", "")))
    ('avg',)
    """
    if not isinstance(given, str) and (not isinstance(given, Sequence) or isinstance(given, bytes) or not given):
        raise InvalidInput(f"{what}: expected one or several of {', '.join(table)}, got {describe_value(given)}")
    names = (given,) if isinstance(given, str) else tuple(given)
    return tuple(find(what, name, table).name for name in names)
