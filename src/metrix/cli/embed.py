"""`metrix embed`: write embeddings to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("embed", rich_help_panel="Use")(embed_command)


def embed_command(
    run: Annotated[Path, typer.Argument(help="folder of a run", show_default=False)],
    data: Annotated[str | None, typer.Argument(help="images to embed; the run's own data by default")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.parquet, FILE.npy (with labels in FILE.csv), or a folder")
    ] = Path("embeddings.parquet"),
    part: Annotated[
        str | None, typer.Option(help="test, train or all; by default test for the run's data, all for other data")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="what runs the network: torch (exact), bf16, onnx, a file of metrix export --onnx, or auto, the "
            "fastest on this machine by a short measurement"
        ),
    ] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an existing file")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show no progress")] = False,
) -> None:
    """Write the embeddings of images to a file, with the id, path and label of each image.

    On a CPU, a long job runs through the fastest engine; its largest difference to the exact embeddings is printed and
    stored in the file. Measures (metrix evaluate) always use the exact engine, which is torch.

    An interrupted command resumes when it is started again. Under torchrun, or with RANK and WORLD_SIZE set, each
    process embeds its share of the images, and the last to finish writes the file.
    """
    import os

    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.progress import show_progress
    from metrix.runs.embedding_output import read_process_share, write_embeddings
    from metrix.runs.trained_model import PARTS, open_run

    if part is not None and part not in PARTS:
        from metrix.errors import unknown_choice

        raise unknown_choice("part", part, PARTS)
    share = read_process_share(os.environ.get)
    with show_progress(quiet) as report:
        model = open_run(run, report)
        chosen = part or ("test" if data is None else "all")
        written = write_embeddings(model, output, data, chosen, share=share, overwrite=overwrite, engine=engine)
    if quiet:
        return
    console = Console(stderr=True, soft_wrap=True)
    if written is None:
        console.print(f"rank {share[0]} of {share[1]} is done; the last to finish writes the file", highlight=False)
        return
    console.print(f"engine: {written.engine}", highlight=False, markup=False)
    console.print(f"written: [cyan]{escape(str(written.path))}[/]", highlight=False)
