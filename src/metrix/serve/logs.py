"""Log lines with time and level, as text or as JSON; a reader that has stopped does not hold up the service."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import queue
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from metrix.errors import unknown_choice

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
MOST_WAITING = 10_000  # lines; more are dropped

log = logging.getLogger("metrix.serve")


@contextlib.contextmanager
def write_logs(level: str = "info", form: str = "text", stream: TextIO | None = None) -> Iterator[None]:
    """Write the log of the service to a stream, standard error by default, while the block runs.

    Raises:
        ChoiceError: the level is none of `LEVELS`, or the format none of `FORMATS`.
    """
    if level not in LEVELS:
        raise unknown_choice("log level", level, LEVELS)
    if form not in FORMATS:
        raise unknown_choice("log format", form, FORMATS)
    writer = logging.StreamHandler(stream or sys.stderr)
    writer.setFormatter(JsonLines() if form == "json" else TextLines())
    waiting: queue.Queue[Any] = queue.Queue(MOST_WAITING)
    handler = _Dropping(waiting)
    listener = logging.handlers.QueueListener(waiting, writer)
    loggers = [log, logging.getLogger("uvicorn.error")]
    before = [(one.level, one.propagate) for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.propagate = False
    log.setLevel(level.upper())
    # What uvicorn says below an error is about malformed requests, which anybody can send as fast as they like.
    loggers[1].setLevel("DEBUG" if level == "debug" else "ERROR")
    listener.start()
    try:
        yield
    finally:
        for one, (old, propagate) in zip(loggers, before, strict=True):
            one.removeHandler(handler)
            one.setLevel(old)
            one.propagate = propagate
        _stop(listener)


def _stop(listener: logging.handlers.QueueListener, seconds: float = 2.0) -> None:
    """Write what waits, unless nobody reads it."""
    thread = listener._thread
    with contextlib.suppress(queue.Full):
        listener.enqueue_sentinel()
    if thread is not None:
        thread.join(seconds)


class _Dropping(logging.handlers.QueueHandler):
    """Puts records into the queue of the writing thread, and counts those that it has no room for."""

    def __init__(self, waiting: queue.Queue[Any]) -> None:
        super().__init__(waiting)
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped:
                record.dropped = self.dropped
            self.queue.put_nowait(record)
            self.dropped = 0
        except queue.Full:
            self.dropped += 1


def _read(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, "fields", None) or {})
    if dropped := getattr(record, "dropped", 0):
        fields["dropped_lines"] = dropped
    return fields


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class TextLines(logging.Formatter):
    """`2026-11-18T12:00:00.000Z INFO answered method=GET path=/search status=200 …`, one line for a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; tracebacks follow on lines of their own."""
        fields = " ".join(f"{name}={_word(value)}" for name, value in _read(record).items())
        said = _escape(record.getMessage())
        line = f"{_time(record)} {record.levelname:<7} {said}{' ' if fields else ''}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object for a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        line |= _read(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def _word(value: Any) -> str:
    """A value as one word: with quotes if it has spaces, and nothing that a terminal would act on."""
    text = _escape(str(value))
    return json.dumps(text) if " " in text or '"' in text or not text else text


def _escape(text: str) -> str:
    """Text without control characters, which could fake a line of the log.

    >>> _escape("a\\nb")
    'a\\\\nb'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
