"""What a run came to, for people (tables and failures), for continuous integration (JUnit XML) and for
programs (JSON)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .cases import Case, Point
from .child import same_bits
from .judge import show, show_all
from .operations import expected
from .results import STATUSES, Result, Shown, Totals
from .shrink import FEW, REFUSALS, Smallest
from .subjects import Subject

Array = NDArray[Any]

#: Version of the JSON: a number more whenever a key changes its meaning or goes.
FORMAT: Final = 1
#: Entries of an output that are written out.
_MOST: Final = 24
#: Characters of a problem.
_LONGEST: Final = 500
#: What a law asks of the first output, or of the call.
_ASKS: Final = {
    "raises": "an exception",
    "finite": "finite numbers alone",
    "nan": "NaN throughout",
    "zeros": "zeros throughout",
    "distribution": "numbers in [0, 1] that sum to 1",
    "sums_to_one": "numbers that sum to 1",
    "repeatable": "the same bits in every call",
    "threads": "the bits of a single call in every thread",
    "batch_invariant": "the bits that each row has alone",
}
# Characters that XML 1.0 has no place for, escaped or not.
_NO_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def shown(case: Case, small: Smallest) -> Shown:
    """A failing input as texts."""
    outcome = small.outcome
    got = f"{outcome.error}: {outcome.message}".rstrip(": ") if outcome.error else _outputs(outcome.outputs)
    inputs = {name: paste(array, small.made.get(name, "")) for name, array in small.point.inputs.items()}
    inputs |= {name: f"{inputs[name]}  # in memory: {layout}" for name, layout in small.point.layouts.items()}
    return Shown(
        inputs=inputs,
        options={name: repr(value) for name, value in small.point.options.items()},
        got=got,
        right=_right(case, small.point),
        problem=small.judgement.problem,
        note=small.note,
        shrunk=small.searched,
    )


def _right(case: Case, point: Point) -> str:
    if case.law == "one_of":
        asked = "; or ".join(f"{each['name']}: {_literals(each)}" for each in case.allowed)
    elif case.law == "value":
        try:
            asked = _outputs(expected(case.op, point.inputs, point.options))
        except REFUSALS as error:
            asked = f"not known: {error}"
    else:
        asked = _ASKS[case.law]
    return f"anything but {asked}" if case.verdict == "must_not" else asked


def _literals(allowed: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {values}" for name, values in allowed.items() if name != "name")


def _outputs(outputs: Mapping[str, Array] | None) -> str:
    if outputs is None:
        return show_all(outputs)
    return ", ".join(f"{name} = {_numbers(value)}" for name, value in outputs.items())


def _numbers(array: Array) -> str:
    """An array in a line, each number with the digits that its format has."""
    if array.dtype.kind != "f":
        return show(array, most=_MOST)
    text = np.array2string(array, threshold=_MOST, edgeitems=3, separator=", ", floatmode="unique")
    return " ".join(text.split())


def paste(array: Array, made: str = "") -> str:
    """Python that makes the array, given `import numpy as np, ml_dtypes`; `made` where there are too many
    numbers to be read."""
    kind = _kind(array.dtype)
    if array.size == 0:
        return f"np.zeros({array.shape}, dtype={kind})"
    first = array.flat[0]
    same = same_bits(array, np.full_like(array, first))
    if same and array.size > 4:
        return f"np.full({array.shape}, {_number(first)}, dtype={kind})"
    if made and array.size > FEW:
        return made
    return f"np.array({_nested(array)}, dtype={kind})"


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype == np.bool_:
        return "bool"
    return f"np.{dtype.name}" if hasattr(np, dtype.name) else f"ml_dtypes.{dtype.name}"


def _nested(array: Array) -> str:
    if array.ndim == 0:
        return _number(array[()])
    return "[" + ", ".join(_nested(part) for part in array) + "]"


def _number(value: Any) -> str:
    """The shortest text that gives the value's bits back."""
    if value.dtype.kind in "biu":
        return str(value.item())
    number = float(value)
    if not np.isfinite(number):
        return "np.nan" if np.isnan(number) else ("np.inf" if number > 0 else "-np.inf")
    text = repr(float(str(value)))
    return text if value.dtype.type(float(text)) == value else repr(number)


def failure_text(result: Result) -> str:
    """A failure in full: what is wrong, the smallest input, what came, what is right and why."""
    at = f" at {result.point}" if result.point else ""
    lines = [f"{result.status.upper()} {result.instance}{at}", f"  {_short(result.problem)}"]
    if result.shown is not None:
        lines += _snippet(result.shown, result.problem)
    lines.append(f"  why:   {result.reason}")
    if result.sources:
        lines.append(f"  see:   {', '.join(result.sources)}")
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _snippet(small: Shown, problem: str) -> list[str]:
    made = [f"{name} = {text}" for name, text in [*small.inputs.items(), *small.options.items()]]
    imports = ["import numpy as np"]
    if any("ml_dtypes." in line for line in made):
        imports.append("import ml_dtypes")
    if any("recipes." in line for line in made):
        imports += ["from math import inf, nan", "from online_softmax.conformance import recipes"]
    title = "smallest failing input" if small.shrunk else "failing input"
    lines = [f"  {title}:", *(f"      {line}" for line in (*imports, *made))]
    if small.note:
        lines.append(f"  ({small.note})")
    if small.problem and small.problem != problem:
        lines.append(f"  there: {_short(small.problem)}")
    return [*lines, f"  came:  {small.got}", f"  right: {small.right}"]


