"""A headless Chromium for the explorer's tests: one a process, a page a test, and nothing may go wrong in it.

Skipped where Playwright or Chromium is missing; with REQUIRE_BROWSER=1 that is a failure. CHROMIUM names
another executable.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "explorer" / "index.html"
GOLDEN = ROOT / "tests" / "golden" / "explorer.json"
SHOTS = ROOT / "out" / "explorer"
Open = Callable[..., Any]


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    lacking = missing()
    if lacking is not None:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(f"REQUIRE_BROWSER=1, but {lacking}")
        pytest.skip(lacking)
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable(), args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def window(browser: Any) -> Iterator[Window]:
    """The window that tests without wishes of their own share: a new one costs half a second."""
    shared = Window(browser, width=1280, scheme="light")
    yield shared
    shared.close()


@pytest.fixture
def explorer(browser: Any, window: Window) -> Iterator[Open]:
    """Opens the page with settings in its address; fails at the end of the test for any error, warning or
    request to elsewhere. With a width, a scheme or further options the page has a window of its own."""
    window.faults.clear()
    own: list[Window] = []

    def opened(settings: str = "", *, width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        used = window
        if (width, scheme) != (1280, "light") or options:
            used = Window(browser, width=width, scheme=scheme, **options)
            own.append(used)
        return used.opened(settings)

    yield opened
    faults = [fault for one in (window, *own) for fault in one.faults]
    for one in own:
        one.close()
    assert faults == []


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """The library's values, with the infinities and NaN that JSON has not."""
    special = {name: float(name) for name in ("inf", "-inf", "nan")}

    def numbers(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: numbers(item) for key, item in value.items()}
        if isinstance(value, list):
            return [numbers(item) for item in value]
        return special.get(value, value) if isinstance(value, str) else value

    found: dict[str, Any] = numbers(json.loads(GOLDEN.read_text(encoding="utf-8")))
    return found


def number(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("−", "-"))


def cells(page: Any, table: str) -> list[list[str]]:
    """The texts of a table's body, row by row."""
    script = "t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText.trim()))"
    found: list[list[str]] = page.locator(f"#{table}").evaluate(script)
    return found
