"""Cases put to a subject, one after the other: call it, judge what came, shrink what failed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np

from . import axes, report, shrink
from .cases import Case, CaseError, Outcome, Point
from .child import Call, Child, ChildError, Load, Loaded, Refused, SubjectError
from .judge import Judgement, against_peers, judge, show_all
from .known import Known
from .operations import OPERATIONS, expected
from .results import Result, Shown
from .subjects import Subject

__all__ = ["Result", "Runner", "Shown", "SubjectError", "run", "shipped_peers"]

MODES: Final = {"repeatable": "repeat", "threads": "threads", "batch_invariant": "rows"}
#: Children that may die one after the other while they load, once one has loaded.
STARTS: Final = 3
#: Seconds of a run for smaller failing inputs: past some dozens of failures nobody reads on.
SHRINKING: Final = 120.0


Peers = Mapping[str, Mapping[str, Any]]


@cache
def shipped_peers() -> Peers:
    """Worst errors of other libraries: instance -> {"ratio": error over bound, "peer": name}; empty before
    they were ever measured."""
    path = resources.files(__package__) / "data" / "peers.json"
    if not path.is_file():
        return {}
    found: Peers = json.loads(path.read_text(encoding="utf-8"))
    return found


class Runner:
    """A subject in a child process, and the cases put to it. Use as a context manager.

    Args:
        subject: what is tested.
        timeout: seconds for the call, or calls, of a point.
        load_timeout: seconds for the subject to be imported.
        known: the cases that are known to fail.
        peers: ratios of other libraries; None for those that come with the kit, {} for none.
        smallest: whether a failing input is made smaller before it is shown.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        timeout: float = 20.0,
        load_timeout: float = 180.0,
        known: Known | None = None,
        peers: Peers | None = None,
        smallest: bool = True,
    ) -> None:
        for name, value in (("timeout", timeout), ("load_timeout", load_timeout)):
            if not (0 < value < math.inf):
                raise ValueError(f"{name}={value!r}: a positive number of seconds would do")
        self.subject = subject
        self.versions: Mapping[str, str] = {}
        self._timeout, self._load_timeout = timeout, load_timeout
        self._known = known or Known({})
        self._peers = shipped_peers() if peers is None else peers
        self._smallest = smallest
        self._left = SHRINKING
        self._child: Child | None = None
        self._started = False

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child. The next call would start another."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def start(self) -> None:
        """Load the subject. SubjectError where that cannot be done; nothing where it is loaded already."""
        if self._child is None:
            self._child = self._new_child()
            self._started = True

    def outcome(self, case: Case, point: Point, *, seconds: float | None = None) -> Outcome:
        """What the subject does with one input of a case. A child that crashed or hung is gone; the next
        call starts another. SubjectError where none can be started."""
        self.start()
        assert self._child is not None
        mode = MODES.get(case.law, "once")
        limit = self._timeout if seconds is None else seconds
        cut = axes.rows(case.op, point.inputs, point.options) if mode == "rows" else {}
        call = Call(
            case.op, case.dtype, point.inputs, point.layouts, point.options, mode, case.calls, cut, limit
        )
        try:
            found = self._child.ask(call, limit)
        except ChildError as error:
            self._child = None
            return Outcome(error=error.kind, message=str(error))
        assert isinstance(found, Outcome)
        return found

    def judgement(self, case: Case, point: Point, outcome: Outcome) -> Judgement:
        """The judge's word, held against the peers' errors where there are some."""
        judgement = judge(case, point, outcome)
        peer = self._peers.get(case.instance)
        if peer is None:
            return judgement
        return against_peers(judgement, float(peer["ratio"]), str(peer["peer"]))

    def check(self, case: Case) -> Result:
        """Put one case to the subject: every point of it, up to the first that fails.

        Raises CaseError where the case itself is impossible, SubjectError where the subject cannot be run
        any more.
        """
        with np.errstate(all="ignore"):  # inputs and a subject's numbers may be anything
            return self._check(case)

    def _check(self, case: Case) -> Result:
        started = time.monotonic()
        ratio = 0.0
        recorded: list[tuple[str, str]] = []
        tried, lacking = False, ("", "")
        for point in _points(case):
            outcome = self.outcome(case, point)
            if outcome.error == "not offered":
                lacking = lacking if lacking[1] else (point.label, outcome.message)
                continue
            tried = True
            judgement = self._judged(case, point, outcome)
            ratio = max(ratio, judgement.ratio)
            recorded.append((judgement.recorded, point.label))
            if not judgement.ok:
                return self._failure(case, point, outcome, judgement, started)
        if not tried:
            return _result(case, "not offered", started, point=lacking[0], problem=lacking[1])
        listed = self._known.reason(case)
        what = _recorded(recorded)
        if case.verdict == "free":
            return _result(case, "recorded", started, ratio=ratio, recorded=what)
        if listed is not None:
            problem = f"passes, and is listed as known to fail ({listed}): take it off the list"
            return _result(case, "unexpected pass", started, problem=problem, ratio=ratio, listed=listed)
        return _result(case, "pass", started, ratio=ratio)

    def _judged(self, case: Case, point: Point, outcome: Outcome) -> Judgement:
        """The judgement. Where there can be none, the case is at fault if the oracle refuses its input, and
        else what came back is: its shape, say."""
        try:
            return self.judgement(case, point, outcome)
        except shrink.REFUSALS as error:
            try:
                expected(case.op, point.inputs, point.options)
            except shrink.REFUSALS as refusal:
                raise _impossible(case, refusal) from refusal
            return Judgement(False, problem=f"cannot be judged ({error}): {show_all(outcome.outputs)}")

    def _failure(
        self, case: Case, point: Point, outcome: Outcome, judgement: Judgement, started: float
    ) -> Result:
        listed = self._known.reason(case)
        shown = None if listed is not None else self._shown(case, point, outcome, judgement)
        return _result(
            case,
            "fail" if listed is None else "known",
            started,
            point=point.label,
            problem=judgement.problem,
            shown=shown,
            ratio=judgement.ratio,
            recorded=judgement.recorded,
            listed=listed or "",
        )

    def _shown(self, case: Case, point: Point, outcome: Outcome, judgement: Judgement) -> Shown:
        def again(candidate: Point, seconds: float) -> tuple[Outcome, Judgement]:
            found = self.outcome(case, candidate, seconds=min(self._timeout, seconds))
            return found, self.judgement(case, candidate, found)

        started = time.monotonic()
        wanted = self._smallest and self._left > 0
        small = shrink.smallest(case, point, outcome, judgement, again if wanted else None)
        if self._smallest and not wanted:
            small = replace(small, note=f"not made smaller: {SHRINKING:g} s were spent on the failures above")
        self._left -= time.monotonic() - started
        return report.shown(case, small)

    def _new_child(self) -> Child:
        """A child with the subject loaded."""
        spec = self.subject.spec
        for _ in range(STARTS if self._started else 1):
            child = Child(self.subject.environment)
            try:
                reply = child.ask(Load(self.subject), self._load_timeout)
            except ChildError as error:
                ended = "did not load: " if error.kind == "timeout" else "died while it was loaded: "
                problem = f"{spec}: {ended}{error}"
                continue
            if isinstance(reply, Loaded):
                self.versions = reply.versions
                return child
            child.close()
            assert isinstance(reply, Refused)
            if reply.kind == SubjectError.__name__:  # says by itself what it is about
                raise SubjectError(reply.message if spec in reply.message else f"{spec}: {reply.message}")
            raise SubjectError(f"{spec}: cannot be loaded: {reply.kind}: {reply.message}")
        raise SubjectError(problem)