def _table(title: str, groups: Mapping[str, Sequence[Result]]) -> Table:
    """A line a group, a column a status that occurs."""
    used = [
        s for s in STATUSES if s in ("pass", "fail") or any(r.status == s for g in groups.values() for r in g)
    ]
    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    grid.add_column(title)
    for heading in (*used, "worst error / bound"):
        grid.add_column(heading, justify="right")
    for name, results in groups.items():
        counts = Totals.of(results).counts
        worst = max((r.ratio for r in results if r.status != "not offered"), default=0.0)
        cells = (str(counts[status]) if counts[status] else "." for status in used)
        grid.add_row(name, *cells, f"{worst:.3g}" if worst else "")
    return grid


def _grouped(results: Sequence[Result], keys: Iterable[tuple[str, Result]]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for key, result in keys:
        groups.setdefault(key, []).append(result)
    return dict(sorted(groups.items()))


def show_results(
    console: Console, subject: Subject, versions: Mapping[str, str], results: Sequence[Result]
) -> None:
    """Print every failure, what free cases came to, a table by operation and one by tag, and the totals."""
    seen: dict[str, str] = {}
    for result in results:
        if result.status in ("fail", "unexpected pass"):
            # Most faults break many cases; one input is shown once.
            text = failure_text(result)
            body = "\n".join(_snippet(result.shown, result.problem)) if result.shown else result.instance
            if body in seen:
                text = text.replace(body, f"  fails at the input shown for {seen[body]}")
            seen.setdefault(body, result.instance)
            console.print(text, markup=False, soft_wrap=True)
            console.print()
    for status, text in (("known", "known to fail"), ("recorded", "recorded")):
        for result in results:
            if result.status == status:
                what = result.listed if status == "known" else result.recorded
                console.print(f"{text}: {result.instance}: {what}", markup=False, soft_wrap=True)
    console.print(_table("operation", _grouped(results, ((r.op, r) for r in results))))
    tags = _grouped(results, ((tag, r) for r in results for tag in r.tags))
    if tags:
        console.print(_table("kind of case (a case may be of several)", tags))
    console.print(f"{_named(subject, versions)}: {Totals.of(results).text()}", markup=False, soft_wrap=True)


def _named(subject: Subject, versions: Mapping[str, str]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{subject.spec} ({libraries})" if libraries else subject.spec


def as_json(subject: Subject, versions: Mapping[str, str], results: Sequence[Result], *, kit: str) -> str:
    """The run as JSON text; `kit` is this library's version. Ratios that are no finite number are null.

    Keys: version, kit, subject {spec, op, framework, versions}, totals by status, results (the fields of
    `Result`).
    """
    about = {
        "spec": subject.spec,
        "op": subject.op,
        "framework": subject.framework,
        "versions": dict(versions),
    }
    plain = {
        "version": FORMAT,
        "kit": kit,
        "subject": about,
        "totals": dict(Totals.of(results).counts),
        "results": [result.as_json() for result in results],
    }
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def as_junit(subject: Subject, results: Sequence[Result]) -> str:
    """The run as JUnit XML: known failures and what is not offered count as skipped."""
    counts = Totals.of(results)
    skipped = counts.counts["known"] + counts.counts["not offered"]
    numbers = {
        "tests": str(len(results)),
        "failures": str(counts.failing),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": "online-softmax check", **numbers})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(subject.spec), **numbers})
    for result in results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {
                "classname": f"online_softmax.{result.op}",
                "name": _xml(result.instance),
                "time": f"{result.seconds:.3f}",
            },
        )
        _add_outcome(case, result)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_outcome(case: ElementTree.Element, result: Result) -> None:
    if result.status in ("fail", "unexpected pass"):
        about = {"message": _xml(result.problem), "type": result.status}
        ElementTree.SubElement(case, "failure", about).text = _xml(failure_text(result))
    elif result.status == "known":
        ElementTree.SubElement(case, "skipped", {"message": _xml(f"known to fail: {result.listed}")})
    elif result.status == "not offered":
        ElementTree.SubElement(case, "skipped", {"message": _xml(f"not offered: {result.problem}")})
    elif result.recorded:
        ElementTree.SubElement(case, "system-out").text = _xml(f"recorded: {result.recorded}")


def _xml(text: str) -> str:
    return _NO_XML.sub("?", text)
