"""`metrix train`: train a model; resume a run, train it for longer, or end it early."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.flags import DATA_HELP, with_config_flags

if TYPE_CHECKING:
    from metrix.train.config import Config


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("train", rich_help_panel="Train")(with_config_flags(train_command))


def train_command(
    data: Annotated[str | None, typer.Argument(help=DATA_HELP, show_default=False)] = None,
    data_option: Annotated[str | None, typer.Option("--data", help="another way to give the data")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="named settings: glyphs, cpu/cars, paper/cub, paper/cars, paper/sop or paper/inshop; a loss may "
            "follow those of the paper, such as paper/sop/contrastive; dinov2 or lora/dinov2, of a public recipe for "
            "GPUs, with which no figure of metrix was measured"
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings")] = None,
    like: Annotated[
        Path | None, typer.Option(metavar="RUN", help="settings and data of a finished run; flags override them")
    ] = None,
    all_classes: Annotated[
        bool,
        typer.Option(
            "--all",
            help="train on all classes, those for testing too, for as many epochs as were best in --like RUN; nothing "
            "can be measured on such a model",
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder of the run; a new one in runs/ by default")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="resume an interrupted run; with --epochs or --max-steps, train it, or a finished one, longer",
        ),
    ] = None,
    finish: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="train no more: make the model of an interrupted run from its best epoch"),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="processes per machine, one per GPU; not needed with torchrun")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="number of machines; not needed with torchrun")] = None,
    strategy: Annotated[
        str, typer.Option(help="with several processes: ddp, or fsdp to shard weights and optimizer; auto is ddp")
    ] = "auto",
    print_config: Annotated[bool, typer.Option("--print-config", help="print all settings and exit")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show neither progress nor tables")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Train an embedding model on labelled images, and measure it on classes it has not seen.

    Settings come from a preset or a YAML file; flags override them. The network starts from pretrained weights unless
    --weights says otherwise.

    Examples:
        metrix train photos/ -o runs/a
        metrix train photos/ --loss proxy-anchor --mixup none --epochs 20
        metrix train photos/ --preset cpu/cars -o runs/b
        metrix train --resume runs/a
    """
    from metrix.errors import InvalidInput
    from metrix.train.run_folder import open_run_folder

    if data is not None and data_option is not None and data != data_option:
        raise InvalidInput(f"expected one dataset, got two datasets, {data!r} and {data_option!r}; give one")
    data = data if data is not None else data_option
    ends: dict[str, Any] = {}
    if resume is not None or finish is not None:
        given = {"DATA": data, "--preset": preset, "--config": config, "--output": output}
        given |= {"--like": like, "--all": "given" if all_classes else None}
        allowed: set[str] = set()
        if resume is not None:
            given["--finish"] = finish
            allowed = {"epochs", "max_steps", "on_nonfinite"}
            ends = {key: value for key, value in flags.items() if key in allowed}
        others = ["--" + key.replace("_", "-") for key in flags if key not in allowed]
        _refuse("--resume" if resume is not None else "--finish", [*(name for name, v in given.items() if v), *others])
        settings = None
    else:
        if all_classes or flags.get("unseen") == 0:
            flags = _with_all_classes(flags, like)
        if like is not None:
            if preset or config:
                raise InvalidInput(f"--like with {'--preset' if preset else '--config'}: both are settings; give one")
            data, config = data or open_run_folder(like).config.data.data, like / "config.yaml"
        settings = choose_settings(data, preset, config, flags)
        if print_config:
            typer.echo(settings.to_yaml(), nl=False)
            return
        if data is None and config is None and preset != "glyphs":
            raise InvalidInput("no data was given; expected a folder of class folders, a manifest, or glyphs")
    train_and_print(
        settings,
        output,
        quiet,
        json_output,
        (devices, nodes, strategy),
        resume=resume or finish,
        **ends,
        finish=finish is not None,
        measured=open_run_folder(like) if like is not None and all_classes else None,
    )


