"""Which verbs there are."""

from __future__ import annotations

import typer

from metrix.cli import analyze, compare, data, demo, embed, evaluate, methods, report, reproduce, train


def add_to(app: typer.Typer) -> None:
    """Register every verb."""
    demo.add_to(app)
    data.add_to(app)
    train.add_to(app)
    methods.add_to(app)
    evaluate.add_to(app)
    compare.add_to(app)
    analyze.add_to(app)
    report.add_to(app)
    embed.add_to(app)
    reproduce.add_to(app)
