"""Tables of choices: what a configuration, the command line and `metrix methods` can name.

Each table stands beside the code that it names (losses in `table1`, mixup types in `mixup`, kinds of mixing pairs in
`pairs`, mixing methods beside their classes), so that a new entry is one addition in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from metrix.errors import InvalidInput, unknown_choice

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
