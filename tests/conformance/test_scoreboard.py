"""The scoreboard's arithmetic, its page, what a person judged, and the committed page itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from online_softmax.conformance import findings, scoreboard
from online_softmax.conformance.cases import load_cases
from online_softmax.conformance.findings import Finding, sort
from online_softmax.conformance.results import Result, Shown
from online_softmax.conformance.scoreboard_page import Measured, page
from online_softmax.conformance.subjects import parse

ROOT = Path(__file__).parents[2]


def result(case: str, dtype: str = "float32", status: str = "pass", **more: object) -> Result:
    verdict = "free" if status == "recorded" else "must"
    base = Result(f"{case}[{dtype}]", case.partition("/")[0], dtype, (), verdict, status, reason="A reason.")
    return replace(base, **more)


# ---- the arithmetic ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.0, 0.0), (1.0, 1.0), (0.123, 0.123), (0.1230001, 0.124), (0.9991, 1.0), (12.34, 12.4), (3e-7, 3e-7)],
)
def test_ratios_are_rounded_up_to_three_digits(ratio: float, expected: float) -> None:
    assert scoreboard.rounded_up(ratio) == expected


def test_rounding_up_never_goes_down_and_moves_by_one_in_a_hundred_at_most() -> None:
    for step in range(400):
        ratio = 1.037**step * 1e-5
        assert ratio * (1 - 1e-9) <= scoreboard.rounded_up(ratio) <= ratio * 1.01


def test_sweeps_are_thinned_evenly_with_the_last_point() -> None:
    case = next(c for c in load_cases() if len(next(iter(c.sweep.values()), ())) > 10)
    (name, values), *_ = case.sweep.items()
    for points in (1, 2, 4, 7):
        thin = scoreboard.thinned(case, points).sweep[name]
        assert len(thin) == points
        assert thin[-1] == values[-1]
        assert points == 1 or thin[0] == values[0]
        assert list(thin) == [v for v in values if v in thin]
    assert scoreboard.thinned(case, None) is case
    assert scoreboard.thinned(case, len(values)) is case


def test_the_worst_peer_that_passes_counts() -> None:
    cases = [c for c in load_cases(op="softmax") if c.law == "value" and c.verdict == "must"][:2]
    first, second = (c.instance for c in cases)

    def peer(spec: str, *results: tuple[str, str, float]) -> Measured:
        made = [replace(result("softmax/x"), instance=i, status=s, ratio=r) for i, s, r in results]
        return Measured(spec, {}, tuple(made))

    worst = scoreboard.worst_ratios(
        [
            peer("numpy", (first, "pass", 0.2), (second, "fail", 7.0)),
            peer("torch", (first, "pass", 0.30001), (second, "not offered", 0.0)),
            peer("jax", (first, "fail", 5.0), ("softmax/none-such[float32]", "pass", 0.5)),
        ],
        cases,
    )
    assert worst == {first: {"peer": "torch", "ratio": 0.301}}


def test_variants_together_fail_where_one_fails() -> None:
    def variant(*statuses: str) -> Measured:
        return Measured(
            "x", {"numpy": "2"}, tuple(result(f"softmax/{n}", status=s) for n, s in enumerate(statuses))
        )

    both = scoreboard.merged(
        "all", [variant("pass", "fail", "not offered"), variant("not offered", "pass", "not offered")]
    )
    assert [r.status for r in both.results] == ["pass", "fail", "not offered"]
    assert both.spec == "all"


# ---- what a person judged ----------------------------------------------------------------------------------


def test_findings_are_complete_and_about_what_there_is() -> None:
    ids = {case.id for case in load_cases()}
    made = findings.findings()
    assert len({(f.subjects, f.title) for f in made}) == len(made)
    for finding in made:
        assert finding.title.strip()
        assert finding.why.endswith(".")
        for spec in finding.subjects:
            assert parse(spec).spec in (*scoreboard.MEASURES, *scoreboard.FURTHER)
        for pattern in finding.cases:
            assert any(findings.fnmatchcase(case, pattern) for case in ids), (finding.title, pattern)


def finding(**more: object) -> Finding:
    base = Finding(("torch",), ("softmax/*",), "", "fault", "a title", "It is so.")
    return replace(base, **more)


def test_a_failure_counts_for_the_first_finding_that_speaks_of_it() -> None:
    narrow = finding(cases=("softmax/a",), problem="nan", dtypes=("float16",))
    wide = finding(title="the rest")
    failing = {
        "torch": [
            result("softmax/a", "float16", "fail", problem="y is nan"),
            result("softmax/a", "float32", "fail", problem="y is nan"),
            result("softmax/b", "float16", "fail", problem="y is inf"),
            result("logsumexp/a", status="fail"),
        ],
        "jax": [result("softmax/a", status="fail")],
    }
    found, unjudged = sort(failing, [narrow, wide])
    assert [(f.subject, f.finding.title, len(f.results)) for f in found] == [
        ("torch", "a title", 1),
        ("torch", "the rest", 2),
    ]
    assert {spec: [r.instance for r in results] for spec, results in unjudged.items()} == {
        "torch": ["logsumexp/a[float32]"],
        "jax": ["softmax/a[float32]"],
    }


def test_the_first_pattern_chooses_what_is_shown() -> None:
    failures = [result("softmax/a", status="fail"), result("softmax/b", status="fail")]
    (found,), _ = sort({"torch": failures}, [finding(cases=("softmax/b", "softmax/*"))])
    assert found.shown.instance == "softmax/b[float32]"


# ---- the page ----------------------------------------------------------------------------------------------


def measured(spec: str, *results: Result) -> Measured:
    return Measured(spec, {spec: "1.2"}, results)


def made_page() -> str:
    shown = Shown({"x": "np.array([1.0])"}, {"axis": "-1"}, "y = [2.]", "y = [1.]")
    bad = result(
        "softmax/a", status="fail", problem="y at [0] is 2.0 | or so", shown=shown, sources=("B001",)
    )
    mild = result("softmax/b", status="fail", problem="refused")
    free = result("logsumexp/c", status="recorded", recorded="strict")
    other = replace(free, recorded="limit")
    ours = measured("ours", result("softmax/a"), result("softmax/b"), free)
    torch = measured("torch", bad, mild, other)
    naive = measured("ours:scalar.naive", bad, result("softmax/b"), free)
    fault, convention = (
        finding(cases=("softmax/a",)),
        finding(cases=("softmax/b",), kind="convention", title="otherwise"),
    )
    found, unjudged = sort({"torch": [bad, mild]}, [fault, convention])
    pairs = [(each, each.shown) for each in found]
    return page(
        [ours, torch], naive, ["ours:scalar.online", "ours:scalar.cached"], pairs, unjudged, {"jax": 4}
    )


def test_the_page_says_what_happened() -> None:
    text = made_page()
    for line in (
        "Versions: ours 1.2, torch 1.2.",
        "| softmax | 2 / 0 / 0 | 0 / 2 / 0 |",
        "| logsumexp | . | . |",
        "| `softmax/a` | pass | **f32** |",
        "    - torch, float32: `y at [0] is 2.0 | or so`",
        "### 1. torch: a title",
        "x = np.array([1.0])",
        "came:  y = [2.]",
        "right: y = [1.]",
        "| torch | otherwise | It is so. | `softmax/b` |",
        "| `logsumexp/c` (f32) | A reason. | strict | limit |",
    ):
        assert line in text.splitlines(), line
    assert "Sources: B001." in text
    assert "each of scalar with each of" in " ".join(text.split())
    assert "1 instances of `softmax/a`" in " ".join(text.split())
    assert "Not judged yet" not in text


def test_what_nobody_judged_is_called_so() -> None:
    bad = result("softmax/a", status="fail", problem="y is 2")
    text = page([measured("ours", result("softmax/a"))], measured("n"), ["ours:a.b"], [], {"jax": [bad]}, {})
    assert "## Not judged yet\n\n- jax, `softmax/a[float32]`: `y is 2`" in text


def test_the_board_of_one_operation_in_full() -> None:
    """Every stage but the writing, with real subjects."""
    pytest.importorskip("scipy")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    ratios, text = scoreboard.scoreboard(quick=True)
    offered = {
        c.instance for c in load_cases(op=scoreboard.QUICK_OP) if c.law == "value" and c.verdict == "must"
    }
    assert set(ratios) <= offered
    assert ratios
    assert all(entry["peer"] == "onnxruntime" and 0 <= entry["ratio"] <= 1 for entry in ratios.values())
    assert f"| {scoreboard.QUICK_OP} |" in text


# ---- what is committed -------------------------------------------------------------------------------------


def test_the_committed_peers_are_of_cases_that_there_are() -> None:
    peers = json.loads((ROOT / scoreboard.PEERS_FILE).read_text(encoding="utf-8"))
    known = {case.instance for case in load_cases()}
    assert set(peers) <= known
    assert list(peers) == sorted(peers)
    for entry in peers.values():
        assert set(entry) == {"peer", "ratio"}
        assert entry["peer"] in scoreboard.MEASURES
        assert 0 <= entry["ratio"] <= 1
        assert math.isclose(entry["ratio"], scoreboard.rounded_up(entry["ratio"]))


def test_the_committed_page_has_ten_faults_judged_and_none_of_ours() -> None:
    text = (ROOT / scoreboard.PAGE_FILE).read_text(encoding="utf-8")
    assert "## Not judged yet" not in text
    assert text.count("\n### ") >= 10
    (totals,) = [line for line in text.splitlines() if line.startswith("| all |")]
    ours, variants = (cell.split(" / ") for cell in totals.split(" | ")[1:3])
    assert (ours[1], variants[1]) == ("0", "0")
