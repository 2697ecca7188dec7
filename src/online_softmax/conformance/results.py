"""What a run came to, case by case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

#: "known": fails, and is listed as known to. "unexpected pass": is listed, and passes. "recorded": a case
#: with the verdict "free". In this order in reports.
STATUSES: Final = ("pass", "fail", "known", "unexpected pass", "recorded", "not offered")
#: Those that make a run fail.
FAILING: Final = frozenset({"fail", "unexpected pass"})


@dataclass(frozen=True)
class Shown:
    """The smallest failing input that was found, as texts.

    Attributes:
        inputs: name -> Python that makes the array, given `import numpy as np, ml_dtypes`.
        options: name -> Python of the value.
        got: what the subject made of it.
        right: what is right.
        problem: what is wrong there; differs from the result's problem where the input was shrunk.
        note: why it was not shrunk, where it was not.
        shrunk: whether a smaller input was looked for.
    """

    inputs: Mapping[str, str]
    options: Mapping[str, str]
    got: str
    right: str
    problem: str = ""
    note: str = ""
    shrunk: bool = False


@dataclass(frozen=True)
class Result:
    """One case in one format.

    Attributes:
        instance: "softmax/one-plus-infinity[float32]".
        op, dtype, tags, verdict, reason, sources: those of the case.
        status: one of STATUSES.
        point: label of the sweep's point that failed, or was not offered; empty without a sweep.
        problem: what is wrong; of "not offered" what is lacking; empty where all is well.
        shown: of a failure, its smallest input.
        ratio: largest error over what is allowed; 0 where the law is not about values.
        recorded: of a free case, what happened.
        seconds: what it took, the shrinking included.
        listed: of "known" and "unexpected pass", the reason that the list gives.
    """

    instance: str
    op: str
    dtype: str
    tags: tuple[str, ...]
    verdict: str
    status: str
    point: str = ""
    problem: str = ""
    shown: Shown | None = None
    ratio: float = 0.0
    recorded: str = ""
    seconds: float = 0.0
    reason: str = ""
    sources: tuple[str, ...] = ()
    listed: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values; a ratio that is no finite number is None."""
        plain = asdict(self)
        plain["ratio"] = self.ratio if abs(self.ratio) < float("inf") else None
        return plain


@dataclass(frozen=True)
class Totals:
    """How many results there are of each status."""

    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Iterable[Result]) -> Totals:
        """Count them; every status is there."""
        counts = dict.fromkeys(STATUSES, 0)
        for result in results:
            counts[result.status] += 1
        return cls(counts)

    @property
    def failing(self) -> int:
        """How many make the run fail."""
        return sum(self.counts[status] for status in FAILING)

    def text(self) -> str:
        """ "12 pass, 1 fail", without those that are 0."""
        return ", ".join(f"{count} {status}" for status, count in self.counts.items() if count) or "no cases"
