"""The page and the routes that it reads: collections, points, neighbours, mistakes, comparisons, images."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles

from metrix.errors import InvalidInput
from metrix.explore.collection import Later
from metrix.explore.page_data import STATIC, PageData
from metrix.serve.limits import Limits
from metrix.serve.uploads import read_upload

_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'"
)
_KEEP = {"Cache-Control": "private, max-age=3600"}


def add_page(app: FastAPI, current: Callable[[], Sequence[PageData]], limits: Limits, mode: str) -> None:
    """Add the page and its routes to an app; `current` gives the collections of the moment, and may take long."""
    api = APIRouter(prefix="/explore", include_in_schema=False)

    async def explored(number: int) -> PageData:
        known = await asyncio.to_thread(current)
        if not 0 <= number < len(known):
            raise HTTPException(404, f"collection: expected 0 to {len(known) - 1}, got {number}")
        return known[number]

    async def computed(value: Later, wait: float = 0.2) -> Any:
        found = await asyncio.to_thread(value.get, wait)
        if found is None:
            raise HTTPException(202, "computing; ask again")
        return found

    def need_row(one: PageData, row: int) -> int:
        if not one.collection.has_row(row):
            raise HTTPException(404, f"row: expected 0 to {len(one.collection) - 1}, got {row}")
        return row

    @api.get("")
    async def collections() -> Any:
        known = await asyncio.to_thread(current)
        return JSONResponse({"mode": mode, "collections": [one.describe(n) for n, one in enumerate(known)]})

    @api.get("/compare")
    async def compare(a: int = 0, b: int = 1) -> Any:
        first, second = await explored(a), await explored(b)
        if first.collection.key != second.collection.key or len(first.collection) != len(second.collection):
            raise InvalidInput(
                f"{first.collection.name} and {second.collection.name} have other test images: expected the same"
            )
        left, right = await computed(first.mistakes), await computed(second.mistakes)
        fixed = np.flatnonzero((left.right == 0) & (right.right == 1))
        broken = np.flatnonzero((left.right == 1) & (right.right == 0))
        return {
            "fixed": fixed.tolist(),
            "broken": broken.tolist(),
            "both_right": int(((left.right == 1) & (right.right == 1)).sum()),
            "both_wrong": int(((left.right == 0) & (right.right == 0)).sum()),
        }

    @api.get("/{number}/points")
    async def points(number: int, map: str = "pca") -> Any:
        one = await explored(number)
        if map not in one.maps:
            raise HTTPException(404, "map: expected pca or tsne")
        place = await computed(one.maps[map], 0.2 if map == "tsne" else 30)
        columns = [place[:, 0], place[:, 1], one.collection.codes]
        body = b"".join(np.ascontiguousarray(column, dtype="<f4").tobytes() for column in columns)
        return Response(body, media_type="application/octet-stream", headers={"X-Columns": "x,y,class"})

    @api.get("/{number}/right")
    async def right(number: int) -> Any:
        found = await computed((await explored(number)).mistakes)
        return Response(found.right.astype("i1").tobytes(), media_type="application/octet-stream")

    @api.get("/{number}/ids")
    async def ids(number: int) -> Any:
        one = await explored(number)
        return JSONResponse(list(one.collection.ids))

    @api.get("/{number}/query")
    async def query(number: int, row: int, k: int = Query(12, ge=1, le=limits.k)) -> Any:
        one = await explored(number)
        vector = one.collection.vectors[need_row(one, row)]
        return await asyncio.to_thread(one.neighbours, vector, k, row)

    @api.post("/{number}/query")
    async def upload(request: Request, number: int, k: int = Query(12, ge=1, le=limits.k)) -> Any:
        one = await explored(number)
        embed = one.collection.embed
        if embed is None:
            raise InvalidInput("image: expected a collection with a known model")
        content = await read_upload(request, limits)
        vector = await asyncio.to_thread(embed, content)
        return await asyncio.to_thread(one.neighbours, vector, k, None)

    @api.get("/{number}/failures")
    async def failures(
        number: int, of: int | None = None, start: int = Query(0, ge=0), count: int = Query(60, ge=1, le=1000)
    ) -> Any:
        one = await explored(number)
        found = await computed(one.mistakes)
        rows = found.worst if of is None else found.worst[one.collection.codes[found.worst] == of]
        return {
            "total": len(rows),
            "asked": int((found.right >= 0).sum()),
            "items": [one.item(int(row)) for row in rows[start : start + count]],
        }

    @api.get("/{number}/confusion")
    async def confusion(number: int, count: int = Query(100, ge=1, le=5000)) -> Any:
        found = await computed((await explored(number)).mistakes)
        return {"total": len(found.pairs), "pairs": found.pairs[:count]}

    @api.get("/{number}/image/{row}")
    async def image(number: int, row: int, size: int = Query(160, ge=16, le=2048)) -> Any:
        one = await explored(number)
        try:
            content = await asyncio.to_thread(one.collection.picture, need_row(one, row), size)
        except (InvalidInput, KeyError) as error:
            raise HTTPException(404, "the image cannot be read") from error
        kind = "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
        return Response(content, media_type=kind, headers=_KEEP)

    async def page() -> Any:
        return FileResponse(STATIC / "index.html", headers={"Content-Security-Policy": _POLICY})

    async def no_icon() -> Any:
        return PlainTextResponse("", 204)

    app.get("/", include_in_schema=False)(page)
    app.get("/favicon.ico", include_in_schema=False)(no_icon)
    app.include_router(api)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
