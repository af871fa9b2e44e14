"""Conditions on columns: `label=cat`, `price<10`. An item without a value in the column never meets one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrix.errors import InvalidInput, unknown_choice

OPERATORS = {"=": "equal", "!=": "not_equal", "<=": "less_equal", ">=": "greater_equal", "<": "less", ">": "greater"}
_FORM = re.compile(r"\s*(.+?)\s*(!=|<=|>=|==|=|<|>)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """One comparison of a column with a value of the column's kind."""

    column: str
    operator: str  # of OPERATORS
    value: str | int | float | bool


def read_conditions(texts: Sequence[str], column_types: Mapping[str, str]) -> tuple[Condition, ...]:
    """Conditions such as `label=cat` on columns of these types; an item has to meet all of them.

    >>> read_conditions(["price<10"], {"price": "number"})
    (Condition(column='price', operator='<', value=10.0),)
    """
    return tuple(_read(text, column_types) for text in texts)


def _read(text: str, column_types: Mapping[str, str]) -> Condition:
    form = _FORM.fullmatch(text)
    if form is None:
        raise InvalidInput(f"condition: expected COLUMN=VALUE or one of {', '.join(OPERATORS)}, got {text!r}")
    column, operator, value = form.groups()
    operator = "=" if operator == "==" else operator
    if column not in column_types:
        if not column_types:
            raise InvalidInput(f"condition {text!r}: this index has no columns to filter by")
        raise unknown_choice("column", column, column_types)
    return Condition(column, operator, _value(text, value, column_types[column], operator))


def _value(text: str, value: str, kind: str, operator: str) -> str | int | float | bool:
    if kind == "text":
        return value
    if kind == "boolean":
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if value.lower() not in known or operator not in ("=", "!="):
            raise InvalidInput(f"condition {text!r}: expected =true, =false or != on a column of yes and no")
        return known[value.lower()]
    try:
        number = float(value)
        if np.isnan(number):
            raise ValueError
        return int(value) if kind == "integer" and re.fullmatch(r"[+-]?\d{1,18}", value) else number
    except ValueError:
        raise InvalidInput(f"condition {text!r}: expected a number, got {value!r}") from None


def mask(conditions: Sequence[Condition], columns: Any) -> NDArray[np.bool_]:
    """Which rows of an Arrow table meet all conditions."""
    found = np.ones(columns.num_rows, dtype=np.bool_)
    for one in conditions:
        met = pc.call_function(OPERATORS[one.operator], [columns[one.column], _scalar(one, columns)])
        found &= met.fill_null(False).combine_chunks().to_numpy(zero_copy_only=False).astype(np.bool_)
    return found


def _scalar(one: Condition, columns: Any) -> Any:
    import pyarrow as pa

    kind = columns[one.column].type
    # A fraction compared with whole numbers: both as floating point.
    return pa.scalar(one.value) if isinstance(one.value, float) else pa.scalar(one.value, kind)


def expression(conditions: Sequence[Condition], fields: Mapping[str, str]) -> str:
    """The conditions in the filter language of Milvus, where a column has the name that `fields` says."""
    return " and ".join(f"{fields[one.column]} {_milvus(one.operator)} {_literal(one.value)}" for one in conditions)


def _milvus(operator: str) -> str:
    return "==" if operator == "=" else operator


def _literal(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
