"""Embeddings and labels as every metric takes them: checked once, normalised where they are used.

Embeddings are a NumPy array, a torch tensor or nested lists of shape (n, d). They need not be normalised: every
metric is defined on x / ‖x‖. Labels are n integers or n strings. Embeddings on CUDA stay there for the metrics of
retrieval; those on another device, such as MPS, which has no float64, are copied to the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metrix.errors import EmbeddingError, LabelError, ShapeError
from metrix.messages import first_few

Array: TypeAlias = NDArray[Any]
ROWS_AT_ONCE = 4096


def as_numpy(values: Any) -> Array:
    """A tensor, array or list as an array, without a copy where possible."""
    if hasattr(values, "detach"):  # a torch tensor, on any device
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        values = values.numpy()
    return np.asarray(values)


@dataclass(frozen=True)
class Vectors:
    """Vectors (n, d) as given, with their float64 norms; `unit` gives some of them normalised.

    Only the norms take memory in addition to the given array: 0.5 MB for 60,000 embeddings.

    >>> Vectors.read([[3.0, 4.0]]).unit(slice(None))
    array([[0.6, 0.8]])
    """

    device: ClassVar[object] = None  # the GPU that they are on, if they are on one
    values: Array  # (n, d), float32 or float64
    norms: NDArray[np.float64]  # (n,)

    @classmethod
    def read(cls, embeddings: object, name: str = "embeddings") -> Vectors:
        """Check embeddings and compute their norms; `name` is how an error refers to them."""
        if isinstance(embeddings, Vectors):
            return embeddings
        if getattr(embeddings, "is_cuda", False):
            from metrix.evaluate.on_device import DeviceVectors

            if (there := DeviceVectors.find(embeddings)) is not None:
                return there
        try:
            values = as_numpy(embeddings)
        except ValueError as error:  # rows of different lengths
            raise ShapeError(f"{name} do not form an (n, d) table: {error}") from error
        if values.ndim != 2 or 0 in values.shape:
            raise ShapeError(f"{name}: expected shape (n, d) with n ≥ 1 and d ≥ 1, got {values.shape}")
        if values.dtype.kind not in "fiub":
            raise EmbeddingError(f"{name}: expected real numbers, got type {values.dtype}")
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
        norms = _compute_norms(values)
        if not np.isfinite(norms).all() or norms.min() < 1e-150:
            values, norms = _rescale(values, name)
        return cls(values, norms)

    def __len__(self) -> int:
        return len(self.norms)

    @property
    def dim(self) -> int:
        """d, the number of columns."""
        return int(self.values.shape[1])

    def unit(self, rows: slice | NDArray[np.intp], dtype: type[np.floating[Any]] = np.float64) -> Array:
        """Some rows at unit norm: divided in float64, then rounded to `dtype`."""
        return (self.values[rows] / self.norms[rows, None]).astype(dtype, copy=False)

    def unit32(self, order: NDArray[np.intp] | None = None) -> NDArray[np.float32]:
        """A copy of all rows at unit norm in float32, in the given order."""
        out = np.empty((len(self), self.dim), dtype=np.float32)
        for part in self.blocks():
            out[part] = self.unit(part if order is None else order[part], np.float32)
        return out

    def part(self, rows: slice) -> Vectors:
        """Some of the rows, without a copy."""
        return Vectors(self.values[rows], self.norms[rows])

    def blocks(self, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[slice]:
        """Slices that cover all rows in order."""
        for start in range(0, len(self), rows_at_once):
            yield slice(start, min(start + rows_at_once, len(self)))


def _compute_norms(values: Array) -> NDArray[np.float64]:
    norms = np.empty(len(values))
    with np.errstate(over="ignore"):
        for start in range(0, len(values), ROWS_AT_ONCE):
            part = values[start : start + ROWS_AT_ONCE].astype(np.float64, copy=False)
            norms[start : start + ROWS_AT_ONCE] = np.sqrt(np.einsum("nd,nd->n", part, part))
    return norms


def _rescale(values: Array, name: str) -> tuple[Array, NDArray[np.float64]]:
    """Divide each row by its largest absolute entry, so that no square overflows; refuse NaN, infinity and zero."""
    finite = np.asarray(np.isfinite(values).all(axis=1))
    if not finite.all():
        raise EmbeddingError(
            f"{name} hold NaN or infinity in {_list_rows(~finite)}: a cosine is defined for finite numbers only; "
            "drop these rows, or check whether training diverged"
        )
    largest = np.abs(values).max(axis=1, keepdims=True).astype(np.float64)
    if not largest.all():
        raise EmbeddingError(
            f"{name} have norm zero in {_list_rows(largest[:, 0] == 0)}: the cosine of a zero vector is undefined; "
            "drop these rows"
        )
    values = values / largest
    return values, _compute_norms(values)


def _list_rows(bad: Array) -> str:
    where = np.flatnonzero(bad)
    return f"{len(where)} of {len(bad)} rows (row {first_few(where)})"


def read_labels(labels: object, count: int, name: str = "labels") -> Array:
    """Check labels and give them as one array of `count` integers or strings.

    >>> read_labels(["cat", "dog"], 2)
    array(['cat', 'dog'], dtype='<U3')
    """
    try:
        values = as_numpy(labels)
    except ValueError as error:
        raise LabelError(f"{name} are not a flat list: {error}") from error
    if values.ndim != 1:
        hint = "; one-hot rows become labels with argmax(axis=1)" if values.ndim == 2 else ""
        raise LabelError(f"{name}: expected shape (n,), one label per row, got {values.shape}{hint}")
    if len(values) != count:
        raise ShapeError(f"{len(values)} {name} for {count} embeddings: expected one label per row")
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.round(values)).all():
        values = values.astype(np.int64)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        values = values.astype(np.str_)
    if values.dtype.kind == "U" and not isinstance(labels, np.ndarray):
        _refuse_mixture(labels, name)
    if values.dtype.kind not in "iubUS":
        raise LabelError(f"{name}: expected integers or strings, got type {values.dtype}")
    return values


def _refuse_mixture(labels: Any, name: str) -> None:
    """Raise an error for a list such as [1, "a"], which NumPy would silently turn into strings."""
    kinds = {type(label).__name__ for label in labels if not isinstance(label, str)}
    if kinds:
        raise LabelError(
            f"{name}: expected either integers or strings, got strings mixed with {', '.join(sorted(kinds))}"
        )


def number_classes(*labels: Array) -> tuple[Array, list[NDArray[np.intp]]]:
    """The distinct labels in order, and each label array as indices into them.

    >>> names, (numbers,) = number_classes(np.array(["b", "a", "b"]))
    >>> names, numbers
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    """
    if len({"text" if part.dtype.kind in "US" else "number" for part in labels}) > 1:
        kinds = " and ".join(str(part.dtype) for part in labels)
        raise LabelError(f"query labels and gallery labels of types {kinds}: no label could ever be equal")
    names, numbers = np.unique(np.concatenate(labels), return_inverse=True)
    return names, np.split(numbers.reshape(-1), np.cumsum([len(part) for part in labels])[:-1])
