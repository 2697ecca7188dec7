"""`online-softmax check`."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .. import __version__
from ..conformance import files, report
from ..conformance import known as known_failures
from ..conformance.cases import Case, load_cases
from ..conformance.known import Known
from ..conformance.results import Result, Totals
from ..conformance.run import Runner
from ..conformance.subjects import LIBRARIES, Subject, parse

WIDTH = 150  # whatever the terminal, so that a file reads like the screen


def _split(option: str, text: str | None, there: Iterable[str]) -> list[str] | None:
    """Names of a comma-separated list. ValueError for one that no case has."""
    if text is None:
        return None
    names, known = [part.strip() for part in text.split(",") if part.strip()], sorted(set(there))
    if not names:
        raise ValueError(f"{option}: {text!r} names nothing: one of {', '.join(known)} would do")
    for name in names:
        if name not in known:
            raise ValueError(f"{option}: no case has {name!r}: one of {', '.join(known)} would do")
    return names


def _matching(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """Cases whose id or instance one of the patterns matches: * and ? stand for anything, [ for itself."""
    if not patterns:
        return list(cases)
    found: set[str] = set()
    for pattern in patterns:
        expression = re.compile(fnmatch.translate(pattern.replace("[", "[[]")))
        here = {c.instance for c in cases if expression.match(c.id) or expression.match(c.instance)}
        if not here:
            raise ValueError(f"--case: {pattern!r} is no case of these: --list shows them")
        found |= here
    return [case for case in cases if case.instance in found]


def select(
    everything: Sequence[Case],
    op: str | None,
    dtypes: str | None,
    tags: str | None,
    patterns: Sequence[str],
    huge: bool,
) -> list[Case]:
    """The cases asked for. ValueError, naming the option, where one asks for what there is not."""
    operations = sorted({case.op for case in everything})
    if op is not None and op not in operations:
        raise ValueError(f"--op: {op!r} has no cases: one of {', '.join(operations)} would do")
    formats = _split("--dtypes", dtypes, (case.dtype for case in everything))
    kinds = _split("--tags", tags, (tag for case in everything for tag in case.tags))
    chosen = [
        case
        for case in everything
        if (op is None or case.op == op)
        and (formats is None or case.dtype in formats)
        and (kinds is None or set(kinds) & set(case.tags))
    ]
    chosen = [case for case in _matching(chosen, patterns) if huge or "huge" not in case.tags]
    if not chosen:
        raise ValueError("no case is left: fewer of --op, --dtypes, --tags, --case, or --huge, would do")
    return chosen


def _check_outputs(outputs: dict[str, Path | None]) -> None:
    taken: dict[Path, str] = {}
    for option, path in outputs.items():
        files.check_writable(option, path)
        if path is not None and taken.setdefault(path.absolute(), option) != option:
            raise ValueError(
                f"{option}: {path} is given to {taken[path.absolute()]} too: another name would do"
            )


def _print_list(cases: Sequence[Case]) -> None:
    for case in cases:
        print(f"{case.instance}: {case.verdict} {case.law} ({', '.join(case.tags)}): {case.reason}")
    print(f"{len(cases)} cases")


def _run(
    subject: Subject, cases: Sequence[Case], timeout: float, known: Known | None, smallest: bool
) -> tuple[dict[str, str], list[Result]]:
    """Versions and results, with a progress bar if stderr is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    results = []
    with (
        Runner(subject, timeout=timeout, known=known, smallest=smallest) as runner,
        Progress(
            *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        ) as bar,
    ):
        task = bar.add_task(subject.spec, total=len(cases))
        runner.start()
        for case in cases:
            bar.update(task, description=case.instance)
            results.append(runner.check(case))
            bar.advance(task)
        return dict(runner.versions), results


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help=f"package.module:callable, or a library: {', '.join(LIBRARIES)}.",
            show_default=False,
        ),
    ] = None,
    op: Annotated[
        str | None, typer.Option(help="What a callable computes; of a library, the operation to check (all).")
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="Whose arrays a callable takes: numpy (default), torch or jax.")
    ] = None,
    dtypes: Annotated[str | None, typer.Option(help="Formats, as float32,bfloat16 (all).")] = None,
    tags: Annotated[str | None, typer.Option(help="Kinds of cases, as nan,layout (all).")] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Cases by name, as 'softmax/*nan*' (all); may be given again.")
    ] = None,
    cases: Annotated[
        list[Path] | None, typer.Option(help="A file of cases in place of the kit's; may be given again.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for an input of a case.")] = 20.0,
    huge: Annotated[bool, typer.Option("--huge", help="Cases of gigabytes too.")] = False,
    known: Annotated[
        Path | None, typer.Option(help="File of known failures: a case a line, # and why.")
    ] = None,
    write_known: Annotated[Path | None, typer.Option(help="Write what fails now as such a file.")] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write JSON.")] = None,
    shrink: Annotated[bool, typer.Option(help="Look for the smallest failing input.")] = True,
    show_list: Annotated[bool, typer.Option("--list", help="Show the cases, and call nothing.")] = False,
) -> None:
    """Check a softmax, a loss or an attention: special values, lengths, layouts, accuracy, gradients,
    threads.

    The subject runs in a process of its own: a crash or a hang of it is a failure of one case. Each failure
    is shown with the smallest input that was found for it, what came, what is right and why.

    Exit code: 0 all passed, or failed as the list of known failures says; 1 some failed, or passed against
    that list; 2 the call or the subject is unusable.
    """
    everything = load_cases(files=cases or None)
    if target is None and not show_list:
        raise ValueError(f"TARGET: package.module:callable or one of {', '.join(LIBRARIES)} would do")
    subject = None if target is None else parse(target, op, framework)
    chosen = select(everything, op, dtypes, tags, case or (), huge)
    if show_list or subject is None:
        _print_list(chosen)
        return
    if not 0 < timeout <= 86400:
        raise ValueError(f"--timeout: {timeout!r}: a positive number of seconds, up to a day, would do")
    listed = None if known is None else known_failures.read(known, everything)
    _check_outputs({"--junit": junit_file, "--json": json_file, "--write-known": write_known})
    versions, results = _run(subject, chosen, timeout, listed, shrink)
    report.show_results(Console(width=WIDTH, highlight=False), subject, versions, results)
    if junit_file is not None:
        files.write_safely(junit_file, report.as_junit(subject, results))
    if json_file is not None:
        files.write_safely(json_file, report.as_json(subject, versions, results, kit=__version__))
    if write_known is not None:
        known_failures.write(write_known, results, subject.spec)
    totals = Totals.of(results)
    if totals.counts["not offered"] == len(results):
        raise ValueError(f"{subject.spec}: nothing was tested: no case is offered ({results[0].problem})")
    if totals.failing:
        raise typer.Exit(1)
