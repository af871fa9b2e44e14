"""What the text of a path says: whether it leads out of its folder, and whether it is text at all."""

from __future__ import annotations

import os


def leaves_root(path: str) -> bool:
    """Whether a path leads outside the folder that it is relative to, judged by its text alone."""
    drive, below = os.path.splitdrive(path)
    plain = below.replace(os.sep, "/")  # text, not pathlib: millions of paths are looked at
    return bool(drive) or plain.startswith("/") or ".." in plain.split("/") or "\0" in path


def is_unicode(name: str) -> bool:
    """Whether a name can be written as UTF-8; bytes of a file name that are not become lone surrogates in Python."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
