"""What the explorer's tests share: its files, a window that writes down what goes wrong, readings."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "explorer" / "index.html"
GOLDEN = ROOT / "tests" / "golden" / "explorer.json"
SHOTS = ROOT / "out" / "explorer"


def executable() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


def missing() -> str | None:
    """What the tests of the page lack here, in words."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (pip install 'online-softmax[browser]')"
    if executable() is None:
        return "no chromium on the path (apt-get install chromium, or CHROMIUM=/path/to/one)"
    return None


class Window:
    """A browser window that writes down what goes wrong in it."""

    def __init__(self, browser: Any, *, width: int, scheme: str, **options: Any) -> None:
        self.faults: list[str] = []
        size = {"width": width, "height": 800}
        self._context = browser.new_context(viewport=size, color_scheme=scheme, **options)
        self._page = self._context.new_page()
        self._page.set_default_timeout(20_000)
        self._page.on("console", lambda message: self.faults.append(f"{message.type}: {message.text}"))
        self._page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self._page.on("requestfailed", lambda request: self.faults.append(f"failed: {request.url}"))
        self._page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith(("file://", "data:", "about:")):
            self.faults.append(f"asked: {url}")

    def opened(self, settings: str) -> Any:
        # Another address of the same file would only change its state.
        self._page.goto("about:blank")
        self._page.goto(f"{PAGE.as_uri()}{'#' if settings else ''}{settings}")
        return self._page

    def close(self) -> None:
        self._context.close()


def number(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("−", "-"))


def cells(page: Any, table: str) -> list[list[str]]:
    """The texts of a table's body, row by row."""
    script = "t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText.trim()))"
    found: list[list[str]] = page.locator(f"#{table}").evaluate(script)
    return found
