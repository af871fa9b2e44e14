"""`metrix index`: build an index of images to search, change one, or say what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import (
    PANEL,
    AnyBad,
    Dim,
    FollowLinks,
    ForceDim,
    ImageColumn,
    LabelColumn,
    Store,
    parse_max_bad,
)
from metrix.errors import InvalidInput
from metrix.messages import first_few

if TYPE_CHECKING:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.retrieve.index_parts import WrittenPart
    from metrix.retrieve.indexing import Indexed

KIND = "Kind of index"


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("index", rich_help_panel="Use")(with_device_flag(index))


def index(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="folder of a run, or a backbone with pretrained weights, such as efficientnet_lite0",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="folders, images, tar files, Parquet files with images, hf:owner/name, manifests (.csv, .tsv, "
            ".parquet) or lists of paths (.txt); or glyphs, glyphs-mini",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder of the index; PATH.index by default")
    ] = None,
    store: Store = None,
    kind: Annotated[
        str, typer.Option(help="exact, or approximate and compressed: hnsw, ivf, sq8, ivf-pq", rich_help_panel=KIND)
    ] = "exact",
    cells: Annotated[
        int | None, typer.Option(min=1, help="ivf and ivf-pq: number of cells; 4 √n by default", rich_help_panel=KIND)
    ] = None,
    probes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="ivf and ivf-pq: cells that a search looks into; an eighth of them by default",
            rich_help_panel=KIND,
        ),
    ] = None,
    dim: Dim = None,
    force_dim: ForceDim = False,
    half: Annotated[
        bool, typer.Option("--half", help="keep vectors in float16, half as large", rich_help_panel=KIND)
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            help="folder that ids are relative to, and paths of a manifest that are not beside it; by default the "
            "smallest with all images",
            rich_help_panel=PANEL,
        ),
    ] = None,
    info: Annotated[bool, typer.Option("--info", help="say what the index of --output holds")] = False,
    add: Annotated[bool, typer.Option("--add", help="add the images to the index")] = False,
    update: Annotated[bool, typer.Option("--update", help="add the images, replacing those that are there")] = False,
    only_old: Annotated[
        bool,
        typer.Option(
            "--only-old", help="with --update: embed the items of an older model anew, by RUN or that of metrix upgrade"
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="with --only-old: images to embed this time; all by default"),
    ] = None,
    delete: Annotated[list[str] | None, typer.Option("--delete", metavar="ID", help="remove this item")] = None,
    merge: Annotated[Path | None, typer.Option(metavar="INDEX", help="add the items of another index")] = None,
    set_columns: Annotated[
        Path | None,
        typer.Option("--set", metavar="FILE", help="set columns of items by a table with id (or path), not embedding"),
    ] = None,
    relabel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="rename, merge or remove classes by a table: old,new and/or id,label"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace an index of another model, or of other data")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            help="what runs the network: torch (exact), bf16, onnx, a file of metrix export --onnx, or auto, the "
            "fastest on this machine by a short measurement; torch by default, but that of the index to change it",
            show_default=False,
        ),
    ] = None,
    max_bad: AnyBad = None,
    follow_links: FollowLinks = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Embed images with a run's model and build an index of them, for metrix search.

    A backbone needs no training: its features are indexed as they are, and its model is written beside the index
    (photos.model for photos.index) as a run, for metrix evaluate, export and embed.

    Images that cannot be read are skipped and counted. An interrupted build resumes when it is started again, and an
    index that is replaced or changed stays in use until its successor is complete.

    Under torchrun, or with RANK and WORLD_SIZE set, each process embeds its share of the images and writes it as a part
    of the index. The last to finish joins the parts without copying vectors; a killed one is started again alone.

    With --update --only-old, the items of an older model are embedded anew, in portions that an interruption loses
    nothing of. The index answers as before until all are done, and then by the new model. Images that cannot be read
    are an error, unless --max-bad allows to leave so many out.

    The engine is stored in the index with its largest difference to the exact vectors. Queries of metrix search go
    through it, too, unless its vectors are the exact ones up to rounding.

    Examples:
        metrix index runs/a photos/ -o photos.index
        metrix index efficientnet_lite0 photos/ -o photos.index
        metrix index runs/a more/ -o photos.index --add
        metrix index -o photos.index --info
    """
    from metrix.cli.terminal.progress import show_progress
    from metrix.data.layouts.table_columns import ColumnChoice
    from metrix.retrieve.indexing import Indexed
    from metrix.search import Settings

    done: Indexed | WrittenPart
    changes: dict[str, object] = {
        "--info": info,
        "--add": add,
        "--update": update,
        "--delete": delete,
        "--merge": merge,
    }
    changes |= {"--set": set_columns}
    chosen = [name for name, value in {**changes, "--relabel": relabel}.items() if value]
    if len(chosen) > 1:
        names = f"{', '.join(changes)} and --relabel"
        raise InvalidInput(f"expected one of {names}, got {' and '.join(chosen)}")
    if only_old:
        _require_replacing(images, output, update, engine, dim)
    elif limit is not None:
        raise InvalidInput(f"--limit: expected with --update --only-old, got {limit} without; leave it out")
    target = output or _default_output(images, run if info else None)
    if info:
        _describe(target).print(json_output)
        return
    if only_old:
        options = {"store": store, "root": root, "limit": limit, "max_bad": parse_max_bad(max_bad)}
        _replace(run, target, options, json_output).print(json_output)
        return
    with show_progress(json_output) as report:
        if delete or any(given is not None for given in (merge, set_columns, relabel)):
            if images:
                raise InvalidInput(f"{chosen[0]}: expected no data, got {first_few(images)}; leave them out")
            if engine is not None:
                raise InvalidInput(f"--engine: expected with data to embed, got {engine} with {chosen[0]}")
            done = _change(target, store, delete, merge, set_columns, relabel)
        else:
            columns = ColumnChoice(image_column, label_column)
            reading = {"max_bad": parse_max_bad(max_bad), "follow_links": follow_links, "columns": columns}
            building: dict[str, Any] = {"kind": kind, "root": root, "overwrite": overwrite}
            building |= {"dim": dim, "force_dim": force_dim}
            building["settings"] = Settings(cells=cells, probes=probes, half=half)
            done = _embed(run, images, target, store, report, reading, engine, add, update, building)
    outcome = _report(target, done) if isinstance(done, Indexed) else _report_part(target, done)
    outcome.print(json_output)


