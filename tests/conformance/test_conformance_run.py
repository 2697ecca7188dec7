"""A subject is called in a process of its own: whatever it does is a result, and the next case runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from making import INF, NAN, make, sweep, values

from online_softmax.conformance import axes, run
from online_softmax.conformance.cases import Case, CaseError
from online_softmax.conformance.child import Call, Child, Load, Loaded, SubjectError, same_bits
from online_softmax.conformance.known import Known
from online_softmax.conformance.results import Result
from online_softmax.conformance.subjects import Subject

SPECIAL = [[0.0, INF, -INF], [NAN, 1.0, 2.0], [-INF, -INF, -INF], [88.0, 89.0, -104.0]]
ROWS = {"normal": [4, 33], "seed": 2}


def subject(name: str) -> Subject:
    place = name if ":" in name else f"faulty_subjects:{name}"
    return Subject(place, "softmax", "numpy")


def check(name: str, *cases: Case, **more) -> list[Result]:
    return run.run(subject(name), cases, peers={}, **{"timeout": 20.0, "shrink": False} | more)


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether a process ends in time."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


# --- what is right --------------------------------------------------------------------------------


def test_an_honest_subject_passes_every_law():
    cases = [
        *(
            make(dtype=dtype, inputs={"x": {"values": SPECIAL}})
            for dtype in ("float64", "float16", "bfloat16")
        ),
        sweep(0, 1, 2, 127, 128, 129),
        *(make(law, inputs={"x": ROWS}) for law in ("repeatable", "threads", "batch_invariant")),
        make("nan", inputs={"x": {"values": [[INF, 1.0]]}}),
        make("distribution"),
        make("distribution", verdict="must_not", inputs={"x": {"values": [[NAN, 1.0]]}}),
        *(
            make(id=f"softmax/{layout}", inputs={"x": {"full": [3, 4], "value": 1.5, "layout": layout}})
            for layout in (
                "transposed",
                "strided",
                "rows_strided",
                "negative",
                "broadcast",
                "offset",
                "readonly",
            )
        ),
    ]
    results = check("honest", *cases)
    assert [result.instance for result in results] == [case.instance for case in cases]
    assert {result.status for result in results} == {"pass"}, [r for r in results if r.status != "pass"]
    assert all(0 <= result.ratio <= 1 for result in results)
    assert results[1].ratio > 0
    assert all(result.seconds > 0 and result.shown is None and not result.problem for result in results)


def test_ours_passes_too():
    results = run.run(Subject("ours"), [make(), sweep(1, 127)], peers={})
    assert [result.status for result in results] == ["pass", "pass"]


# --- faults ---------------------------------------------------------------------------------------

FAULTS = [
    ("drops_nan", values([NAN, 0.0]), "", r"y at \[0, 0\] is 0\.0, and has to be nan"),
    ("no_shift", values([200.0, 0.0]), "", r"y at \[0, 0\] is nan, and has to be 1\.0"),
    ("tail_at_127", sweep(1, 126, 127, 128), "n=127", r"y at \[\d, 126\] is 0\.0"),
    ("other_shape", make(), "", r"y has shape \(1, 2, 3\), and has to have \(2, 3\)"),
    ("other_dtype", make(), "", "y is float64, and has to be float32"),
    ("changes_input", make(), "", "changed its input x"),
    (
        "changes_input",
        make(inputs={"x": {"full": [2, 3], "value": 1.0, "layout": "broadcast"}}),
        "",
        "changed its",
    ),
    ("raises", make(), "", r"raised Odd: \(its text cannot be made\) \(faulty_subjects\.py, line \d+\)"),
    ("exits", make(), "", "raised SystemExit: 3"),
    ("returns_none", make(), "", "NoneType"),
    ("short_sums", make(inputs={"x": {"zeros": [5000]}}), "", r"is 0\.00048828125, and has to be 0\.0002"),
    ("not_repeatable", make("repeatable"), "", "y of call 2 differs in bits"),
    ("shares_scratch", make("threads", inputs={"x": ROWS}), "", "differs in bits"),
    ("shares_its_input", make("threads", inputs={"x": ROWS}), "", "differs in bits"),
    ("knows_its_batch", make("batch_invariant", inputs={"x": ROWS}), "", "differs in bits"),
    ("honest", make("raises"), "", "returned y = .* where it had to raise"),
    ("returns_scalar", make("distribution", options={"axis": 1}), "", r"y has shape \(\)"),
    ("honest", make("zeros"), "", "not zero throughout"),
    ("honest", make("distribution", verdict="must_not"), "", "is what must not be"),
]


@pytest.mark.parametrize(
    ("name", "case", "point", "problem"), FAULTS, ids=[f"{f[0]}-{f[1].law}" for f in FAULTS]
)
def test_a_fault_is_reported_with_what_is_wrong(name, case, point, problem):
    (result,) = check(name, case)
    assert result.status == "fail"
    assert result.point == point
    assert re.search(problem, result.problem), result.problem
    assert result.shown is not None
    assert list(result.shown.inputs) == ["x"]


def test_a_segfault_fails_its_case_and_no_other():
    bad, good = sweep(1, 2, 3, 4), values([1.0, 2.0])
    first, second, third = check("segfaults", bad, good, bad)
    assert (first.status, first.point) == ("fail", "n=3")
    assert first.problem.startswith("crash: ended by SIGSEGV, in segfaults (faulty_subjects.py, line ")
    assert second.status == "pass"
    assert third.problem == first.problem


@pytest.mark.parametrize("name", ["hangs", "hangs_with_the_lock"])
def test_a_hang_ends_at_the_time_limit(name):
    with run.Runner(subject(name), timeout=1.0, peers={}, smallest=False) as runner:
        runner.start()
        child = runner._child
        started = time.monotonic()
        result = runner.check(make())
        assert time.monotonic() - started < 10
        assert result.status == "fail"
        assert result.problem.startswith(
            f"timeout: no answer within 1 s, in {name} (faulty_subjects.py, line "
        )
        assert not child.alive
        if name == "hangs":
            assert runner.check(values([1.0, 2.0])).status == "pass"


def test_a_subject_that_closes_the_pipes_of_the_kit_fails_once():
    first, second = check("closes_all", make(), values([1.0, 2.0]))
    assert first.problem == "crash: closed the pipe that its answers go through"
    assert second.status == "pass"


def test_a_subject_that_ends_its_process_fails():
    (result,) = check("leaves", make())
    assert result.problem == "crash: ended its process with exit code 7"
    (result,) = check("interrupts", make())
    assert re.fullmatch(r"crash: ended .*", result.problem)
    assert "KeyboardInterrupt" in result.problem or "SIGINT" in result.problem


@pytest.mark.parametrize("name", ["prints", "prints_without_end"])
def test_what_a_subject_prints_goes_nowhere(name, capfd):
    assert [result.status for result in check(name, make(), make("threads"))] == ["pass", "pass"]
    assert capfd.readouterr() == ("", "")


def test_what_a_signature_lacks_is_not_offered():
    (result,) = check("no_axis", make(options={"axis": 0}))
    assert (result.status, result.problem) == ("not offered", "has neither axis nor dim")
    assert check("no_axis", make(options={"axis": -1}))[0].status == "pass"
    cases = [
        make(inputs={"x": ROWS, "where": {"bernoulli": [4, 33]}}),
        make("raises", op="logsumexp", id="logsumexp/x"),
    ]
    with run.Runner(subject("honest"), peers={}) as runner:
        assert [runner.check(case).status for case in cases] == ["not offered", "not offered"]


def test_a_free_case_is_recorded():
    allowed = ({"name": "strict", "y": [[NAN, NAN]]}, {"name": "limit", "y": [[1.0, 0.0]]})
    case = values([INF, 0.0], law="one_of", verdict="free", allowed=allowed)
    assert [(r.status, r.recorded) for r in check("honest", case)] == [("recorded", "strict")]


# --- known failures, peers, choice ----------------------------------------------------------------


def test_known_failures_and_passes_against_the_list():
    known = Known({"softmax/lengths": "the tail", "softmax/value[float32]": "not any more"})
    first, second, third = check("tail_at_127", sweep(127), make(), make(dtype="float64"), known=known)
    assert (first.status, first.listed, first.shown) == ("known", "the tail", None)
    assert (second.status, third.status) == ("unexpected pass", "pass")
    assert "not any more" in second.problem


def test_an_error_far_beyond_the_peers_fails_within_the_bound():
    case = make()
    (alone,) = check("sloppy", case)
    assert alone.status == "pass"
    assert alone.ratio > 0.3
    near, far = ({case.instance: {"ratio": ratio, "peer": "p"}} for ratio in (alone.ratio / 3.9, 0.0))
    assert run.run(subject("sloppy"), [case], peers=near)[0].status == "pass"
    (failed,) = run.run(subject("sloppy"), [case], peers=far)
    assert failed.status == "fail"
    assert failed.problem.startswith("worse than every peer")
    assert failed.shown is not None
    assert failed.shown.inputs["x"] == "np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], dtype=np.float32)"


def test_huge_cases_run_only_when_asked_and_other_operations_never():
    cases = [make(), make(id="softmax/huge", tags=("huge",)), make(op="log_softmax", id="log_softmax/x")]
    seen: list[str] = []
    check("honest", *cases, on_result=lambda result: seen.append(result.instance))
    assert seen == ["softmax/value[float32]"]
    assert len(check("honest", *cases, huge=True)) == 2


def test_a_failing_input_is_made_smaller():
    (result,) = check("tail_at_127", sweep(1, 127), shrink=True)
    assert result.shown is not None
    assert result.shown.inputs == {"x": "np.full((1, 127), 0.0, dtype=np.float32)"}


def test_shrinking_stops_when_the_time_of_a_run_is_spent(monkeypatch):
    monkeypatch.setattr(run, "SHRINKING", 0.0)
    (result,) = check("tail_at_127", sweep(127), shrink=True)
    assert result.shown is not None
    assert result.shown.inputs["x"].startswith("recipes.build(")
    assert result.shown.note == "not made smaller: 0 s were spent on the failures above"


# --- subjects that cannot be run ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:softmax", "no_such_module:softmax.*No module named 'no_such_module'"),
        ("faulty_subjects:no_such_name", "faulty_subjects:no_such_name.*has no no_such_name"),
        ("faulty_subjects:NOT_CALLABLE", "faulty_subjects:NOT_CALLABLE.*is a int: a callable would do"),
        (
            "raises_at_import:x",
            r"raises_at_import:x: .*RuntimeError: no licence found \(raises_at_import.py, line 3\)",
        ),
        (
            "dies_at_import:x",
            "dies_at_import:x: died while it was loaded: ended its process with exit code 3",
        ),
    ],
)
def test_a_subject_that_cannot_be_loaded_is_an_error_that_names_it(target, message):
    with pytest.raises(SubjectError, match=message):
        check(target, make())


def test_a_subject_that_takes_too_long_to_load():
    with pytest.raises(SubjectError, match=r"hangs_at_import:x: did not load: no answer within 1 s"):
        check("hangs_at_import:x", make(), load_timeout=1.0)


def test_three_deaths_in_a_row_while_loading_end_the_run(tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    monkeypatch.setenv("DIES_LATER", str(mark))
    results: list[Result] = []
    with pytest.raises(SubjectError, match="dies_later:softmax: died while it was loaded"):
        check("dies_later:softmax", make(), make(), on_result=results.append)
    assert [result.problem for result in results] == ["crash: ended its process with exit code 4"]
    assert mark.read_text().split() == ["call", "import", "import", "import"]


@pytest.mark.parametrize("name", ["timeout", "load_timeout"])
@pytest.mark.parametrize("value", [0.0, -1.0, INF, NAN])
def test_time_limits_are_positive(name, value):
    with pytest.raises(ValueError, match=f"{name}=.*positive number of seconds"):
        run.Runner(subject("honest"), **{name: value})


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (make(op="hardmax", id="hardmax/x"), "making.py: case hardmax/x.*hardmax"),
        (make(inputs={}), r"making.py: case softmax/value\[float32\]: inputs.x is missing: softmax takes it"),
        (make(options={"dim": 0}), r"making.py: case softmax/value\[float32\]: softmax has no options.dim"),
        (make("batch_invariant", inputs={"x": {"zeros": [3]}}), "takes a batch"),
        (make(inputs={"x": {"normal": [2, "n"]}}), r"case softmax/value\[float32\]"),
    ],
)
def test_an_impossible_case_is_named(case, message):
    with run.Runner(Subject("ours"), peers={}) as runner, pytest.raises(CaseError, match=message):
        runner.check(case)


# --- processes ------------------------------------------------------------------------------------


def test_an_interrupt_leaves_no_process(monkeypatch):
    children: list[Child] = []

    class Noted(Child):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            children.append(self)

    monkeypatch.setattr(run, "Child", Noted)

    def interrupt(_: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("honest", make(), on_result=interrupt)
    (child,) = children
    assert not child.alive
    assert gone(child.pid)


def test_a_child_does_not_outlive_a_parent_that_is_killed():
    script = (
        "import time\n"
        "from online_softmax.conformance.child import Child, Load\n"
        "from online_softmax.conformance.subjects import Subject\n"
        "child = Child()\n"
        "child.ask(Load(Subject('ours')), 60)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert gone(pid)


def test_bits_come_back_as_they_went():
    with Child() as child:
        assert isinstance(child.ask(Load(subject("honest")), 60), Loaded)
        x = np.random.default_rng(0).normal(size=(300, 4000)).astype(np.float32)  # more than a pipe holds
        outcome = child.ask(Call("softmax", "float32", {"x": x}, {}, {"axis": -1}), 60)
        import faulty_subjects

        assert same_bits(outcome.outputs["y"], faulty_subjects.honest(x))
    child.close()
    assert not child.alive


def test_same_bits_tells_zeros_and_payloads_apart():
    zero = np.zeros(2, np.float32)
    assert same_bits(zero, zero.copy())
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.astype(np.float64))
    assert not same_bits(zero, zero[:1])
    assert same_bits(np.array(NAN), np.array(NAN))


# --- axes -----------------------------------------------------------------------------------------


def test_axes_that_belong_together():
    q, k = np.zeros((2, 4, 5, 8)), np.zeros((2, 2, 7, 8))
    mask = np.ones((5, 7), bool)
    names = axes.named("attention", {"q": q, "k": k, "v": k, "mask": mask}, {})
    assert names["q"] == ("B", "H", "L", "D")
    assert names["v"] == ("B", "G", "S", "E")
    assert names["mask"] == ("L", "S")
    x = np.zeros((2, 3, 4))
    assert axes.named("softmax", {"x": x, "where": x[0]}, {}) == {
        "x": ("*-3", "*-2", "*-1"),
        "where": ("*-2", "*-1"),
    }
    given = {"x": x, "dlse": np.zeros((2, 4))}
    assert axes.named("logsumexp_grad", given, {"axis": 1})["dlse"] == ("*-3", "*-1")
    assert axes.named("merge_attention", {"o_a": x, "lse_a": x[..., 0]}, {})["o_a"] == ("*-2", "*-1", "E")


def test_axes_of_the_batch():
    q, k = np.zeros((2, 4, 5, 8)), np.zeros((2, 2, 7, 8))
    given = {"q": q, "k": k, "v": k}
    assert axes.rows("attention", given, {}) == {"q": (0, 2), "k": (0, None), "v": (0, None)}
    assert axes.rows("attention", given, {"causal": True})["q"] == (0,)
    assert axes.rows("softmax", {"x": np.zeros(3)}, {}) == {}
    logits = {"logits": np.zeros((4, 3)), "targets": np.zeros(4, int)}
    assert axes.rows("cross_entropy", logits, {"reduction": "none"}) == {"logits": (0,), "targets": (0,)}
