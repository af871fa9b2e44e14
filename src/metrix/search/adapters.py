"""Maps from the vectors of a new model to those of an old one, by which an old index answers queries of the new model.

An adapter is fitted on pairs: the same images embedded by both models. X (n, d') are vectors of the new model, Y (n, d)
those of the old one, all at unit norm. Every kind is a case of

    x ↦ unit(x A B + b + max(x C + c, 0) D)

    identity     x itself, for a model that was trained to be compatible; d' = d
    procrustes   A B = R, the (semi-)orthogonal matrix of smallest ‖X R - Y‖: R = U V', where X' Y = U S V'
    low-rank     A B of rank r, and b: reduced-rank ridge regression; rank and ridge are chosen on pairs held out
    mlp          low-rank, and one hidden layer beside it, trained until pairs held out get no closer
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.errors import DataError, InvalidInput, ShapeError, unknown_choice
from metrix.search.items import unit_vectors

MINIMUM = 20  # pairs, below which nothing can be held out
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # as multiples of the mean eigenvalue of X'X
RANKS = (8, 16, 32, 64, 128, 256, 512)
HELD_OUT = 5  # one in so many pairs chooses rank, ridge and the end of training
HIDDEN = 256
EPOCHS, PATIENCE, BATCH, RATE = 100, 10, 128, 1e-3  # of the mlp
_KEY = "metrix_adapter"
_SHAPES = {"left": 2, "right": 2, "bias": 1, "hidden": 2, "hidden_bias": 1, "output": 2}

Arrays = dict[str, NDArray[np.float64]]
Vectors = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FittedAdapter:
    """A map of vectors; `fit_adapter` makes one.

    kind            a key of ADAPTERS
    new_dim, dim    d' and d
    arrays          by the names `left`, `right` (A, B), `bias`, `hidden`, `hidden_bias`, `output` (C, c, D)
    """

    kind: str
    new_dim: int
    dim: int
    arrays: Mapping[str, NDArray[np.float32]]

    def __call__(self, vectors: object) -> Vectors:
        """Vectors (n, d') of the new model, in any scale, as unit vectors (n, d) of the old one."""
        x = unit_vectors(vectors, "queries")
        if x.shape[1] != self.new_dim:
            raise ShapeError(
                f"queries: expected dimension {self.new_dim}, of the model that queries go through, got {x.shape[1]}"
            )
        return x if self.kind == "identity" else unit_vectors(_apply(x, self.arrays), "queries")

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        from safetensors.numpy import save_file

        about = {"kind": self.kind, "new_dim": self.new_dim, "dim": self.dim}
        save_file(
            {name: np.ascontiguousarray(one) for name, one in self.arrays.items()}, path, {_KEY: json.dumps(about)}
        )

    @classmethod
    def read(cls, path: Path) -> FittedAdapter:
        """What `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            DataError: it is damaged.
        """
        from safetensors import SafetensorError, safe_open

        path.stat()
        try:
            with safe_open(path, framework="np") as file:
                about = json.loads((file.metadata() or {})[_KEY])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found = cls(str(about["kind"]), int(about["new_dim"]), int(about["dim"]), arrays)
            found._check()
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: expected an adapter, got a damaged file ({error}); undo it with metrix upgrade --undo, "
                "and repeat metrix upgrade"
            ) from error
        return found

    def _check(self) -> None:
        if self.kind not in ADAPTERS or set(self.arrays) != set(ADAPTERS[self.kind].arrays):
            raise ValueError(f"kind {self.kind!r} with {sorted(self.arrays)}")
        for name, one in self.arrays.items():
            if one.ndim != _SHAPES[name] or one.dtype != np.float32 or not np.isfinite(one).all():
                raise ValueError(f"{name} is {one.dtype} of shape {one.shape}, or not finite")
        if self.kind == "identity" and self.new_dim != self.dim:
            raise ValueError(f"identity from {self.new_dim} to {self.dim}")
        if _apply(np.zeros((1, self.new_dim), np.float32), self.arrays).shape != (1, self.dim):
            raise ValueError("shapes that do not fit each other")


