"""docs/scoreboard.md, made of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .findings import Found
from .results import Result

_SHORT: Final = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_LONGEST: Final = 300
_MARKS: Final = {"pass": "pass", "recorded": "free", "not offered": "."}

_HEAD: Final = """# Scoreboard

Made by `make scoreboard`, which puts every case of `online_softmax.conformance` to this library and to
others; not written by hand. A case in a format is an instance: there are {count}, without those that take
gigabytes. What a case asks, and how large an error may be, is said in [conformance.md](conformance.md).

Versions: {versions}.

- `ours` is this library as it is called. `all variants` stands for {variants}: each of {isas} with each of
  {algorithms}; it fails where one of them fails. `triton` is this library's Triton kernels in Triton's
  interpreter. All are held to the peers' errors as well.
- `numpy` is SciPy and NumPy, `torch` PyTorch on the CPU; `torch:compile` its compiler, `torch:chunked`
  linear_cross_entropy in chunks, `torch:flex` flex_attention.
- Subjects that compile each shape see fewer points of a sweep: at most {thinned}, the last among them.
- What a library does not have is not emulated: it is not offered."""
_TEACHING: Final = """## The naive formula

`{name}` takes no maximum out before it exponentiates. It is there to be compared with, and fails what it has
to fail: {count} instances of {cases}."""


@dataclass(frozen=True)
class Measured:
    """What one subject made of the cases, a column of the tables. All have the same cases in one order."""

    spec: str
    versions: Mapping[str, str]
    results: Sequence[Result]


def page(
    columns: Sequence[Measured],
    teaching: Measured,
    variants: Sequence[str],
    found: Sequence[tuple[Found, Result]],
    unjudged: Mapping[str, Sequence[Result]],
    points: Mapping[str, int],
) -> str:
    """The whole page.

    Args:
        columns: the subjects, ours first.
        teaching: the algorithm that is there to fail.
        variants: specs of what the column "all variants" stands for.
        found: findings, each with the failure that shows it.
        unjudged: failures of peers that no finding speaks of, by subject.
        points: subjects whose sweeps were thinned, to how many points.
    """
    parts = (
        _head(columns, variants, points),
        _by_operation(columns),
        _failing_cases(columns),
        _faults(found, columns),
        _conventions(found),
        _free(columns),
        _unjudged(unjudged),
        _teaching(teaching),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(columns: Sequence[Measured], variants: Sequence[str], points: Mapping[str, int]) -> str:
    versions = {name: version for column in columns for name, version in column.versions.items()}
    thinned = ", ".join(f"{count} points in {name}" for name, count in points.items())
    parts = [spec.partition(":")[2].partition(".")[::2] for spec in variants]
    isas, algorithms = (", ".join(dict.fromkeys(names)) for names in zip(*parts, strict=True))
    return _HEAD.format(
        count=len(columns[0].results),
        versions=", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        variants=len(variants),
        isas=isas,
        algorithms=algorithms,
        thinned=thinned,
    )


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _by_operation(columns: Sequence[Measured]) -> str:
    rows = []
    for op in dict.fromkeys(result.op for result in columns[0].results):
        rows.append([op, *(_counts([r for r in column.results if r.op == op]) for column in columns)])
    rows.append(["all", *(_counts(column.results) for column in columns)])
    text = "Passed / failed / not offered. Instances of free cases, which cannot fail, are left out."
    return f"## Operations\n\n{text}\n\n" + _table(["", *(c.spec for c in columns)], rows)


def _counts(results: Iterable[Result]) -> str:
    counts = dict.fromkeys(("pass", "fail", "not offered"), 0)
    for result in results:
        if result.verdict != "free":
            counts[result.status] += 1
    passed, failed, absent = counts.values()
    return f"{passed} / {failed} / {absent}" if passed or failed else "."


def _cases(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Results by case, its formats together."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.instance.partition("[")[0], []).append(result)
    return groups


def _failing_cases(columns: Sequence[Measured]) -> str:
    """Every case that a subject fails, with what each subject made of it, and what came of the failures."""
    grouped = [_cases(column.results) for column in columns]
    failing = [
        case for case in grouped[0] if any(r.status == "fail" for group in grouped for r in group[case])
    ]
    rows = [[f"`{case}`", *(_mark(group[case]) for group in grouped)] for case in failing]
    lines = []
    for case in failing:
        lines.append(f"- `{case}`: {grouped[0][case][0].reason}")
        for column, group in zip(columns, grouped, strict=True):
            worst = next((r for r in group[case] if r.status == "fail"), None)
            if worst is not None:
                at = f" at {worst.point}" if worst.point else ""
                lines.append(f"    - {column.spec}, {worst.dtype}{at}: {_plain(worst.problem)}")
    if not failing:
        return "## Cases that some subject fails\n\nThere are none."
    text = "Formats that fail are named; `.` is not offered in any, `pass` is passed wherever it is offered."
    heading = ["", *(column.spec for column in columns)]
    return "\n\n".join(
        (
            "## Cases that some subject fails",
            text,
            _table(heading, rows),
            "What came, in the first format:",
            "\n".join(lines),
        )
    )


def _mark(results: Sequence[Result]) -> str:
    failed = [_SHORT.get(result.dtype, result.dtype) for result in results if result.status == "fail"]
    if failed:
        return f"**{', '.join(failed)}**"
    return next(
        (_MARKS[s] for s in ("pass", "recorded") if any(r.status == s for r in results)),
        _MARKS["not offered"],
    )


def _plain(text: str) -> str:
    """A problem in a line that Markdown leaves alone."""
    return "`" + _line(text).replace("`", "'") + "`"


def _line(text: str) -> str:
    """A text in one line, its middle left out where it is long: what matters stands at its ends."""
    line = " ".join(text.split())
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} ... {line[-half:]}"


def _faults(found: Sequence[tuple[Found, Result]], columns: Sequence[Measured]) -> str:
    versions = {column.spec: column.versions for column in columns}
    entries = [
        _fault(number, each, example, versions[each.subject])
        for number, (each, example) in enumerate(
            (pair for pair in found if pair[0].finding.kind == "fault"), start=1
        )
    ]
    text = "Each was judged by a person: the input is legal, the right value is not a matter of taste."
    return "\n\n".join((f"## Faults found in today's libraries\n\n{text}", *(entries or ["None."])))


def _fault(number: int, found: Found, example: Result, versions: Mapping[str, str]) -> str:
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        f"### {number}. {found.subject}: {found.finding.title}",
        f"{names}; operation {example.op}; case `{example.instance}`{_others(found, example)}.",
    ]
    if example.shown is not None:
        given = {**example.shown.inputs, **example.shown.options}
        snippet = [f"{name} = {value}" for name, value in given.items()]
        came = [f"came:  {_line(example.shown.got)}", f"right: {_line(example.shown.right)}"]
        lines.append("\n".join(["```text", *snippet, "", *came, "```"]))
    else:
        lines.append(_plain(example.problem))
    sources = f" Sources: {', '.join(example.sources)}." if example.sources else ""
    lines.append(f"{found.finding.why} The case says: {example.reason}{sources}")
    return "\n\n".join(lines)


def _others(found: Found, example: Result) -> str:
    others = [r.instance for r in found.results if r.instance != example.instance]
    return f", and {len(others)} more" if others else ""


def _conventions(found: Sequence[tuple[Found, Result]]) -> str:
    rows = [
        [
            each.subject,
            each.finding.title,
            each.finding.why,
            ", ".join(f"`{case}`" for case in _cases(each.results)),
        ]
        for each, _ in found
        if each.finding.kind == "convention"
    ]
    if not rows:
        return ""
    text = "These fail cases too, but the library says so, or never said that it would do otherwise."
    table = _table(["", "what", "why it is no fault", "cases"], rows)
    return f"## Conventions of libraries that differ from this one's\n\n{text}\n\n{table}"


def _free(columns: Sequence[Measured]) -> str:
    """What free cases came to: nobody is right there."""
    recorded = [[r for r in column.results if r.verdict == "free"] for column in columns]
    rows = []
    for case, results in _cases(recorded[0]).items():
        dtypes = [result.dtype for result in results]
        cells = [
            _said([r for r in of_column if r.instance.partition("[")[0] == case]) for of_column in recorded
        ]
        rows.append([f"`{case}` ({', '.join(_SHORT.get(d, d) for d in dtypes)})", results[0].reason, *cells])
    if not rows:
        return ""
    table = _table(["", "why it is free", *(column.spec for column in columns)], rows)
    text = "Free cases: no answer is wrong, what each subject does is recorded."
    return f"## Where libraries differ\n\n{text}\n\n{table}"


def _said(results: Sequence[Result]) -> str:
    """What was recorded, in one word where all formats agree."""
    words = {result.dtype: result.recorded for result in results if result.status == "recorded"}
    if not words:
        return "."
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{_SHORT.get(dtype, dtype)} {word}" for dtype, word in words.items())


def _unjudged(unjudged: Mapping[str, Sequence[Result]]) -> str:
    lines = [
        f"- {name}, `{r.instance}`: {_plain(r.problem)}"
        for name, results in unjudged.items()
        for r in results
    ]
    return "\n".join(["## Not judged yet", "", *lines]) if lines else ""


def _teaching(teaching: Measured) -> str:
    failed = [result for result in teaching.results if result.status == "fail"]
    cases = ", ".join(f"`{case}`" for case in _cases(failed))
    return _TEACHING.format(name=teaching.spec, count=len(failed), cases=cases or "no case")
