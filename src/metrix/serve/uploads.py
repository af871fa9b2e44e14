"""Read what a client sends, within the limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
from fastapi import HTTPException, Request
from starlette.datastructures import UploadFile

from metrix.serve.limits import Limits


async def read_upload(request: Request, limits: Limits) -> bytes:
    """The file in the field `image` of a form."""

    async def read() -> bytes:
        async with request.form(max_files=1, max_fields=8, max_part_size=limits.upload) as form:
            image = form.get("image")
            if not isinstance(image, UploadFile):
                raise HTTPException(422, "image: expected a file in the field 'image'")
            return await image.read()

    return await in_time(read, limits)


async def in_time(read: Callable[[], Any], limits: Limits) -> bytes:
    """The body of a request, unless it takes too long."""
    try:
        with anyio.fail_after(limits.seconds):
            found: bytes = await read()
            return found
    except TimeoutError:
        raise HTTPException(408, f"body: expected within {limits.seconds:g} s") from None
