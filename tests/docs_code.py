"""Runs the code of a page: README.md and docs/**/*.md as scripts that their readers could have typed.

A page's Python blocks share one namespace and one empty folder, in their order. What a block's language tag
says:

    python      run; doctests where it begins with >>>
    console     "$ command" lines, each with what it prints below; sh: commands alone
    toml        parsed
    text        not run: tables and output. An indented block is commands or text, by its first word
    {toctree}   the site's navigation

Whether Triton interprets is settled when it is loaded: pages with kernels, and blocks that say so, share a
process of their own.

Commands: `online-softmax` is called, files and options of our scripts, targets of make, extras of pip and
options of pytest must exist. Comments above a block change how it is taken; each says why:

    <!-- test: setup ... -->           Python that runs first, unseen by the reader
    <!-- test: instead, why: ... -->   Python to run in place of the next block, which cannot run here (SHOWN)
    <!-- test: interpreted -->         the next block is run where Triton interprets, and there alone
    <!-- test: file NAME -->           the next block is also written to the file NAME
    <!-- test: output -->              the next block is what the one before has printed
    <!-- test: parse NAME: why -->     of the next block's `online-softmax NAME` the options are checked alone
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import os
import re
import shlex
import sys
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from markdown_it import MarkdownIt

from online_softmax import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Pages of the repository that lie elsewhere.
OUTSIDE = ("README.md", "CONTRIBUTING.md", "proofs/README.md", "explorer/README.md")
#: Languages of a fence.
KNOWN = ("python", "console", "sh", "toml", "text", "{toctree}")
COMMANDS = ("make", "pip", "python", "pytest", "online-softmax", "build/exhaustive/exhaustive")
#: Root of what a wrong call of the command raises.
USAGE_ERROR = cli._USAGE_ERROR
_ASSIGNED = re.compile(r"[A-Z_]+=\S+")
_MARK = re.compile(r"<!-- test: (setup|instead|interpreted|file|output|parse)\b(.*?)-->", re.S)
_OPTION = re.compile(r"--[a-z][\w-]*")


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Attributes:
        language: the fence's tag; "indented" without a fence.
        text: what stands in it.
        line: of its first line in the page, from 1.
        marks: what the comments above it say: (what, argument).
    """

    language: str
    text: str
    line: int
    marks: tuple[tuple[str, str], ...]

    def marked(self, what: str) -> str | None:
        """The argument of this mark, None where it is not there."""
        return dict(self.marks).get(what)


def pages() -> list[Path]:
    """Every page but those that only name a file of the repository."""
    written = [page for page in sorted(DOCS.rglob("*.md")) if "<!-- file:" not in page.read_text("utf-8")]
    return [*(ROOT / name for name in OUTSIDE), *written]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order. A mark belongs to the next block; one that has none is an error."""
    found: list[Block] = []
    marks: list[tuple[str, str]] = []
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            marks += [(mark[1], mark[2]) for mark in _MARK.finditer(token.content)]
            assert token.content.count("<!-- test:") == len(_MARK.findall(token.content)), token.content
        elif token.type in ("fence", "code_block"):
            language = (token.info.split() or ["no language"])[0] if token.type == "fence" else "indented"
            line = token.map[0] + 1 + (token.type == "fence")
            found.append(Block(language, token.content, line, tuple(marks)))
            marks = []
    assert not marks, f"{page.name}: {marks} stand above no block"
    return found


def has_kernels(page: Path) -> bool:
    """Whether a page defines kernels of Triton."""
    return "@triton.jit" in page.read_text(encoding="utf-8")


def is_commands(text: str) -> bool:
    """Whether an indented block is for a shell."""
    words = text.split()
    while words and _ASSIGNED.fullmatch(words[0]):
        words.pop(0)
    return bool(words) and words[0] in COMMANDS


def is_python(text: str) -> bool:
    """Whether what is shown as text is a program: it can be compiled, and assigns or imports something."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    if any(isinstance(statement, ast.AnnAssign) for statement in body):  # "right: y = [nan]" is no program
        return False
    kinds = (ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assert)
    return any(isinstance(statement, kinds) for statement in body)


