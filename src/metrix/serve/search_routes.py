"""The searches of the service: by image, id and vector, one query or several in a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from metrix.data import ImageError
from metrix.errors import InvalidInput
from metrix.search.filters import read_filter
from metrix.serve.answering import Neighbour, Options, PendingQuery
from metrix.serve.schemas import SEARCH_BODY, SEARCH_STATUSES, Answer, JsonQueries, JsonQuery
from metrix.serve.service import Service
from metrix.serve.state import ServedIndex
from metrix.serve.uploads import announced_size, read_uploads

LONGEST_CONDITION = 1000  # characters
MOST_NEIGHBOURS = 10  # times the limit of one query, of all queries of a request
Place = Future[list[Neighbour]]


def add_search(app: FastAPI, service: Service) -> None:
    """Add the searches."""
    limits = service.limits

    async def read_options(
        k: int = Query(10, ge=1, le=limits.k, description="neighbours"),
        where: list[str] = Query([], max_length=20, description="filters: label=cat, price<10 or label in (a, b)"),
        expand: int = Query(0, ge=0, le=100, description="expand the query by so many nearest (αQE)"),
        rerank: bool = Query(False, description="re-rank by k-reciprocal neighbours"),
        threshold: float | None = Query(None, ge=-1, le=1, description="only neighbours at least this similar"),
        same: bool = Query(False, description="only what counts as the same thing, by the stored threshold"),
    ) -> Options:
        if same and threshold is not None:
            raise InvalidInput("expected threshold or same, got both; same is the stored threshold")
        for text in where:
            if len(text) > LONGEST_CONDITION or not text.isprintable():
                raise InvalidInput("where: expected a short condition such as label=cat")
        index = service.current.index
        read_filter(where, index.columns)  # a wrong one is refused here, not in a batch with others
        stored = index.description.threshold
        if same and stored is None:
            raise InvalidInput(
                "same: expected an index with a threshold, got one without; metrix threshold measures it"
            )
        return Options(k, tuple(where), expand, rerank, stored.similarity if same and stored is not None else threshold)

    async def search_by_id(
        id: str = Query(description="an item; it is left out of its answer"), options: Options = Depends(read_options)
    ) -> Any:
        with service.holding() as state:
            return await _answer_one(state, _reserved(service, [JsonQuery(id=id)], state, options))

    async def search(request: Request, options: Options = Depends(read_options)) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("multipart/form-data", "application/json"):
            raise HTTPException(415, "body: expected multipart/form-data with an image, or application/json")
        with service.holding() as state:
            if kind == "application/json":
                asked = read_json(
                    await read_short_body(request, limits.queries * (state.index.dim + 50) * 32), JsonQueries
                )
                if asked.queries is None:
                    one = JsonQuery(id=asked.id, vector=asked.vector)
                    return await _answer_one(state, _reserved(service, [one], state, options))
                _require_few(len(asked.queries), options.k)
                return await _answer_all(state, _reserved(service, asked.queries, state, options))
            if not state.takes_images:
                raise InvalidInput("image: expected an id or a vector; the model of this index takes no images")
            places: list[Place] = [
                service.batcher.reserve(announced_size(request, limits))
            ]  # before the upload is read
            try:
                contents = await read_uploads(request, limits, limits.queries)
                _require_few(len(contents), options.k)
                places += [service.batcher.reserve() for _ in contents[1:]]
            except BaseException:
                _give_back(places)
                raise
            for place, content in zip(places, contents, strict=True):
                service.batcher.submit(place, _preparation(state, options, content))
            answers = asyncio.gather(*map(asyncio.wrap_future, places), return_exceptions=True)
            return await (_answer_one if len(places) == 1 else _answer_all)(state, answers)

    def _require_few(count: int, k: int) -> None:
        if count > limits.queries:
            raise InvalidInput(f"queries: expected at most {limits.queries}, got {count}; send several requests")
        if count * k > MOST_NEIGHBOURS * limits.k:
            raise InvalidInput(
                f"k: expected at most {MOST_NEIGHBOURS * limits.k // count} for {count} queries, got {k}"
            )

    shared: dict[str, Any] = {"response_model": Answer, "responses": SEARCH_STATUSES, "tags": ["search"]}
    app.get("/search", summary="The neighbours of an item", **shared)(search_by_id)
    app.post("/search", summary="The neighbours of images, items or vectors", openapi_extra=SEARCH_BODY, **shared)(
        search
    )


async def _reserved(service: Service, asked: Sequence[JsonQuery], state: ServedIndex, options: Options) -> list[Any]:
    """The answers to queries by id or vector, or exceptions in place of them; all get a place in the queue, or none."""
    places: list[Place] = []
    try:
        for _ in asked:
            places.append(service.batcher.reserve())
        found = await service.items.run(_look_up, state, asked)
        for place, query in zip(places, found, strict=True):
            if isinstance(query, Exception):
                place.set_exception(query)
            else:
                vector, own = query
                service.batcher.submit_ready(place, PendingQuery(state, options, vector=vector, own=own))
    except BaseException:
        _give_back(places)
        raise
    return await asyncio.gather(*map(asyncio.wrap_future, places), return_exceptions=True)


def _look_up(state: ServedIndex, asked: Sequence[JsonQuery]) -> list[Any]:
    """Vector and own row of each query, or the reason why it has none."""
    found: list[Any] = []
    with state.held() as there:
        for query in asked if there else ():
            try:
                if query.vector is not None:
                    found.append((state.read_vector(query.vector), -1))
                    continue
                row = state.find_row(str(query.id))
                found.append(unknown_id(str(query.id)) if row < 0 else (state.vector_of(row), row))
            except InvalidInput as error:
                found.append(error)
    return found


def _preparation(state: ServedIndex, options: Options, content: bytes) -> Callable[[], PendingQuery]:
    return lambda: PendingQuery(state, options, view=state.view(content))


def _give_back(places: Sequence[Place]) -> None:
    for place in places:
        place.cancel()


async def _answer_one(state: ServedIndex, answers: Any) -> JSONResponse:
    (found,) = await answers
    if isinstance(found, BaseException):
        raise found
    return JSONResponse({"neighbours": found, "generation": state.index.description.generation})


async def _answer_all(state: ServedIndex, answers: Any) -> JSONResponse:
    shown = []
    for found in await answers:
        if isinstance(found, HTTPException | InvalidInput):  # of this query; others are answered
            shown.append({"detail": explain(found)})
        elif isinstance(found, BaseException):
            raise found
        else:
            shown.append({"neighbours": found})
    return JSONResponse({"answers": shown, "generation": state.index.description.generation})


def explain(error: BaseException) -> Any:
    """What a client is told about an error: nothing of the folders of this machine."""
    if isinstance(error, HTTPException):
        return error.detail
    return f"image: {error.reason}" if isinstance(error, ImageError) else str(error)


def unknown_id(text: str) -> HTTPException:
    """The error of an id that the index does not have."""
    return HTTPException(404, f"id: expected an item of the index, got {text[:200]!r}")


async def read_short_body(request: Request, most: int) -> bytes:
    """The body of a request, unless it is so long that reading it as JSON would hold up others."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise HTTPException(413, f"body: expected at most {most:,} bytes of JSON, got more; send several requests")
    return body


def read_json(body: bytes, model: type[Any]) -> Any:
    """The content of a JSON body."""
    assert issubclass(model, BaseModel)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise HTTPException(422, details) from None
