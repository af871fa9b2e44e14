"""Filters on columns: `label=cat`, `price<10 and (label in (cat, "salt and pepper") or stock>0)`.

    filter      all { "or" all }
    all         one { "and" one }
    one         "(" filter ")"  |  "not" one  |  COLUMN OPERATOR VALUE  |  COLUMN "in" "(" VALUE { "," VALUE } ")"

A value with the words and, or, a comma or an unpaired parenthesis stands in quotes, single or double; so may a column.
The reader is written by hand and looks at each character a fixed number of times, since a service reads filters of
strangers. An item without a value in a column never meets a comparison with it; so it meets `not` of one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrix.errors import InvalidInput, unknown_choice

OPERATORS = {"=": "equal", "!=": "not_equal", "<=": "less_equal", ">=": "greater_equal", "<": "less", ">": "greater"}
DEPTH = 50  # parentheses within parentheses
SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1  # of a column of whole numbers
Value = str | int | float | bool
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
# What ends a value or a column without quotes, the spaces between tokens, and the words. None of them can backtrack.
_ENDS_VALUE = re.compile(r"[(),]|\b(?:and|or)\b", re.IGNORECASE)
_ENDS_COLUMN = re.compile(r"[=<>!()]|\bin\s{0,20}\(", re.IGNORECASE)
_SPACES = re.compile(r"\s*")
_WORDS = {word: re.compile(rf"\b{word}\b", re.IGNORECASE) for word in ("and", "or", "in", "not")}


@dataclass(frozen=True)
class Condition:
    """One comparison of a column with a value of the column's type, or, with the operator `in`, with several."""

    column: str
    operator: str  # of OPERATORS, or in
    value: Value | tuple[Value, ...]


@dataclass(frozen=True)
class AllOf:
    """Filters all of which an item has to meet; none of them keeps everything."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class AnyOf:
    """Filters one of which an item has to meet."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Not:
    """A filter that an item must not meet."""

    part: Filter


Filter = Condition | AllOf | AnyOf | Not
EVERYTHING = AllOf(())


def read_filter(texts: Sequence[str], column_types: Mapping[str, str]) -> Filter:
    """The filter that asks for all of these texts, on columns of these types.

    >>> read_filter(["price<10"], {"price": "number"})
    Condition(column='price', operator='<', value=10.0)
    """
    given = [texts] if isinstance(texts, str) else texts
    parts = tuple(_Reader(text, column_types).read() for text in given)
    return parts[0] if len(parts) == 1 else AllOf(parts)


def count_conditions(condition: Filter) -> int:
    """How many comparisons a filter makes with each item.

    >>> count_conditions(read_filter(["price<10 or not price<20"], {"price": "number"}))
    2
    """
    if isinstance(condition, Condition):
        return 1
    return sum(map(count_conditions, (condition.part,) if isinstance(condition, Not) else condition.parts))


