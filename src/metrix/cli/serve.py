"""`metrix serve`: an index over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import Dim, ForceDim, MovedRun, Store
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.serve.access import Access

PORT = 8000
ACCESS, LIMITS, LOG = "Access", "Limits", "Log"

Host = Annotated[
    str, typer.Option(help="address to listen on; beyond this machine only with a token", rich_help_panel=ACCESS)
]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="port to listen on; 0 takes a free one", rich_help_panel=ACCESS)
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="METRIX_TOKEN", help="secret that every request has to carry", show_default=False, rich_help_panel=ACCESS
    ),
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error", rich_help_panel=LOG)]
LogFormat = Annotated[str, typer.Option(help="text, or json: an object on each line", rich_help_panel=LOG)]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("serve", rich_help_panel="Use")(with_device_flag(serve))


def serve(
    index: Annotated[Path, typer.Argument(help="folder of an index, as metrix index wrote it", show_default=False)],
    run: MovedRun = None,
    root: Annotated[
        Path | None, typer.Option(help="the folder of the images, if they have moved", show_default=False)
    ] = None,
    store: Store = None,
    dim: Dim = None,
    force_dim: ForceDim = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="serve the page to explore the index, too")] = True,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="the table of decisions on labels; INDEX.labels.csv by default", show_default=False
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token: Token = None,
    write_token: Annotated[
        str | None,
        typer.Option(
            envvar="METRIX_WRITE_TOKEN",
            help="secret with which items and labels may be changed; nothing may be changed without one",
            show_default=False,
            rich_help_panel=ACCESS,
        ),
    ] = None,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="answer /metrics without a token", rich_help_panel=ACCESS)
    ] = False,
    max_upload: Annotated[int, typer.Option(min=1, metavar="MB", help="largest upload", rich_help_panel=LIMITS)] = 20,
    max_pixels: Annotated[
        int, typer.Option(min=1, metavar="MILLIONS", help="most pixels of an image", rich_help_panel=LIMITS)
    ] = 50,
    max_waiting: Annotated[
        int, typer.Option(min=1, metavar="MB", help="uploads that may wait; more: 429", rich_help_panel=LIMITS)
    ] = 256,
    max_k: Annotated[
        int, typer.Option("--max-k", min=1, help="most neighbours of a query", rich_help_panel=LIMITS)
    ] = 1000,
    max_queries: Annotated[int, typer.Option(min=1, help="most queries of a request", rich_help_panel=LIMITS)] = 64,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="longest time for a request", rich_help_panel=LIMITS)
    ] = 30.0,
    queue: Annotated[int, typer.Option(min=1, help="queries that may wait; more: 429", rich_help_panel=LIMITS)] = 256,
    batch: Annotated[
        int, typer.Option(min=1, help="queries that go through the network together", rich_help_panel=LIMITS)
    ] = 64,
    jpeg2000: Annotated[
        bool, typer.Option("--jpeg2000", help="accept uploads in JPEG 2000, slow to decode", rich_help_panel=LIMITS)
    ] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Serve an index over HTTP: search by image, id or vector, with OpenAPI docs and a page to explore it.

    Queries that arrive together go through the network together. When the index on disk is replaced or changed, the
    service switches to it without an interruption; SIGHUP and POST /reload make it look at once.

    With --dim, it answers by the first numbers of each vector, which it copies into memory and searches exactly.

    Examples:
        metrix serve photos.index
        metrix serve photos.index --host 0.0.0.0 --token SECRET
    """
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import print_next
    from metrix.serve import require_packages

    require_packages()
    from metrix.serve.api import build_service
    from metrix.serve.limits import Limits
    from metrix.serve.logs import write_logs
    from metrix.serve.server import run_server

    access = choose_access(host, token, write_token, open_metrics)
    limits = Limits(
        upload=max_upload * 2**20,
        pixels=max_pixels * 1_000_000,
        k=max_k,
        seconds=timeout,
        queue=queue,
        batch=batch,
        queries=max_queries,
        waiting=max_waiting * 2**20,
        slow_formats=jpeg2000,
    )
    with write_logs(log_level, log_format):
        app = build_service(
            index,
            run,
            limits,
            root=root,
            store=store,
            access=access,
            page=page,
            labels=labels,
            dim=dim,
            force_dim=force_dim,
        )

        def started(address: str) -> None:
            said, current = Console(stderr=True, soft_wrap=True), app.state.service.current.index
            prefix = "" if dim is None else f", the first {current.dim} numbers of each vector"
            said.print(f"serving [bold]{index}[/] ({len(current):,} items{prefix})", highlight=False)
            pages = f"explore: [cyan]{address}/[/]   API: [cyan]{address}/docs[/]" if page else f"[cyan]{address}/[/]"
            said.print(f"{pages}   stop: Ctrl-C", highlight=False)
            with_token = " -H 'Authorization: Bearer TOKEN'" if token else ""
            query = "-F image=@QUERY.jpg " if current.description.root is not None else ""
            place = f"'{address}/search?k=5'" if query else f"'{address}/search?id=ID&k=5'"
            print_next((f"curl{with_token} {query}{place}", "search from another terminal or program"))

        run_server(app, host, port, limits=limits, grace=timeout, started=started)


def choose_access(host: str, token: str | None, write_token: str | None = None, open_metrics: bool = False) -> Access:
    """Who may ask for what.

    Raises:
        InvalidInput: others than this machine could ask without a token.
    """
    from metrix.serve.access import Access, is_loopback

    # files with secrets end in a line break, which no header can carry
    token, write_token = ((one or "").strip() or None for one in (token, write_token))
    if not is_loopback(host) and not token:
        raise InvalidInput(
            f"--host: expected this machine (127.0.0.1) without a token, got {host}; give --token or METRIX_TOKEN"
        )
    return Access(token, write_token, open_metrics)
