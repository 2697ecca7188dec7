"""A headless Chromium for the explorer's tests: one a process, a page a test, and nothing may go wrong in it.

Skipped where Playwright or Chromium is missing; with REQUIRE_BROWSER=1 that is a failure. CHROMIUM names
another executable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from explorer_window import GOLDEN, Window, executable, missing

Open = Callable[..., Any]


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
