"""The page and the routes that it reads: collections, points, neighbours, mistakes, comparisons, images.

Collections are addressed by their version, so that what a browser keeps, or a page that was loaded before the index was
replaced, never shows another collection's image or row.
"""

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
from metrix.serve.item_routes import send_picture
from metrix.serve.limits import Limits
from metrix.serve.pools import Pool
from metrix.serve.uploads import read_uploads

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'; img-src 'self' blob: data:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
PATIENCE = 0.2  # seconds that an answer waits for something that is being computed


class PagePools:
    """The threads of the page, apart from those of the API: maps and mistakes, one after another, and images."""

    def __init__(self, limits: Limits) -> None:
        self.reading = Pool("metrix-page", 4)
        self.computing = Pool("metrix-page-mistakes", 1)
        self.placing = Pool("metrix-page-map", 1)
        self.files = Pool("metrix-page-files", 4, seconds=limits.reading)


def add_page(
    app: FastAPI, current: Callable[[], Sequence[PageData]], pools: PagePools, limits: Limits, mode: str
) -> None:
    """Add the page and its routes to an app; `current` gives the collections of the moment, and may take long."""
    api = APIRouter(prefix="/explore", include_in_schema=False)

    async def find(version: str) -> PageData:
        for one in await pools.reading.run(current):
            if one.collection.version == version:
                return one
        raise HTTPException(410, "what is shown was replaced; load the page again")

    async def computed(value: Later, wait: float = PATIENCE) -> Any:
        future = asyncio.wrap_future(value.start())
        done, _ = await asyncio.wait({future}, timeout=wait)
        if not done:
            future.cancel()  # only this waiting for it
            raise HTTPException(202, "computing; ask again")
        return future.result()

    def need_row(one: PageData, row: int) -> int:
        if not one.collection.has_row(row):
            raise HTTPException(404, f"row: expected 0 to {len(one.collection) - 1}, got {row}")
        return row

    @api.get("")
    async def collections() -> Any:
        known = await pools.reading.run(current)
        return JSONResponse({"mode": mode, "collections": [one.describe(n) for n, one in enumerate(known)]})

    @api.get("/compare")
    async def compare(a: str, b: str) -> Any:
        first, second = await find(a), await find(b)
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

    @api.get("/{version}/points")
    async def points(version: str, map: str = "pca") -> Any:
        one = await find(version)
        if map not in one.maps:
            raise HTTPException(404, "map: expected pca or tsne")
        place = await computed(one.maps[map], 0.2 if map == "tsne" else 30)
        columns = [place[:, 0], place[:, 1], one.collection.codes]
        body = b"".join(np.ascontiguousarray(column, dtype="<f4").tobytes() for column in columns)
        return Response(body, media_type="application/octet-stream", headers={"X-Columns": "x,y,class"})

    @api.get("/{version}/right")
    async def right(version: str) -> Any:
        found = await computed((await find(version)).mistakes)
        return Response(found.right.astype("i1").tobytes(), media_type="application/octet-stream")

    @api.get("/{version}/ids")
    async def ids(version: str) -> Any:
        one = await find(version)
        return JSONResponse(list(one.collection.ids))

    @api.get("/{version}/query")
    async def query(version: str, row: int, k: int = Query(12, ge=1, le=limits.k)) -> Any:
        one = await find(version)
        vector = one.collection.vectors[need_row(one, row)]
        return await pools.reading.run(one.neighbours, vector, k, row)

    @api.post("/{version}/query")
    async def upload(request: Request, version: str, k: int = Query(12, ge=1, le=limits.k)) -> Any:
        one = await find(version)
        embed = one.collection.embed
        if embed is None:
            raise InvalidInput("image: expected a collection with a known model")
        (content,) = await read_uploads(request, limits)
        vector = await pools.reading.run(embed, content)
        return await pools.reading.run(one.neighbours, vector, k, None)

    @api.get("/{version}/failures")
    async def failures(
        version: str, of: int | None = None, start: int = Query(0, ge=0), count: int = Query(60, ge=1, le=1000)
    ) -> Any:
        one = await find(version)
        found = await computed(one.mistakes)
        rows = found.worst if of is None else found.worst[one.collection.codes[found.worst] == of]
        return {
            "total": len(rows),
            "asked": int((found.right >= 0).sum()),
            "items": [one.item(int(row)) for row in rows[start : start + count]],
        }

    @api.get("/{version}/confusion")
    async def confusion(version: str, count: int = Query(100, ge=1, le=5000)) -> Any:
        found = await computed((await find(version)).mistakes)
        return {"total": len(found.pairs), "pairs": found.pairs[:count]}

    @api.get("/{version}/image/{row}")
    async def image(request: Request, version: str, row: int, size: int = Query(160, ge=16, le=2048)) -> Any:
        one = await find(version)
        known = request.headers.get("if-none-match", "")
        try:
            return send_picture(await pools.files.run(one.collection.picture, need_row(one, row), size, known))
        except (InvalidInput, KeyError) as error:
            raise HTTPException(404, "the image cannot be read") from error

    async def page() -> Any:
        return FileResponse(STATIC / "index.html", headers={"Content-Security-Policy": POLICY})

    async def no_icon() -> Any:
        return PlainTextResponse("", 204)

    app.get("/", include_in_schema=False)(page)
    app.get("/favicon.ico", include_in_schema=False)(no_icon)
    app.include_router(api)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
