"""Any text (class names, paths) made safe for HTML, Markdown, file names and figures, and shown as it was given.

Jinja escapes what HTML gives a meaning to; `clean` removes what HTML and UTF-8 forbid.
"""

from __future__ import annotations

import re
import unicodedata


def clean(text: object) -> str:
    """The text with � for characters that UTF-8 or HTML do not allow.

    >>> clean("a\\x00b\\udcffc")
    'a�b�c'
    """
    return "".join(
        "�" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c
        for c in str(text).replace("\r\n", "\n")
    )


def split_paragraphs(text: object) -> list[str]:
    r"""The paragraphs of a text, which blank lines separate.

    >>> split_paragraphs("one\n\ntwo\n\n")
    ['one', 'two']
    """
    return [part for part in clean(text).split("\n\n") if part.strip()]


def escape_markdown(text: object) -> str:
    """The text on one line with Markdown's special characters escaped, also for use in a table.

    >>> escape_markdown("a_b|c <i>")
    'a\\\\_b\\\\|c &lt;i&gt;'
    """
    line = " ".join(clean(text).split())
    line = re.sub(r"([\\`*_\[\]|~$#])", r"\\\1", line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"(?i)\b(https?:|www\.)", lambda found: found.group()[:-1] + f"&#{ord(found.group()[-1])};", line)
    return re.sub(r"^(\d+)([.)])(?= |$)|^([-+=])", lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", line)


def shorten_for_figure(text: object, longest: int = 40) -> str:
    """The text on one line of at most `longest` characters; matplotlib would leave a leading _ out of a legend.

    >>> shorten_for_figure("_a long name", longest=8)
    ' _a long…'
    """
    line = " ".join(clean(text).split())
    line = line if len(line) <= longest else f"{line[: longest - 1]}…"
    return " " + line if line.startswith("_") else line


def slugify(text: object) -> str:
    """The text as a name for a file or an anchor: lower-case ASCII letters, digits and hyphens.

    >>> slugify("Recall@1, per class"), slugify("日本")
    ('recall-1-per-class', 'part')
    """
    plain = unicodedata.normalize("NFKD", clean(text)).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "part"
