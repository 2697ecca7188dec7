"""The answers in docs/: their code runs, their figures come from it, their tables are the library's, their
links and the theorems and tests they name are there."""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PARTS = (*(f"answers/part{n}.md" for n in range(1, 7)), "answers/bonus.md")
PAGES = ("answers.md", *PARTS)
#: Parts of the exercise and how many numbered questions each has; part 4 has a table besides.
ASKED = {"1": 4, "2": 4, "3": 4, "4": 3, "5": 5, "6": 3, "B": 1}

_NUMBER = re.compile(r"(?<![\w.^])(\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)(?:(?:\^|\*\*)(-?\d+))?")
#: Bytes and seconds of a unit; None where it scales nothing.
_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
    "TB/s": 10**12, "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "ns": Decimal("1e-9"), "%": Decimal("0.01"),
    "times": None, "bits": None, "FLOP/byte": None, "flops": None, "columns": None, "units": None,
}  # fmt: skip
_UNIT = re.compile(r"\s?(" + "|".join(sorted(_UNITS, key=len, reverse=True)) + r")(?![\w/])")


@pytest.fixture(scope="module")
def scripts() -> dict[str, ModuleType]:
    """scripts/answers_tables.py and scripts/proof_claims.py, which are in no package."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import answers_tables
        import proof_claims
    finally:
        sys.path.pop(0)
    return {"tables": answers_tables, "claims": proof_claims}


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def session(page: str) -> doctest.DocTest:
    """The `>>>` blocks of a page as one session; line numbers are the page's."""
    kept, inside = [], False
    for line in text_of(page).split("\n"):
        if line.startswith("```"):
            inside = line == "```python" and not inside
            line = ""
        kept.append(line if inside else "")
    return doctest.DocTestParser().get_doctest("\n".join(kept), {}, page, page, 0)


@pytest.mark.parametrize("page", PARTS)
def test_the_code_of_a_page_prints_what_the_page_says(page: str) -> None:
    told: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(session(page), out=told.append)
    assert result.attempted >= 5
    assert result.failed == 0, "".join(told)


# ---- figures


def numbers(text: str) -> Iterator[tuple[str, Decimal, str | None]]:
    """Of each number in a text: as it stands, its value (of a power, the power's), its unit or None."""
    for match in _NUMBER.finditer(text):
        value = Decimal(match[1].replace("_", ""))
        if match[2] is not None:
            value = value ** int(match[2])
        unit = _UNIT.match(text, match.end())
        yield match[0], value, unit and unit[1]


def of_code(page: str) -> set[Decimal]:
    """The numbers a page's code has in it or prints, those with a unit in bytes or seconds too."""
    found = set()
    for example in session(page).examples:
        for _, value, unit in numbers(example.source + example.want):
            found |= {value, value * (_UNITS.get(unit or "") or 1)}
    return found


def prose(text: str) -> str:
    """A page without code, comments, the targets of links, numbers of questions, years, tests' names."""
    for pattern in (
        r"```python\n.*?```", r"<!--.*?-->", r"\]\([^)\s]*\)", r"(?m)^#[^\n]*", r"\[[\dB]\.[\dT][ \]]",
        r"tests/\S+", r"(?:[A-Z]\w+|et al\.),? \(?(?:19|20)\d\d\b", r"`test_\w+`", r"IEEE 754",
        r"(?i)\bparts? \d",
    ):  # fmt: skip
        text = re.sub(pattern, " ", text, flags=re.S)
    return text


def shown_by(value: Decimal, as_it_stands: str, unit: str | None, known: set[Decimal]) -> bool:
    """Whether a known number is this one, or rounds to it, in its unit."""
    base, _, exponent = as_it_stands.partition("e")
    if "^" in as_it_stands or "**" in as_it_stands:
        return value in known
    last = Decimal(1).scaleb(int(exponent or 0) - len(base.partition(".")[2]))
    scale = _UNITS.get(unit or "") or 1
    return any(abs(candidate / scale - value) <= last / 2 for candidate in known)


def is_a_figure(as_it_stands: str, value: Decimal, unit: str | None) -> bool:
    """What has to come from code: three digits or more, a fraction, a power, or a unit."""
    digits = re.sub(r"\D", "", as_it_stands.partition("e")[0]).lstrip("0")
    return len(digits) >= 3 or "." in as_it_stands or "^" in as_it_stands or unit is not None


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_of_a_page_is_in_its_code(page: str) -> None:
    """Exactly, or as a number of the code rounds; those of the index in the code of any page."""
    known = set().union(*map(of_code, PARTS if page == "answers.md" else (page,)))
    figures = [found for found in numbers(prose(text_of(page))) if is_a_figure(*found)]
    assert figures
    assert [n + (unit or "") for n, value, unit in figures if not shown_by(value, n, unit, known)] == []


