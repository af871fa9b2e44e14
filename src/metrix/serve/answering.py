"""How a batch of queries is answered: one pass through the network, one search for queries with the same options."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metrix.retrieve.classify import Classifier
from metrix.retrieve.queries import Queries, search_queries
from metrix.search import Index
from metrix.search.refining import DEPTH
from metrix.serve.metrics import Metrics
from metrix.serve.state import ServedIndex, plain

Found = dict[str, Any]  # the answer to a query, ready for JSON


@dataclass(frozen=True)
class Options:
    """How a query is to be answered; queries with the same options are searched together."""

    k: int = 10
    where: tuple[str, ...] = ()
    expand: int = 0
    rerank: bool = False
    minimum: float | None = None

    @property
    def are_costly(self) -> bool:
        """Whether a search with them takes much longer than one without."""
        return bool(self.where or self.expand or self.rerank)

    def for_items(self) -> Options:
        """The same for items by their own vectors."""
        return self


@dataclass(frozen=True)
class ClassOptions:
    """How the class of a query is to be found."""

    classifier: Classifier  # of the state that is asked
    where: tuple[str, ...] = ()
    threshold: float | None = None

    @property
    def k(self) -> int:
        """Neighbours that vote, and are shown."""
        return self.classifier.calibration.k

    @property
    def are_costly(self) -> bool:
        """Whether finding it takes much longer than without them."""
        return bool(self.where)

    def for_items(self) -> ClassOptions:
        """The same for items by their own vectors, which after `metrix upgrade` are of another model than queries."""
        return replace(self, classifier=self.classifier.for_items())


Wanted = Options | ClassOptions


@dataclass(frozen=True, eq=False)
class PendingQuery:
    """A query on a state of an index: a view for the network or a vector, and its own row if it is of the index."""

    state: ServedIndex
    options: Wanted
    view: Tensor | None = None
    vector: NDArray[np.float32] | None = None
    own: int = -1


Answers = Iterator[tuple[int, "Found | Exception"]]


def answer_queries(queries: Sequence[PendingQuery], begin: Callable[[int], bool], metrics: Metrics) -> Answers:
    """The answer to each query with its place in the list, as they are found.

    `begin` is asked right before a query is worked on; one that was given up meanwhile is left out. A search that
    fails is the failure of all queries that were searched together: each was checked when it arrived.
    """
    groups: dict[tuple[int, Wanted], list[int]] = {}
    for n, query in enumerate(queries):
        groups.setdefault((id(query.state), query.options), []).append(n)
    vectors: dict[int, NDArray[np.float32]] = {}
    wanted = {n: begin(n) for n, query in enumerate(queries) if query.view is not None}
    for rows in _by_encoder(queries, wanted):
        try:
            vectors |= _embed(queries, rows, metrics)
        except Exception as error:
            yield from ((n, error) for n in rows)
    for rows in groups.values():
        mine = [n for n in rows if (n in vectors if queries[n].view is not None else begin(n))]
        if mine:
            yield from _search(queries, mine, vectors, metrics)


def _by_encoder(queries: Sequence[PendingQuery], wanted: dict[int, bool]) -> list[list[int]]:
    """The queries that go through each network."""
    rows: dict[int, list[int]] = {}
    for n, begun in wanted.items():
        if begun:
            rows.setdefault(id(queries[n].state.encoder), []).append(n)
    return list(rows.values())


def _embed(queries: Sequence[PendingQuery], rows: Sequence[int], metrics: Metrics) -> dict[int, NDArray[np.float32]]:
    encoder = queries[rows[0]].state.encoder
    assert encoder is not None
    with metrics.inference.time():
        found = encoder.embed([view for n in rows if (view := queries[n].view) is not None])
    return dict(zip(rows, found, strict=True))


def _search(
    queries: Sequence[PendingQuery],
    rows: Sequence[int],
    embedded: dict[int, NDArray[np.float32]],
    metrics: Metrics,
) -> Answers:
    state, options = queries[rows[0]].state, queries[rows[0]].options
    vectors = np.stack([embedded[n] if n in embedded else _vector(queries[n]) for n in rows])
    none = (None,) * len(rows)
    asked = Queries(("",) * len(rows), vectors, tuple(queries[n].own for n in rows), none)
    start = time.perf_counter()
    try:
        with state.held() as there:
            if not there:
                return  # those who asked have gone
            with state.using_store() as index:
                found = _find(index, asked, options) if isinstance(options, Options) else _classify(asked, options)
    except Exception as error:
        yield from ((n, error) for n in rows)
        return
    finally:
        metrics.searching.observe(time.perf_counter() - start)
    yield from zip(rows, found, strict=True)


def _find(index: Index, asked: Queries, options: Options) -> list[Found]:
    answers = search_queries(
        index,
        asked,
        options.k,
        minimum=options.minimum,
        where=options.where,
        expand=options.expand,
        rerank=DEPTH if options.rerank else 0,
    )
    return [{"neighbours": [plain(hit) for hit in hits]} for hits in answers]


def _classify(asked: Queries, options: ClassOptions) -> list[Found]:
    found = []
    for one in options.classifier.predict_queries(asked, options.where, options.threshold):
        shown = plain(one.to_dict())
        del shown["query"]  # it has no name
        lists = {name: [plain(record) for record in shown[name]] for name in ("classes", "neighbours")}
        found.append(shown | lists)
    return found


def _vector(query: PendingQuery) -> NDArray[np.float32]:
    assert query.vector is not None
    return query.vector
