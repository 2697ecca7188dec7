"""Everything the pages show runs, and holds: README.md, CONTRIBUTING.md and docs/, a test a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from urllib.parse import unquote

import docs_code
import pytest
from docs_code import DOCS, ROOT, Page, blocks, has_kernels, pages
from helpers import CHOICES
from markdown_it import MarkdownIt

#: tests/test_answers.py runs the answers.
PAGES = [page for page in pages() if page.parent != DOCS / "answers"]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if not has_kernels(page)], ids=name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        Page(page).run(interpreted=False)
    finally:
        if swap := sys.modules.get("online_softmax.torch"):
            swap.disable()  # what enable() has put in the place of PyTorch's functions


def test_the_code_of_pages_with_kernels_runs(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {k: v for k, v in os.environ.items() if k not in CHOICES}
    environment |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, docs_code.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def anchors(page: Path) -> set[str]:
    """What links to a page may name: its headings, as GitHub and MyST call them, and anchors in HTML."""
    text = page.read_text(encoding="utf-8")
    tokens = MarkdownIt("commonmark").parse(text)
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    slugs = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    for token in (inner for outer in tokens for inner in outer.children or ()):
        target = str(token.attrGet("href") or token.attrGet("src") or "")
        file, _, anchor = unquote(target).partition("#")
        if not target or ":" in file:
            continue
        there = (page.parent / file).resolve() if file else page
        assert there.is_relative_to(ROOT), (name(page), target)
        assert there.exists(), (name(page), target)
        assert not anchor or anchor in anchors(there), (name(page), target)


def test_the_site_leads_to_every_page() -> None:
    """By the lists of pages in the index files, which are the site's navigation."""
    listed: set[Path] = set()
    for index in DOCS.rglob("index.md"):
        listed.add(index)
        for block in blocks(index):
            if block.language == "{toctree}":
                lines = [line for line in block.text.splitlines() if line and line[0] != ":"]
                entries = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
                listed |= {file for entry in entries for file in index.parent.glob(f"{entry}.*")}
    assert {*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")} <= listed


class Made:
    """A page of a test's own."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page = tmp_path / "page.md"
        monkeypatch.setattr(docs_code, "ROOT", tmp_path)
        monkeypatch.chdir(tmp_path)

    def run(self, text: str) -> None:
        self.page.write_text(text, encoding="utf-8")
        Page(self.page).run(interpreted=False)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert 1 + 1 == 3\n```",
        "```python\n>>> 1 + 1\n3\n```",
        "```python\nimport warnings\nwarnings.warn('old')\n```",
        "```rust\nfn main() {}\n```",
        "```\n1 + 1\n```",
        "```toml\na = \n```",
        "```sh\nrm -rf /\n```",
        "```sh\nonline-softmax formats --nothing\n```",
        "```console\n$ online-softmax --version\nonline-softmax 17\n```",
        "<!-- test: output -->\n```text\nsomething\n```",
        "<!-- test: instead -->\n```python\npass\n```",
        "<!-- test: nothing of the kind -->\n```python\npass\n```",
        "<!-- test: setup\nx = 1\n-->\n\nNo block below.",
        "```text\nonline-softmax formats\n```",
        "<!-- test: parse formats: for its cost here -->\n\n    online-softmax formats --nothing",
        "<!-- test: parse formats -->\n\n    online-softmax formats",
        "    y = 1",
    ],
)
def test_what_does_not_hold_is_found(made: Made, text: str) -> None:
    with pytest.raises((AssertionError, SyntaxError, Warning, ValueError, docs_code.USAGE_ERROR)):
        made.run(text + "\n")


def test_a_page_is_run_as_a_script(made: Made) -> None:
    made.run(
        "<!-- test: setup\nx = 20\n-->\n```python\nx += 1\nprint(x)\n```\n\n"
        "<!-- test: output -->\n\n    21\n\n```python\n>>> x + 1\n22\n\n```\n\n"
        "```console\n$ online-softmax --version\nonline-softmax 0.1.0\n```\n"
    )


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        (docs_code.check_make, ["nothing"]),
        (docs_code.check_make, ["test", "NOTHING=1"]),
        (docs_code.check_pip, ["install", ".[nothing]"]),
        (docs_code.check_python, ["examples/paged_decode.py", "--nothing"]),
        (docs_code.check_pytest, ["--online-softmax-nothing"]),
    ],
)
def test_a_command_that_is_not_there_is_found(check, arguments) -> None:
    with pytest.raises(AssertionError):
        check(arguments)


def test_warnings_are_errors_here_too() -> None:
    with pytest.raises(UserWarning):
        warnings.warn("a page may not warn", stacklevel=1)
