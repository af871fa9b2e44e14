"""Embeddings and labels as every measure takes them: checked once, normalised on the way.

Embeddings are a NumPy array, a torch tensor or nested lists of shape (n, d). They need not be
normalised: every measure here is defined on x / ‖x‖. Labels are n integers or n strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metrix.errors import EmbeddingError, LabelError, ShapeError

Array: TypeAlias = NDArray[Any]
ROWS_AT_ONCE = 4096


def as_numpy(values: Any) -> Array:
    """A tensor, an array or a list as an array, shared where possible."""
    if hasattr(values, "detach"):  # a torch tensor, on any device
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        values = values.numpy()
    return np.asarray(values)


@dataclass(frozen=True)
class Vectors:
    """Vectors (n, d) as given, with their float64 norms; `unit` normalises a part of them.

    Only the norms are added to what the caller holds, so 60,000 x 512 embeddings cost 0.5 MB here.

    >>> Vectors.read([[3.0, 4.0]]).unit(slice(None))
    array([[0.6, 0.8]])
    """

    values: Array  # (n, d), float32 or float64
    norms: NDArray[np.float64]  # (n,)

    @classmethod
    def read(cls, embeddings: object, name: str = "embeddings") -> Vectors:
        """Check the embeddings and take their norms; `name` is what an error calls them."""
        if isinstance(embeddings, Vectors):
            return embeddings
        try:
            values = as_numpy(embeddings)
        except ValueError as error:  # rows of different lengths
            raise ShapeError(f"{name} do not form an (n, d) table: {error}") from error
        if values.ndim != 2 or 0 in values.shape:
            raise ShapeError(f"{name} of shape {values.shape}: accepted is (n, d) with at least one row and one column")
        if values.dtype.kind not in "fiub":
            raise EmbeddingError(f"{name} of type {values.dtype}: accepted are real numbers")
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
        norms = _norms(values)
        if not np.isfinite(norms).all() or norms.min() < 1e-150:
            values, norms = _rescaled(values, name)
        return cls(values, norms)

    def __len__(self) -> int:
        return len(self.norms)

    @property
    def dim(self) -> int:
        """d, the number of columns."""
        return int(self.values.shape[1])

    def unit(self, rows: slice | NDArray[np.intp], dtype: type[np.floating[Any]] = np.float64) -> Array:
        """The chosen rows at unit norm: divided in float64, then rounded to `dtype`."""
        return (self.values[rows] / self.norms[rows, None]).astype(dtype, copy=False)

    def unit32(self, order: NDArray[np.intp] | None = None) -> NDArray[np.float32]:
        """All rows at unit norm in float32, in the given order: a copy, made part by part."""
        out = np.empty((len(self), self.dim), dtype=np.float32)
        for part in self.blocks():
            out[part] = self.unit(part if order is None else order[part], np.float32)
        return out

    def part(self, rows: slice) -> Vectors:
        """Some of the rows, shared."""
        return Vectors(self.values[rows], self.norms[rows])

    def blocks(self, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[slice]:
        """Slices that cover all rows in order."""
        for start in range(0, len(self), rows_at_once):
            yield slice(start, min(start + rows_at_once, len(self)))


def _norms(values: Array) -> NDArray[np.float64]:
    norms = np.empty(len(values))
    with np.errstate(over="ignore"):
        for start in range(0, len(values), ROWS_AT_ONCE):
            part = values[start : start + ROWS_AT_ONCE].astype(np.float64, copy=False)
            norms[start : start + ROWS_AT_ONCE] = np.sqrt(np.einsum("nd,nd->n", part, part))
    return norms


def _rescaled(values: Array, name: str) -> tuple[Array, NDArray[np.float64]]:
    """Divide each row by its largest entry, so that no square overflows; refuse what has no direction."""
    finite = np.asarray(np.isfinite(values).all(axis=1))
    if not finite.all():
        raise EmbeddingError(
            f"{name} hold NaN or infinity in {_rows(~finite)}: a cosine is defined on finite numbers only; "
            "drop these rows, or look for a diverged training run"
        )
    largest = np.abs(values).max(axis=1, keepdims=True).astype(np.float64)
    if not largest.all():
        raise EmbeddingError(
            f"{name} have norm zero in {_rows(largest[:, 0] == 0)}: a zero vector has no direction and "
            "no cosine; drop these rows"
        )
    values = values / largest
    return values, _norms(values)


def _rows(bad: Array) -> str:
    where = np.flatnonzero(bad)
    shown = ", ".join(map(str, where[:5])) + (", ..." if len(where) > 5 else "")
    return f"{len(where)} of {len(bad)} rows (row {shown})"


def read_labels(labels: object, count: int, name: str = "labels") -> Array:
    """Labels as one array of `count` integers or strings.

    >>> read_labels(["cat", "dog"], 2)
    array(['cat', 'dog'], dtype='<U3')
    """
    try:
        values = as_numpy(labels)
    except ValueError as error:
        raise LabelError(f"{name} are not a flat list: {error}") from error
    if values.ndim != 1:
        hint = "; one-hot rows become labels with argmax(axis=1)" if values.ndim == 2 else ""
        raise LabelError(f"{name} of shape {values.shape}: accepted is (n,), one label per row{hint}")
    if len(values) != count:
        raise ShapeError(f"{len(values)} {name} for {count} embeddings: one label per row is needed")
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.round(values)).all():
        values = values.astype(np.int64)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        values = values.astype(np.str_)
    if values.dtype.kind == "U" and not isinstance(labels, np.ndarray):
        _refuse_mixture(labels, name)
    if values.dtype.kind not in "iubUS":
        raise LabelError(f"{name} of type {values.dtype}: accepted are integers or strings, not a mixture")
    return values


def _refuse_mixture(labels: Any, name: str) -> None:
    """NumPy turns [1, "a"] into strings without a word."""
    kinds = {type(label).__name__ for label in labels if not isinstance(label, str)}
    if kinds:
        raise LabelError(f"{name} mix strings with {', '.join(sorted(kinds))}: accepted is one kind")


def class_numbers(*labels: Array) -> tuple[Array, list[NDArray[np.intp]]]:
    """The distinct labels, and each label array as numbers into them.

    >>> names, (numbers,) = class_numbers(np.array(["b", "a", "b"]))
    >>> names, numbers
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    """
    if len({"text" if part.dtype.kind in "US" else "number" for part in labels}) > 1:
        kinds = " and ".join(str(part.dtype) for part in labels)
        raise LabelError(f"query labels and gallery labels of types {kinds}: no label could ever be equal")
    names, numbers = np.unique(np.concatenate(labels), return_inverse=True)
    return names, np.split(numbers.reshape(-1), np.cumsum([len(part) for part in labels])[:-1])
