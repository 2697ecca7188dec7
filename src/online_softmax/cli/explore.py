"""`online-softmax explore`."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

#: Beside the package's modules where it was installed; in a source tree the folder at its root.
_PACKAGE = Path(__file__).parent.parent
PLACES = (_PACKAGE / "explorer", _PACKAGE.parent.parent / "explorer")


def page() -> Path:
    """The explorer's index.html. Raises FileNotFoundError, naming where it was looked for."""
    for place in PLACES:
        if (place / "index.html").is_file():
            return place / "index.html"
    looked = " and ".join(str(place) for place in PLACES)
    raise FileNotFoundError(f"explorer: no index.html in {looked}: installing the package again would do")


def command(
    path: Annotated[bool, typer.Option("--path", help="Print where the page is, and open nothing.")] = False,
) -> None:
    """Open the explorer in a browser: the stream, its merges, bytes and tiles of attention, to step through.

    A page of files that needs no network. Exit code: 0 opened, or printed with --path; 1 where no browser
    could be opened, the page's place being printed then.
    """
    found = page()
    if path:
        print(found)
        return
    try:
        opened = webbrowser.open(found.as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        print("online-softmax: no browser could be opened here; open this file in one:", file=sys.stderr)
        print(found)
        raise typer.Exit(1)
    print(f"opened {found}")
