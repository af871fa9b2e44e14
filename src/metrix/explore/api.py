"""The routes of the service on an index, with their OpenAPI description."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import anyio
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from metrix.data import ImageError
from metrix.errors import InvalidInput, MetrixError
from metrix.explore.access import Gate
from metrix.explore.batching import ClosedError, QueueFullError
from metrix.explore.explored_index import read_collection
from metrix.explore.explored_runs import read_collections
from metrix.explore.explorer import STATIC, Explored, add_page
from metrix.explore.limits import Limits
from metrix.explore.metrics import Metrics
from metrix.explore.opened_index import OpenedIndex, Options, TooManyPixelsError
from metrix.explore.opened_index import Query as IndexQuery
from metrix.explore.service import Service
from metrix.explore.uploads import in_time, read_upload
from metrix.runs.indexing import same_threshold
from metrix.train.batches import Report, ignore_report

MOST_PICTURE = 2048  # pixels of the shorter side


class Problem(BaseModel):
    """Why a request was refused."""

    detail: Any


class Found(BaseModel):
    """A neighbour: its id, the cosine with the query, and the columns that the index has."""

    model_config = ConfigDict(extra="allow")
    id: str | int
    similarity: float


class Answer(BaseModel):
    """The neighbours of a query, nearest first."""

    neighbours: list[Found]
    generation: int = Field(description="of the index that was searched")


class Item(BaseModel):
    """An item of the index and its columns."""

    model_config = ConfigDict(extra="allow")
    id: str | int
    image: str | None = Field(description="where its image is, if the index is of images")
    vector: list[float] | None = None


class Info(BaseModel):
    """What is served."""

    name: str
    version: str
    items: int
    dim: int
    kind: str
    engine: str
    generation: int
    columns: dict[str, str]
    images: bool = Field(description="whether items have images")
    model: dict[str, Any] | None = Field(description="the model that made the vectors: SHA-256 of its weights, view")
    threshold: dict[str, Any] | None = Field(description="the similarity above which two images are the same thing")
    recall: float | None = Field(description="of an approximate index against exact search")
    limits: dict[str, float]


class JsonQuery(BaseModel):
    """A query by the id of an item, or by a vector."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    id: str | int | None = Field(default=None, description="an item of the index; it is left out of its answer")
    vector: list[float] | None = Field(default=None, description="an embedding, at any scale")

    @model_validator(mode="after")
    def _one(self) -> JsonQuery:
        if (self.id is None) == (self.vector is None):
            raise ValueError("expected an id or a vector, one of the two")
        return self


def _describe(*statuses: int) -> dict[int | str, dict[str, Any]]:
    words = {
        400: "The body is malformed",
        401: "No token, or a wrong one",
        403: "The file is outside the indexed root, or the host is not this machine",
        404: "No such item",
        408: "The upload took too long",
        409: "There is no sound index to switch to; the old one is still served",
        413: "The body or the image is too large",
        415: "The body is of another kind",
        422: "A parameter, the vector or the image cannot be used",
        429: "Too many queries are waiting",
        503: "The service is starting or shutting down",
        504: "The answer took too long",
    }
    return {status: {"model": Problem, "description": words[status]} for status in statuses}


_SEARCH = _describe(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504)
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {"image": {"type": "string", "format": "binary"}},
                }
            },
            "application/json": {"schema": JsonQuery.model_json_schema()},
        },
    }
}


