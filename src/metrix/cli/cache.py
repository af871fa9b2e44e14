"""`metrix cache`: what metrix keeps on this machine to be faster the next time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.machine.caches import Pruned

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
LISTED = 20  # entries to list; --json lists all

Json = Annotated[bool, typer.Option("--json", help="print everything as JSON")]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    group = typer.Typer(no_args_is_help=True, help="Look at and delete the files that metrix keeps to be faster.")
    group.command("show")(show_command)
    group.command("prune")(prune_command)
    app.add_typer(group, name="cache", rich_help_panel="This machine")


def show_command(json_output: Json = False) -> None:
    """Show the cache folder: what is in it, how large it is, and when it was last used.

    METRIX_CACHE sets another folder.
    """
    import json

    from rich.markup import escape
    from rich.table import Table

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import print_next
    from metrix.machine.caches import KINDS, summarise_cache

    found = summarise_cache()
    if json_output:
        typer.echo(json.dumps(found))
        return
    table = Table(title=escape(found["folder"]))
    for heading in ("kind", "what it is", "entries", "size", "unused for"):
        table.add_column(heading, justify="right" if heading in ("entries", "size", "unused for") else "left")
    for name, about in found["kinds"].items():
        unused = "" if about["days_unused"] is None else f"{about['days_unused']:.0f} days"
        table.add_row(name, KINDS[name].line, f"{about['entries']:,}", format_bytes(about["bytes"]), unused)
    table.add_section()
    table.add_row("all", "", "", format_bytes(found["bytes"]), "")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{format_bytes(found['free_bytes'])} are free there; all of it can be computed again")
    if found["bytes"]:
        print_next(("metrix cache prune --unused 30", "delete what was not used for 30 days"))


def prune_command(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND",
            help="images, activations, decoded, glyphs, pools or maps; all by default",
            show_default=False,
        ),
    ] = None,
    unused: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0, help="what was not used for so many days", show_default=False),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="the longest unused, until the rest fits, such as 20G", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="whatever is not in use")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be deleted")] = False,
    json_output: Json = False,
) -> None:
    """Delete cached files that were not used for long; training computes them again when it needs them.

    What a process has open or is building stays, and so does everything in the folder that metrix did not make.

    Examples:
        metrix cache prune --unused 30 --dry-run
        metrix cache prune decoded --max-size 20G
    """
    import json

    from metrix.machine.caches import prune_cache

    if not everything and unused is None and max_size is None:
        raise InvalidInput("cache prune: expected --unused DAYS, --max-size SIZE or --all, got none of them")
    if everything and (unused is not None or max_size is not None):
        raise InvalidInput("cache prune: expected --all alone, or --unused and --max-size, got both")
    found = prune_cache(
        kinds or (), unused_days=unused, max_bytes=None if max_size is None else parse_bytes(max_size), dry_run=dry_run
    )
    if json_output:
        typer.echo(json.dumps({"dry_run": dry_run, **found.to_dict()}))
        return
    _print(found, dry_run)


def _print(found: Pruned, dry_run: bool) -> None:
    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.messages import count

    console = Console(highlight=False, soft_wrap=True)
    for entry in found.deleted[:LISTED]:
        days = f"unused for {entry.days_unused:.0f} days"
        console.print(f"{format_bytes(entry.size):>8}  {entry.kind}/{escape(entry.path.name)}, {days}")
    if len(found.deleted) > LISTED:
        console.print(f"          … and {len(found.deleted) - LISTED:,} more; --json lists all")
    for entry, reason in found.kept[:LISTED]:
        console.print(f"[yellow]kept[/] {entry.kind}/{escape(entry.path.name)}: {escape(reason)}")
    done = "would be deleted" if dry_run else "deleted"
    console.print(f"{done}: {count(len(found.deleted), 'entry')}, {format_bytes(found.size)}")


def format_bytes(size: Any) -> str:
    """A number of bytes for people.

    >>> format_bytes(0), format_bytes(1_250_000), format_bytes(98_000_000_000)
    ('0 B', '1.2 MB', '98 GB')
    """
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.{1 if size < 10 * factor else 0}f} {unit}"
    return f"{size} B"


def parse_bytes(text: str) -> int:
    """A number of bytes as people write it.

    >>> parse_bytes("20G"), parse_bytes("1.5 MB")
    (20000000000, 1500000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text.upper())
    if found is None:
        raise InvalidInput(f"--max-size: expected a size such as 500M or 20G, got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])
