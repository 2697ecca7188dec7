"""Result files: refused before the run where they cannot be written, and never seen half written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def check_writable(option: str, path: str | os.PathLike[str] | None) -> None:
    """ValueError, naming the option, for a path that cannot be written: its folder is missing or read-only,
    or it is a folder. Nothing is written."""
    if path is None:
        return
    place = Path(path)
    folder = place.absolute().parent
    if place.is_dir():
        raise ValueError(f"{option}: {place} is a folder: the name of a file would do")
    if not folder.is_dir():
        raise ValueError(f"{option}: {place} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK) or (place.exists() and not os.access(place, os.W_OK)):
        raise ValueError(f"{option}: {place} cannot be written: permission denied")


def write_safely(path: str | os.PathLike[str], text: str) -> None:
    """Write the text under a temporary name beside the path, then give it its name. OSError where that
    fails; the file of before is whole then."""
    place = Path(path)
    if place.exists() and not place.is_file():  # /dev/stdout, a pipe: what has no earlier content to lose
        place.write_text(text, encoding="utf-8")
        return
    place = place.resolve()
    handle, temporary = tempfile.mkstemp(dir=place.absolute().parent, prefix=f".{place.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