def _apply(x: NDArray[np.floating], arrays: Mapping[str, NDArray[np.floating]]) -> NDArray[np.floating]:
    """The sum of the parts that there are, before it is normalised."""
    y = x
    if "left" in arrays:
        y = x @ arrays["left"]
        y = y @ arrays["right"] if "right" in arrays else y
    if "bias" in arrays:
        y = y + arrays["bias"]
    if "hidden" in arrays:
        y = y + np.maximum(x @ arrays["hidden"] + arrays["hidden_bias"], 0) @ arrays["output"]
    return y


def fit_adapter(new: object, old: object, kind: str, groups: object = None, seed: int = 0) -> FittedAdapter:
    """Fit the map from vectors of a new model to those of an old one.

    Args:
        new, old: (n, d') and (n, d), the same images embedded by both.
        kind: a key of ADAPTERS.
        groups: (n,) what is held out together, as the class of each; each pair alone by default.
        seed: of what is held out, and of the mlp.

    >>> new = np.eye(3)[np.arange(24) % 3] + 0.1 * np.arange(24)[:, None]
    >>> turned = fit_adapter(new, new[:, [1, 2, 0]], "procrustes")
    >>> (turned([[1.0, 0.0, 0.0]]).round(3) + 0).tolist()
    [[0.0, 0.0, 1.0]]
    """
    x, y = check_pairs(new, old)
    require_kind(kind, x.shape[1], y.shape[1])
    grouped = np.arange(len(x)) if groups is None else np.asarray(groups)
    if len(np.unique(grouped)) < 2:
        grouped = np.arange(len(x))
    held_out = next(split_groups(grouped, HELD_OUT, seed))
    arrays = ADAPTERS[kind].fit(x.astype(np.float64), y.astype(np.float64), held_out, seed)
    single = {name: one.astype(np.float32) for name, one in arrays.items()}
    return FittedAdapter(kind, x.shape[1], y.shape[1], single)


def require_kind(kind: str, new_dim: int, dim: int) -> None:
    """An error if there is no adapter of this kind from vectors of one length to those of another."""
    if kind not in ADAPTERS:
        raise unknown_choice("adapter", kind, ADAPTERS)
    if kind == "identity" and new_dim != dim:
        raise ShapeError(
            f"adapter identity: expected vectors of one dimension, got {new_dim} of the new model and {dim} of the old "
            "one; choose another adapter"
        )


def check_pairs(new: object, old: object) -> tuple[Vectors, Vectors]:
    """Pairs of vectors at unit norm; an error if they are none, or too few."""
    x, y = unit_vectors(new, "new"), unit_vectors(old, "old")
    if len(x) != len(y):
        raise ShapeError(f"pairs: expected as many vectors of the new model as of the old one, got {len(x)}, {len(y)}")
    if len(x) < MINIMUM:
        raise InvalidInput(
            f"pairs: expected at least {MINIMUM} images embedded by both models, got {len(x)}; 1,000 often suffice"
        )
    return x, y


