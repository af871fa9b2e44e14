"""`metrix export`: the model of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import Dim, FollowLinks, ForceDim, MaxBad, Root, choose_reading
from metrix.errors import InvalidInput


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("export", rich_help_panel="Use")(with_device_flag(export_command))


def export_command(
    run: Annotated[Path, typer.Argument(help="folder of a run", show_default=False)],
    onnx: Annotated[Path | None, typer.Option(metavar="FILE.onnx", help="write ONNX")] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="quantise the ONNX file to int8, and measure the loss of Recall@1")
    ] = False,
    torch_export: Annotated[Path | None, typer.Option(metavar="FILE.pt2", help="write with torch.export")] = None,
    hub: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="write weights and a model card, ready for a model hub")
    ] = None,
    dim: Dim = None,
    force_dim: ForceDim = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace files with other content")] = False,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print nothing")] = False,
) -> None:
    """Write the model of a run as ONNX, with torch.export, or as a folder for a model hub.

    Files take any number of images and are compared with the model in torch, to 1e-4. How an image becomes the input,
    and the threshold that metrix threshold found, are in a JSON file beside the model and in its metadata. metrix embed
    --engine FILE.onnx embeds with the file.

    Examples:
        metrix export runs/a --onnx model.onnx --int8
        metrix export runs/a --hub my-model
    """
    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.runs.hub_folder import export_hub
    from metrix.runs.model_export import export_onnx, export_torch
    from metrix.runs.trained_model import open_run
    from metrix.train.network import name_examples

    if onnx is None and torch_export is None and hub is None:
        raise InvalidInput("expected --onnx FILE.onnx, --torch-export FILE.pt2 or --hub FOLDER, got none of them")
    if int8 and onnx is None:
        raise InvalidInput("--int8: expected --onnx FILE.onnx with it, got none")
    with show_progress(quiet) as report:
        model = open_run(run, report, reading=choose_reading(max_bad, root, follow_links), dim=dim, force_dim=force_dim)
        done = []
        if onnx is not None:
            done.append(export_onnx(model, onnx, int8=int8, overwrite=overwrite))
        if torch_export is not None:
            done.append(export_torch(model, torch_export, overwrite=overwrite))
        if hub is not None:
            done.append(export_hub(model, hub, overwrite=overwrite))
    if quiet:
        return
    console = Console(stderr=True, soft_wrap=True)
    for one in done:
        if one.difference is not None:
            console.print(f"largest difference to torch: {one.difference:.1g} (at most 1e-4)", highlight=False)
        if one.int8 is not None:
            console.print(one.int8.describe(), highlight=False, markup=False)
        for path in one.files:
            console.print(f"written: [cyan]{escape(str(path))}[/]", highlight=False)
    if onnx is not None:
        examples = name_examples(model.config)
        print_next(
            (
                f"{command('metrix', 'embed', run)} PATH {command('--engine', onnx)}",
                f"embed {examples} with the file",
            )
        )
