"""`metrix distil`: train a small model to embed as a large one does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.flags import with_config_flags

if TYPE_CHECKING:
    from metrix.train.config import Config

# Keys of the configuration that have no part in distillation, or have an argument of their own here.
NO_PART = (
    *("data", "teacher", "teacher_digest", "unlabelled"),
    *("mixup", "mixup_method", "pairs", "hard_negatives", "mix", "instance_temperature"),
    *(
        "matryoshka",
        "matryoshka_weight",
        "memory",
        "memory_after",
        "views",
        "scheme",
        "clusters",
        "recluster_every",
        "finetune_epochs",
    ),
)
# How the teacher's data are split and read, which goes for the student, too.
OWN_VIEW = ("image_size", "cache", "workers", "augment")


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("distil", rich_help_panel="Train")(with_config_flags(distil_command, without=NO_PART))


def distil_command(
    teacher: Annotated[
        Path | None, typer.Argument(help="folder of the finished run that is imitated", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="images to train on, labelled for the figures; the teacher's own data and split by default"),
    ] = None,
    unlabelled: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="images without labels, which join the batches; may be repeated"),
    ] = None,
    mixup: Annotated[
        str | None,
        typer.Option(help="input: both networks also see mixtures of two inputs; or none", show_default=False),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="named settings, as those of metrix train")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder of the student's run; a new one in runs/ by default")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="resume an interrupted run")] = None,
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
    """Train a small model to embed images as a finished run does, without labels.

    The student learns the teacher's distances and angles (relational distillation) and its embeddings (cosine), of
    images and of mixtures of them, which both networks see alike. Labels serve to measure it, and with --label-weight
    to train it, too. The student is a run like any other: resume, evaluate, index and export it.

    Its embeddings have the length of the teacher's unless --dim says otherwise; with --compatible, they can query an
    index of the teacher: metrix search TEACHER.index IMAGE --run STUDENT.

    Examples:
        metrix distil runs/large --backbone efficientnet_lite0 -o runs/small
        metrix distil runs/large --unlabelled more/ --compatible -o runs/small
    """
    from metrix.cli.train import train_and_print
    from metrix.errors import InvalidInput

    processes = (devices, nodes, strategy)
    if resume is not None:
        given = {"TEACHER": teacher, "--data": data, "--unlabelled": unlabelled, "--mixup": mixup}
        given |= {"--preset": preset, "--config": config, "--output": output}
        names = [name for name, value in given.items() if value]
        names += ["--" + key.replace("_", "-") for key in flags]
        if names:
            raise InvalidInput(
                f"--resume with {', '.join(names)}: a run resumes with the settings it started with; leave them out"
            )
        train_and_print(None, None, quiet, json_output, processes, resume=resume)
        return
    if teacher is None:
        raise InvalidInput("no teacher was given; expected the folder of a finished run: metrix distil RUN")
    if output is not None and output.exists() and output.resolve() == teacher.resolve():
        raise InvalidInput(f"--output: expected another folder than the teacher's, got {output}")
    values = {**flags, "unlabelled": unlabelled or [], **({} if data is None else {"data": data})}
    if mixup is not None:
        values["mixup"] = [] if mixup == "none" else mixup.split(",")
    settings = choose_student(teacher, preset, config, values)
    if print_config:
        typer.echo(settings.to_yaml(), nl=False)
        return
    train_and_print(settings, output, quiet, json_output, processes)


def choose_student(teacher: Path, preset: str | None, config: Path | None, values: dict[str, Any]) -> Config:
    """The settings of a student: those of a preset, a YAML file or the defaults, and `values` over them.

    The teacher's data and their split are taken where no others are given, and its length of embeddings.
    """
    from metrix.errors import InvalidInput
    from metrix.train.config import Config, read_config
    from metrix.train.network import with_usual_weights
    from metrix.train.presets import preset as settings_of
    from metrix.train.teacher import open_teacher_folder

    if preset is not None and config is not None:
        raise InvalidInput(
            "--preset and --config were both given; give one, or print the preset with --print-config and edit it"
        )
    base = settings_of(preset) if preset else read_config(config) if config else Config()
    of_teacher = open_teacher_folder(str(teacher)).config
    taken: dict[str, Any] = {"teacher": str(teacher)}
    if config is None:
        taken["dim"] = of_teacher.model.dim
        if "data" not in values:
            own = of_teacher.data.model_dump(mode="json")
            taken |= {key: value for key, value in own.items() if key not in OWN_VIEW}
    chosen = base.with_values({**taken, **values})
    return chosen if preset or config or "weights" in values else with_usual_weights(chosen)
