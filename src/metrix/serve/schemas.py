"""What requests to the service on an index hold, and what its answers do: the models of the OpenAPI description."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator


class Problem(BaseModel):
    """Why a request was refused."""

    detail: Any


class FoundItem(BaseModel):
    """A neighbour: its id, the cosine with the query, and the columns that the index has."""

    model_config = ConfigDict(extra="allow")
    id: str | int
    similarity: float


class Answer(BaseModel):
    """The neighbours of a query, nearest first; of several queries, the answer to each."""

    neighbours: list[FoundItem] | None = None
    answers: list[AnswerToOne] | None = None
    generation: int = Field(description="of the index that was searched")


class AnswerToOne(BaseModel):
    """The answer to one of several queries: its neighbours, or why it was not answered."""

    neighbours: list[FoundItem] | None = None
    detail: Any = None


ColumnValue = str | int | float | bool | None


class ClassShare(BaseModel):
    """A class that a query may be of."""

    label: ColumnValue
    probability: float
    votes: float = Field(description="its share of the weighted votes of the nearest items")
    similarity: float = Field(description="the cosine with its centroid")


class ClassToOne(BaseModel):
    """The class of a query, or why it was not answered."""

    label: ColumnValue = Field(default=None, description="null: unknown")
    unknown: bool | None = None
    probability: float | None = Field(default=None, description="that `best` is right")
    known: float | None = Field(default=None, description="the probability of being of any class of the index")
    best: ColumnValue = Field(default=None, description="the most likely class, also of an unknown query")
    classes: list[ClassShare] | None = Field(default=None, description="the most likely first")
    neighbours: list[FoundItem] | None = Field(default=None, description="that voted, nearest first")
    detail: Any = None


class ClassAnswer(ClassToOne):
    """The class of a query; of several queries, the answer to each."""

    answers: list[ClassToOne] | None = None
    generation: int = Field(description="of the index that was asked")


class ItemRecord(BaseModel):
    """An item of the index and its columns."""

    model_config = ConfigDict(extra="allow")
    id: str | int
    image: str | None = Field(default=None, description="where its image is, if the index is of images")
    vector: list[float] | None = None


class ItemPage(BaseModel):
    """Some items, in the order of the index."""

    items: list[ItemRecord]
    total: int
    next: int | None = Field(description="where the next page starts; null on the last")
    generation: int


class Change(BaseModel):
    """The index after a change."""

    generation: int
    items: int


class Readiness(BaseModel):
    """Whether queries are answered, and how old the state is that answers them."""

    ready: bool
    generation: int
    age_seconds: float = Field(description="since this state was opened")
    looked_seconds_ago: float = Field(description="since the index on disk was last looked at")
    behind_seconds: float | None = Field(description="since when a new state on disk could not be opened; null if none")
    failed_reloads: int
    images_checked: int
    images_missing: int = Field(description="of those checked, files that are not where the index says")


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
    classes: int | None = Field(description="that /classify knows; null until they are read, and where there are none")
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


class JsonQueries(BaseModel):
    """One query, or several."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, json_schema_extra={"example": {"id": "ID"}})
    id: str | int | None = Field(default=None, description="an item of the index; it is left out of its answer")
    vector: list[float] | None = Field(default=None, description="an embedding, at any scale")
    queries: list[JsonQuery] | None = Field(
        default=None, min_length=1, description="several queries, answered in order"
    )

    @model_validator(mode="after")
    def _one(self) -> JsonQueries:
        if sum(given is not None for given in (self.id, self.vector, self.queries)) != 1:
            raise ValueError("expected an id, a vector or queries, one of the three")
        return self


class NewColumns(RootModel[dict[str, ColumnValue]]):
    """The columns of an item to add, by name."""

    model_config = ConfigDict(allow_inf_nan=False)


class NewItem(BaseModel):
    """An item to add: its id, its vector at any scale, and its columns."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    id: str | int
    vector: list[float]
    columns: dict[str, ColumnValue] = {}


class NewItems(BaseModel):
    """Items to add."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"items": [{"id": "ID", "vector": [0.1, 0.2]}]}}
    )
    items: list[NewItem] = Field(min_length=1)
    replace: bool = Field(default=False, description="items that are there are replaced; else they are an error")


class GoneItems(BaseModel):
    """Items to take away."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"ids": ["ID"]}})
    ids: list[str | int] = Field(min_length=1)


def describe_statuses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the refusals with these statuses mean, for the OpenAPI description."""
    words = {
        400: "The body is malformed",
        401: "No token, or a wrong one",
        403: "Not allowed: an image outside the root, a host or origin elsewhere, or a change",
        404: "No such item",
        408: "The upload took too long",
        409: "The index cannot be changed that way, or there is no sound index to switch to",
        413: "The body or the image is too large",
        415: "The body is of another kind",
        422: "A parameter, the vector or the image cannot be used",
        429: "Too many queries are waiting",
        503: "The service is starting or shutting down, or has too much to do",
        504: "The answer took too long",
    }
    return {status: {"model": Problem, "description": words[status]} for status in statuses}


QUERY_STATUSES = describe_statuses(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504)
CHANGE_STATUSES = describe_statuses(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 504)


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a body, with what it refers to in it."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            return parts[node["$ref"].split("/")[-1]] if "$ref" in node else {k: resolve(v) for k, v in node.items()}
        return [resolve(one) for one in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema)
    return resolved


def _body(model: type[BaseModel] | None, form: dict[str, Any] | None) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if form is not None:
        content["multipart/form-data"] = {"schema": {"type": "object", "required": ["image"], "properties": form}}
    if model is not None:
        content["application/json"] = {"schema": _schema(model)}
    return {"requestBody": {"required": True, "content": content}}


_FILE = {"type": "string", "format": "binary"}
QUERY_BODY = _body(JsonQueries, {"image": {"type": "array", "items": _FILE, "description": "one image, or several"}})
ADD_BODY = _body(NewItems, None)
DELETE_BODY = _body(GoneItems, None)
PUT_BODY = _body(None, {"image": _FILE, "item": {"type": "string", "description": "its columns, a JSON object"}})
