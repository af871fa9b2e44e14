"""Which verbs there are."""

from __future__ import annotations

import typer

from metrix.cli import train


def add_to(app: typer.Typer) -> None:
    """Register every verb."""
    train.add_to(app)
