"""Every error that metrix raises on purpose.

MetrixError
└── InvalidInput          also a ValueError: what was given, what is accepted
    ├── ShapeError        tensors whose shapes disagree
    ├── LabelError        labels of the wrong kind or out of the proxies' range
    ├── EmbeddingError    NaN, infinite or zero-norm embeddings
    ├── ChoiceError       an unknown name, with the nearest known one
    ├── ModelError        a model without `features` and `head`, or one that cannot be split
    └── DataError         a dataset, an image or a table that cannot be used as given
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MetrixError(Exception):
    """Base of all errors of metrix."""


class InvalidInput(MetrixError, ValueError):  # noqa: N818 - reads as a statement
    """What was given cannot be used; the message says what is accepted."""


class ShapeError(InvalidInput):
    """Tensors whose shapes disagree."""


class LabelError(InvalidInput):
    """Labels of the wrong kind, or out of the proxies' range."""


class EmbeddingError(InvalidInput):
    """Embeddings with NaN, infinity or zero norm."""


class ChoiceError(InvalidInput):
    """A name that is not among the known ones."""


class ModelError(InvalidInput):
    """A model that does not offer what mixup needs."""


class DataError(InvalidInput):
    """A dataset, an image or a table that cannot be used as given."""


class MetrixWarning(UserWarning):
    """Something was left out that the caller may have wanted."""


def one_of(what: str, given: object, known: Iterable[str]) -> ChoiceError:
    """The error for an unknown name: what was given, what is accepted, the nearest.

    >>> str(one_of("pairs", "pos-ned", ["pos-neg", "anc-neg"]))
    "unknown pairs 'pos-ned'; did you mean 'pos-neg'? accepted: 'pos-neg', 'anc-neg'"
    """
    names = list(known)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return ChoiceError(f"unknown {what} {given!r}{hint} accepted: {', '.join(map(repr, names))}")