def split_groups(groups: NDArray[np.generic], parts: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    """For each of several parts, which rows (n,) are held out; a group is never divided, and parts are about equal."""
    _, codes = np.unique(groups, return_inverse=True)
    sizes = np.bincount(codes.reshape(-1))
    part = np.zeros(len(sizes), dtype=np.int64)
    filled = np.zeros(min(parts, len(sizes)))
    order = np.random.default_rng(seed).permutation(len(sizes))
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        part[group] = np.argmin(filled)
        filled[part[group]] += sizes[group]
    for number in range(len(filled)):
        yield part[codes.reshape(-1)] == number


def _fit_identity(x: NDArray[np.float64], y: NDArray[np.float64], held_out: NDArray[np.bool_], seed: int) -> Arrays:
    return {}


def _fit_procrustes(x: NDArray[np.float64], y: NDArray[np.float64], held_out: NDArray[np.bool_], seed: int) -> Arrays:
    left, _, right = np.linalg.svd(x.T @ y, full_matrices=False)
    return {"left": left @ right}


def _fit_low_rank(x: NDArray[np.float64], y: NDArray[np.float64], held_out: NDArray[np.bool_], seed: int) -> Arrays:
    ridge, rank = _choose_rank(x, y, held_out)
    return next(arrays for size, arrays in _reduce_ranks(x, y, ridge) if size == rank)


def _choose_rank(x: NDArray[np.float64], y: NDArray[np.float64], held_out: NDArray[np.bool_]) -> tuple[float, int]:
    """The ridge and the rank whose map of the other pairs brings those held out closest."""
    best, chosen = -np.inf, (RIDGES[-1], 0)
    for ridge in RIDGES:
        for rank, arrays in _reduce_ranks(x[~held_out], y[~held_out], ridge):
            found = mean_cosine(_apply(x[held_out], arrays), y[held_out])
            if found > best:
                best, chosen = found, (ridge, rank)
    return chosen


def _reduce_ranks(x: NDArray[np.float64], y: NDArray[np.float64], ridge: float) -> Iterator[tuple[int, Arrays]]:
    """Ridge regression with an intercept, at each rank: the fit of full rank, projected on what it varies most in."""
    mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
    centred, target = x - mean_x, y - mean_y
    square, cross = centred.T @ centred, centred.T @ target
    penalty = ridge * max(float(np.trace(square)) / len(square), 1e-12)
    whole = np.linalg.solve(square + penalty * np.eye(len(square)), cross)  # (d', d)
    _, directions = np.linalg.eigh(whole.T @ cross)
    directions = np.ascontiguousarray(directions[:, ::-1])
    full = min(whole.shape)
    for rank in [*(one for one in RANKS if one < full), full]:
        kept = directions[:, :rank]
        left = whole @ kept
        yield rank, {"left": left, "right": kept.T.copy(), "bias": mean_y - mean_x @ left @ kept.T}


def mean_cosine(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """The mean cosine of each row of `a` with that of `b`."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / np.maximum(norms, 1e-12)).mean())


def _fit_mlp(x: NDArray[np.float64], y: NDArray[np.float64], held_out: NDArray[np.bool_], seed: int) -> Arrays:
    """Train the low-rank map and a hidden layer beside it, whose output is zero at first, for the cosine of pairs."""
    import torch
    from torch.nn import functional as F

    draws = torch.Generator().manual_seed(seed)
    width = min(HIDDEN, 2 * max(x.shape[1], y.shape[1]))
    ridge, rank = _choose_rank(x, y, held_out)
    others_alone = _reduce_ranks(x[~held_out], y[~held_out], ridge)  # else the start would know what is held out
    start: dict[str, NDArray[np.float64]] = {
        **next(arrays for size, arrays in others_alone if size == rank),
        "hidden": torch.randn(x.shape[1], width, generator=draws).numpy() * np.sqrt(2 / x.shape[1]),
        "hidden_bias": np.zeros(width),
        "output": np.zeros((width, y.shape[1])),
    }
    p = {name: torch.tensor(one, dtype=torch.float32, requires_grad=True) for name, one in start.items()}
    inputs, targets = (torch.tensor(one, dtype=torch.float32) for one in (x, y))
    kept, others = (torch.from_numpy(np.flatnonzero(rows)) for rows in (~held_out, held_out))
    optimizer = torch.optim.AdamW(p.values(), lr=RATE, weight_decay=1e-4)

    def cosine(rows: torch.Tensor) -> torch.Tensor:
        some = inputs[rows]
        hidden = torch.relu(some @ p["hidden"] + p["hidden_bias"])
        mapped = some @ p["left"] @ p["right"] + p["bias"] + hidden @ p["output"]
        return F.cosine_similarity(mapped, targets[rows]).mean()

    def snapshot() -> Arrays:
        return {name: one.detach().double().numpy().copy() for name, one in p.items()}

    with torch.no_grad():
        best, found, since = float(cosine(others)), snapshot(), 0
    with torch.enable_grad():
        for _ in range(EPOCHS):
            for rows in torch.split(kept[torch.randperm(len(kept), generator=draws)], BATCH):
                optimizer.zero_grad()
                (1 - cosine(rows)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                now = float(cosine(others))
            since += 1
            if now > best:
                best, found, since = now, snapshot(), 0
            if since == PATIENCE:
                break
    return found


class AdapterKind(NamedTuple):
    """A kind of adapter: how it is fitted, and the arrays that it has."""

    fit: Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], int], Arrays]
    arrays: tuple[str, ...]
    about: str


ADAPTERS: dict[str, AdapterKind] = {  # the simplest first
    "identity": AdapterKind(_fit_identity, (), "as they are"),
    "procrustes": AdapterKind(_fit_procrustes, ("left",), "rotated"),
    "low-rank": AdapterKind(_fit_low_rank, ("left", "right", "bias"), "low-rank affine map"),
    "mlp": AdapterKind(_fit_mlp, tuple(_SHAPES), "and one hidden layer"),
}
