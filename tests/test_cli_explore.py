"""`online-softmax explore`: the page it finds, opens, or names where no browser can be opened."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from test_cli import fails

from online_softmax.cli import explore, main

FILES = ("state.js", "formats.js", "devices.js", "main.js", "style.css", "pictures.css")


def test_the_page_comes_with_the_package(capsys) -> None:
    assert main(["explore", "--path"]) == 0
    found = Path(capsys.readouterr().out.strip())
    assert found.name == "index.html"
    text = found.read_text(encoding="utf-8")
    for name in FILES:
        assert f'"{name}"' in text
        assert (found.parent / name).is_file()


def test_it_opens_the_page_in_a_browser(capsys, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or True)
    assert main(["explore"]) == 0
    assert asked == [explore.page().as_uri()]
    assert capsys.readouterr().out == f"opened {explore.page()}\n"


def test_it_names_the_page_where_there_is_no_browser(capsys, monkeypatch) -> None:
    def refused(url: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    for opener in (lambda url: False, refused):
        monkeypatch.setattr(webbrowser, "open", opener)
        assert main(["explore"]) == 1
        printed = capsys.readouterr()
        assert printed.out == f"{explore.page()}\n"
        assert "no browser could be opened" in printed.err


def test_a_missing_page_is_told_with_the_places_looked_at(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(explore, "PLACES", (tmp_path / "one", tmp_path / "two"))
    fails(capsys, ["explore"], f"{tmp_path / 'one'} and {tmp_path / 'two'}: installing")
    with pytest.raises(FileNotFoundError, match=r"index\.html"):
        explore.page()
