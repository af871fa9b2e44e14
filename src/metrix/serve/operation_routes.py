"""What operating the service needs: what is served, probes, metrics, and the switch to a new state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from metrix.errors import InvalidInput
from metrix.serve.classes import count_classes
from metrix.serve.schemas import Change, Info, Readiness, describe_statuses
from metrix.serve.service import Service


def add_operation(app: FastAPI, service: Service) -> None:
    """Add these routes."""

    async def info() -> Any:
        index = service.current.index
        now = index.description
        model = None if now.model is None else now.model.model_dump(exclude={"run": True, "engine": {"file"}})
        return Info(
            name=service.folder.resolve().name,
            version=app.version,
            items=now.count,
            dim=now.dim,
            kind=now.kind,
            store=now.store,
            generation=now.generation,
            columns=dict(index.columns),
            images=now.root is not None or now.data is not None,
            model=model,
            threshold=None if now.threshold is None else now.threshold.model_dump(),
            classes=count_classes(service.current),
            recall=now.recall,
            limits=asdict(service.limits),
        )

    async def livez() -> Any:
        return PlainTextResponse("alive")

    async def readyz() -> Any:
        return JSONResponse(service.describe_state(), 200 if service.ready else 503)

    async def metrics() -> Any:
        return Response(service.metrics.render(), media_type=service.metrics.content_type)

    async def reload() -> Any:
        try:
            state = await service.disk.run(service.reload)
        except InvalidInput as error:
            raise HTTPException(409, service.conceal(str(error))) from error
        return JSONResponse({"generation": state.index.description.generation, "items": len(state.index)})

    tags: list[Any] = ["operation"]
    refused = describe_statuses(401, 403)
    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    app.get("/info", response_model=Info, responses=refused, summary="What is served", tags=tags)(info)
    app.get("/livez", response_class=PlainTextResponse, summary="Whether the process answers", tags=tags)(livez)
    app.get(
        "/readyz",
        response_model=Readiness,
        responses=describe_statuses(503),
        summary="Whether queries are answered, and how old the answering state is",
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
        response_model=Change,
        responses=describe_statuses(401, 403, 409, 503),
        summary="Switch to the index as it is on disk now",
        tags=tags,
    )(reload)
