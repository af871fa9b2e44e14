"""`metrix upgrade`: let an index that an old model made answer queries of a new one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import QueryRoot, Store
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.retrieve.upgrading import Upgraded


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("upgrade", rich_help_panel="Use")(with_device_flag(upgrade))


def upgrade(
    index: Annotated[Path, typer.Argument(help="folder of an index, as metrix index wrote it", show_default=False)],
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="the run of the new model", show_default=False)
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="fit on these images, which both models embed; by default on the images of the index that are at hand",
            show_default=False,
        ),
    ] = None,
    old: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="with --images: the run that made the index, if it has moved"),
    ] = None,
    pairs: Annotated[int, typer.Option(min=25, metavar="N", help="images to fit on, at most")] = 2000,
    adapter: Annotated[
        str, typer.Option(help="auto, the best on held-out classes, or identity, procrustes, low-rank, mlp")
    ] = "auto",
    undo: Annotated[bool, typer.Option("--undo", help="let queries go through the old model again")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="measure only, and leave the index as it is")] = False,
    store: Store = None,
    root: QueryRoot = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="resamples of classes for the intervals; 0 for none")
    ] = 1000,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="folder for a picture of the table")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the images that are drawn and held out")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Let an index that an old model made answer queries of a new one, without embedding its images again.

    A map from vectors of the new model to those of the old one is fitted on images that both have embedded, chosen by
    Recall@1 on classes that it was not fitted on, and kept in the index. Search, classify and serve then use the new
    model and the map. The vectors of the items stay as they are, and --undo takes the map away.

    The table shows what it costs compared with embedding all images again, which metrix index --update --only-old does,
    a portion at a time if wanted.

    Examples:
        metrix upgrade photos.index --run runs/new --dry-run
        metrix upgrade photos.index --run runs/new
    """
    from metrix.cli.terminal.progress import show_progress
    from metrix.extras import require_extra
    from metrix.retrieve.upgrading import upgrade_index
    from metrix.search import Index
    from metrix.search.adapters import ADAPTERS

    if adapter != "auto" and adapter not in ADAPTERS:
        raise InvalidInput(f"--adapter: expected auto, {', '.join(ADAPTERS)}, got {adapter!r}")
    if undo:
        given = {"--run": run, "--images": images, "--old": old, "--dry-run": dry_run}
        if wrong := [name for name, value in given.items() if value]:
            raise InvalidInput(f"{', '.join(wrong)}: expected without --undo, got both; leave one out")
        _undo(index).print(json_output)
        return
    if run is None:
        raise InvalidInput("--run: expected the run of the new model, got none; metrix upgrade INDEX --run RUN")
    if old is not None and not images:
        raise InvalidInput(f"--old: expected with --images, got {old} alone; leave it out")
    if output is not None:
        require_extra("matplotlib")
    opened = Index.open(index, store, root)
    with show_progress(json_output) as report:
        done = upgrade_index(
            opened,
            run,
            images=images or [],
            old_run=old,
            most=pairs,
            kind=None if adapter == "auto" else adapter,
            keep=not dry_run,
            resamples=bootstrap,
            seed=seed,
            report=report,
        )
    _report(index, run, done, output).print(json_output)


def _undo(index: Path) -> Outcome:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.search.adapting import undo_upgrade

    model = undo_upgrade(index).model
    content = {"index": str(index), "model": None if model is None else model.model_dump()}
    place = "unknown run" if model is None or model.run is None else model.run
    return Outcome(content, notes=[f"{index}: queries go through {place} again, the model that made its items"])


def _report(index: Path, run: Path, done: Upgraded, output: Path | None) -> Outcome:
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.upgrade_tables import build_upgrade_table, describe_upgrade, name_searches
    from metrix.report.figures.upgrade import draw_upgrade
    from metrix.report.page.writing import write_figure
    from metrix.runs.output import make_output_folder

    following = [
        (f"{command('metrix', 'search', index)} QUERY.jpg", "search by the new model"),
        (command("metrix", "index", "-o", index, "--update", "--only-old"), "embed its images by the new model, too"),
        (command("metrix", "upgrade", index, "--undo"), "back to the old model"),
    ]
    if not done.kept:
        following = [(command("metrix", "upgrade", index, "--run", run), "keep the adapter")]
    remarks = [*done.remarks, *([] if done.kept else ["the index is as it was (--dry-run)"])]
    notes, written = describe_upgrade(done), list[Path]()
    if output is not None:
        figure = draw_upgrade(done.measured, name_searches(done), notes[0])
        written = write_figure(figure, make_output_folder(None, output))
    return Outcome(done.to_dict(), [build_upgrade_table(done)], notes, remarks, written, following)