@pytest.mark.parametrize(
    ("said", "shown", "fits"),
    [
        ("88.72", "88.722839", True),
        ("88.73", "88.722839", False),
        ("134.2 MB", "134217728", True),
        ("128 MiB", "134217728", True),
        ("128 MB", "134217728", False),
        ("128 MB", "128 MiB", False),
        ("268.4 us", "0.000268435456", True),
        ("2^-25", "2**-25", True),
        ("2^-24", "2**-25", False),
        ("99.78 %", "0.9978", True),
        ("3.78e-44", "3.783e-44", True),
        ("3.78e-44", "3.783e-43", False),
        ("16384 B", "16.4 kB", False),
    ],
)
def test_a_figure_is_looked_for_in_its_unit(said: str, shown: str, fits: bool) -> None:
    [(as_it_stands, value, unit)] = numbers(said)
    known = {n * s for _, n, u in numbers(shown) for s in {1, _UNITS.get(u or "") or 1}}
    assert is_a_figure(as_it_stands, value, unit)
    assert shown_by(value, as_it_stands, unit, known) is fits


# ---- questions, tables, links


def test_every_question_has_its_answer(scripts: dict[str, ModuleType]) -> None:
    listed = scripts["tables"].questions(DOCS)
    asked = {f"{part}.{n}" for part, count in ASKED.items() for n in range(1, count + 1)} | {"4.T"}
    assert {question.id for question in listed} == asked
    for question in listed:
        section = text_of(question.page).partition(f"## {question.id} ")[2].partition("\n## ")[0]
        assert section.partition("\n\n")[2].startswith("**Answer.** "), question.id
        assert ">>> " in section, question.id
        assert question.tests, question.id


def test_the_theorems_and_tests_that_answers_name_are_there(scripts: dict[str, ModuleType]) -> None:
    claims = scripts["claims"]
    proved = {claim.theorem for claim in claims.claims(ROOT)}
    listed = scripts["tables"].questions(DOCS)
    assert [(q.id, name) for q in listed for name in q.proved if name not in proved] == []
    assert [(q.id, node) for q in listed for node in q.tests if not claims.is_a_test(node, ROOT)] == []
    assert sum(bool(q.proved) for q in listed) >= 15


def test_tables_and_references_are_current(scripts: dict[str, ModuleType]) -> None:
    """What `python scripts/answers_tables.py --check` looks at."""
    pages = scripts["tables"].renewed(DOCS)
    assert [page for page, text in pages.items() if text != text_of(page)] == []


def test_a_stale_table_is_told_and_mended(
    scripts: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables = scripts["tables"]
    (tmp_path / "docs" / "answers").mkdir(parents=True)
    for page in (*PAGES, "answers/questions.toml"):
        (tmp_path / "docs" / page).write_text(text_of(page), encoding="utf-8")
    stale = tmp_path / "docs" / "answers" / "part5.md"
    stale.write_text(text_of("answers/part5.md").replace("| 536870912 |", "| 536870911 |"), encoding="utf-8")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["answers_tables.py", "--check"])
    assert tables.main() == 1
    assert "docs/answers/part5.md is not current" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["answers_tables.py"])
    assert tables.main() == 0
    assert stale.read_text(encoding="utf-8") == text_of("answers/part5.md")


def test_a_place_without_a_table_is_refused(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    (tmp_path / "answers").mkdir()
    for page in (*PAGES, "answers/questions.toml"):
        text = text_of(page).replace("<!-- times: ", "<!-- hours: ")
        (tmp_path / page).write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match="hours is no generated part"):
        scripts["tables"].renewed(tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str, scripts: dict[str, ModuleType]) -> None:
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text_of(page))
    assert len(links) >= 3
    for file, anchor in links:
        target = (DOCS / page).parent / file if file else DOCS / page
        assert target.exists(), file
        if anchor and "proofs" not in file:  # anchors of theorems: by their names, above
            headings = re.findall(r"^#+ (.*)", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {scripts["tables"].slug(heading) for heading in headings}, (file, anchor)
