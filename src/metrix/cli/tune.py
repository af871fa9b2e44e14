"""`metrix tune`: the best settings of some methods in a given time, and what each method is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.flags import DATA_HELP, NOT_FLAGS, with_config_flags

if TYPE_CHECKING:
    from metrix.experiments.tuning.result import StudyResult
    from metrix.experiments.tuning.running import StudyWatcher
    from metrix.experiments.tuning.starting import Request
    from metrix.experiments.tuning.study import StudyFolder

# Settings that the study sets itself, or that have a flag of their own here.
FIXED = (*NOT_FLAGS, "loss", "mixup", "mixup_method", "fold", "holdout")


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("tune", rich_help_panel="Train")(with_config_flags(tune_command, without=FIXED))


def tune_command(
    data: Annotated[str | None, typer.Argument(help=DATA_HELP, show_default=False)] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="how long it may take: 2h, 90m, 1d; as many trials as fit")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="trials of each method", show_default=False)] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="LOSS[+MIXUP]",
            help="what to compare, may be repeated: contrastive, contrastive+feature, proxy-anchor+proxy-synthesis; by "
            "default losses without and with feature mixup, as many as fit into the budget",
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2, help="folds of the training classes; by default 4, or 2 in a small budget", show_default=False
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="runs of each winner on all training classes; 3 by default", show_default=False),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="what is maximised on the folds: recall@1 or map@r; recall@1 by default", show_default=False),
    ] = None,
    space: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file with ranges of settings, instead of the usual ones")
    ] = None,
    cheap: Annotated[
        bool,
        typer.Option(
            "--cheap/--no-cheap",
            help="try each setting with a third of the training first, where that ranks them alike",
        ),
    ] = True,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="STUDY", help="continue a study; with --budget or --trials, search for longer"),
    ] = None,
    join: Annotated[
        Path | None,
        typer.Option(metavar="STUDY", help="work on a study that another process, or machine, is working on"),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="where Optuna keeps the trials: journal (a file for shared file systems) or a database such as "
            "postgresql://user@host/name; an SQLite file in the study's folder by default",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="named settings to begin with, as for metrix train")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings to begin with")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder of the study; a new one in tunes/ by default")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show no progress, only the conclusion")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Search the best settings of some methods in a given time, and say what each method is worth.

    Each trial is trained without a fold of the training classes and measured on it. The best settings of each method
    are then trained on all training classes and measured on the test classes, once. Every method gets the same number
    of trials, and the same folds. A study that was stopped or killed loses nothing: continue it with --resume.

    Settings given by flags are fixed; the others are searched. metrix train DATA --config STUDY/best.yaml trains the
    best.

    Examples:
        metrix tune photos/ --budget 2h -o tunes/a
        metrix tune photos/ --trials 8 --method contrastive --method nca+embed
        metrix tune --resume tunes/a --budget 1h
    """
    import json

    from metrix.cli.terminal.tuning import build_study_watcher
    from metrix.experiments.tuning.running import work_on
    from metrix.extras import require_extra
    from metrix.reproduce.budget import parse_duration

    require_extra("optuna", "matplotlib")
    seconds = None if budget is None else parse_duration(budget)
    watcher = build_study_watcher(quiet or json_output)
    own = {"folds": folds, "seeds": seeds, "metric": metric}
    own = {key: value for key, value in own.items() if value is not None}
    if resume is not None or join is not None:
        given: dict[str, Any] = {
            "DATA": data,
            "--method": method,
            "--space": space,
            "--preset": preset,
            "--config": config,
        }
        given |= {"--output": output, **{f"--{key}": value for key, value in own.items()}}
        given |= {} if cheap else {"--no-cheap": True}
        given |= {"--" + key.replace("_", "-"): True for key in flags}
        study = _open(resume, join, trials, seconds, storage, [name for name, value in given.items() if value])
    else:
        asked = {"methods": tuple(method or ()), "budget": seconds, "trials": trials, "cheap": cheap, **own}
        request = _build_request(data, preset, config, flags, space, {**asked, "storage": storage})
        study = _start(request, output, watcher)
    found = work_on(study, watcher)
    page = _write_page(found)
    if json_output:
        typer.echo(json.dumps({**found.to_dict(), "page": str(page)}))
    else:
        _print_result(found, page)


def _open(
    resume: Path | None,
    join: Path | None,
    trials: int | None,
    seconds: float | None,
    storage: str | None,
    given: list[str],
) -> StudyFolder:
    """The study to resume or join."""
    from metrix.errors import InvalidInput
    from metrix.experiments.tuning.starting import resume_study
    from metrix.experiments.tuning.study import StudyFolder

    if resume is not None and join is not None:
        raise InvalidInput("--resume and --join were both given; expected one: --join does not change the plan")
    flag = "--resume" if resume is not None else "--join"
    given += [name for name, value in (("--trials", trials), ("--budget", seconds)) if join is not None and value]
    if given:
        also = " (--budget and --trials may be given, to search for longer)" if resume is not None else ""
        raise InvalidInput(f"{flag} with {', '.join(given)}: a study keeps what it began with; leave them out{also}")
    if join is not None:
        study = StudyFolder(join, storage)
        study.check_data()
        return study
    assert resume is not None
    return resume_study(resume, trials, seconds, storage)


def _build_request(
    data: str | None,
    preset: str | None,
    config: Path | None,
    flags: dict[str, Any],
    space: Path | None,
    asked: dict[str, Any],
) -> Request:
    """What the user asks of a new study; characters begin with the settings of the preset glyphs."""
    from metrix.cli.train import choose_settings
    from metrix.data import glyphs
    from metrix.errors import InvalidInput
    from metrix.experiments.tuning.spaces import read_changes
    from metrix.experiments.tuning.starting import Request

    if data is None and config is None and preset != "glyphs":
        raise InvalidInput("no data was given; expected a folder of class folders, a manifest, or glyphs")
    if data in glyphs.NAMES and preset is None and config is None:
        preset = "glyphs"
    base = choose_settings(data, preset, config, flags)
    return Request(base, changes=None if space is None else read_changes(space), fixed=flags, **asked)


def _start(request: Request, output: Path | None, watcher: StudyWatcher) -> StudyFolder:
    from metrix.experiments.tuning.starting import start_study
    from metrix.experiments.tuning.study import new_folder

    try:
        return start_study(request, output or new_folder(request.base), watcher)
    except BaseException:
        watcher.close()
        raise


def _write_page(found: StudyResult) -> Path:
    from metrix.report.tune_page import write_tune_page

    return write_tune_page(found)


def _print_result(found: StudyResult, page: Path) -> None:
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.tuning import build_final_table
    from metrix.train.data_place import for_commands

    console = Console(highlight=False)
    console.print(build_final_table(found))
    console.print(found.conclusion.text, soft_wrap=True)
    data = for_commands(found.protocol.base)[0]  # columns are in the file of settings
    best = found.folder / "best.yaml"
    print_next(
        (command("metrix", "train", data, "--config", best), "a model with the best settings"),
        (command("metrix", "tune", "--resume", found.folder, "--budget", "1h"), "search for longer"),
        (str(page), "the page of the study, in a browser"),
    )
