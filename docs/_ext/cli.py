"""The directive `cli`: what `online-softmax --help` and the help of every subcommand print, when built."""

from __future__ import annotations

import contextlib
import io
import os

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from online_softmax.cli import app as command
from online_softmax.cli import main

WIDTH = 100


def help_of(*path: str) -> str:
    """What the command at `path` prints for --help, at a width of its own."""
    os.environ["COLUMNS"] = str(WIDTH)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([*path, "--help"])
    if code:
        raise RuntimeError(f"online-softmax {' '.join(path)} --help: exit code {code}")
    return printed.getvalue().rstrip()


def subcommands(command: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all subcommands below `command`, in the order they were added."""
    found = []
    for name, inner in getattr(command, "commands", {}).items():
        found += [(*path, name), *subcommands(inner, (*path, name))]
    return found


class Cli(SphinxDirective):
    """`.. cli::`: a section a command."""

    def run(self) -> list[nodes.Node]:
        lines = ["::", "", *_shown(help_of()), ""]
        for path in subcommands(typer.main.get_command(command)):
            title = f"online-softmax {' '.join(path)}"
            lines += [title, "-" * len(title), "", "::", "", *_shown(help_of(*path)), ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def _shown(text: str) -> list[str]:
    return [f"   {line}" if line else "" for line in text.splitlines()]


def setup(app: Sphinx) -> dict[str, object]:
    app.add_directive("cli", Cli)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