def _require_replacing(
    images: list[str] | None, output: Path | None, update: bool, engine: str | None, dim: int | None
) -> None:
    if not update:
        raise InvalidInput(
            "--only-old: expected with --update, got it alone: metrix index -o INDEX --update --only-old"
        )
    if images:
        raise InvalidInput(f"--only-old: expected no data, got {first_few(images)}: items of the index are embedded")
    if output is None:
        raise InvalidInput("--only-old: expected the index, got none; metrix index -o INDEX --update --only-old")
    if engine not in (None, "torch"):
        raise InvalidInput(f"--only-old: expected --engine torch, the exact one, got {engine}; leave it out")
    if dim is not None:
        raise InvalidInput(
            f"--only-old: expected whole vectors, got --dim {dim}; leave it out, or build the index anew"
        )


def _replace(run: Path | None, target: Path, options: dict[str, Any], quiet: bool) -> Outcome:
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.search_tables import build_index_table
    from metrix.messages import count
    from metrix.retrieve.replacing import replace_items

    with show_progress(quiet) as report:
        done = replace_items(target, run, **options, report=report)
    content = {"index": str(target), "complete": done.complete, "embedded": done.embedded, "waiting": done.waiting}
    content |= {"left_out": list(done.left_out), "run": str(done.run), "count": done.index.description.count}
    remarks = [f"left out: {first_few(done.left_out)}"] if done.left_out else []
    if not done.complete:
        note = f"{count(done.waiting, 'image')} to go; the index answers as before until all are embedded"
        again = command("metrix", "index", *([] if run is None else [run]), "-o", target, "--update", "--only-old")
        return Outcome(content, (), [note], remarks, (), [(again, "continue")])
    note = f"all items of {target} are of {done.run}, which queries go through"
    following = [(f"{command('metrix', 'search', target)} QUERY.jpg", "search with an image")]
    table = build_index_table(target, done.index, done.embedded)
    return Outcome(content, [table], [note], remarks, (), following)


def _default_output(images: list[str] | None, named: Path | None) -> Path:
    if named is not None:
        return named
    if not images:
        raise InvalidInput("index: expected -o INDEX, or data to index, got neither")
    return Path(Path(images[0].removeprefix("hf:").partition("@")[0]).resolve().stem.replace(":", "-") + ".index")


def _describe(target: Path) -> Outcome:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.search_tables import build_info_table
    from metrix.search.description import read_info

    found = read_info(target)
    return Outcome(found, [build_info_table(target, found)])


