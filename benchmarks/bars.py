"""What a measurement is held to, and the verdict: bars of the attention and the loss benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """One requirement on the median time of `subject`.

    kind "faster": the time of `against` over the subject's is at least `value`.
    kind "part of": the same, where `against` is a ceiling of the machine.
    kind "at most": the subject's over that of `against` is at most `value`; of both for one query where
        `queries_ratio`, the subject's queries over those of `against`, is not 1.
    kind "of peak": flops over time is at least `value` of the multiply-add peak of the same case.

    aim: a better value that is hoped for; it decides nothing.
    """

    kind: str
    against: str
    value: float
    subject: str = "ours"
    queries_ratio: float = 1.0
    aim: float | None = None


def judge(bar: Bar, seconds: Mapping[str, float], of_peak: float | None = None) -> Record:
    """A bar with the value found; `value` and `reached` are None where a side could not take part."""
    value: float | None
    if bar.kind == "of peak":
        value = of_peak
    elif bar.against not in seconds or bar.subject not in seconds:
        value = None
    elif bar.kind in ("faster", "part of"):
        value = seconds[bar.against] / seconds[bar.subject]
    else:
        value = seconds[bar.subject] / seconds[bar.against] / bar.queries_ratio
    return verdict(bar.kind, bar.subject, bar.against, bar.value, value, bar.aim)


def verdict(
    kind: str, subject: str, against: str, asked: float, value: float | None, aim: float | None = None
) -> Record:
    """A bar as it goes to JSON; `value` None: not measured."""
    reached = None if value is None else value <= asked if kind == "at most" else value >= asked
    made = {"kind": kind, "subject": subject, "against": against, "bar": asked}
    return made | ({} if aim is None else {"aim": aim}) | {"value": value, "reached": reached}


def bar_text(bar: Record) -> str:
    """What was asked, and whether and with what it was reached."""
    asked = {
        "faster": f"{bar['bar']:g}x",
        "part of": f"{bar['bar']:g} of {bar['against']}",
        "of peak": f"{bar['bar']:g} of peak",
        "at most": f"at most {bar['bar']:g}",
    }[bar["kind"]]
    if "aim" in bar:
        asked += f" (aim {bar['aim']:g})"
    if bar["value"] is None:
        return f"{asked}: not measured"
    return f"{asked}: {'met' if bar['reached'] else 'missed'}, {bar['value']:.2f}"


def bars_text(bars: Iterable[Record]) -> str:
    """All bars of a row; "-" where there are none."""
    return "; ".join(map(bar_text, bars)) or "-"


def count(lines: Iterable[Record]) -> str:
    """How many bars of the lines were reached."""
    reached = [bar["reached"] for line in lines for bar in line["bars"]]
    missing = f", {reached.count(None)} not measured" if None in reached else ""
    return f"{reached.count(True)} of {len(reached)}{missing}"
