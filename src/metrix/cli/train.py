"""`metrix train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from metrix.cli.flags import with_config_flags


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("train", rich_help_panel="Train")(with_config_flags(train))


def train(
    data: Annotated[
        str | None, typer.Argument(help="glyphs, a folder, a manifest, cub:PATH …", show_default=False)
    ] = None,
    data_option: Annotated[str | None, typer.Option("--data", help="the same as the argument")] = None,
    preset: Annotated[
        str | None, typer.Option(help="settings by name, such as paper/cub or paper/sop/contrastive")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="settings from a YAML file")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder of the run; runs/TIME-… by default")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with an interrupted run")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="processes on each machine, one for each GPU; torchrun says it by itself")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="machines; torchrun says it by itself")] = None,
    strategy: Annotated[
        str, typer.Option(help="several processes: ddp, or fsdp to share weights and optimizer; auto is ddp")
    ] = "auto",
    print_config: Annotated[bool, typer.Option("--print-config", help="print the resolved settings and stop")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no tables")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Train an embedding model on labelled images and measure it on classes it has never seen.

    Settings come from a preset, then a YAML file, then flags; later ones win.
    """
    import json

    from metrix.cli.terminal.training import build_run_watcher
    from metrix.errors import InvalidInput
    from metrix.train import Config
    from metrix.train import train as run_training
    from metrix.train.config import read_config
    from metrix.train.distributed import Launch, is_first, parse_strategy
    from metrix.train.presets import preset as settings_of

    if data is not None and data_option is not None and data != data_option:
        raise InvalidInput(f"two datasets were given, {data!r} and {data_option!r}: give one")
    data = data if data is not None else data_option
    if resume is not None:
        given = [
            name
            for name, value in {
                "DATA": data,
                "--preset": preset,
                "--config": config,
                "--output": output,
            }.items()
            if value
        ]
        given += ["--" + key.replace("_", "-") for key in flags]
        if given:
            raise InvalidInput(f"--resume with {', '.join(given)}: a run goes on with the settings it began with")
        settings = None
    else:
        if preset is not None and config is not None:
            raise InvalidInput("--preset and --config were both given: print a preset with --print-config and edit it")
        base = settings_of(preset) if preset else read_config(config) if config else Config()
        settings = base.with_values({**flags, **({} if data is None else {"data": data})})
        if print_config:
            typer.echo(settings.to_yaml(), nl=False)
            return
        if data is None and config is None and preset != "glyphs":
            raise InvalidInput("no data was given: accepted are a folder of class folders, a manifest, or glyphs")
    watcher = build_run_watcher(quiet or json_output)
    launch = Launch(devices, nodes, parse_strategy(strategy))
    run = run_training(settings, output, resume=resume, watcher=watcher, launch=launch)
    if json_output and is_first():
        typer.echo(json.dumps({"run": str(run.path), **(run.results or {})}))
