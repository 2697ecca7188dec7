"""What the pages on bits show runs, and holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("same_bits.md", "same_bits_losses.md", "same_bits_attention.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str) -> None:
    """Blocks of a page in their order, in one namespace; each asserts what the text says."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    code = "\n".join(blocks)
    assert "assert" in code
    exec(compile(code, page, "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+\.md)(?:#([^)]*))?\)", (DOCS / page).read_text(encoding="utf-8"))
    assert links
    for file, anchor in links:
        text = (DOCS / file).read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
            for h in re.findall(r"^#+ (.*)", text, re.M)
        }
        assert not anchor or anchor in headings, (file, anchor)
