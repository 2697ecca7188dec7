"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], right: int) -> str:
    """A Markdown table; the columns from the `right`-th on are aligned right."""
    rule = [":--" if i < right else "--:" for i in range(len(headings))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows))
