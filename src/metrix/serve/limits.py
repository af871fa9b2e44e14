"""What the service accepts from a client, and for how long it works on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what requests may cost, each alone and all together.

    Args:
        upload: bytes of a request's body; more is refused with 413.
        pixels: of an image, read from its header before it is decoded; more is refused with 413. Images that are
            decoded at the same time have no more than this together.
        k: neighbours that a query may ask for; more is refused with 422.
        seconds: for a request, from its arrival to the end of its answer; one that takes longer is given up with 504, a
            slow upload with 408.
        queue: image and vector queries that may wait or be worked on; more are refused with 429.
        batch: queries that go through the network together.
        queries: that one request may hold; more are refused with 422.
        waiting: bytes of all uploads that are received or wait to be decoded; more are refused with 429.
        headers: seconds for the headers of a request; a connection that takes longer is closed.
        reading: seconds for a file of the index to be read; one that takes longer is given up with 504.
        changing: seconds for a change of the index over HTTP; its answer is given up with 504, the change is not.
        slow_formats: whether uploads may be in JPEG 2000, of which some hundred bytes can take seconds to decode.
        connections: that may be open, if the process may open that many files.
    """

    upload: int = 20 * 2**20
    pixels: int = 50_000_000
    k: int = 1000
    seconds: float = 30.0
    queue: int = 256
    batch: int = 64
    queries: int = 64
    waiting: int = 256 * 2**20
    headers: float = 10.0
    reading: float = 10.0
    changing: float = 600.0
    slow_formats: bool = False
    connections: int = 1000
