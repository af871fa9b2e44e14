"""The parts of `metrix evaluate` and `metrix threshold` that are about unknown classes (--open-set)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.runs.evaluation import Examples
    from metrix.runs.trained_model import TrainedModel

PANEL = "Unknown classes"

OpenSet = Annotated[
    bool,
    typer.Option(
        "--open-set",
        help="be about metrix classify, which says 'unknown' for classes not enrolled",
        rich_help_panel=PANEL,
    ),
]
Shots = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="images of each class that are enrolled, separated by commas; 1,5,all by default",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Draws = Annotated[
    int,
    typer.Option(min=1, help="draws of enrolled and unknown classes and of the enrolled images", rich_help_panel=PANEL),
]


def refuse_without_open_set(open_set: bool, flags: Mapping[str, object]) -> None:
    """An error if flags of --open-set were given without it."""
    given = [name for name, value in flags.items() if value is not None]
    if given and not open_set:
        raise InvalidInput(f"{', '.join(given)}: expected with --open-set, got without; give both, or neither")


def refuse_with_open_set(flags: Mapping[str, object]) -> None:
    """An error if flags that mean nothing with --open-set were given with it."""
    given = [name for name, value in flags.items() if value]
    if given:
        raise InvalidInput(f"{', '.join(given)}: expected without --open-set, got both; leave one out")


def parse_shots(text: str | None) -> tuple[int | None, ...]:
    """Numbers of images, None for all.

    >>> parse_shots("1,5,all")
    (1, 5, None)
    """
    wrong = InvalidInput(f"--shots: expected numbers from 1 separated by commas, or all, such as 1,5,all, got {text!r}")
    try:
        found = tuple(None if one.strip() == "all" else int(one) for one in (text or "1,5,all").split(","))
    except ValueError:
        raise wrong from None
    if any(one is not None and one < 1 for one in found) or len(set(found)) < len(found):
        raise wrong
    return found


def evaluate_unknown(
    examples: Examples,
    model: TrainedModel | None,
    shots: str | None,
    draws: int,
    resamples: int,
    report: Any,
    own_test: bool,
) -> Any:
    """Measure labelling and refusing; the outcome to print. Of a run's own test images, it is kept in its folder."""
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.open_set_tables import build_few_shot_table, build_open_set_table, describe_protocol
    from metrix.cli.terminal.outcome import Outcome
    from metrix.runs.open_set_evaluation import evaluate_open_set, write_open_set_evaluation
    from metrix.runs.output import CannotWrite

    result = evaluate_open_set(examples, parse_shots(shots), draws=draws, resamples=resamples, report=report)
    remarks, written = [], []
    if model is not None and own_test:
        try:
            written = [write_open_set_evaluation(model, result)]
        except CannotWrite as error:  # a run of a colleague, or a full disk: the result itself is there
            remarks = [f"the result is not kept: {error}"]
    following = []
    if model is not None:
        choose = f"{command('metrix', 'threshold', model.run.path)} --open-set --false-accept 0.01"
        following = [(choose, "the threshold of unknown, for indexes of this run")]
    tables = [build_open_set_table(result)]
    tables += [build_few_shot_table(result)] if result.episodes else []
    return Outcome(result.to_dict(), tables, [describe_protocol(result)], remarks, written, following)


def choose_unknown(
    given: Path,
    rates: Mapping[str, float | None],
    shots: int | None,
    data: str | None,
    resamples: int,
    output: Path | None,
    store: str | None,
    reading: Mapping[str, Any],
    report: Any,
) -> Any:
    """Choose the threshold of unknown on a run or an index, and keep it there; the outcome to print."""
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.open_set_tables import build_chosen_table, describe_chosen
    from metrix.cli.terminal.outcome import Outcome
    from metrix.extras import require_extra
    from metrix.report.figures.open_set import draw_open_set
    from metrix.report.page.writing import write_figure
    from metrix.runs.open_set import measure_index, measure_open_set, write_open_set
    from metrix.runs.output import make_output_folder
    from metrix.runs.trained_model import open_run
    from metrix.search import Index
    from metrix.search.description import FILE
    from metrix.search.open_set import check_wanted

    wanted = {name: value for name, value in rates.items() if value is not None}
    if len(wanted) != 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in wanted)
        raise InvalidInput(f"--open-set: expected one of --false-accept and --false-reject, got {names or 'none'}")
    ((target, rate),) = wanted.items()
    check_wanted(target, rate)
    require_extra("matplotlib")
    if (given / FILE).is_file():
        if shots is not None or data is not None or reading:
            raise InvalidInput(
                "--shots, --data, --max-bad, --root, --follow-links: expected with a run, got an index, which is "
                "measured on its own items; leave them out"
            )
        index = Index.open(given, store)
        found = measure_index(index, target, rate, resamples=resamples, report=report)
        index.keep_open_set(found.chosen.open_set)
        written = [given / FILE]
        folder = make_output_folder(None, output) if output is not None else None
        following = [(f"{command('metrix', 'classify', given)} QUERY.jpg", "labels, or unknown")]
    else:
        model = open_run(given, report, reading=reading)
        found = measure_open_set(model, target, rate, data=data, shots=shots, resamples=resamples)
        written, folder = [write_open_set(model, found)], make_output_folder(given, output)
        following = [(f"{command('metrix', 'index', given)} PATH -o my.index", "an index that knows it, for classify")]
    if folder is not None:
        written += write_figure(draw_open_set(found.chosen, describe_chosen(found)), folder)
    return Outcome(
        found.to_dict(),
        [build_chosen_table(found)],
        notes=[describe_chosen(found)],
        written=written,
        next=following,
    )
