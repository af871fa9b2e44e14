"""The apps: `build_service` on an index, `build_explorer` on runs, `build_labeller` on the labels of an index."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from metrix.errors import InvalidInput
from metrix.explore.page_data import STATIC, PageData
from metrix.explore.pictures import TooManyPixelsError
from metrix.explore.run_collections import read_collections
from metrix.retrieve.decisions import choose_decisions_file
from metrix.retrieve.label_queue import NEIGHBOURS, REASONS
from metrix.serve.access import Access
from metrix.serve.asking import explain
from metrix.serve.batching import ClosedError, QueueFullError
from metrix.serve.gate import Gate
from metrix.serve.item_routes import add_changes, add_items
from metrix.serve.labelling import Labelling, add_labelling
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics
from metrix.serve.operation_routes import add_operation
from metrix.serve.page import POLICY, PagePools, add_page
from metrix.serve.pools import BusyError, StuckError
from metrix.serve.search_routes import add_classify, add_search
from metrix.serve.service import Service
from metrix.train.batches import Report, ignore_report


def build_service(
    folder: str | Path,
    run: Path | None = None,
    limits: Limits | None = None,
    *,
    root: Path | None = None,
    store: str | None = None,
    access: Access | None = None,
    page: bool = True,
    labels: Path | None = None,
    poll: float = 1.0,
    dim: int | None = None,
    force_dim: bool = False,
) -> FastAPI:
    """The app that serves an index; `app.state.service` is the `Service` behind it.

    Args:
        folder: the index, as `metrix index` wrote it.
        run: the run that it was built with, if it has moved.
        limits: on requests.
        root: the folder of its images, if they have moved.
        store: of the index, as for `Index.open`.
        access: who may ask for what; by default this machine, for anything but changes.
        page: whether there is a page to explore the index, one on its labels, and one on the API.
        labels: the table of decisions on labels; by default beside the index.
        poll: seconds between looks at whether the index was replaced.
        dim: answer by so many numbers of each vector, a prefix that the model was trained for; all by default. Items
            cannot be changed then.
        force_dim: take another prefix, too.

    Raises:
        InvalidInput: there is no sound index, its run is missing, or its model was not trained for the prefix.
    """
    from metrix import __version__

    if dim is not None and access is not None and access.write_token is not None:
        raise InvalidInput(
            "dim: expected without a token for changes, got both: items that are added have whole vectors; serve the "
            f"whole index, or one of the prefix: metrix index RUN PATH --dim {dim}"
        )
    service = Service(Path(folder), run, limits, root=root, store=store, poll=poll, dim=dim, force_dim=force_dim)
    app = FastAPI(
        title="metrix",
        version=__version__,
        summary=f"Find images by their embeddings: {service.folder.name}",
        lifespan=service.running,
        docs_url=None,  # the usual page is loaded from elsewhere; ours works offline
        redoc_url=None,
    )
    app.state.service = service
    access = access or Access()
    app.add_middleware(Gate, access=access, limits=service.limits, metrics=service.metrics)
    _add_errors(app, service.conceal)
    add_search(app, service)
    add_classify(app, service)
    add_items(app, service)
    add_changes(app, service)
    add_operation(app, service)
    if page:
        pools = PagePools(service.limits)
        add_page(app, _follow(service, pools), pools, service.limits, "index")
        app.get("/docs", include_in_schema=False)(_show_docs)
        add_labelling(app, Labelling(service, labels or choose_decisions_file(service.folder)), access)
    return app


def build_labeller(
    folder: str | Path,
    file: Path,
    *,
    k: int = NEIGHBOURS,
    reasons: tuple[str, ...] = REASONS,
    who: str = "",
    limits: Limits | None = None,
    root: Path | None = None,
    store: str | None = None,
    access: Access | None = None,
) -> FastAPI:
    """The app with the page on the labels of an index alone; no model is needed.

    Args:
        folder: the index.
        file: the table of decisions.
        k: neighbours that an item is compared with.
        reasons: only items for these reasons are asked about.
        who: decides, unless the page says another name.
        limits: on requests.
        root: the folder of its images, if they have moved.
        store: of the index, as for `Index.open`.
        access: who may ask, and decide; by default this machine.

    Raises:
        InvalidInput: there is no sound index.
    """
    from metrix import __version__

    service = Service(Path(folder), None, limits, root=root, store=store, queries=False)
    app = FastAPI(
        title="metrix", version=__version__, lifespan=service.running, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.service = service
    access = access or Access(open_changes=True)
    app.add_middleware(Gate, access=access, limits=service.limits, metrics=service.metrics)
    _add_errors(app, service.conceal)
    add_items(app, service)
    add_labelling(app, Labelling(service, file, k, reasons, who), access)
    app.get("/", include_in_schema=False)(lambda: RedirectResponse("/label"))
    app.get("/favicon.ico", include_in_schema=False)(lambda: Response(status_code=204))
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def build_explorer(
    runs: Sequence[Path],
    limits: Limits | None = None,
    *,
    access: Access | None = None,
    report: Report = ignore_report,
    reading: Mapping[str, Any] | None = None,
) -> FastAPI:
    """The app with the page on the test images of runs, which are embedded and measured first.

    Args:
        runs: folders of finished runs.
        limits: on requests.
        access: who may ask; by default this machine.
        report: is called with the progress of embedding.
        reading: other values for settings of how images are read, as for `open_run`.

    Raises:
        InvalidInput: a folder is not a finished run, or its data cannot be opened.
    """
    from metrix import __version__

    limits = limits or Limits()
    pools = PagePools(limits)
    collections = read_collections(runs, limits.pixels, report, reading)
    shown = [PageData(one, pools.computing.submit, pools.placing.submit) for one in collections]
    app = FastAPI(title="metrix", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, access=access or Access(), limits=limits, metrics=Metrics())
    _add_errors(app, str)
    add_page(app, lambda: shown, pools, limits, "runs")
    return app


async def _show_docs() -> Any:
    return FileResponse(STATIC / "docs.html", headers={"Content-Security-Policy": POLICY})


def _follow(service: Service, pools: PagePools) -> Callable[[], Sequence[PageData]]:
    """The page's collection of the index as it is now, read anew when the index was replaced."""
    lock, kept = threading.Lock(), dict[str, Any]()

    def current() -> Sequence[PageData]:
        with lock, service.holding() as state:
            if kept.get("version") != state.version:
                for one in kept.get("shown", ()):
                    one.drop()
                collection = state.read_page(service.folder.resolve().name)
                shown = [PageData(collection, pools.computing.submit, pools.placing.submit)]
                kept.update(version=state.version, shown=shown)
            found: list[PageData] = kept["shown"]
            return found

    return current


def _add_errors(app: FastAPI, conceal: Callable[[str], str]) -> None:
    statuses: dict[type[Exception], int] = {
        QueueFullError: 429,
        ClosedError: 503,
        BusyError: 503,
        StuckError: 504,
        TooManyPixelsError: 413,
        InvalidInput: 422,
    }

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        status = next(status for kind, status in statuses.items() if isinstance(error, kind))
        headers = {"Retry-After": "1"} if status in (429, 503) else None
        return JSONResponse({"detail": conceal(str(explain(error)))}, status, headers)

    for kind in statuses:
        app.add_exception_handler(kind, refuse)
