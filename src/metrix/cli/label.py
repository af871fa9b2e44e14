"""`metrix label`: look at doubtful labels one by one, and decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrix.cli.reading import Store
from metrix.cli.serve import Host, LogFormat, LogLevel, Port, Token
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.retrieve.decisions import DecisionFile
    from metrix.retrieve.label_queue import Question
    from metrix.search import Index

PORT = 8002


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("label", rich_help_panel="Use")(label)


def label(
    index: Annotated[
        Path, typer.Argument(help="folder of an index with labels, as metrix index wrote it", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="table that decisions are written to; INDEX.labels.csv beside the index by default",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="REASON", help="only suspect, unsure or unlabelled items", show_default=False),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="neighbours that an item is compared with")] = 10,
    who: Annotated[
        str | None, typer.Option(help="your name in the table; that of your account by default", show_default=False)
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="print what would be asked, and open no page")] = False,
    manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="write all labelled images, as decided so far, as a manifest to train on (.csv)"
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="the folder of the images, if they have moved", show_default=False)
    ] = None,
    store: Store = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token: Token = None,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    json_output: Annotated[bool, typer.Option("--json", help="print what would be asked as JSON")] = False,
) -> None:
    """Look at doubtful labels one by one on a web page, and keep or change them by a key.

    Suspects come first, whose neighbours have another label, then items between two labels, then those without one.
    Each decision is written to a table at once, which metrix index --relabel takes, and training as a manifest; neither
    index nor images change. What is decided is not asked again.

    Examples:
        metrix label photos.index
        metrix label photos.index --only suspect --list
    """
    from metrix.cli.terminal.progress import show_progress
    from metrix.retrieve.decisions import DecisionFile, choose_decisions_file
    from metrix.retrieve.label_queue import REASONS, list_questions, require_labels
    from metrix.search import Index

    opened = Index.open(index, store, root)
    require_labels(opened)
    file = DecisionFile(output or choose_decisions_file(index))
    file.read()
    reasons = tuple(only) if only else REASONS
    if manifest is not None:
        _write_manifest(opened, file, manifest, json_output)
    elif listed or json_output:
        with show_progress(json_output) as report:
            questions = list_questions(opened, k, reasons, report)
        _list(opened, file, questions, json_output)
    else:
        _serve(index, file, k, reasons, who, root, store, host, port, token, log_level, log_format)


def _list(index: Index, file: DecisionFile, questions: list[Question], json_output: bool) -> None:
    from dataclasses import asdict

    from metrix.cli.terminal.label_tables import build_questions_table
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome
    from metrix.retrieve.label_queue import list_open

    decided = file.read()
    waiting = list_open(questions, decided)
    content = {
        "index": str(index.folder),
        "file": str(file.path),
        "decided": [asdict(one) for one in decided.values()],
        "questions": [asdict(one) for one in waiting],
    }
    following = [(command("metrix", "label", str(index.folder)), "decide on a web page")] if waiting else []
    if decided:
        taking = command("metrix", "index", "-o", str(index.folder), "--relabel", file.path)
        following.append((taking, "put the decisions into the index"))
    Outcome(content, [build_questions_table(waiting, len(decided))], next=following).print(json_output)


def _write_manifest(index: Index, file: DecisionFile, manifest: Path, json_output: bool) -> None:
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome
    from metrix.messages import count
    from metrix.retrieve.decisions import write_manifest

    if manifest.suffix.lower() != ".csv":
        raise InvalidInput(f"--manifest: expected a file name that ends in .csv, got {manifest}")
    decided = file.read()
    images = write_manifest(index, decided, manifest)
    outside = not Path(str(index.description.root)).is_relative_to(manifest.resolve().parent)
    root = ("--root", str(index.description.root)) if outside else ()
    Outcome(
        {"manifest": str(manifest), "images": images, "decisions": len(decided)},
        notes=[f"{count(images, 'labelled image')}, with {count(len(decided), 'decision')}"],
        written=[manifest],
        next=[(command("metrix", "train", manifest, *root), "train on it")],
    ).print(json_output)


def _serve(
    index: Path,
    file: DecisionFile,
    k: int,
    reasons: tuple[str, ...],
    who: str | None,
    root: Path | None,
    store: str | None,
    host: str,
    port: int,
    token: str | None,
    log_level: str,
    log_format: str,
) -> None:
    from metrix.cli.serve import choose_access
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.serve import require_packages

    require_packages()
    from metrix.retrieve.label_queue import check_reasons
    from metrix.serve.access import Access
    from metrix.serve.api import build_labeller
    from metrix.serve.limits import Limits
    from metrix.serve.logs import write_logs
    from metrix.serve.server import run_server

    check_reasons(reasons)
    choose_access(host, token)
    access = Access(token or None, token or None, open_changes=not token)
    with write_logs(log_level, log_format):
        app = build_labeller(
            index, file.path, k=k, reasons=reasons, who=_find_name(who), root=root, store=store, access=access
        )

        def started(address: str) -> None:
            said = Console(stderr=True, soft_wrap=True)
            said.print(f"open [cyan]{address}/label[/]   stop: Ctrl-C", highlight=False)
            said.print(f"decisions are written to [cyan]{file.path}[/]", highlight=False)
            taking = command("metrix", "index", "-o", index, "--relabel", file.path)
            print_next((taking, "put the decisions into the index"))

        run_server(app, host, port, limits=Limits(), grace=5, started=started)


def _find_name(given: str | None) -> str:
    """Who decides: the name that was given, else that of the account."""
    import getpass

    if given is not None:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return ""
