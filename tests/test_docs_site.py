"""What makes the documentation site, where it can go wrong without a warning: docstrings turned into
reStructuredText, and the check of the built pages. The build itself is `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT / "scripts")]
try:
    import check_site
    import docstrings
finally:
    del sys.path[:2]

DOCSTRING = """\
exp(x) ** 2 over `axis`, of |x| and dx_ at most.

Args:
    x, *rest: numbers; a long
        text goes on.
    out: an array, see `softmax`.

Raises:
    ValueError: for an x that is
        empty.

Cost: one read
and one write.

- one
- two, over
  two lines

term
    What it is, in docs/bounds.md.

A table:

    a  |  b

Returns: a number.
"""

REST = """
exp(x) \\*\\* 2 over ``axis``, of \\|x\\| and dx\\_ at most.

:Arguments:

    ``x``, ``*rest``
        numbers; a long text goes on.

    ``out``
        an array, see :py:obj:`softmax`.

:Raises:

    ``ValueError``
        for an x that is empty.

:Cost:

    one read and one write.

- one

- two, over two lines

term
    What it is, in :doc:`/bounds`.

A table:

::

    a  |  b


:Returns:

    a number."""


def test_a_docstring_becomes_markup_that_means_the_same() -> None:
    found = docstrings.rest(DOCSTRING, lambda name: f":py:obj:`{name}`" if name == "softmax" else None)
    assert "\n".join(found) == REST


def test_code_that_touches_a_word_stays_code() -> None:
    assert docstrings.inline("two `a`s and `b`.", lambda name: None) == "two ``a``\\ s and ``b``."


GOOD = '<html><link rel="stylesheet" href="site.css"><h1 id="top">x</h1><a href="b.html#end">b</a></html>'


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("", None),
        ('<a href="https://example.org/">elsewhere</a>', None),
        ('<a href="#top">up</a>', None),
        ('<a href="c.html">c</a>', "a.html: c.html leads nowhere"),
        ('<a href="#nothing">x</a>', "a.html: #nothing names an anchor that is not there"),
        ('<a href="b.html#top">x</a>', "a.html: b.html#top names an anchor that is not there"),
        ('<script src="https://example.org/a.js"></script>', "a.html: fetches https://example.org/a.js"),
        ('<img src="//example.org/a.png">', "a.html: fetches //example.org/a.png"),
        ('<img src="a.png">', "a.html: a.png leads nowhere"),
    ],
)
def test_the_site_is_held_to_being_whole(tmp_path: Path, page: str, said: str | None) -> None:
    (tmp_path / "a.html").write_text(GOOD + page, encoding="utf-8")
    (tmp_path / "b.html").write_text('<p id="end">', encoding="utf-8")
    (tmp_path / "site.css").write_text("p { background: url(data:x) }", encoding="utf-8")
    assert check_site.faults(tmp_path) == ([said] if said else [])


def test_fonts_from_elsewhere_and_an_empty_site_are_faults(tmp_path: Path) -> None:
    assert check_site.faults(tmp_path)
    (tmp_path / "a.html").write_text("x", encoding="utf-8")
    (tmp_path / "a.css").write_text("@import 'https://example.org/a.css';", encoding="utf-8")
    assert check_site.faults(tmp_path) == ["a.css: fetches https://example.org/a.css"]
