"""Which verbs there are."""

from __future__ import annotations

import typer

from metrix.cli import analyze, compare, embed, evaluate, train


def add_to(app: typer.Typer) -> None:
    """Register every verb."""
    train.add_to(app)
    evaluate.add_to(app)
    compare.add_to(app)
    analyze.add_to(app)
    embed.add_to(app)
