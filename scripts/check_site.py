"""Holds the built documentation site to being whole: every link within it leads to a file and an anchor that
are there, and nothing is fetched from the network.

    python scripts/check_site.py build/docs/html
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes by which a page fetches something as it is shown.
FETCHING = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
#: Links of the head that name a place and fetch nothing.
NAMING = {"canonical", "author", "license", "next", "prev", "search", "index"}
_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        for name, value in given.items():
            if (tag, name) in FETCHING and given.get("rel") not in NAMING:
                self.fetched.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def faults(site: Path) -> list[str]:
    """What is wrong, a line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site}: no page; build it first"]
    for path, page in pages.items():
        name = path.relative_to(site)
        for target in page.links + page.fetched:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.fetched and parts.scheme != "data":
                    found.append(f"{name}: fetches {target}")
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file():
                found.append(f"{name}: {target} leads nowhere")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                found.append(f"{name}: {target} names an anchor that is not there")
    for path in sorted(site.rglob("*.css")):
        for match in _URL.finditer(path.read_text(encoding="utf-8")):
            if urlsplit(match[1] or match[2]).scheme.startswith("http"):
                found.append(f"{path.relative_to(site)}: fetches {match[1] or match[2]}")
    return found


if __name__ == "__main__":
    said = faults(Path(sys.argv[1]).resolve())
    print("\n".join(said) or "every link of the site leads somewhere, and nothing is fetched from elsewhere")
    sys.exit(bool(said))
