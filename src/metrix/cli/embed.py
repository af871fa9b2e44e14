"""`metrix embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("embed", rich_help_panel="Use")(embed)


def embed(
    run: Annotated[Path, typer.Argument(help="folder of a run", show_default=False)],
    data: Annotated[str | None, typer.Argument(help="what to embed; the run's own data by default")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.parquet, FILE.npy (with FILE.csv), or a folder")
    ] = Path("embeddings.parquet"),
    part: Annotated[
        str | None, typer.Option(help="test, train or all; by default test of the run's data, all of other data")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace what is there")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
) -> None:
    """Write embeddings of images: id, path, label and vector of each.

    An interrupted export goes on when it is started again. Under torchrun, or with RANK and WORLD_SIZE
    set, each process embeds its share and the last one to finish puts the file together.
    """
    import os

    from rich.console import Console

    from metrix.cli.terminal.progress import show_progress
    from metrix.runs.embedding import PARTS, TrainedModel
    from metrix.runs.export import export, share_of_process

    if part is not None and part not in PARTS:
        from metrix.errors import unknown_choice

        raise unknown_choice("part", part, PARTS)
    share = share_of_process(os.environ.get)
    with show_progress(quiet) as report:
        model = TrainedModel(run, report)
        chosen = part or ("test" if data is None else "all")
        complete = export(model, output, data, chosen, share=share, overwrite=overwrite)
    if quiet:
        return
    told = f"written: [cyan]{output}[/]" if complete else f"rank {share[0]} of {share[1]} is done; the last one writes"
    Console(stderr=True, soft_wrap=True).print(told, highlight=False)