def train_and_print(
    settings: Config | None,
    output: Path | None,
    quiet: bool,
    json_output: bool,
    processes: tuple[int | None, int | None, str],
    **options: Any,
) -> None:
    """Train or resume a run, and print its results and what may follow.

    Args:
        settings: of a new run
        output: its folder
        quiet, json_output: what is printed
        processes: devices, nodes and strategy
        options: those of `metrix.train.train`
    """
    import json

    from metrix.cli.terminal.training import build_run_watcher
    from metrix.train import train as run_training
    from metrix.train.distributed import Launch, is_first, parse_strategy

    devices, nodes, strategy = processes
    launch = Launch(devices, nodes, parse_strategy(strategy))
    watcher = build_run_watcher(quiet or json_output)
    run = run_training(settings, output, watcher=watcher, launch=launch, **options)
    if json_output and is_first():
        typer.echo(json.dumps({"run": str(run.path), **(run.results or {})}))
    elif not quiet and is_first():
        _suggest(run.path, run.config)


def _suggest(run: Path, config: Config) -> None:
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.train.data_place import for_commands
    from metrix.train.network import name_examples

    examples = name_examples(config)
    shown = "a page with curves, measures" + (" and retrieved images" if examples == "images" else " and maps")
    measures = [
        (command("metrix", "evaluate", run), "all measures, with intervals"),
        (command("metrix", "report", run), shown),
    ]
    if (teacher := config.distil.teacher) is not None:
        measures.insert(1, (command("metrix", "compare", teacher, run), "against its teacher"))
        if config.distil.compatible:
            among = command("metrix", "evaluate", run, "--against", teacher)
            measures.insert(2, (among, "its queries among images as the teacher embeds them"))
    print_next(
        *(measures if config.data.unseen else ()),
        (command("metrix", "index", run, *for_commands(config), "-o", "my.index"), f"{examples} to search in"),
    )


def _refuse(flag: str, given: list[str]) -> None:
    """Refuse settings beside --resume or --finish."""
    from metrix.errors import InvalidInput

    if not given:
        return
    names = ", ".join(given)
    if flag == "--finish":
        raise InvalidInput(f"--finish with {names}: the run ends with what it has; leave them out")
    raise InvalidInput(
        f"--resume with {names}: a run resumes with the settings it started with; leave them out (--epochs and "
        "--max-steps may be given, to train for longer)"
    )


def _with_all_classes(flags: dict[str, Any], like: Path | None) -> dict[str, Any]:
    """Keep no classes for testing, nor for selecting an epoch: the number of epochs is what was best in another run."""
    from metrix.errors import InvalidInput
    from metrix.train.run_folder import open_run_folder

    values: dict[str, Any] = {"unseen": 0.0, "holdout": 0.0}
    if like is not None:
        results = open_run_folder(like).results
        if results is None:
            raise InvalidInput(f"--like {like}: expected a finished run, got one without results; resume it first")
        if results.get("best_epoch") is not None:
            values["epochs"] = results["best_epoch"]
            typer.echo(f"metrix: epochs {values['epochs']}, the best of {like}", err=True)
    return {**values, **flags}


def choose_settings(data: str | None, preset: str | None, config: Path | None, flags: dict[str, Any]) -> Config:
    """Take the settings of a preset, a YAML file or the defaults, and override them by flags."""
    from metrix.errors import InvalidInput
    from metrix.train.config import Config, read_config
    from metrix.train.network import with_usual_weights
    from metrix.train.presets import preset as settings_of

    if preset is not None and config is not None:
        raise InvalidInput(
            "--preset and --config were both given; give one, or print the preset with --print-config and edit it"
        )
    base = settings_of(preset) if preset else read_config(config) if config else Config()
    dropped = base.dropped_by(flags)
    if dropped:
        source = f"preset {preset}" if preset else str(config)
        names = ", ".join(f"{key} {value}" for key, value in dropped.items())
        typer.echo(f"metrix: left out of {source}: {names}, which {base.loss.loss} has there", err=True)
    chosen = base.with_values({**flags, **({} if data is None else {"data": data})})
    return chosen if preset or config or "weights" in flags else with_usual_weights(chosen)
