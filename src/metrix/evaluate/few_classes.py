"""When figures are of too few classes to mean much."""

from __future__ import annotations

from metrix.data.training_parts import FEW_CLASSES
from metrix.messages import count


def describe_few_classes(classes: int) -> str:
    """A caution to show next to figures measured on fewer than five classes; empty for more.

    >>> describe_few_classes(3)
    'of 3 classes only: another choice of classes could give very different figures'
    >>> describe_few_classes(5)
    ''
    """
    if classes >= FEW_CLASSES:
        return ""
    if classes == 1:
        return "of 1 class only, of which no answer can be wrong: they mean nothing"
    return f"of {count(classes, 'class')} only: another choice of classes could give very different figures"
