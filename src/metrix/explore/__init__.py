"""The HTTP service and the explorer page.

build_service(folder, limits)   the app of `metrix serve`: search in an index over HTTP, and the page on it
build_explorer(runs)            the app of `metrix explore`: the page on the test sets of runs
run_server(app, host, port)     either of them, until it is interrupted
"""

from __future__ import annotations

from metrix.errors import InvalidInput


def require_packages() -> None:
    """An error that says what to install, if the packages of the service are missing."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InvalidInput(f"expected the package {error.name}; run pip install 'metrix[serve]'") from error
