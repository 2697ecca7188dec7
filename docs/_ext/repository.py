"""Files of the repository that are pages of the site too, links between them and the pages, and the explorer.

A page whose only text is `<!-- file: ../README.md -->` and a line for readers of the repository shows that
file. Links are written for the repository, where README.md lies above docs/: here they are turned to the page
that shows the file, or, where none does, to a copy of it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

_FILE = re.compile(r"<!-- file: (\S+) -->")
_LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
_ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)


def shown_files(docs: Path) -> dict[Path, str]:
    """Files outside docs/ by the page that shows them."""
    found = {}
    for page in docs.glob("*.md"):
        named = _FILE.match(page.read_text(encoding="utf-8"))
        if named:
            found[(docs / named[1]).resolve()] = page.stem
    return found


def relinked(text: str, folder: Path, docs: Path, docname: str) -> str:
    """`text` of a file in `folder`, its relative links as seen from the page `docname`."""
    shown = shown_files(docs)
    here = (docs / docname).parent

    def turn(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_dir() and (target / "README.md").is_file():
            target = target / "README.md"
        if target in shown:
            target = docs / f"{shown[target]}.md"
        return f"{link[1]}{os.path.relpath(target, here)}{link[3]}"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(turn, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(turn, text[end:])])


def _read(app: Sphinx, docname: str, content: list[str]) -> None:
    docs = Path(app.srcdir)
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".md":
        return
    named = _FILE.match(content[0])
    if named:
        path = (path.parent / named[1]).resolve()
        app.env.note_dependency(str(path))
        content[0] = path.read_text(encoding="utf-8")
    content[0] = relinked(content[0], path.parent, docs, docname)
    # An anchor in HTML is one that links to it cannot be checked against; as MyST's own it can.
    content[0] = _ANCHOR.sub(r"[]{#\1}", content[0])
    # Pages that conf.py leaves out are not in the navigation either.
    for page in app.config.exclude_patterns:
        content[0] = re.sub(rf"^{re.escape(page.removesuffix('.md'))}\n", "", content[0], flags=re.M)


def _explorer(app: Sphinx, error: Exception | None) -> None:
    """The explorer is a page without a build: its folder is copied as it is."""
    source = Path(app.srcdir).parent / "explorer"
    if error or app.builder.format != "html" or not (source / "index.html").is_file():
        return
    target = Path(app.outdir) / "explorer"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.md", "*.py", "__pycache__"))


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("source-read", _read)
    app.connect("build-finished", _explorer)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
