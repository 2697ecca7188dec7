"""All subjects over all cases: data/peers.json, what the peers' errors are, and docs/scoreboard.md.

    python -m online_softmax.conformance.scoreboard [--quick]

is run in the root of the repository. Peers come first: ours is then held to their errors as well. Takes half
an hour, most of it compilations of JAX and TorchInductor.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from . import subjects
from .cases import Case, load_cases
from .files import write_safely
from .findings import Found, findings, sort
from .results import Result
from .run import Peers, Runner
from .scoreboard_page import Measured, page

PEERS_FILE: Final = Path("src/online_softmax/conformance/data/peers.json")
PAGE_FILE: Final = Path("docs/scoreboard.md")
#: Whose errors count in peers.json: what runs the same each time, without a compiler of its own.
MEASURES: Final = ("numpy", "torch", "jax", "onnxruntime")
#: Further implementations of the peers, judged alike.
FURTHER: Final = ("torch:compile", "torch:chunked", "torch:flex")
OURS: Final = ("ours", "triton")
#: Points of a sweep at most, for subjects that compile each shape for seconds.
POINTS: Final = {"jax": 3, "torch:compile": 1}
#: Seconds for a point: a compilation on a busy machine is no fault.
TIMEOUT: Final = 180.0
#: Cases of the operation that --quick keeps, and the subjects.
QUICK_OP: Final = "softmax_topk"
QUICK_SUBJECTS: Final = ("numpy", "onnxruntime")


def measure(spec: str, cases: Iterable[Case], peers: Peers) -> Measured:
    """Put the cases to a subject, with thinned sweeps where POINTS says so; failing inputs stay as they are.

    Raises SubjectError where the subject cannot be loaded.
    """
    chosen = [thinned(case, POINTS.get(spec)) for case in cases]
    with Runner(subjects.parse(spec), timeout=TIMEOUT, peers=peers, smallest=False) as runner:
        runner.start()
        results = tuple(runner.check(case) for case in chosen)
        return Measured(spec, dict(runner.versions), results)


def thinned(case: Case, points: int | None) -> Case:
    """The case with `points` of its sweep's points at most: the first, the last, and some between; None for
    all."""
    length = max((len(values) for values in case.sweep.values()), default=0)
    if points is None or length <= points:
        return case
    places = [length - 1 - round(i * (length - 1) / max(points - 1, 1)) for i in reversed(range(points))]
    return replace(
        case, sweep={name: tuple(values[i] for i in places) for name, values in case.sweep.items()}
    )


def worst_ratios(measured: Sequence[Measured], cases: Iterable[Case]) -> dict[str, dict[str, Any]]:
    """Instance of a case about values -> the worst ratio of a peer that passes it, rounded up, and the peer's
    name."""
    about_values = {case.instance for case in cases if case.law == "value" and case.verdict == "must"}
    worst: dict[str, dict[str, Any]] = {}
    for peer in measured:
        for result in peer.results:
            if result.instance not in about_values or result.status != "pass":
                continue
            ratio = rounded_up(result.ratio)
            if result.instance not in worst or ratio > worst[result.instance]["ratio"]:
                worst[result.instance] = {"peer": peer.spec, "ratio": ratio}
    return dict(sorted(worst.items()))


def rounded_up(ratio: float) -> float:
    """The next number of three digits."""
    if ratio <= 0:
        return 0.0
    scale = 10.0 ** (math.floor(math.log10(ratio)) - 2)
    return float(f"{math.ceil(ratio / scale - 1e-9) * scale:.3g}")


def shown(found: Found, cases: Mapping[str, Case]) -> Result:
    """The failure that stands for a finding; of a fault with its smallest input."""
    if found.finding.kind != "fault":
        return found.shown
    case = thinned(cases[found.shown.instance], POINTS.get(found.subject))
    with Runner(subjects.parse(found.subject), timeout=TIMEOUT, peers={}) as runner:
        result = runner.check(case)
    # What fails now and then only is shown as it was.
    return result if result.status == "fail" else found.shown


def merged(spec: str, measured: Sequence[Measured]) -> Measured:
    """Several variants as one subject: it fails where one fails, and is not offered where all are not."""
    order = ("fail", "pass", "recorded", "not offered")
    by_case = zip(*(each.results for each in measured), strict=True)
    results = tuple(min(alike, key=lambda result: order.index(result.status)) for alike in by_case)
    return Measured(spec, measured[0].versions, results)


def scoreboard(*, quick: bool = False, jobs: int = 1) -> tuple[dict[str, dict[str, Any]], str]:
    """(what goes into peers.json, the page). `jobs`: subjects at a time. Nothing is written."""
    cases = [case for case in load_cases(op=QUICK_OP if quick else None) if "huge" not in case.tags]
    variants = [subject.spec for subject in subjects.variants()]
    naive = subjects.variants(naive=True)[-1].spec
    with ThreadPoolExecutor(jobs) as pool:

        def all_of(specs: Iterable[str], ratios: Peers) -> list[Measured]:
            return list(pool.map(lambda spec: _said(measure(spec, cases, ratios)), specs))

        peers = all_of(QUICK_SUBJECTS if quick else (*MEASURES, *FURTHER), {})
        ratios = worst_ratios([peer for peer in peers if peer.spec in MEASURES], cases)
        ours = all_of((*(OURS[:1] if quick else OURS), *variants, naive), ratios)
        named = {case.instance: case for case in cases}
        found, unjudged = judged(peers)
        examples = list(pool.map(lambda each: shown(each, named), found))
    whole, of_variants, teaching = ours[: -len(variants) - 1], ours[-len(variants) - 1 : -1], ours[-1]
    columns = [whole[0], merged("all variants", of_variants), *whole[1:], *peers]
    text = page(columns, teaching, variants, list(zip(found, examples, strict=True)), unjudged, POINTS)
    return ratios, text


def judged(peers: Iterable[Measured]) -> tuple[list[Found], dict[str, list[Result]]]:
    """(findings among the peers' failures, failures that none speaks of)."""
    failures = {peer.spec: [result for result in peer.results if result.status == "fail"] for peer in peers}
    return sort(failures, findings())


def _said(measured: Measured) -> Measured:
    failing = sum(result.status == "fail" for result in measured.results)
    print(f"{measured.spec}: {failing} of {len(measured.results)} fail", file=sys.stderr, flush=True)
    return measured


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write both files; with --quick print the page and write nothing."""
    parser = argparse.ArgumentParser(
        prog="python -m online_softmax.conformance.scoreboard", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="one operation and two peers, nothing written")
    parser.add_argument("--jobs", type=int, default=1, help="subjects at a time")
    asked = parser.parse_args(arguments)
    ratios, text = scoreboard(quick=asked.quick, jobs=asked.jobs)
    if asked.quick:
        print(text)
        return
    write_safely(PEERS_FILE, json.dumps(ratios, indent=1) + "\n")
    write_safely(PAGE_FILE, text)


if __name__ == "__main__":
    main()
