"""`metrix serve`: an index over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.errors import InvalidInput

PORT = 8000


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("serve", rich_help_panel="Use")(serve)


def serve(
    index: Annotated[Path, typer.Argument(help="folder of an index, as metrix index wrote it", show_default=False)],
    host: Annotated[
        str, typer.Option(help="address to listen on; beyond this machine only with a token")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 takes a free one")] = PORT,
    token: Annotated[
        str | None,
        typer.Option(envvar="METRIX_TOKEN", help="that every request has to carry", show_default=False),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="the run that the index was built with, if it has moved", show_default=False)
    ] = None,
    max_upload: Annotated[int, typer.Option(min=1, metavar="MB", help="largest upload")] = 20,
    max_pixels: Annotated[int, typer.Option(min=1, metavar="MILLIONS", help="most pixels of an image")] = 50,
    max_k: Annotated[int, typer.Option("--max-k", min=1, help="most neighbours of a query")] = 1000,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="longest time for a request")] = 30.0,
    queue: Annotated[int, typer.Option(min=1, help="queries that may wait; more are refused with 429")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="queries that go through the network together")] = 64,
) -> None:
    """Serve an index over HTTP: search by image, id or vector, with OpenAPI docs and a page to explore it.

    Queries that arrive together go through the network together. When the index on disk is replaced or changed, the
    service switches to it without an interruption; SIGHUP and POST /reload make it look at once.
    """
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import print_next
    from metrix.serve import require_packages

    require_packages()
    from metrix.serve.access import is_loopback
    from metrix.serve.api import build_service
    from metrix.serve.limits import Limits
    from metrix.serve.server import run_server

    if not is_loopback(host) and not token:
        raise InvalidInput(
            f"--host: expected this machine (127.0.0.1) without a token, got {host}; give --token or METRIX_TOKEN"
        )
    limits = Limits(max_upload * 2**20, max_pixels * 1_000_000, max_k, timeout, queue, batch)
    app = build_service(index, run, limits, token=token or None)

    def started(address: str) -> None:
        said, current = Console(stderr=True, soft_wrap=True), app.state.service.current.index
        said.print(f"serving [bold]{index}[/] ({len(current):,} items)", highlight=False)
        said.print(f"explore: [cyan]{address}/[/]   API: [cyan]{address}/docs[/]   stop: Ctrl-C", highlight=False)
        with_token = " -H 'Authorization: Bearer TOKEN'" if token else ""
        query = "-F image=@QUERY.jpg " if current.description.root is not None else ""
        place = f"'{address}/search?k=5'" if query else f"'{address}/search?id=ID&k=5'"
        print_next((f"curl{with_token} {query}{place}", "search from another terminal or program"))

    run_server(app, host, port, grace=timeout, started=started)
