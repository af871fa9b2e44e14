"""What the service accepts from a client, and for how long it works on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what a request may cost.

    Args:
        upload: bytes of a request's body; more is refused with 413.
        pixels: of an image, read from its header before it is decoded; more is refused with 413.
        k: neighbours that a request may ask for; more is refused with 422.
        seconds: for a request as a whole; one that takes longer is given up with 504, a slow upload with 408.
        queue: image and vector queries that may wait or be worked on; more are refused with 429.
        batch: queries that go through the network together.
    """

    upload: int = 20 * 2**20
    pixels: int = 50_000_000
    k: int = 1000
    seconds: float = 30.0
    queue: int = 256
    batch: int = 64
