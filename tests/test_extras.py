"""Optional libraries: the message names the library and the extra, and hides no failure of another kind."""

from __future__ import annotations

import math
import sys

import pytest

from online_softmax.extras import MissingExtra, require


def test_an_installed_module_is_returned() -> None:
    assert require("math", "nothing", "a sum") is math


def test_a_missing_one_is_named_with_its_extra() -> None:
    with pytest.raises(MissingExtra) as caught:
        require("no_such_library_here.part", "plots", "a plot")
    assert str(caught.value) == (
        "a plot needs no_such_library_here, which is not installed: pip install 'online-softmax[plots]'"
    )


def test_a_failure_inside_a_module_passes(tmp_path, monkeypatch) -> None:
    (tmp_path / "half_installed.py").write_text("import something_it_lacks\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as caught:
        require("half_installed", "plots", "a plot")
    assert not isinstance(caught.value, MissingExtra)
    assert caught.value.name == "something_it_lacks"
    assert "half_installed" not in sys.modules
