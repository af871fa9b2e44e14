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
from collections.abc import Iterable, Sequence
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
    try:
        return _SHORT.repr(given)
    except ValueError:  # Python refuses to write integers of more than some thousand digits
        return f"a value of type {type(given).__name__}"


def unknown_choice(what: str, given: object, known: Iterable[str], listed: Iterable[str] | None = None) -> ChoiceError:
    """The error to raise for an unknown name; it suggests the nearest known one and lists them all, or `listed`.

    >>> str(unknown_choice("pairs", "pos-ned", ["pos-neg", "anc-neg"]))
    "unknown pairs 'pos-ned'; did you mean 'pos-neg'? expected one of: 'pos-neg', 'anc-neg'"
    """
    names, shown = list(known), given if isinstance(given, str) else describe_value(given)
    near = difflib.get_close_matches(shown[:200], names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    expected = ", ".join(map(repr, names if listed is None else listed))
    return ChoiceError(f"unknown {what} {describe_value(given)}{hint} expected one of: {expected}")


def check_name(what: str, given: object, known: Iterable[str]) -> str:
    """The name that was given.

    Raises:
        ChoiceError: it is none of the known ones, or not a text.

    >>> check_name("reduction", "sum", ["sum", "mean_nonzero"])
    'sum'
    """
    names = list(known)
    if not isinstance(given, str) or given not in names:
        raise unknown_choice(what, given, names)
    return given


def check_flag(name: str, value: object) -> bool:
    """The truth value that was given as `value`; a text such as "no", which Python takes for true, is none.

    >>> check_flag("weighted", "no")
    Traceback (most recent call last):
    ...
    metrix.errors.InvalidInput: weighted: expected True or False, got 'no'
    """
    of_numpy = str(getattr(value, "dtype", None)) == "bool" and getattr(value, "ndim", None) == 0
    if not isinstance(value, bool) and not of_numpy:
        raise InvalidInput(f"{name}: expected True or False, got {describe_value(value)}")
    return bool(value)


def check_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """The integer that was given as `value`.

    Raises:
        InvalidInput: if it is not an integer (a bool is not one here, a NumPy integer is), less than `least` or more
            than `most`.

    >>> check_integer("micro_batch", 8, least=1)
    8
    >>> check_integer("micro_batch", 0, least=1)
    Traceback (most recent call last):
    ...
    metrix.errors.InvalidInput: micro_batch: expected an integer ≥ 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInput(f"{name}: expected an integer ≥ {least}, got {describe_value(value)}")
    if most is not None and int(value) > most:
        raise InvalidInput(f"{name}: expected an integer from {least} to {most}, got {describe_value(value)}")
    return int(value)


def check_share(name: str, text: str) -> tuple[int, int]:
    """The two numbers of `I/N`, share I of N, with I from 1 to N.

    >>> check_share("--shard", "2/3")
    (2, 3)
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InvalidInput(f"{name}: expected I/N with I from 1 to N, such as 1/3, got {text!r}")
    return int(number), int(of)


def check_integers(name: str, values: object, least: int, most: int | None = None) -> tuple[int, ...]:
    """The integers of a list or tuple, of which there is at least one.

    >>> check_integers("ks", [1, 2], least=1)
    (1, 2)
    >>> check_integers("ks", 5, least=1)
    Traceback (most recent call last):
    ...
    metrix.errors.InvalidInput: ks: expected a list of integers ≥ 1, such as (1, 2, 4), got 5
    """
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not values:
        example = ", ".join(str(least * 2**k) for k in range(3))
        raise InvalidInput(
            f"{name}: expected a list of integers ≥ {least}, such as ({example}), got {describe_value(values)}"
        )
    return tuple(check_integer(name, value, least, most) for value in values)


def check_number(
    name: str, value: object, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> float:
    """The finite number that was given as `value`, which must be > `above`, ≥ `least` and ≤ `most`.

    Raises:
        InvalidInput: if it is not a number (a bool, a string or a tensor to be trained is not one here), not finite,
            too small or too large.

    >>> check_number("alpha", 2, above=0)
    2.0
    >>> check_number("margin", float("nan"))
    Traceback (most recent call last):
    ...
    metrix.errors.InvalidInput: margin: expected a finite number, got nan
    """
    is_none = isinstance(value, bool | str | bytes) or getattr(value, "requires_grad", False)
    try:
        number = math.nan if is_none else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if math.isfinite(number) and above < number <= most and number >= least:
        return number
    if number > most:
        bound = f" ≤ {most:g}"
    elif above > -math.inf and not number > above:
        bound = f" > {above:g}"
    else:
        bound = f" ≥ {least:g}" if least > -math.inf else ""
    finite = "" if math.isfinite(number) else "finite "
    raise InvalidInput(f"{name}: expected a {finite}number{bound}, got {describe_value(value)}")
