"""The questions that the service answers: which items are near, and which class it is."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Query, Request

from metrix.errors import InvalidInput
from metrix.serve.answering import ClassOptions, Options
from metrix.serve.asking import answer_body, answer_item, check_conditions
from metrix.serve.classes import wait_for_classes
from metrix.serve.schemas import QUERY_BODY, QUERY_STATUSES, Answer, ClassAnswer
from metrix.serve.service import Service

WHERE = Query([], max_length=20, description="filters: label=cat, price<10 or label in (a, b)")


def add_search(app: FastAPI, service: Service) -> None:
    """Add the searches."""
    limits = service.limits

    async def read_options(
        k: int = Query(10, ge=1, le=limits.k, description="neighbours"),
        where: list[str] = WHERE,
        expand: int = Query(0, ge=0, le=100, description="expand the query by so many nearest (αQE)"),
        rerank: bool = Query(False, description="re-rank by k-reciprocal neighbours"),
        threshold: float | None = Query(None, ge=-1, le=1, description="only neighbours at least this similar"),
        same: bool = Query(False, description="only what counts as the same thing, by the stored threshold"),
    ) -> Options:
        if same and threshold is not None:
            raise InvalidInput("expected threshold or same, got both; same is the stored threshold")
        check_conditions(where, service)
        stored = service.current.index.description.threshold
        if same and stored is None:
            raise InvalidInput(
                "same: expected an index with a threshold, got one without; metrix threshold measures it"
            )
        return Options(k, tuple(where), expand, rerank, stored.similarity if same and stored is not None else threshold)

    async def search_by_id(
        id: str = Query(description="an item; it is left out of its answer"), options: Options = Depends(read_options)
    ) -> Any:
        with service.holding() as state:
            return await answer_item(service, state, id, options)

    async def search(request: Request, options: Options = Depends(read_options)) -> Any:
        with service.holding() as state:
            return await answer_body(service, state, request, options)

    shared: dict[str, Any] = {"response_model": Answer, "responses": QUERY_STATUSES, "tags": ["search"]}
    app.get("/search", summary="The neighbours of an item", **shared)(search_by_id)
    app.post("/search", summary="The neighbours of images, items or vectors", openapi_extra=QUERY_BODY, **shared)(
        search
    )


def add_classify(app: FastAPI, service: Service) -> None:
    """Add the classification."""

    async def read_options(
        where: list[str] = WHERE,
        threshold: float | None = Query(
            None, ge=0, le=1, description="unknown below this probability of being of any class; the stored one, or 0.5"
        ),
    ) -> tuple[tuple[str, ...], float | None]:
        check_conditions(where, service)
        return tuple(where), threshold

    async def classify_item(
        id: str = Query(description="an item; it does not vote for itself"), options: Any = Depends(read_options)
    ) -> Any:
        with service.holding() as state:
            classifier = await wait_for_classes(state)
            return await answer_item(service, state, id, ClassOptions(classifier, *options))

    async def classify(request: Request, options: Any = Depends(read_options)) -> Any:
        with service.holding() as state:
            classifier = await wait_for_classes(state)
            return await answer_body(service, state, request, ClassOptions(classifier, *options))

    shared: dict[str, Any] = {"response_model": ClassAnswer, "responses": QUERY_STATUSES, "tags": ["search"]}
    app.get("/classify", summary="The class of an item, or unknown", **shared)(classify_item)
    app.post(
        "/classify", summary="The class of images, items or vectors, or unknown", openapi_extra=QUERY_BODY, **shared
    )(classify)
