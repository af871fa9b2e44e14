"""Flags of how images are read, the same for every verb that reads images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

PANEL = "Reading images"

MaxBad = Annotated[
    float | None,
    typer.Option(
        "--max-bad",
        min=0,
        help="unreadable images to tolerate: a share below 1, or a count; as in training by default",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
AnyBad = Annotated[  # for verbs that skip and count what cannot be read
    float | None,
    typer.Option(
        "--max-bad",
        min=0,
        help="unreadable images to tolerate: a share below 1, or a count; any number by default",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="folder that the paths of a manifest are relative to; its own by default",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
MovedRun = Annotated[
    Path | None, typer.Option(help="the run that the index was built with, if it has moved", show_default=False)
]
QueryRoot = Annotated[
    Path | None,
    typer.Option(
        help="folder of the index's images, if they have moved, and of paths of a list that are not beside it",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Store = Annotated[  # for verbs that build or open an index
    str | None,
    typer.Option(
        "--store",
        envvar="METRIX_STORE",
        help="faiss, milvus:PATH (embedded) or milvus:http://HOST:PORT; where an index is on a server, this names it; "
        "faiss by default",
        show_default=False,
    ),
]
Dim = Annotated[
    int | None,
    typer.Option(
        "--dim",
        min=1,
        help="use only the first N numbers of each embedding, a length that --matryoshka trained; all by default",
        show_default=False,
    ),
]
ForceDim = Annotated[bool, typer.Option("--force-dim", help="allow a --dim that the model was not trained for")]
FollowLinks = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="follow symbolic links that lead out of the folder of the images",
        rich_help_panel=PANEL,
    ),
]
ImageColumn = Annotated[
    str | None,
    typer.Option(
        "--image-column",
        help="column of images in Parquet files and data of Hugging Face, if there are several",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        help="column of labels in Parquet files and data of Hugging Face, if there are several",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]


def choose_reading(
    max_bad: float | None,
    root: Path | None,
    follow_links: bool,
    image_column: str | None = None,
    label_column: str | None = None,
) -> dict[str, Any]:
    """The settings that were given, for `open_run(reading=…)`.

    >>> choose_reading(3.0, None, False)
    {'max_bad': 3.0}
    """
    given = {
        "max_bad": max_bad,
        "root": None if root is None else str(root),
        "follow_links": follow_links or None,
        "image_column": image_column,
        "label_column": label_column,
    }
    return {key: value for key, value in given.items() if value is not None}


def parse_max_bad(max_bad: float | None) -> int | float | None:
    """The share or the count that was given.

    >>> parse_max_bad(0.05), parse_max_bad(3.0)
    (0.05, 3)
    """
    return max_bad if max_bad is None or max_bad < 1 else int(max_bad)
