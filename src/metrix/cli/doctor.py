"""`metrix doctor`: what this machine has, what it can do, and what is missing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from metrix.cli.device import with_device_flag


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("doctor", rich_help_panel="This machine")(with_device_flag(doctor_command))


def doctor_command(
    quick: Annotated[
        bool, typer.Option("--quick", help="leave out what takes seconds: bfloat16, speed, the model hub")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Check this machine: versions, devices, processor, speed, caches, and what is missing.

    The exit code is 1 if there is a problem, each of which is listed with what to do. Attach the output to
    a question or a report of a mistake.
    """
    import json

    from metrix.cli.terminal.console import Console
    from metrix.machine.doctor import describe_machine

    if json_output:
        found = describe_machine(quick=quick)
        typer.echo(json.dumps(found))
    else:
        console = Console(stderr=True)
        with console.status("looking at this machine") as status:
            found = describe_machine(quick=quick, told=lambda what: status.update(f"looking at this machine: {what}"))
        _print(found)
    raise typer.Exit(1 if found["problems"] else 0)


def _print(found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from metrix.cli.cache import format_bytes
    from metrix.cli.terminal.console import Console

    console = Console(highlight=False)
    table = Table(title="This machine", show_header=False, show_lines=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _describe(found, format_bytes).items():
        table.add_row(name, escape(text))
    console.print(table)
    for name, extra in found["extras"].items():
        if extra["missing"]:
            told = (
                f'for {extra["for"]}: pip install "metrix[{name}]"' if extra["for"] else f'pip install "metrix[{name}]"'
            )
            console.print(f"[cyan]optional[/] {escape(told)}", soft_wrap=True)
    for problem in found["problems"]:
        console.print(f"[red]problem[/] {escape(problem)}", soft_wrap=True)
    if not found["problems"]:
        console.print("[green]no problems found[/]")


def _describe(found: dict[str, Any], size: Any) -> dict[str, str]:
    """The rows of the table."""
    from metrix import __version__

    versions, processor, memory = found["versions"], found["processor"], found["memory"]
    others = [f"{name} {version}" for name, version in versions.items() if name != "metrix"]
    cores = f"{processor['usable_cores']} of {processor['cores']} cores, {processor['threads']} threads"
    if processor["core_limit"]:
        cores += f", limited to {processor['core_limit']:g}"
    rows = {
        "versions": f"metrix {__version__}, Python {found['python']}, {', '.join(others)}",
        "system": found["platform"],
        "processor": f"{processor['name']}: {cores}; {', '.join(processor['features']) or 'no vector features known'}",
    }
    if memory["total"]:
        rows["memory"] = f"{size(memory['total'])}, {size(memory['available'] or 0)} free"
    devices = [one for one in found["devices"] if one["kind"] != "cpu"]
    named = [f"{one['kind']}: {one['name']}" + (f", {size(one['memory'])}" if one["memory"] else "") for one in devices]
    rows["GPU"] = "; ".join(named) or "none; the CPU trains"
    if bfloat16 := found.get("bfloat16"):
        rows["bfloat16"] = _describe_bfloat16(bfloat16)
    if speed := found.get("speed"):
        rows["speed"] = (
            f"ResNet-18 at 224 px embeds {speed['embedded_per_second']:,.0f} and trains "
            f"{speed['trained_per_second']:,.0f} images/s; {speed['decoded_per_second']:,.0f} photos/s decoded by a "
            f"thread; {speed['gflops']:,.0f} GFLOP/s in matrix products"
        )
        if speed["load"] is not None and speed["load"] > (processor["usable_cores"] or 1):
            rows["speed"] += f" (while other programs were at work: load {speed['load']:.1f})"
    rows["weights"] = _describe_weights(found["weights"])
    cache = found["cache"]
    kinds = [f"{name} {size(about['bytes'])}" for name, about in cache["kinds"].items() if about["bytes"]]
    held = f"{size(cache['bytes'])}" + (f" ({', '.join(kinds)})" if kinds else "")
    rows["cache"] = f"{cache['folder']}: {held}; {size(cache['free_bytes'])} free there"
    installed = [name for name, extra in found["extras"].items() if not extra["missing"]]
    rows["extras"] = ", ".join(installed) or "none"
    return rows


def _describe_bfloat16(found: dict[str, Any]) -> str:
    announced = ", ".join(found["announced"]) or "not announced"
    if found["runs"]:
        return f"a training step runs ({announced})"
    if found["runs_without_amx"]:
        return f"a training step runs only without AMX ({announced})"
    return f"a training step ends the process ({announced})"


def _describe_weights(found: dict[str, Any]) -> str:
    from metrix.messages import first_few

    held = [*found["packaged"], *found["downloaded"]]
    said = first_few(held, 6) if held else "no pretrained weights on this machine"
    if "hub_answers" not in found:
        return said
    return f"{said}; the model hub {'answers' if found['hub_answers'] else 'does not answer'}"
