"""What a person made of the peers' failures: each is a fault of the library, or a convention of its own.

A failure that no finding speaks of is shown as not judged yet, so that none is called a fault by a machine
alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Final

from .results import Result

KINDS: Final = ("fault", "convention")


@dataclass(frozen=True)
class Finding:
    """One judgement.

    Attributes:
        subjects: specs of the subjects that it is about.
        cases: patterns of cases, as for file names ("softmax/lengths", "*/lengths"); the first that fails is
            shown.
        dtypes: formats; empty for all.
        problem: pattern that the problem's text holds; empty for any.
        kind: "fault": what the library's documentation, or arithmetic, promises does not hold. "convention":
            the library says that it does otherwise, or never said that it would.
        title: what happens, in a line.
        why: why it is so, for a person who would mend it or work around it.
    """

    subjects: tuple[str, ...]
    cases: tuple[str, ...]
    problem: str
    kind: str
    title: str
    why: str
    dtypes: tuple[str, ...] = ()

    def speaks_of(self, subject: str, result: Result) -> bool:
        """Whether this failure of this subject is meant."""
        return (
            subject in self.subjects
            and (not self.dtypes or result.dtype in self.dtypes)
            and any(fnmatchcase(_case(result), pattern) for pattern in self.cases)
            and re.search(self.problem, result.problem) is not None
        )


@dataclass(frozen=True)
class Found:
    """A finding about one subject, with the failures it speaks of."""

    subject: str
    finding: Finding
    results: tuple[Result, ...]

    @property
    def shown(self) -> Result:
        """The failure to show: of the first pattern that one matches."""
        for pattern in self.finding.cases:
            for result in self.results:
                if fnmatchcase(_case(result), pattern):
                    return result
        raise AssertionError("a finding is found by a pattern of its own")


def _case(result: Result) -> str:
    return result.instance.partition("[")[0]


@cache
def findings() -> tuple[Finding, ...]:
    """The judgements in data/findings.json. ValueError for one that is not complete."""
    text = (resources.files(__package__) / "data" / "findings.json").read_text(encoding="utf-8")
    made = []
    for entry in json.loads(text):
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in entry.items()}
        try:
            finding = Finding(**values)
        except TypeError as error:
            raise ValueError(f"findings.json: {entry.get('title')!r}: {error}") from error
        if finding.kind not in KINDS:
            raise ValueError(f"findings.json: kind={finding.kind!r}: one of {', '.join(KINDS)} would do")
        made.append(finding)
    return tuple(made)


def sort(
    failures: Mapping[str, Iterable[Result]], judged: Sequence[Finding]
) -> tuple[list[Found], dict[str, list[Result]]]:
    """(findings with the failures they speak of, by subject; failures that none speaks of, by subject).

    A failure counts for the first finding that speaks of it.
    """
    groups: dict[tuple[str, int], list[Result]] = {}
    unjudged: dict[str, list[Result]] = {}
    for subject, results in failures.items():
        for result in results:
            place = next((n for n, f in enumerate(judged) if f.speaks_of(subject, result)), None)
            if place is None:
                unjudged.setdefault(subject, []).append(result)
            else:
                groups.setdefault((subject, place), []).append(result)
    found = [Found(subject, judged[n], tuple(results)) for (subject, n), results in sorted(groups.items())]
    return found, unjudged