def _report(target: Path, done: Indexed) -> Outcome:
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.search_tables import build_index_table
    from metrix.messages import count
    from metrix.model.engines import TORCH
    from metrix.retrieve.engine_choice import describe_engine
    from metrix.retrieve.indexing import describe_skipped
    from metrix.search import SUGGEST_PAST

    description = done.index.description
    skipped = [{"path": one.path, "reason": one.reason} for one in done.skipped]
    content = {"index": str(target), **description.model_dump(), "embedded": done.images, "skipped_images": skipped}
    remarks = [describe_skipped(done.skipped)] if done.skipped else []
    notes = []
    if done.relabelled is not None:
        content |= {"relabelled": done.relabelled.items, "absent": list(done.relabelled.absent)}
        notes = [f"{count(done.relabelled.items, 'item')} changed"]
        remarks += [done.relabelled.caution] if done.relabelled.caution else []
    if done.mapped:
        remarks.append(
            "they went through the adapter, and are more similar to queries than items of the old model: add by the "
            "old run, or embed all items by the new one (metrix index --update --only-old), where that matters"
        )
    if done.engine is not None and (done.engine["name"] != TORCH or done.engine["measured"]):
        remarks.append(f"engine: {describe_engine(done.engine)}")
    if description.kind == "exact" and description.count > SUGGEST_PAST:
        remarks.append("exact search compares all items; --kind hnsw or ivf is faster and states its recall")
    query = "--id ID" if description.root is None else "QUERY.jpg"
    following = [
        (f"{command('metrix', 'search', target)} {query}", "search with an image" if description.root else "search"),
        (command("metrix", "search", target, "--suspects"), f"{description.examples} that may have a wrong label"),
        (command("metrix", "serve", target), "a service and a page to look at"),
    ]
    return Outcome(content, [build_index_table(target, done.index, done.images)], notes, remarks, (), following)


def _report_part(target: Path, done: WrittenPart) -> Outcome:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.retrieve.indexing import describe_skipped

    rank, world = _read_share()
    skipped = [{"path": one.path, "reason": one.reason} for one in done.broken]
    content = {"index": str(target), "complete": False, "rank": rank, "world_size": world, "embedded": done.images}
    remarks = [describe_skipped(done.broken)] if done.broken else []
    remarks.append(f"rank {rank} of {world} is done; the last to finish joins the parts")
    return Outcome({**content, "skipped_images": skipped}, remarks=remarks)


def _read_share() -> tuple[int, int]:
    import os

    from metrix.retrieve.embedding_output import read_process_share

    return read_process_share(os.environ.get)


def _embed(
    run: Path | None,
    images: list[str] | None,
    target: Path,
    store: str | None,
    report: Any,
    reading: dict[str, Any],
    engine: str | None,
    add: bool,
    update: bool,
    building: dict[str, Any],
) -> Indexed | WrittenPart:
    from metrix.model.engines import AUTO, TORCH
    from metrix.retrieve.indexing import add_images, index_images
    from metrix.retrieve.queries import find_prefix
    from metrix.runs.backbone_run import find_model_run
    from metrix.runs.trained_model import open_run
    from metrix.search.description import Description

    if run is None or not images:
        raise InvalidInput("index: expected a RUN and data to embed with it: metrix index RUN PATH -o INDEX")
    share = _read_share()
    if share[1] > 1 and (add or update or (store or "faiss") != "faiss"):
        got = "--add" if add else "--update" if update else f"--store {store}"
        raise InvalidInput(
            f"WORLD_SIZE={share[1]}: expected a new index on faiss from several processes, got {got}; start one process"
        )
    dim, forced = building.pop("dim"), building.pop("force_dim")
    place = find_model_run(run, target, images[0], building["overwrite"])
    if dim is None and (add or update):
        dim, forced = find_prefix(Description.read(target), place), True
    model = open_run(place, report, dim=dim, force_dim=forced)
    if share[1] > 1:
        from metrix.retrieve.index_parts import index_share

        return index_share(model, images, target, share, engine=engine or TORCH, **building, **reading)
    if not add and not update:
        return index_images(
            model, images, target, store=store or "faiss", engine=engine or TORCH, **building, **reading
        )
    if building["kind"] != "exact" or building["root"] is not None or reading["follow_links"]:
        raise InvalidInput("--kind, --root, --follow-links: expected when an index is built, got one that is changed")
    given = {name: reading[name] for name in ("max_bad", "columns")}
    return add_images(model, images, target, store=store, replace=update, engine=engine or AUTO, **given)


def _change(
    target: Path,
    store: str | None,
    delete: list[str] | None,
    merge: Path | None,
    set_columns: Path | None,
    relabel: Path | None,
) -> Indexed:
    from metrix.retrieve.indexing import Indexed, set_columns_from
    from metrix.retrieve.relabel import relabel_from
    from metrix.search import Index

    found = Index.open(target, store)
    if delete:
        found.delete(delete)
    if merge is not None:
        found.merge(Index.open(merge, store))
    if set_columns is not None:
        set_columns_from(found, set_columns)
    relabelled = relabel_from(found, relabel) if relabel is not None else None
    return Indexed(found, 0, (), relabelled=relabelled)
