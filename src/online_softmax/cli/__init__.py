"""The command `online-softmax` and its subcommands. It parses and prints; the arithmetic is elsewhere.

A wrong call or an unusable file ends with one line on stderr and exit code 2; an interrupt with 130, a
termination with 143, both after the temporary output is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Annotated

import typer

from .. import __version__
from ..extras import MissingExtra
from . import bytes as byte_counts
from . import check, explain, explore, formats, info, meter, report, run

app = typer.Typer(
    name="online-softmax",
    help="Exact softmax and log-sum-exp in the fewest passes over the data.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"online-softmax {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("run")(run.command)
app.command("report")(report.command)
app.command("bytes")(byte_counts.command)
app.command("meter")(meter.command)
app.command("check")(check.command)
app.command("formats")(formats.command)
app.command("explain")(explain.command)
app.command("explore")(explore.command)
app.command("info")(info.command)

# Typer depends on click in some versions and carries its own copy in others; the root of its errors is
# reached through a name that all of them export.
_USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def _exit_on(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextlib.contextmanager
def _clean_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, so that a temporary output is removed."""
    numbers = [signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.signal(number, _exit_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(message: object) -> int:
    print("online-softmax: error: " + " ".join(str(message).split()), file=sys.stderr)
    return 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's own) and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if sys.stdout is None:  # closed by the caller, who wants the exit code alone
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        with _clean_termination():
            code = app(args=given or ["--help"], prog_name="online-softmax", standalone_mode=False)
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except _USAGE_ERROR as error:
        return _fail(error.format_message() if isinstance(error, typer.BadParameter) else error)
    except (KeyboardInterrupt, typer.Abort):
        print("online-softmax: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left: give the interpreter's last flush somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError as error:
        return _fail(f"not enough memory: {error}")
    except (ValueError, OSError, MissingExtra) as error:
        return _fail(error)
