"""From timings and errors to the figures of a goal: ratios, fractions of a ceiling, bars reached or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.cases import OURS_FRESH, PEERS, TORCH_FRESH, TORCH_OUT, Bar, Goal, Workload
from benchmarks.data import Error
from benchmarks.measure import Timing
from benchmarks.ours import CEILINGS


def ceiling(timings: Mapping[str, Timing], kind: str) -> float | None:
    """Median seconds of the best ceiling of a kind, "copy" or "read"; None where none was measured."""
    found = [timings[name].median for name in CEILINGS[kind] if name in timings]
    return min(found) if found else None


def torch_name(goal: Goal, workload: Workload) -> str:
    """Torch in the same kind of memory as the goal's subject."""
    return TORCH_FRESH if goal.subject == OURS_FRESH or workload.op == "logsumexp" else TORCH_OUT


def best(values: Mapping[str, float]) -> str | None:
    """The name with the least value; None where there is none."""
    return min(values, key=values.__getitem__) if values else None


def _bar(bar: Bar, subject: Timing, error: Error, timings: Mapping[str, Timing]) -> dict[str, Any]:
    """A bar with the value found; `value` and `reached` are None where the peer could not take part."""
    value: float | None
    if bar.kind == "error":
        value, reached = error.relative, error.relative < bar.value
        return {
            "kind": bar.kind,
            "against": bar.against,
            "bar": bar.value,
            "value": value,
            "reached": reached,
        }
    if bar.kind == "ceiling":
        floor = ceiling(timings, bar.against)
        value = None if floor is None else floor / subject.median
    else:
        value = timings[bar.against].median / subject.median if bar.against in timings else None
    reached_ = None if value is None else value >= bar.value
    return {"kind": bar.kind, "against": bar.against, "bar": bar.value, "value": value, "reached": reached_}


def judge(
    workload: Workload, goal: Goal, timings: Mapping[str, Timing], errors: Mapping[str, Error]
) -> dict[str, Any]:
    """The figures of one goal, as they go to JSON."""
    subject, error = timings[goal.subject], errors[goal.subject]
    # A fresh result is held against peers that make one too.
    rivals = [p for p in PEERS if p in timings and not (goal.subject == OURS_FRESH and p.endswith("out="))]
    fastest = best({p: timings[p].median for p in rivals})
    truest = best({p: errors[p].relative for p in rivals})
    torch, floor = torch_name(goal, workload), ceiling(timings, workload.ceiling)
    return {
        "subject": goal.subject,
        "median_ms": subject.median * 1e3,
        "over_torch": timings[torch].median / subject.median if torch in timings else None,
        "best_peer": fastest,
        "over_best_peer": None if fastest is None else timings[fastest].median / subject.median,
        "of_ceiling": None if floor is None else floor / subject.median,
        "relative_error": error.relative,
        "ulps": error.ulps,
        "best_peer_relative_error": None if truest is None else errors[truest].relative,
        "most_accurate_peer": truest,
        "bars": [_bar(bar, subject, error, timings) for bar in goal.bars],
    }
