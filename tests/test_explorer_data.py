"""What the explorer and the library are both held to: the library gives it, and the page's data are its."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "explorer").glob("*.*"))
#: In float64 exp may differ in its last bit between machines; everything else is compared bit for bit.
CLOSE = 4 * 2.0**-52
ROUNDED_ALONE = {"law", "attention"}
FROM_FLOAT64 = {"true_s", "true_lse", "lost_by_underflow", "lost_by_stalling"}


@pytest.fixture(scope="module")
def data() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        return importlib.import_module("explorer_data")


def differences(found: Any, wanted: Any, close: bool, at: str = "") -> list[str]:
    """Where two values of JSON differ."""
    if isinstance(wanted, dict):
        if found.keys() != wanted.keys():
            return [f"{at}: {sorted(found.keys() ^ wanted.keys())}"]
        return [
            line
            for key in wanted
            for line in differences(
                found[key], wanted[key], close or key in ROUNDED_ALONE | FROM_FLOAT64, f"{at}.{key}"
            )
        ]
    if isinstance(wanted, list):
        if len(found) != len(wanted):
            return [f"{at}: {len(found)} entries, not {len(wanted)}"]
        return [
            line
            for n, (a, b) in enumerate(zip(found, wanted, strict=True))
            for line in differences(a, b, close, f"{at}[{n}]")
        ]
    near = close and isinstance(wanted, float) and isinstance(found, float)
    if found == wanted or (near and abs(found - wanted) <= CLOSE * max(1.0, abs(wanted))):
        return []
    return [f"{at}: {found}, not {wanted}"]


def test_the_library_gives_the_values_that_the_page_is_held_to(data: Any) -> None:
    made = json.loads(json.dumps(data.values(), allow_nan=False))
    assert differences(made, json.loads(data.GOLDEN.read_text(encoding="utf-8")), close=False) == []


def test_a_changed_value_is_found() -> None:
    assert differences({"s": [1.0, "inf"]}, {"s": [1.0 + 2.0**-52, "inf"]}, close=False) == [
        ".s[0]: 1.0, not 1.0000000000000002"
    ]
    assert differences({"law": [1.0]}, {"law": [1.0 + 2.0**-52]}, close=False) == []
    assert differences({"law": ["nan"]}, {"law": ["inf"]}, close=False) == [".law[0]: nan, not inf"]


def test_the_pages_devices_are_the_librarys(data: Any) -> None:
    assert data.DEVICES.read_text(encoding="utf-8") == data.devices_js(), (
        "python scripts/explorer_data.py would do"
    )


def test_the_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    page = (ROOT / "explorer" / "index.html").read_text(encoding="utf-8")
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") < 400, path.name
        if path.suffix in (".js", ".css"):
            assert f'"{path.name}"' in page, f"{path.name} is not in the page"
        if path.name not in ("devices.js", "README.md"):
            for word in ("http:", "https:", "fetch(", "import(", "@import", 'type="module"', "XMLHttp"):
                assert word not in text.replace("http://www.w3.org/2000/svg", ""), (path.name, word)
