"""`metrix explore`: a web page on runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.cli.reading import FollowLinks, MaxBad, Root, choose_reading
from metrix.errors import InvalidInput

PORT = 8001


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("explore", rich_help_panel="Use")(explore)


def explore(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="folders of runs", show_default=False)],
    host: Annotated[str, typer.Option(help="address to listen on; elsewhere only with a token")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 takes a free one")] = PORT,
    token: Annotated[
        str | None,
        typer.Option(envvar="METRIX_TOKEN", help="that the page asks for", show_default=False),
    ] = None,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
) -> None:
    """Look at the test images of runs on a web page: neighbours, mistakes, a map, and what differs between runs.

    The images are embedded on the first visit and kept in the folders of the runs. The page needs no internet.
    """
    from rich.console import Console

    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.serve import require_packages

    require_packages()
    from metrix.serve.access import is_loopback
    from metrix.serve.api import build_explorer
    from metrix.serve.server import run_server

    if not is_loopback(host) and not token:
        raise InvalidInput(
            f"--host: expected this machine (127.0.0.1) without a token, got {host}; give --token or METRIX_TOKEN"
        )
    reading = choose_reading(max_bad, root, follow_links)
    with show_progress(False) as report:
        app = build_explorer(runs, token=token or None, report=report, reading=reading)

    def started(address: str) -> None:
        Console(stderr=True, soft_wrap=True).print(f"open [cyan]{address}/[/]   stop: Ctrl-C", highlight=False)
        page = (command("metrix", "report", *runs), "a page to keep and to send, with the same runs")
        between = (command("metrix", "compare", *runs), "is the difference significant?")
        print_next(*([between] if len(runs) > 1 else []), page)

    run_server(app, host, port, grace=5, started=started)
