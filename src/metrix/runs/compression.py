"""What smaller vectors cost: bytes of an item, measures and search time of prefixes and of codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrix import evaluate
from metrix.errors import InvalidInput
from metrix.evaluate import Comparison, Retrieval
from metrix.runs.evaluation import Examples, shorten_rows
from metrix.search.compression import Codes, CodeSearcher, compress, why_impossible
from metrix.train.batches import Report, ignore_report

PLAIN = ("float32", "float16")  # kinds that are always measured
MEASURES = ("recall@1", "map@r")


@dataclass(frozen=True, eq=False)
class CompressedMeasure:
    """How well compressed vectors retrieve, beside the whole in float32."""

    codes: Codes
    dim: int
    trained: bool  # the whole, or a prefix that the model was trained for
    retrieval: Retrieval
    difference: Comparison  # to the whole in float32, query by query
    seconds: float  # of a query

    @property
    def within_noise(self) -> bool | None:
        """Whether neither measure is certainly worse than with the whole; None without intervals."""
        if not self.retrieval.intervals:
            return None
        return all(self.difference[name].high >= 0 for name in MEASURES)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        found = {"kind": self.codes.kind, "dim": self.dim, "trained": self.trained, "bytes": self.codes.bytes}
        for name in MEASURES:
            found[name] = self.retrieval.means[name]
            if self.retrieval.intervals:
                found[f"{name} interval"] = list(self.retrieval.intervals[name])
                change = self.difference[name]
                found[f"{name} difference"] = [change.difference, change.low, change.high]
        return {**found, "within_noise": self.within_noise, "seconds_per_query": self.seconds}


@dataclass(frozen=True, eq=False)
class Compression:
    """The measures of all kinds and dimensions, and what was measured."""

    about: dict[str, Any]
    rows: tuple[CompressedMeasure, ...]
    left_out: tuple[str, ...]  # why, each

    @property
    def whole(self) -> CompressedMeasure:
        """The whole vectors in float32."""
        return self.rows[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        found = self.whole.retrieval
        extent = {"queries": found.queries, "classes": found.classes, "gallery": found.gallery_size}
        rows = [row.to_dict() for row in self.rows]
        return {**self.about, **extent, "over": found.over, "rows": rows, "left_out": list(self.left_out)}


def measure_compression(
    examples: Examples,
    kinds: Sequence[str] = (),
    dims: Sequence[int] = (),
    trained: Sequence[int] = (),
    *,
    resamples: int = 1000,
    over: str = "classes",
    report: Report = ignore_report,
) -> Compression:
    """Measure the vectors of some examples whole and as prefixes, each in float32, in float16 and in codes.

    Args:
        examples: the embeddings.
        kinds: of codes: sq8, pqM, binary.
        dims: lengths of prefixes.
        trained: those that the model was trained for.
        resamples: of the bootstrap, for intervals; 0 for none.
        over: what they draw: classes, or queries.
        report: called with the progress.

    Raises:
        InvalidInput: a dimension above that of the vectors, or codes that even the whole vectors cannot have.
    """
    if examples.relation is not None:
        raise InvalidInput("--compress, --dims: expected a run with one class for each image, got labels of degrees")
    whole = int(examples.vectors.shape[1])
    wanted = list(dict.fromkeys((whole, *sorted(dims, reverse=True))))
    if wrong := [dim for dim in wanted if not 1 <= dim <= whole]:
        raise InvalidInput(f"--dims: expected numbers from 1 to {whole}, of the whole embedding, got {wrong[0]}")
    chosen = list(dict.fromkeys((*PLAIN, *kinds)))
    items = len(examples.vectors if examples.gallery is None else examples.gallery)
    if impossible := [why for kind in chosen if (why := why_impossible(kind, whole, items))]:
        raise InvalidInput(impossible[0])
    rows: list[CompressedMeasure] = []
    left_out: list[str] = []
    for number, (dim, kind) in enumerate((dim, kind) for dim in wanted for kind in chosen):
        short = examples if dim == whole else examples.shorten(dim, force_dim=True)
        queries = shorten_rows(short.vectors, dim)
        gallery = queries if short.gallery is None else shorten_rows(short.gallery, dim)
        why = why_impossible(kind, dim, len(gallery))
        if why:
            left_out.append(why)
            continue
        for codes in compress(gallery, kind):
            searcher = CodeSearcher(codes, queries)
            measured = evaluate.retrieval(
                **short.arguments, ks=(1,), resamples=resamples, over=over, searcher=searcher, loss_sample=1
            )
            base = rows[0].retrieval if rows else measured
            difference = evaluate.compare(base, measured, resamples=max(resamples, 1), over=over)
            some = queries[np.random.default_rng(0).permutation(len(queries))]
            good = dim == whole or dim in trained
            rows.append(CompressedMeasure(codes, dim, good, measured, difference, codes.time_query(some)))
        report("measuring", number + 1, len(wanted) * len(chosen))
    return Compression({**(examples.about or {}), "dim": whole}, tuple(rows), tuple(left_out))
