"""`metrix embed`: write embeddings to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import (
    Dim,
    FollowLinks,
    ForceDim,
    ImageColumn,
    LabelColumn,
    MaxBad,
    Root,
    choose_reading,
)


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("embed", rich_help_panel="Use")(with_device_flag(embed_command))


def embed_command(
    run: Annotated[Path, typer.Argument(help="folder of a run", show_default=False)],
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA",
            help="images to embed, labelled or not: folders, images, tar files, lists of paths (.txt), manifests "
            "(.csv, .tsv, .parquet), Parquet files with images, hf:owner/name, LAYOUT:PATH or glyphs; the run's own "
            "data by default",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.parquet, FILE.npy (with labels in FILE.csv), or a folder")
    ] = Path("embeddings.parquet"),
    part: Annotated[
        str | None,
        typer.Option(
            help="test, train or all; by default test for the run's data, all for other data", show_default=False
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="what runs the network: torch (exact), bf16, onnx, a file of metrix export --onnx, or auto, the "
            "fastest on this machine by a short measurement"
        ),
    ] = "auto",
    dim: Dim = None,
    force_dim: ForceDim = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an existing file")] = False,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show no progress")] = False,
) -> None:
    """Write the embeddings of images to a file, with the id, path and label of each image.

    Images need no labels and no folders of classes: any folder, a single image or a list will do. Those that cannot be
    read are left out and counted.

    On a CPU, a long job runs through the fastest engine; its largest difference to the exact embeddings is printed and
    stored in the file. Measures (metrix evaluate) always use the exact engine, which is torch.

    An interrupted command resumes when it is started again. Under torchrun, or with RANK and WORLD_SIZE set, each
    process embeds its share of the images, and the last to finish writes the file.

    Examples:
        metrix embed runs/a
        metrix embed runs/a photos/ query.jpg -o vectors.npy
    """
    import os

    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.retrieve.embedding_output import read_process_share, select_images, write_embeddings
    from metrix.retrieve.indexing import describe_skipped
    from metrix.runs.trained_model import PARTS, open_run

    if part is not None and part not in PARTS:
        from metrix.errors import unknown_choice

        raise unknown_choice("part", part, PARTS)
    share = read_process_share(os.environ.get)
    with show_progress(quiet) as report:
        reading = choose_reading(max_bad, root, follow_links, image_column, label_column)
        model = open_run(run, report, reading=reading, dim=dim, force_dim=force_dim)
        spec, images = select_images(model, data or (), part)
        chosen = part or ("all" if data else "test")
        written = write_embeddings(
            model, output, spec, chosen, images=images, share=share, overwrite=overwrite, engine=engine
        )
    if quiet:
        return
    console = Console(stderr=True, soft_wrap=True)
    if written is None:
        console.print(f"rank {share[0]} of {share[1]} is done; the last to finish writes the file", highlight=False)
        return
    if images is not None and images.skipped:
        console.print(describe_skipped(images.skipped), highlight=False, markup=False)
    console.print(f"engine: {written.engine}", highlight=False, markup=False)
    console.print(f"written: [cyan]{escape(str(written.path))}[/]", highlight=False)
    if written.path.suffix == ".parquet" and images is None:
        print_next((command("metrix", "evaluate", "--embeddings", written.path), "measure them"))
