"""Known failures, in a text file that the subject owns.

    # a line a case: the instance, and after # why it fails
    softmax/one-plus-infinity[float16]   # the hardware's max drops NaN
    softmax/length-sweep                 # without a format: in all formats

A listed case that passes is reported too: a list that is out of date hides the next fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .cases import Case
from .files import write_safely
from .results import Result


@dataclass(frozen=True)
class Known:
    """Names of cases (with or without a format) -> reason."""

    reasons: Mapping[str, str]

    def reason(self, case: Case) -> str | None:
        """Why this case is known to fail; None where it is not listed."""
        for name in (case.instance, case.id):
            if name in self.reasons:
                return self.reasons[name]
        return None


def read(path: str | os.PathLike[str], cases: Iterable[Case]) -> Known:
    """The list in a file. `cases`: all that there are, whether or not they are to run.

    Raises ValueError, naming file and line, for a file that cannot be read, a name that no case has, and
    one that is there twice.
    """
    names = {name for case in cases for name in (case.id, case.instance)}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: the list of known failures cannot be read: {error}") from error
    reasons: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        name, _, reason = (part.strip() for part in line.partition("#"))
        if not name:
            continue
        if name not in names:
            raise ValueError(f"{path}, line {number}: no case is called {name!r}: --list shows them all")
        if name in reasons:
            raise ValueError(f"{path}, line {number}: {name} is there twice")
        reasons[name] = reason or "listed without a reason"
    return Known(reasons)


def write(path: str | os.PathLike[str], results: Iterable[Result], subject: str) -> None:
    """Write what fails now, and why, in the form that `read` takes."""
    failing = [result for result in results if result.status in ("fail", "known")]
    lines = [f"# Known failures of {subject}: a case a line, and why."]
    for result in failing:
        # A reason given by hand is worth more than what the kit saw.
        reason = result.listed or result.problem
        lines.append(f"{result.instance}  # {' '.join(reason.split())}")
    write_safely(path, "\n".join(lines) + "\n")