def run(
    subject: Subject,
    cases: Iterable[Case],
    *,
    timeout: float = 20.0,
    load_timeout: float = 180.0,
    huge: bool = False,
    known: Known | None = None,
    peers: Peers | None = None,
    on_result: Callable[[Result], None] | None = None,
    shrink: bool = True,
) -> list[Result]:
    """Put cases to a subject; one result a case, in their order.

    Args:
        subject: what is tested; it lives in a child process, and a crash or a hang of it is a failure of
            the case.
        cases: those of the subject's own operation are taken where it is a callable.
        timeout: seconds for the call, or calls, of a point.
        load_timeout: seconds for the subject to be imported.
        huge: whether cases tagged "huge" run too; they take gigabytes.
        known: the cases that are known to fail.
        peers: ratios of other libraries that the subject's are held against; None for those that come with
            the kit.
        on_result: called with each result as it comes.
        shrink: whether a failing input is made smaller before it is shown.

    Raises SubjectError for a subject that cannot be loaded, CaseError for a case that is impossible.
    """
    chosen = [case for case in cases if huge or "huge" not in case.tags]
    results = []
    with Runner(
        subject, timeout=timeout, load_timeout=load_timeout, known=known, peers=peers, smallest=shrink
    ) as runner:
        runner.start()
        for case in chosen:
            if subject.op is not None and case.op != subject.op:
                continue
            result = runner.check(case)
            results.append(result)
            if on_result is not None:
                on_result(result)
    return results


def _points(case: Case) -> Iterator[Point]:
    _check_names(case)
    points = case.points()
    while True:
        try:
            point = next(points)
            if case.law == "batch_invariant" and not axes.rows(case.op, point.inputs, point.options):
                raise CaseError("batch_invariant takes a batch: an axis beside the one that is reduced")
        except StopIteration:
            return
        except shrink.REFUSALS as error:
            raise _impossible(case, error) from error
        yield point


def _check_names(case: Case) -> None:
    """CaseError unless operation, operands and options are there."""
    operation = OPERATIONS.get(case.op)
    if operation is None:
        raise _impossible(case, ValueError(f"op={case.op!r}: one of {', '.join(OPERATIONS)} would do"))
    missing = [name for name in operation.operands if name not in case.inputs]
    if missing:
        raise _impossible(case, ValueError(f"inputs.{missing[0]} is missing: {case.op} takes it"))
    unknown = [
        *(f"inputs.{name}" for name in case.inputs if name not in {*operation.operands, *operation.optional}),
        *(f"options.{name}" for name in case.options if name not in operation.options),
    ]
    if unknown:
        raise _impossible(case, ValueError(f"{case.op} has no {unknown[0]}"))


def _recorded(words: list[tuple[str, str]]) -> str:
    """What happened, and of what did not happen at every point where it first did: "yes, no at n=7"."""
    first: dict[str, str] = {}
    for word, label in words:
        if word:
            first.setdefault(word, label)
    if len(first) < 2:
        return "".join(first)
    return ", ".join(f"{word} at {label}" if label else word for word, label in first.items())


def _impossible(case: Case, error: Exception) -> CaseError:
    return CaseError(f"{case.origin}: case {case.instance}: {error}")


def _result(case: Case, status: str, started: float, **more: Any) -> Result:
    return Result(
        case.instance,
        case.op,
        case.dtype,
        case.tags,
        case.verdict,
        status,
        seconds=round(time.monotonic() - started, 4),
        reason=case.reason,
        sources=case.sources,
        **more,
    )
