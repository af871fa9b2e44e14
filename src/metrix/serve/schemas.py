"""What requests to the service on an index hold, and what its answers do: the models of the OpenAPI description."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Problem(BaseModel):
    """Why a request was refused."""

    detail: Any


class FoundItem(BaseModel):
    """A neighbour: its id, the cosine with the query, and the columns that the index has."""

    model_config = ConfigDict(extra="allow")
    id: str | int
    similarity: float


class Answer(BaseModel):
    """The neighbours of a query, nearest first."""

    neighbours: list[FoundItem]
    generation: int = Field(description="of the index that was searched")


class ItemRecord(BaseModel):
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
    store: str
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


def describe_statuses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the refusals with these statuses mean, for the OpenAPI description."""
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


SEARCH_STATUSES = describe_statuses(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504)
SEARCH_BODY = {
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
