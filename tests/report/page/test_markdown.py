"""Pages as Markdown."""

from __future__ import annotations

import re

from tests.report.page.pages import NASTY, a_page


def test_markdown_keeps_nasty_text_within_its_cell() -> None:
    text = a_page(NASTY).to_markdown("some files")
    assert "<script" not in text
    assert "http://" not in text
    assert "](http" not in text.replace("\\]", "")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert columns == {4}, lines
    assert "(some%20files/" in text
