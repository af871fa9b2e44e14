"""The items of the index: one, some of all, their images; and, with a token for it, changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response

from metrix.data import ImageError
from metrix.errors import InvalidInput
from metrix.explore.pictures import Picture, TooManyPixelsError
from metrix.search import Index, Items
from metrix.serve.asking import read_json, read_short_body, unknown_id
from metrix.serve.schemas import (
    ADD_BODY,
    CHANGE_STATUSES,
    DELETE_BODY,
    PUT_BODY,
    Change,
    GoneItems,
    ItemPage,
    ItemRecord,
    NewColumns,
    NewItem,
    NewItems,
    describe_statuses,
)
from metrix.serve.service import Service
from metrix.serve.state import ServedIndex, plain
from metrix.serve.uploads import announced_size, read_item_upload

MOST_PICTURE = 2048  # pixels of the shorter side
MOST_LISTED = 1000
MOST_CHANGED = 10_000  # items in one request


def add_items(app: FastAPI, service: Service) -> None:
    """Add the routes that read items and their images."""

    async def items(
        start: int = Query(0, ge=0, le=10**12, description="the first one"),
        count: int = Query(100, ge=1, le=MOST_LISTED, description="how many"),
    ) -> Any:
        with service.holding() as state:
            total = len(state.index)
            found = [] if start >= total else await service.items.run(_held, state, state.list_items, start, count)
            after = start + count if start + count < total else None
            generation = state.index.description.generation
            return JSONResponse({"items": found, "total": total, "next": after, "generation": generation})

    async def item(id: str, vector: bool = Query(False, description="also its embedding")) -> Any:
        with service.holding() as state:
            found = await _find(state, id)
            record = plain(found.records()[0])
            of_images = state.index.description.root is not None or state.index.description.data is not None
            record["image"] = f"/image/{quote(str(record['id']))}" if of_images else None
            record["vector"] = found.vectors[0].tolist() if vector else None
            return JSONResponse(record)

    async def image(
        request: Request,
        id: str,
        size: int = Query(512, ge=16, le=MOST_PICTURE, description="most pixels of the shorter side"),
    ) -> Any:
        known = request.headers.get("if-none-match", "")
        with service.holding() as state:
            one = (await _find(state, id)).ids[0].as_py()
            try:
                return send_picture(await service.files.run(state.picture, one, size, known))
            except ImageError as error:
                raise HTTPException(404, f"image: {error.reason}") from error
            except (TooManyPixelsError, KeyError) as error:
                raise HTTPException(413 if isinstance(error, TooManyPixelsError) else 404, str(error)) from error
            except InvalidInput as error:  # outside the root, or an index without images
                status = 403 if state.index.description.root else 404
                raise HTTPException(status, "expected an image of the index") from error

    async def _find(state: ServedIndex, text: str) -> Items:
        found: Items | None = await service.items.run(_held, state, state.find, text)
        if found is None:
            raise unknown_id(text)
        return found

    statuses = describe_statuses(401, 403, 404, 422)
    tags: list[Any] = ["items"]
    app.get(
        "/items", response_model=ItemPage, responses=describe_statuses(401, 403, 422), summary="The items", tags=tags
    )(items)
    app.get("/items/{id:path}", response_model=ItemRecord, responses=statuses, summary="An item", tags=tags)(item)
    pictures: dict[int | str, dict[str, Any]] = {
        **describe_statuses(401, 403, 404, 413, 422, 503, 504),
        200: {"content": {"image/jpeg": {}, "image/png": {}}, "description": "The image, shrunk"},
        304: {"description": "The image has not changed"},
    }
    app.get("/image/{id:path}", response_class=Response, responses=pictures, summary="The image of an item", tags=tags)(
        image
    )


def add_changes(app: FastAPI, service: Service) -> None:
    """Add the routes that change the index; `Access` lets in only those who may."""
    limits = service.limits

    async def add(request: Request) -> Any:
        asked: NewItems = read_json(await read_short_body(request, limits.upload), NewItems)
        _require_few(len(asked.items))
        return await _change(lambda index: _put(index, asked.items, asked.replace))

    async def put(id: str, request: Request) -> Any:
        with service.holding() as state:
            one = state.read_id(id)
            if one is None:
                raise InvalidInput(f"id: expected one as the index has, got {id[:200]!r}")
            if not state.takes_images:
                raise InvalidInput("image: expected vectors, by POST /items; the model of this index takes no images")
            place = service.batcher.reserve(announced_size(request, limits))
            try:
                content, text = await read_item_upload(request, limits)
                columns = read_json(text, NewColumns).root
                view = await service.files.run(state.view, content)
            finally:
                place.cancel()
            assert state.encoder is not None
            vector = (await service.changes.run(state.encoder.embed, [view]))[0]
        new = NewItem(id=one, vector=vector.tolist(), columns=columns)
        return await _change(lambda index: _put(index, [new], replace=True, adapted=True))

    async def delete(request: Request) -> Any:
        asked: GoneItems = read_json(await read_short_body(request, limits.upload), GoneItems)
        _require_few(len(asked.ids))
        return await _change(lambda index: index.delete(asked.ids))

    async def delete_one(id: str) -> Any:
        with service.holding() as state:
            found = await service.items.run(_held, state, state.find, id)
        if found is None:
            raise unknown_id(id)
        return await _change(lambda index: index.delete(found.ids.to_pylist()))

    async def _change(change: Callable[[Index], None]) -> JSONResponse:
        def work() -> ServedIndex:
            index = Index.open(service.folder, service.store)
            try:
                change(index)
            finally:
                index.close()
            return service.reload()

        try:
            state = await service.changes.run(work)
        except InvalidInput as error:
            raise HTTPException(409, service.conceal(str(error))) from error
        return JSONResponse({"generation": state.index.description.generation, "items": len(state.index)})

    shared: dict[str, Any] = {"response_model": Change, "responses": CHANGE_STATUSES, "tags": ["changes"]}
    app.post("/items", summary="Add or replace items by their vectors", openapi_extra=ADD_BODY, **shared)(add)
    app.post("/items/delete", summary="Take items away", openapi_extra=DELETE_BODY, **shared)(delete)
    app.put("/items/{id:path}", summary="Add or replace an item by its image", openapi_extra=PUT_BODY, **shared)(put)
    app.delete("/items/{id:path}", summary="Take an item away", **shared)(delete_one)


def send_picture(picture: Picture) -> Response:
    """The answer with a picture; the browser asks each time whether it has changed."""
    headers = {"ETag": picture.tag, "Cache-Control": "private, no-cache"}
    if picture.content is None:
        return Response(status_code=304, headers=headers)
    kind = "image/png" if picture.content.startswith(b"\x89PNG") else "image/jpeg"
    return Response(picture.content, media_type=kind, headers=headers)


def _held(state: ServedIndex, call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives while the state stays open, even if the request has been given up."""
    with state.held() as there:
        return call(*arguments) if there else None


def _put(index: Index, new: list[NewItem], replace: bool, adapted: bool = False) -> None:
    """Add items; their vectors are of the model of the index unless they went through its adapter already."""
    names = list(index.columns)
    unknown = sorted({name for one in new for name in one.columns} - set(names))
    if unknown:
        raise InvalidInput(
            f"columns: expected {', '.join(names) or 'none'}, as the index has, got {unknown[0][:100]!r}"
        )
    given = {name: [one.columns.get(name) for one in new] for name in names if any(name in one.columns for one in new)}
    items = Items.read([one.vector for one in new], [one.id for one in new], given)
    if index.adapter is not None and not adapted:
        items = Items(items.ids, index.adapt(items.vectors), items.columns)
    (index.update if replace else index.add)(items, mapped=0 if index.adapter is None else len(items))


def _require_few(count: int) -> None:
    if count > MOST_CHANGED:
        raise InvalidInput(f"items: expected at most {MOST_CHANGED:,} in a request, got {count:,}; send several")
