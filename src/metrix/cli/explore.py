"""`metrix explore`: a web page on runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import FollowLinks, MaxBad, Root, choose_reading
from metrix.cli.serve import Host, LogFormat, LogLevel, Port, Token, choose_access

PORT = 8001


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("explore", rich_help_panel="Use")(with_device_flag(explore))


def explore(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="folders of runs", show_default=False)],
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token: Token = None,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
) -> None:
    """Look at the test images of runs on a web page: neighbours, mistakes, a map, and what differs between runs.

    The images are embedded on the first visit and kept in the folders of the runs. The page needs no internet.

    Examples:
        metrix explore runs/a runs/b
    """
    from rich.console import Console

    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.serve import require_packages

    require_packages()
    from metrix.serve.api import build_explorer
    from metrix.serve.limits import Limits
    from metrix.serve.logs import write_logs
    from metrix.serve.server import run_server

    access = choose_access(host, token)
    reading = choose_reading(max_bad, root, follow_links)
    with show_progress(False) as report:
        app = build_explorer(runs, access=access, report=report, reading=reading)

    def started(address: str) -> None:
        Console(stderr=True, soft_wrap=True).print(f"open [cyan]{address}/[/]   stop: Ctrl-C", highlight=False)
        page = (command("metrix", "report", *runs), "a page to keep and to send, with the same runs")
        between = (command("metrix", "compare", *runs), "is the difference significant?")
        print_next(*([between] if len(runs) > 1 else []), page)

    with write_logs(log_level, log_format):
        run_server(app, host, port, limits=Limits(), grace=5, started=started)
