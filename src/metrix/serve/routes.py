"""The routes of the service on an index: search, items, and what operating it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import anyio
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import ValidationError

from metrix.data import ImageError
from metrix.errors import InvalidInput, MetrixError
from metrix.explore.pictures import TooManyPixelsError
from metrix.retrieve.queries import same_threshold
from metrix.serve.schemas import SEARCH_BODY, SEARCH_STATUSES, Answer, Info, ItemRecord, JsonQuery, describe_statuses
from metrix.serve.service import Service
from metrix.serve.state import Options, PendingQuery, ServedIndex
from metrix.serve.uploads import in_time, read_upload

MOST_PICTURE = 2048  # pixels of the shorter side


def add_search(app: FastAPI, service: Service) -> None:
    """Add the searches by image, id and vector."""
    limits = service.limits

    async def answer(opened: ServedIndex, place: Future[Any], start: Callable[[], object]) -> JSONResponse:
        try:
            with anyio.fail_after(limits.seconds):
                found = await service.ask(place, start)
        except TimeoutError:
            raise HTTPException(504, f"no answer after {limits.seconds:g} s; try again later") from None
        return JSONResponse({"neighbours": found, "generation": opened.index.description.generation})

    async def by_id(opened: ServedIndex, text: str, options: Options) -> JSONResponse:
        place = service.batcher.reserve()
        try:
            one = await _known(opened, text)
            vector = await asyncio.to_thread(opened.vector_of, one)
        except BaseException:
            place.cancel()
            raise
        query = PendingQuery(opened, options, vector=vector, own=one)
        return await answer(opened, place, lambda: service.batcher.submit_ready(place, query))

    def read_options(
        k: int = Query(10, ge=1, le=limits.k, description="neighbours"),
        where: list[str] = Query([], max_length=20, description="conditions such as label=cat or price<10"),
        expand: int = Query(0, ge=0, le=100, description="expand the query by so many nearest (αQE)"),
        rerank: bool = Query(False, description="re-rank by k-reciprocal neighbours"),
        threshold: float | None = Query(None, ge=-1, le=1, description="only neighbours at least this similar"),
        same: bool = Query(False, description="only what counts as the same thing, by the stored threshold"),
    ) -> Options:
        if same and threshold is not None:
            raise InvalidInput("expected threshold or same, got both; same is the stored threshold")
        for text in where:
            if len(text) > 1000 or not text.isprintable():
                raise InvalidInput("where: expected a short condition such as label=cat")
        least = same_threshold(service.current.index) if same else threshold
        return Options(k, tuple(where), expand, rerank, least)

    async def search_by_id(
        id: str = Query(description="an item; it is left out of its answer"), options: Options = Depends(read_options)
    ) -> Any:
        return await by_id(service.current, id, options)

    async def search(request: Request, options: Options = Depends(read_options)) -> Any:
        opened = service.current
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("multipart/form-data", "application/json"):
            raise HTTPException(415, "body: expected multipart/form-data with an image, or application/json")
        if kind == "application/json":
            asked = _read_json(await in_time(request.body, limits))
            if asked.vector is None:
                return await by_id(opened, str(asked.id), options)
            query = PendingQuery(opened, options, vector=opened.read_vector(asked.vector))
            place = service.batcher.reserve()
            return await answer(opened, place, lambda: service.batcher.submit_ready(place, query))
        if opened.encoder is None:
            raise InvalidInput("image: expected an id or a vector; the model of this index is not known")
        place = service.batcher.reserve()  # before the upload is read
        try:
            content = await read_upload(request, limits)
        except BaseException:
            place.cancel()
            raise

        def prepare() -> PendingQuery:
            return PendingQuery(opened, options, view=opened.view(content, limits))

        return await answer(opened, place, lambda: service.batcher.submit(place, prepare))

    shared: dict[str, Any] = {"response_model": Answer, "responses": SEARCH_STATUSES, "tags": ["search"]}
    app.get("/search", summary="The neighbours of an item", **shared)(search_by_id)
    app.post("/search", summary="The neighbours of an image, an item or a vector", openapi_extra=SEARCH_BODY, **shared)(
        search
    )


def add_items(app: FastAPI, service: Service) -> None:
    """Add the routes of single items and of their images."""

    async def item(id: str, vector: bool = Query(False, description="also its embedding")) -> Any:
        opened = service.current
        one = await _known(opened, id)
        record = await asyncio.to_thread(opened.record, one)
        images = opened.index.description.root is not None or opened.index.description.data is not None
        record["image"] = _image_address(one) if images else None
        record["vector"] = (await asyncio.to_thread(opened.vector_of, one)).tolist() if vector else None
        return JSONResponse(record)

    async def image(
        id: str, size: int = Query(512, ge=16, le=MOST_PICTURE, description="most pixels of the shorter side")
    ) -> Any:
        opened = service.current
        one = await _known(opened, id)
        try:
            content = await asyncio.to_thread(opened.picture, one, size, service.limits)
        except ImageError as error:
            raise HTTPException(404, f"image: {error.reason}") from error
        except (TooManyPixelsError, KeyError) as error:
            raise HTTPException(413 if isinstance(error, TooManyPixelsError) else 404, str(error)) from error
        except InvalidInput as error:  # outside the root, or an index without images
            raise HTTPException(
                403 if opened.index.description.root else 404, "expected an image of the index"
            ) from error
        kind = "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

    statuses = describe_statuses(401, 403, 404, 422)
    app.get("/items/{id:path}", response_model=ItemRecord, responses=statuses, summary="An item", tags=["items"])(item)
    pictures: dict[int | str, dict[str, Any]] = {
        **describe_statuses(401, 403, 404, 413, 422),
        200: {"content": {"image/jpeg": {}, "image/png": {}}, "description": "The image, shrunk"},
    }
    app.get(
        "/image/{id:path}", response_class=Response, responses=pictures, summary="The image of an item", tags=["items"]
    )(image)


def add_operation(app: FastAPI, service: Service) -> None:
    """Add what operating the service needs: what is served, probes, metrics, and the switch to a new state."""

    def info() -> Any:
        from dataclasses import asdict

        description = service.current.index.description
        model = (
            None
            if description.model is None
            else description.model.model_dump(exclude={"run": True, "engine": {"file"}})
        )
        threshold = None if description.threshold is None else description.threshold.model_dump()
        return Info(
            name=service.folder.resolve().name,
            version=app.version,
            items=len(service.current.index),
            dim=description.dim,
            kind=description.kind,
            store=description.store,
            generation=description.generation,
            columns=dict(service.current.index.columns),
            images=description.root is not None or description.data is not None,
            model=model,
            threshold=threshold,
            recall=description.recall,
            limits=asdict(service.limits),
        )

    async def livez() -> Any:
        return PlainTextResponse("alive")

    async def readyz() -> Any:
        if not service.ready:
            raise HTTPException(503, "not ready")
        return PlainTextResponse("ready")

    async def metrics() -> Any:
        return Response(service.metrics.render(), media_type=service.metrics.content_type)

    async def reload() -> Any:
        try:
            opened = await asyncio.to_thread(service.reload)
        except MetrixError as error:
            raise HTTPException(409, str(error)) from error
        return {"generation": opened.index.description.generation, "items": len(opened.index)}

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    tags: list[Any] = ["operation"]
    refused = describe_statuses(401, 403)
    app.get("/info", response_model=Info, responses=refused, summary="What is served", tags=tags)(info)
    app.get("/livez", response_class=PlainTextResponse, summary="Whether the process answers", tags=tags)(livez)
    app.get(
        "/readyz",
        response_class=PlainTextResponse,
        responses=describe_statuses(503),
        summary="Whether queries are answered",
        tags=tags,
    )(readyz)
    app.get(
        "/metrics",
        response_class=Response,
        responses={**text, **refused},
        summary="Metrics for Prometheus",
        tags=tags,
    )(metrics)
    app.post(
        "/reload",
        responses=describe_statuses(401, 403, 409),
        summary="Switch to the index as it is on disk now",
        tags=tags,
    )(reload)


async def _known(opened: ServedIndex, text: str) -> Any:
    one = await asyncio.to_thread(opened.find_id, text)
    if one is None:
        raise HTTPException(404, f"id: expected an item of the index, got {text[:200]!r}")
    return one


def _image_address(one: Any) -> str:
    from urllib.parse import quote

    return f"/image/{quote(str(one))}"


def _read_json(body: bytes) -> JsonQuery:
    try:
        return JsonQuery.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise HTTPException(422, details) from None
