"""The exceptions of metrix, and the checks and messages that every layer shares.

MetrixError
└── InvalidInput          also a ValueError: the message says what was expected and what was given
    ├── ShapeError        tensors whose shapes disagree
    ├── LabelError        labels of the wrong kind or out of the proxies' range
    ├── EmbeddingError    NaN, infinite or zero-norm embeddings
    ├── ChoiceError       an unknown name, with the nearest known one
    ├── ModelError        a model without `features` and `head`, or one that cannot be split
    └── DataError         a dataset, an image or a table that cannot be used as given
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Iterable
from numbers import Integral


class MetrixError(Exception):
    """Base class of all exceptions of metrix."""


class InvalidInput(MetrixError, ValueError):  # noqa: N818 - reads as a statement
    """An argument that cannot be used; the message says what was expected and what was given."""


class ShapeError(InvalidInput):
    """Tensors whose shapes disagree."""


class LabelError(InvalidInput):
    """Labels of the wrong kind, or out of the proxies' range."""


class EmbeddingError(InvalidInput):
    """Embeddings with NaN, infinity or zero norm."""


class ChoiceError(InvalidInput):
    """An unknown name, such as that of a loss; the message suggests the nearest known one."""


class ModelError(InvalidInput):
    """A model without `features` and `head`, or one that cannot be split, loaded or saved."""


class DataError(InvalidInput):
    """A dataset, an image or a table that cannot be used as given."""


class MetrixWarning(UserWarning):
    """Something was skipped that the caller may have wanted."""


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong, _SHORT.maxtuple = 2, 200, 200, 60, 12


def describe_value(given: object) -> str:
    """A value as Python writes it, cut short: what YAML repeats by aliases may be too long for any memory.

    >>> describe_value("pos-ned"), describe_value([[1], {"a": [2]}])
    ("'pos-ned'", "[[1], {'a': [...]}]")
    """
    return _SHORT.repr(given)


def unknown_choice(what: str, given: object, known: Iterable[str]) -> ChoiceError:
    """The error to raise for an unknown name; it suggests the nearest known one and lists them all.

    >>> str(unknown_choice("pairs", "pos-ned", ["pos-neg", "anc-neg"]))
    "unknown pairs 'pos-ned'; did you mean 'pos-neg'? expected one of: 'pos-neg', 'anc-neg'"
    """
    names, shown = list(known), given if isinstance(given, str) else describe_value(given)
    near = difflib.get_close_matches(shown[:200], names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return ChoiceError(f"unknown {what} {describe_value(given)}{hint} expected one of: {', '.join(map(repr, names))}")


def check_integer(name: str, value: object, least: int) -> int:
    """The integer that was given as `value`.

    Raises:
        InvalidInput: if it is not an integer (a bool is not one here, a NumPy integer is) or less than `least`.

    >>> check_integer("micro_batch", 8, least=1)
    8
    >>> check_integer("micro_batch", 0, least=1)
    Traceback (most recent call last):
    ...
    metrix.errors.InvalidInput: micro_batch: expected an integer ≥ 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInput(f"{name}: expected an integer ≥ {least}, got {value!r}")
    return int(value)


def check_number(name: str, value: object, above: float = -math.inf, least: float = -math.inf) -> float:
    """The finite number that was given as `value`, which must be > `above` and ≥ `least`.

    Raises:
        InvalidInput: if it is not a number (a bool or a string is not one here), not finite, or too small.

    >>> check_number("alpha", 2, above=0)
    2.0
    >>> check_number("margin", float("nan"))
    Traceback (most recent call last):
    ...
    metrix.errors.InvalidInput: margin: expected a finite number, got nan
    """
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if math.isfinite(number) and number > above and number >= least:
        return number
    bound = f" > {above:g}" if above > -math.inf else f" ≥ {least:g}" if least > -math.inf else ""
    raise InvalidInput(f"{name}: expected a {'' if math.isfinite(number) else 'finite '}number{bound}, got {value!r}")