def write_value(value: Value) -> str:
    """A value as it stands in a filter, whatever it holds.

    >>> write_value('say "or"'), write_value(7)
    ('"say \\\\"or\\\\""', '7')
    """
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else repr(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Reader:
    """Reads one filter from left to right."""

    def __init__(self, text: str, column_types: Mapping[str, str]) -> None:
        self.text, self.types, self.at, self.depth = text, column_types, 0, 0

    def read(self) -> Filter:
        found = self._any()
        self._skip_spaces()
        if self.at < len(self.text):
            raise self._expected("and, or, or the end")
        return found

    def _any(self) -> Filter:
        parts = [self._all()]
        while self._take_word("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all(self) -> Filter:
        parts = [self._one()]
        while self._take_word("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _one(self) -> Filter:
        negated = self._take_not()
        if not negated and not self._take("("):
            return self._comparison()
        self.depth += 1
        if self.depth > DEPTH:
            raise InvalidInput(f"condition: expected at most {DEPTH} parentheses within parentheses, got more")
        found = Not(self._one()) if negated else self._any()
        if not negated and not self._take(")"):
            raise self._expected(")")
        self.depth -= 1
        return found

    def _take_not(self) -> bool:
        """Whether `not` follows, and not a column whose name begins with it."""
        before = self.at
        if not self._take_word("not"):
            return False
        end = _ENDS_COLUMN.search(self.text, self.at)
        if end is not None and self.text[before : end.start()].strip() in self.types:
            self.at = before
            return False
        return True

    def _comparison(self) -> Condition:
        column = self._column()
        if column not in self.types:
            if not self.types:
                raise InvalidInput(f"condition {self._shown()}: this index has no columns to filter by")
            raise unknown_choice("column", column, self.types)
        if self._take_word("in"):
            if not self._take("("):
                raise self._expected("( after in")
            values = [self._value(column, "in")]
            while self._take(","):
                values.append(self._value(column, "in"))
            if not self._take(")"):
                raise self._expected(", or ) in a list")
            return self._condition(column, "in", tuple(values))
        operator = next((one for one in ("==", *sorted(OPERATORS, key=len, reverse=True)) if self._take(one)), None)
        if operator is None:
            raise self._expected(f"in or one of {', '.join(OPERATORS)}")
        operator = "=" if operator == "==" else operator
        return self._condition(column, operator, self._value(column, operator))

    def _condition(self, column: str, operator: str, value: Any) -> Condition:
        return (compare_whole if self.types[column] == "integer" else Condition)(column, operator, value)

    def _column(self) -> str:
        quoted = self._quoted()
        if quoted is not None:
            return quoted
        end = _ENDS_COLUMN.search(self.text, self.at)
        name = "" if end is None else self.text[self.at : end.start()].strip()
        if not name or end is None:
            raise self._expected(f"COLUMN=VALUE, or another of {', '.join(OPERATORS)} and in (…)")
        self.at = end.start()
        return name

    def _value(self, column: str, operator: str) -> Value:
        text = self._quoted()
        if text is None:
            text = self._bare(inside_list=operator == "in")
            if not text and operator not in ("=", "!="):  # text that is empty is equal to something
                raise self._expected("a value")
        return self._parse(text, self.types[column], operator)

    def _bare(self, inside_list: bool) -> str:
        """A value without quotes: to the next and, or, comma of a list, or parenthesis that it did not open."""
        start, opened, self.at = self.at, 0, len(self.text)
        for end in _ENDS_VALUE.finditer(self.text, start):
            sign = end.group()
            if not opened and sign != "(" and (sign != "," or inside_list):
                self.at = end.start()
                break
            opened += (sign == "(") - (sign == ")")
        return self.text[start : self.at].strip()

    def _quoted(self) -> str | None:
        r"""A text in quotes, in which a backslash stands before a quote or a backslash; None if there is none."""
        self._skip_spaces()
        quote = self.text[self.at : self.at + 1]
        if quote not in ("'", '"') or not quote:
            return None
        parts, at = [], self.at + 1
        while at < len(self.text) and self.text[at] != quote:
            at += self.text[at] == "\\" and at + 1 < len(self.text)
            parts.append(self.text[at])
            at += 1
        if at >= len(self.text):
            raise self._expected(f"a text that ends with {quote}")
        self.at = at + 1
        return "".join(parts)

    def _parse(self, value: str, kind: str, operator: str) -> Value:
        if kind == "text":
            return value
        if kind == "boolean":
            if value.lower() not in _BOOLEANS or operator not in ("=", "!=", "in"):
                raise InvalidInput(f"condition {self._shown()}: expected =true, =false or != on a column of yes and no")
            return _BOOLEANS[value.lower()]
        digits = value.removeprefix("-").removeprefix("+")
        if kind == "integer" and digits.isascii() and digits.isdigit() and len(digits) <= len(str(LARGEST)):
            return int(value)
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if np.isnan(number):
            raise InvalidInput(f"condition {self._shown()}: expected a number, got {value[:80]!r}")
        return number

    def _skip_spaces(self) -> None:
        spaces = _SPACES.match(self.text, self.at)
        assert spaces is not None
        self.at = spaces.end()

    def _take(self, sign: str) -> bool:
        self._skip_spaces()
        found = self.text.startswith(sign, self.at)
        self.at += len(sign) * found
        return found

    def _take_word(self, word: str) -> bool:
        self._skip_spaces()
        found = _WORDS[word].match(self.text, self.at) is not None
        self.at += len(word) * found
        return found

    def _expected(self, what: str) -> InvalidInput:
        rest = self.text[self.at : self.at + 40].strip()
        got = f"{rest!r}" if rest else "the end"
        return InvalidInput(
            f"condition {self._shown()}: expected {what}, got {got}; a value with and, or, commas or parentheses "
            "stands in quotes"
        )

    def _shown(self) -> str:
        return repr(self.text if len(self.text) <= 120 else f"{self.text[:119]}…")


def mask(condition: Filter, columns: Any) -> NDArray[np.bool_]:
    """Which rows of an Arrow table meet a filter."""
    if isinstance(condition, Condition):
        return _compare(condition, columns)
    if isinstance(condition, AllOf):
        found = np.ones(columns.num_rows, dtype=np.bool_)
        for part in condition.parts:
            found &= mask(part, columns)
        return found
    if isinstance(condition, Not):
        return ~mask(condition.part, columns)
    found = np.zeros(columns.num_rows, dtype=np.bool_)
    for part in condition.parts:
        found |= mask(part, columns)
    return found


def _compare(one: Condition, columns: Any) -> NDArray[np.bool_]:
    column = columns[one.column]
    if isinstance(one.value, tuple):
        met = pc.is_in(column, value_set=pa.array(one.value, column.type))
    else:
        met = pc.call_function(OPERATORS[one.operator], [column, pa.scalar(one.value, column.type)])
    return np.asarray(met.fill_null(False).combine_chunks().to_numpy(zero_copy_only=False), dtype=np.bool_)


def compare_whole(column: str, operator: str, value: Value | tuple[Value, ...]) -> Condition:
    """A comparison of a column of whole numbers with any numbers, by whole numbers of 64 bits: stores take no others.

    >>> compare_whole("n", "<", 2.5)
    Condition(column='n', operator='<', value=3)
    """
    if isinstance(value, tuple):
        whole = (int(one) for one in value if float(one).is_integer())
        return Condition(column, "in", tuple(one for one in whole if SMALLEST <= one <= LARGEST))
    every, none = Condition(column, "<=", LARGEST), Condition(column, "in", ())  # with a value, and none at all
    number = value if isinstance(value, int) else float(value)
    inside = SMALLEST <= number <= LARGEST
    if operator in ("=", "!="):
        if inside and float(number).is_integer():
            return Condition(column, operator, int(number))
        return none if operator == "=" else every
    if not inside:
        return every if (number > 0) == (operator in ("<", "<=")) else none
    return Condition(column, operator, math.ceil(number) if operator in ("<", ">=") else math.floor(number))


def expression(condition: Filter, fields: Mapping[str, str], has_value: Mapping[str, str]) -> str:
    """A filter in the language of Milvus; empty for everything.

    Args:
        condition: the filter.
        fields: the field of each column.
        has_value: the field that says whether an item has a value in a column, of columns that may have none.
    """
    if isinstance(condition, Not):
        return f"not ({expression(condition.part, fields, has_value)})"
    if not isinstance(condition, Condition):
        word = " and " if isinstance(condition, AllOf) else " or "
        return word.join(f"({expression(part, fields, has_value)})" for part in condition.parts)
    field, operator = fields[condition.column], "==" if condition.operator == "=" else condition.operator
    if isinstance(condition.value, tuple):
        compared = f"{field} in [{', '.join(map(_literal, condition.value))}]"
    else:
        compared = f"{field} {operator} {_literal(condition.value)}"
    known = has_value.get(condition.column)
    return compared if known is None else f"{known} == true and {compared}"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
