"""The HTTP service and the explorer page.

build_service(folder, limits)   the app of `metrix serve`: search in an index over HTTP, and the page on it
build_explorer(runs)            the app of `metrix explore`: the page on the test sets of runs
run_server(app, host, port)     either of them, until it is interrupted
"""

from __future__ import annotations

from metrix.extras import require_extra


def require_packages() -> None:
    """An error that says what to install, if the packages of the service are missing."""
    require_extra("fastapi", "uvicorn", "prometheus_client", "python_multipart")
