"""Docstrings of the package, which are plain text with a few conventions, as reStructuredText.

The conventions: paragraphs; `names` between backticks; "- " lists; sections ("Args:", "Raises:") of entries
"name, name: text"; terms with an indented text below; further indented text is shown as it is. Everything
else is text and is escaped, so that no docstring can be broken markup: stars, bars and underscores stand for
themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable

SECTIONS = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Raises": "Raises",
    "Returns": "Returns",
    "Cost": "Cost",
}
INDENT = "    "
#: What a name between backticks becomes: reStructuredText, or None for plain code.
Link = Callable[[str], str | None]

_SECTION = re.compile(rf"({'|'.join(SECTIONS)}|Example|Examples):(.*)")
_CODE = re.compile(r"(`+)(.+?)\1(?!`)", re.S)
_PAGE = re.compile(r"\bdocs/([\w/]+)\.md\b")
_ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*):(?:\s+(.*))?$")
_RULE = re.compile(r"[\s|:+=-]+")


def rest(text: str, link: Link) -> list[str]:
    """The lines of reStructuredText that show `text`, a docstring without its common indentation."""
    return _blocks(text.expandtabs(4).splitlines(), link)


def inline(text: str, link: Link) -> str:
    """One paragraph: code between backticks, links to pages, all else escaped."""
    result, end = [], 0
    for found in _CODE.finditer(text):
        code = " ".join(found[2].split())
        result += [_plain(text[end : found.start()]), link(code) or f"``{code}``"]
        # Markup ends only before a space or a punctuation mark.
        if found.end() < len(text) and re.match(r"\w", text[found.end()]):
            result.append("\\ ")
        end = found.end()
    return "".join([*result, _plain(text[end:])])


def _plain(text: str) -> str:
    result, end = [], 0
    for found in _PAGE.finditer(text):
        result += [_escape(text[end : found.start()]), f":doc:`/{found[1]}`"]
        end = found.end()
    return "".join([*result, _escape(text[end:])])


def _escape(text: str) -> str:
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _taken(lines: list[str], start: int, more_than: int) -> tuple[list[str], int]:
    """The lines from `start` on that are deeper than `more_than`, dedented, blank ones between them too."""
    end = start
    while end < len(lines) and (not lines[end].strip() or _depth(lines[end]) > more_than):
        end += 1
    while end > start and not lines[end - 1].strip():
        end -= 1
    block = lines[start:end]
    least = min((_depth(line) for line in block if line.strip()), default=0)
    return [line[least:] for line in block], end


def _blocks(lines: list[str], link: Link) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
        elif _depth(line):
            block, at = _taken(lines, at, 0)
            out += _as_it_is(block)
        elif section := _SECTION.match(line):
            out, at = _section(lines, at, section, out, link)
        elif line.startswith("- "):
            block, end = _taken(lines, at + 1, 0)
            out += ["", *_hang("- ", _blocks([line[2:], *block], link))]
            at = end
        else:
            out, at = _paragraph(lines, at, out, link)
    return out


def _paragraph(lines: list[str], at: int, out: list[str], link: Link) -> tuple[list[str], int]:
    """The paragraph that begins at `at`, or the term with its text where a deeper line follows at once."""
    end = at + 1
    while end < len(lines) and lines[end].strip() and not _depth(lines[end]):
        if lines[end].startswith("- ") or _SECTION.match(lines[end]):
            break
        end += 1
    followed = end < len(lines) and _depth(lines[end]) > 0
    if followed and end == at + 1 and len(lines[at]) < 60:
        block, end = _taken(lines, end, 0)
        return [*out, *_entry(lines[at], block, link)], end
    return [*out, "", inline(" ".join(lines[at:end]), link)], end


def _section(
    lines: list[str], at: int, found: re.Match[str], out: list[str], link: Link
) -> tuple[list[str], int]:
    name, rest_of_line = SECTIONS.get(found[1], found[1]), found[2].strip()
    block, end = _taken(lines, at + 1, 0)
    if rest_of_line:
        body = [rest_of_line, *(line.strip() if _depth(line) < 4 else line for line in block)]
        # Its text may go on in the lines below without being deeper.
        while end < len(lines) and lines[end].strip() and not _SECTION.match(lines[end]):
            body.append(lines[end])
            end += 1
        return [*out, "", f":{name}:", *indented(_blocks(body, link))], end
    if name.startswith("Example"):
        return [*out, "", f":{name}:", *indented(_as_it_is(block))], end
    return [*out, "", f":{name}:", *indented(_entries(block, link))], end


def _entries(lines: list[str], link: Link) -> list[str]:
    """ "name, name: text" with deeper lines below, each a term and its text; other text stays text."""
    out: list[str] = []
    at = 0
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        block, end = _taken(lines, at + 1, 0)
        entry = _ENTRY.match(lines[at])
        if entry:
            out += _entry(entry[1], [entry[2] or "", *block], link, code=True)
        else:
            out += ["", *_blocks([lines[at], *block], link)]
        at = end
    return out


def _entry(term: str, body: list[str], link: Link, *, code: bool = False) -> list[str]:
    shown = ", ".join(f"``{name}``" for name in term.split(", ")) if code else inline(term, link)
    return ["", shown, *indented(_blocks(body, link) or [""], blank=False)]


def _as_it_is(block: list[str]) -> list[str]:
    if all(line.startswith("|") for line in block if line.strip()):
        block = [line for line in block if not _RULE.fullmatch(line)]
    return ["", "::", "", *(INDENT + line for line in block), ""]


def _hang(mark: str, lines: list[str]) -> list[str]:
    text = lines[lines[0] == "" :]
    return [mark + text[0], *(" " * len(mark) + line if line else "" for line in text[1:])]


def indented(lines: list[str], *, blank: bool = True) -> list[str]:
    """The lines one level deeper; without a leading blank one where `blank` is False."""
    text = lines if blank else lines[bool(lines) and lines[0] == "" :]
    return [INDENT + line if line else "" for line in text]