def build_service(
    folder: str | Path,
    run: Path | None = None,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    poll: float = 1.0,
) -> FastAPI:
    """The app that serves an index; `app.state.service` is the `Service` behind it.

    Args:
        folder: the index, as `metrix index` wrote it.
        run: the run that it was built with, if it has moved.
        limits: on requests.
        token: that every request has to carry, but for probes and the page; needed beyond this machine.
        poll: seconds between looks at whether the index was replaced.

    Raises:
        InvalidInput: there is no sound index, or its run is missing.
    """
    from metrix import __version__

    service = Service(Path(folder), run, limits, poll=poll)
    app = FastAPI(
        title="metrix",
        version=__version__,
        summary=f"Find images by their embeddings: {service.folder.name}",
        lifespan=service.running,
        docs_url=None,  # the usual page is loaded from elsewhere; ours works offline
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(Gate, token=token, limits=service.limits, metrics=service.metrics)
    _add_errors(app)
    _add_search(app, service)
    _add_items(app, service)
    _add_operation(app, service)
    add_page(app, _follow(service), service.limits, "index")
    app.get("/docs", include_in_schema=False)(_show_docs)
    return app


def build_explorer(
    runs: Sequence[Path],
    limits: Limits | None = None,
    *,
    token: str | None = None,
    report: Report = ignore_report,
    reading: Mapping[str, Any] | None = None,
) -> FastAPI:
    """The app with the page on the test images of runs, which are embedded and measured first.

    Args:
        runs: folders of finished runs.
        limits: on requests.
        token: that every request has to carry, but for the page itself; needed beyond this machine.
        report: hears of the progress of embedding.
        reading: other values for settings of how images are read, as for `open_run`.

    Raises:
        InvalidInput: a folder is not a finished run, or its data cannot be opened.
    """
    from metrix import __version__

    limits = limits or Limits()
    shown = [Explored(one) for one in read_collections(runs, limits, report, reading)]
    app = FastAPI(title="metrix", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, token=token, limits=limits, metrics=Metrics())
    _add_errors(app)
    add_page(app, lambda: shown, limits, "runs")
    return app


async def _show_docs() -> Any:
    return FileResponse(STATIC / "docs.html")


def _follow(service: Service) -> Callable[[], Sequence[Explored]]:
    """The page's collection of the index as it is now, read anew when the index was replaced."""
    lock, kept = threading.Lock(), dict[str, Any]()

    def current() -> Sequence[Explored]:
        with lock:
            opened = service.current
            if kept.get("of") is not opened:
                name = service.folder.resolve().name
                kept.update(of=opened, shown=[Explored(read_collection(opened, name, service.limits))])
            shown: list[Explored] = kept["shown"]
            return shown

    return current


def _add_errors(app: FastAPI) -> None:
    statuses: dict[type[Exception], int] = {
        QueueFullError: 429,
        ClosedError: 503,
        TooManyPixelsError: 413,
        InvalidInput: 422,
    }

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        status = next(status for kind, status in statuses.items() if isinstance(error, kind))
        text = f"image: {error.reason}" if isinstance(error, ImageError) else str(error)
        return JSONResponse({"detail": text}, status, {"Retry-After": "1"} if status in (429, 503) else None)

    for kind in statuses:
        app.add_exception_handler(kind, refuse)


def _add_search(app: FastAPI, service: Service) -> None:
    limits = service.limits

    async def answer(opened: OpenedIndex, place: Future[Any], start: Callable[[], object]) -> JSONResponse:
        try:
            with anyio.fail_after(limits.seconds):
                found = await service.ask(place, start)
        except TimeoutError:
            raise HTTPException(504, f"no answer after {limits.seconds:g} s; try again later") from None
        return JSONResponse({"neighbours": found, "generation": opened.index.manifest.generation})

    async def by_id(opened: OpenedIndex, text: str, options: Options) -> JSONResponse:
        place = service.batcher.reserve()
        try:
            one = await _known(opened, text)
            vector = await asyncio.to_thread(opened.vector_of, one)
        except BaseException:
            place.cancel()
            raise
        query = IndexQuery(opened, options, vector=vector, own=one)
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
            query = IndexQuery(opened, options, vector=opened.read_vector(asked.vector))
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

        def prepare() -> IndexQuery:
            return IndexQuery(opened, options, view=opened.view(content, limits))

        return await answer(opened, place, lambda: service.batcher.submit(place, prepare))

    shared: dict[str, Any] = {"response_model": Answer, "responses": _SEARCH, "tags": ["search"]}
    app.get("/search", summary="The neighbours of an item", **shared)(search_by_id)
    app.post("/search", summary="The neighbours of an image, an item or a vector", openapi_extra=_BODY, **shared)(
        search
    )


def _add_items(app: FastAPI, service: Service) -> None:
    async def item(id: str, vector: bool = Query(False, description="also its embedding")) -> Any:
        opened = service.current
        one = await _known(opened, id)
        record = await asyncio.to_thread(opened.record, one)
        images = opened.index.manifest.root is not None or opened.index.manifest.data is not None
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
            raise HTTPException(403 if opened.index.manifest.root else 404, "expected an image of the index") from error
        kind = "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

    statuses = _describe(401, 403, 404, 422)
    app.get("/items/{id:path}", response_model=Item, responses=statuses, summary="An item", tags=["items"])(item)
    pictures: dict[int | str, dict[str, Any]] = {
        **_describe(401, 403, 404, 413, 422),
        200: {"content": {"image/jpeg": {}, "image/png": {}}, "description": "The image, shrunk"},
    }
    app.get(
        "/image/{id:path}", response_class=Response, responses=pictures, summary="The image of an item", tags=["items"]
    )(image)


def _add_operation(app: FastAPI, service: Service) -> None:
    def info() -> Any:
        from dataclasses import asdict

        manifest = service.current.index.manifest
        model = None if manifest.model is None else manifest.model.model_dump(exclude={"run"})
        threshold = None if manifest.threshold is None else manifest.threshold.model_dump()
        return Info(
            name=service.folder.resolve().name,
            version=app.version,
            items=len(service.current.index),
            dim=manifest.dim,
            kind=manifest.kind,
            engine=manifest.engine,
            generation=manifest.generation,
            columns=dict(service.current.index.columns),
            images=manifest.root is not None or manifest.data is not None,
            model=model,
            threshold=threshold,
            recall=manifest.recall,
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
        return {"generation": opened.index.manifest.generation, "items": len(opened.index)}

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    tags: list[Any] = ["operation"]
    app.get("/info", response_model=Info, responses=_describe(401, 403), summary="What is served", tags=tags)(info)
    app.get("/livez", response_class=PlainTextResponse, summary="Whether the process answers", tags=tags)(livez)
    app.get(
        "/readyz",
        response_class=PlainTextResponse,
        responses=_describe(503),
        summary="Whether queries are answered",
        tags=tags,
    )(readyz)
    app.get(
        "/metrics",
        response_class=Response,
        responses={**text, **_describe(401, 403)},
        summary="Metrics for Prometheus",
        tags=tags,
    )(metrics)
    app.post(
        "/reload", responses=_describe(401, 403, 409), summary="Switch to the index as it is on disk now", tags=tags
    )(reload)


async def _known(opened: OpenedIndex, text: str) -> Any:
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
