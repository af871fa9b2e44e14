"""Read the images that a client sends."""

from __future__ import annotations

from fastapi import HTTPException, Request
from starlette.datastructures import UploadFile

from metrix.serve.limits import Limits

MOST_TEXT = 100_000  # characters of a field of a form


async def read_uploads(request: Request, limits: Limits, most: int = 1) -> list[bytes]:
    """The files in the fields `image` of a form."""
    async with request.form(max_files=most, max_fields=8, max_part_size=limits.upload) as form:
        images = form.getlist("image")
        if not images or not all(isinstance(image, UploadFile) for image in images):
            raise HTTPException(422, "image: expected a file in the field 'image'")
        return [await image.read() for image in images if isinstance(image, UploadFile)]


async def read_item_upload(request: Request, limits: Limits) -> tuple[bytes, bytes]:
    """The file in the field `image` of a form, and the JSON in its field `item`."""
    async with request.form(max_files=1, max_fields=8, max_part_size=limits.upload) as form:
        image, text = form.get("image"), form.get("item", "{}")
        if not isinstance(image, UploadFile):
            raise HTTPException(422, "image: expected a file in the field 'image'")
        if not isinstance(text, str) or len(text) > MOST_TEXT:
            raise HTTPException(422, "item: expected a short JSON object with the columns of the item")
        return await image.read(), text.encode()


def announced_size(request: Request, limits: Limits) -> int:
    """The bytes that the body of a request will have, or the most that it may have."""
    length = request.headers.get("content-length", "")
    return min(int(length[:20]), limits.upload) if length.isdecimal() else limits.upload
