"""The apps: `build_service` on an index, `build_explorer` on runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse

from metrix.data import ImageError
from metrix.errors import InvalidInput
from metrix.explore.page_data import STATIC, PageData
from metrix.explore.pictures import TooManyPixelsError
from metrix.explore.run_collections import read_collections
from metrix.serve.access import Gate
from metrix.serve.batching import ClosedError, QueueFullError
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics
from metrix.serve.page import add_page
from metrix.serve.routes import add_items, add_operation, add_search
from metrix.serve.service import Service
from metrix.train.batches import Report, ignore_report


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
    add_search(app, service)
    add_items(app, service)
    add_operation(app, service)
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
    shown = [PageData(one) for one in read_collections(runs, limits.pixels, report, reading)]
    app = FastAPI(title="metrix", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, token=token, limits=limits, metrics=Metrics())
    _add_errors(app)
    add_page(app, lambda: shown, limits, "runs")
    return app


async def _show_docs() -> Any:
    return FileResponse(STATIC / "docs.html")


def _follow(service: Service) -> Callable[[], Sequence[PageData]]:
    """The page's collection of the index as it is now, read anew when the index was replaced."""
    lock, kept = threading.Lock(), dict[str, Any]()

    def current() -> Sequence[PageData]:
        with lock:
            opened = service.current
            if kept.get("of") is not opened:
                name = service.folder.resolve().name
                kept.update(of=opened, shown=[PageData(opened.read_page(name, service.limits))])
            shown: list[PageData] = kept["shown"]
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
