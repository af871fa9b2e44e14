"""From a request with queries, images, ids or vectors, to the answers of the batches that they went into."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from metrix.data import ImageError
from metrix.errors import InvalidInput
from metrix.search.filters import count_conditions, read_filter
from metrix.serve.answering import Found, PendingQuery, Wanted
from metrix.serve.schemas import JsonQueries, JsonQuery
from metrix.serve.service import Service
from metrix.serve.state import ServedIndex
from metrix.serve.uploads import announced_size, read_uploads

LONGEST_CONDITION = 1000  # characters
MOST_CONDITIONS = 100  # in all filters of a request: each looks at every item
MOST_NEIGHBOURS = 10  # times the limit of one query, of all queries of a request
Place = Future[Found]


def check_conditions(where: Sequence[str], service: Service) -> None:
    """Refuse a wrong filter when it arrives, not in a batch with others."""
    for text in where:
        if len(text) > LONGEST_CONDITION or not text.isprintable():
            raise InvalidInput("where: expected a short condition such as label=cat")
    conditions = count_conditions(read_filter(where, service.current.index.columns))
    if conditions > MOST_CONDITIONS:
        raise InvalidInput(
            f"where: expected at most {MOST_CONDITIONS} conditions, got {conditions}; several values of a column are "
            "one, such as label in (cat, dog)"
        )


async def answer_item(service: Service, state: ServedIndex, id: str, wanted: Wanted) -> JSONResponse:
    """The answer to a query by the id of an item."""
    return await _answer_one(state, _reserved(service, [JsonQuery(id=id)], state, wanted))


async def answer_body(service: Service, state: ServedIndex, request: Request, wanted: Wanted) -> JSONResponse:
    """The answer to the query in the body of a request, or to each of several."""
    limits = service.limits
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("multipart/form-data", "application/json"):
        raise HTTPException(415, "body: expected multipart/form-data with an image, or application/json")
    if kind == "application/json":
        asked = read_json(
            await read_short_body(request, limits.queries * (state.index.query_dim + 50) * 32), JsonQueries
        )
        if asked.queries is None:
            one = JsonQuery(id=asked.id, vector=asked.vector)
            return await _answer_one(state, _reserved(service, [one], state, wanted))
        _require_few(service, len(asked.queries), wanted.k)
        return await _answer_all(state, _reserved(service, asked.queries, state, wanted))
    if not state.takes_images:
        raise InvalidInput("image: expected an id or a vector; the model of this index takes no images")
    places: list[Place] = [service.batcher.reserve(announced_size(request, limits))]  # before the upload is read
    try:
        contents = await read_uploads(request, limits, limits.queries)
        _require_few(service, len(contents), wanted.k)
        places += [service.batcher.reserve() for _ in contents[1:]]
    except BaseException:
        _give_back(places)
        raise
    for place, content in zip(places, contents, strict=True):
        service.batcher.submit(place, _preparation(state, wanted, content))
    answers = asyncio.gather(*map(asyncio.wrap_future, places), return_exceptions=True)
    return await (_answer_one if len(places) == 1 else _answer_all)(state, answers)


def _require_few(service: Service, count: int, k: int) -> None:
    limits = service.limits
    if count > limits.queries:
        raise InvalidInput(f"queries: expected at most {limits.queries}, got {count}; send several requests")
    if count * k > MOST_NEIGHBOURS * limits.k:
        raise InvalidInput(f"k: expected at most {MOST_NEIGHBOURS * limits.k // count} for {count} queries, got {k}")


async def _reserved(service: Service, asked: Sequence[JsonQuery], state: ServedIndex, wanted: Wanted) -> list[Any]:
    """The answers to queries by id or vector, or exceptions in place of them; all get a place in the queue, or none."""
    places: list[Place] = []
    try:
        for _ in asked:
            places.append(service.batcher.reserve())
        found = await service.items.run(_look_up, state, asked, wanted)
        for place, query in zip(places, found, strict=True):
            if isinstance(query, Exception):
                place.set_exception(query)
            else:
                service.batcher.submit_ready(place, query)
    except BaseException:
        _give_back(places)
        raise
    return await asyncio.gather(*map(asyncio.wrap_future, places), return_exceptions=True)


def _look_up(state: ServedIndex, asked: Sequence[JsonQuery], wanted: Wanted) -> list[PendingQuery | Exception]:
    """Each query with its vector and own row, or the reason why it has none."""
    found: list[PendingQuery | Exception] = []
    with state.held() as there:
        for query in asked if there else ():
            try:
                if query.vector is not None:
                    found.append(PendingQuery(state, wanted, vector=state.read_vector(query.vector)))
                    continue
                row = state.find_row(str(query.id))
                if row < 0:
                    found.append(unknown_id(str(query.id)))
                    continue
                found.append(PendingQuery(state, wanted.for_items(), vector=state.vector_of(row), own=row))
            except InvalidInput as error:
                found.append(error)
    return found


def _preparation(state: ServedIndex, wanted: Wanted, content: bytes) -> Callable[[], PendingQuery]:
    return lambda: PendingQuery(state, wanted, view=state.view(content))


def _give_back(places: Sequence[Place]) -> None:
    for place in places:
        place.cancel()


async def _answer_one(state: ServedIndex, answers: Any) -> JSONResponse:
    (found,) = await answers
    if isinstance(found, BaseException):
        raise found
    return JSONResponse({**found, "generation": state.index.description.generation})


async def _answer_all(state: ServedIndex, answers: Any) -> JSONResponse:
    shown = []
    for found in await answers:
        if isinstance(found, HTTPException | InvalidInput):  # of this query; others are answered
            shown.append({"detail": explain(found)})
        elif isinstance(found, BaseException):
            raise found
        else:
            shown.append(found)
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