class Page:
    """A page that is run block by block."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.name = str(page.relative_to(ROOT))
        self.kernels = has_kernels(page)
        self.namespace: dict[str, Any] = {"__name__": "__page__"}
        self.printed = ""

    def run(self, *, interpreted: bool) -> None:
        """The blocks for a process where Triton interprets, or does not, warnings being errors. The working
        directory is the page's to write to."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # torch scripts some functions of its own when forward mode is first used, and warns of that.
            warnings.filterwarnings("ignore", "`torch.jit.script(_method)?` is deprecated")
            for block in blocks(self.page):
                if interpreted == (self.kernels or block.marked("interpreted") is not None):
                    self.block(block)

    def block(self, block: Block) -> None:
        """One block, as its tag and marks say."""
        where = f"{self.name}:{block.line}"
        assert block.language in (*KNOWN, "indented"), f"{where}: no test knows {block.language!r}"
        for what, code in block.marks:
            if what == "setup":
                self.python(code, block.line)
        instead = block.marked("instead")
        if block.marked("output") is not None:
            shown = [line.rstrip() for line in block.text.strip().splitlines()]
            printed = [line.rstrip() for line in self.printed.strip().splitlines()]
            assert printed == shown, f"{where}: it printed\n" + "\n".join(printed)
        elif instead is not None:
            why, _, code = instead.partition(":\n")
            assert len(why.strip(" ,")) > 10, f"{where}: why can it not run?"
            compile(block.text, where, "exec")
            self.namespace["SHOWN"] = block.text
            self.python(code, block.line)
        elif block.language == "python":
            self.python(block.text, block.line, file=block.marked("file"))
        elif block.language == "console":
            self.console(block)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "sh" or (block.language == "indented" and is_commands(block.text)):
            for line in block.text.replace("\\\n", " ").splitlines():
                self.command(line, self.parsed(block))
        else:
            assert not is_commands(block.text), f"{where}: commands, whose tag is sh or console"
            assert not is_python(block.text), f"{where}: Python, whose tag is python"

    def parsed(self, block: Block) -> str:
        """The subcommand whose options are checked and nothing more; "" without a mark."""
        name, _, why = (block.marked("parse") or "").strip().partition(": ")
        assert not name or len(why) > 10, f"{self.name}:{block.line}: why can it not run?"
        return name

    def python(self, code: str, line: int, *, file: str | None = None) -> None:
        """Runs statements or doctests in the page's namespace, and remembers what is printed."""
        if file is not None:
            path = Path(file.strip())
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code, encoding="utf-8")
            # Triton, and whoever reads the source of a function, finds it by the file's name.
            name = str(path.resolve())
        else:
            name = str(self.page)
        if code.lstrip().startswith(">>>"):
            self.doctest(code, line)
            return
        padded = code if file is not None else "\n" * (line - 1) + code
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(padded, name, "exec"), self.namespace)
        self.printed = out.getvalue()

    def doctest(self, code: str, line: int) -> None:
        test = doctest.DocTestParser().get_doctest(code, self.namespace, self.name, self.name, line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            failed = runner.run(test, clear_globs=False).failed
        self.namespace.update(test.globs)
        assert not failed, out.getvalue()

    def console(self, block: Block) -> None:
        """Lines "$ command", each followed by what it prints; "..." stands for lines left out."""
        parts = re.split(r"^\$ (.*(?:\\\n.*)*)\n?", block.text, flags=re.M)
        assert not parts[0].strip(), f"{self.name}:{block.line}: a console block begins with $"
        for line, shown in zip(parts[1::2], parts[2::2], strict=True):
            self.command(line.replace("\\\n", " "), self.parsed(block))
            want = [part.strip() for part in shown.split("...\n")]
            got = "\n".join(row.rstrip() for row in self.printed.splitlines())
            for part in want if shown.strip() else ():
                part = "\n".join(row.rstrip() for row in part.splitlines())
                assert part in got, f"{self.name}:{block.line}: {line} printed\n{got}"

    def command(self, line: str, parsed: str = "") -> None:
        """One line of a shell: run where it is our command, else held to what exists."""
        words = shlex.split(line, comments=True)
        while words and _ASSIGNED.fullmatch(words[0]):
            words.pop(0)
        if not words:
            return
        target = words[words.index(">") + 1] if ">" in words[:-1] else None
        program, *arguments = words[:-2] if target else words
        assert program in COMMANDS, f"{self.name}: {program} is no command the tests know: {line}"
        if program == "online-softmax":
            names = parsed.split()
            self.online_softmax(arguments, bool(names) and arguments[: len(names)] == names)
            if target:
                Path(target).write_text(self.printed, encoding="utf-8")
        elif program == "make":
            check_make(arguments)
        elif program == "pip":
            check_pip(arguments)
        elif program == "python":
            check_python(arguments)
        elif program == "pytest":
            check_pytest(arguments)
        else:
            check_exhaustive(arguments)

    def online_softmax(self, arguments: list[str], only_parse: bool) -> None:
        """Calls the command in this process."""
        if only_parse:
            parse(arguments)
            return
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = cli.main(arguments)
        self.printed = out.getvalue()
        assert code == 0, f"{self.name}: {shlex.join(arguments)}: exit code {code}\n{self.printed}"


def parse(arguments: list[str]) -> None:
    """Takes a call of `online-softmax` apart as the command would, which refuses what it does not know."""
    command: Any = typer.main.get_command(cli.app)
    rest = arguments
    with command.make_context("online-softmax", []) as context:
        while hasattr(command, "commands"):
            name, command, rest = command.resolve_command(context, rest)
        command.make_context(name, list(rest), parent=context)


def check_make(arguments: list[str]) -> None:
    """The targets exist, and the variables are used."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in arguments:
        name, assigned, _ = word.partition("=")
        sought = rf"\$\(({name}|if \$\({name}\).*)" if assigned else rf"^{re.escape(name)}:"
        assert word.startswith("-") or re.search(sought, text, re.M), f"make {word}: not in the Makefile"


def check_pip(arguments: list[str]) -> None:
    """Our extras exist."""
    assert arguments[0] == "install", arguments
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in arguments[1:]:
        wanted = re.fullmatch(r"(?:\.|online-softmax)\[(.*)\]", word)
        for extra in wanted[1].split(",") if wanted else ():
            assert extra in known["optional-dependencies"], f"pip install {word}: no extra {extra}"


def check_python(arguments: list[str]) -> None:
    """The script is in the repository, or was shown on the page, and knows the options."""
    if arguments[0] == "-m":
        assert (ROOT / f"{arguments[1].replace('.', '/')}.py").is_file(), arguments
        return
    script = ROOT / arguments[0] if (ROOT / arguments[0]).is_file() else Path(arguments[0])
    text = script.read_text(encoding="utf-8")
    for option in arguments[1:]:
        assert not _OPTION.fullmatch(option) or f'"{option}"' in text, f"{arguments[0]} has no {option}"


def check_pytest(arguments: list[str]) -> None:
    """The options that the plugin adds exist."""
    text = (Path(cli.__file__).parents[1] / "conformance" / "plugin.py").read_text(encoding="utf-8")
    for word in arguments:
        option = word.partition("=")[0]
        if option.startswith("--online-softmax"):
            assert option in text or option.removeprefix("--online-softmax") in text, option
        elif not word.startswith("-"):
            assert word.endswith(".py"), arguments


def check_exhaustive(arguments: list[str]) -> None:
    """The driver's source knows the options."""
    text = (ROOT / "native" / "exhaustive" / "main.cpp").read_text(encoding="utf-8")
    for word in arguments:
        assert not _OPTION.fullmatch(word) or f'"{word}"' in text, f"exhaustive has no {word}"


if __name__ == "__main__":
    sys.path.insert(0, "")
    for number, page in enumerate(pages()):
        folder = Path(sys.argv[1], str(number))
        folder.mkdir()
        os.chdir(folder)
        Page(page).run(interpreted=True)
