"""Results for people, for continuous integration and for programs; lists of known failures; files."""

from __future__ import annotations

import io
import json
import os
import stat
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import INF, NAN, make
from rich.console import Console

from online_softmax.conformance import files, known, recipes, report
from online_softmax.conformance.cases import Outcome, Point
from online_softmax.conformance.child import same_bits
from online_softmax.conformance.judge import judge
from online_softmax.conformance.results import STATUSES, Result, Shown, Totals
from online_softmax.conformance.shrink import Smallest
from online_softmax.conformance.subjects import Subject

SUBJECT = Subject("mine:softmax", "softmax", "numpy")
SHOWN = Shown(
    inputs={"x": "np.array([np.nan, 0.0], dtype=np.float32)"},
    options={"axis": "-1"},
    got="y = [0., 1.]",
    right="y = [nan, nan]",
    problem="y at [0] is 0.0, and has to be nan",
    shrunk=True,
)


def result(status: str = "pass", name: str = "x", **fields: Any) -> Result:
    given: dict[str, Any] = {
        "instance": f"softmax/{name}[float32]",
        "op": "softmax",
        "dtype": "float32",
        "tags": ("nan",),
        "verdict": "must",
        "reason": "A NaN taints its row.",
        "sources": ("B018", "B032"),
        "seconds": 0.25,
    }
    return Result(status=status, **(given | fields))


FAILED = result("fail", "nan", point="n=127", problem="y at [0, 3] is 0.0", shown=SHOWN, ratio=INF)
ALL = [
    result("pass", "ordinary", ratio=0.25),
    FAILED,
    result("known", "old", problem="wrong", listed="hardware drops it"),
    result("unexpected pass", "new", problem="passes, and is listed", listed="was wrong"),
    result("recorded", "free", verdict="free", recorded="strict"),
    result("not offered", "where", problem="has no where", tags=("masked", "nan")),
]


# --- arrays as Python -----------------------------------------------------------------------------


def evaluated(text: str) -> Any:
    return eval(text, {"np": np, "ml_dtypes": ml_dtypes, "recipes": recipes})


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "bool"]
)
@settings(max_examples=100, deadline=None)
@given(data=st.binary(min_size=0, max_size=64), columns=st.integers(1, 3))
def test_pasted_text_gives_the_same_bits(dtype, data, columns):
    kind = recipes.DTYPES[dtype]
    step = columns * kind.itemsize
    array = np.frombuffer(data[: len(data) // step * step], dtype=kind).reshape(-1, columns)
    if dtype == "bool":
        array = array.view(np.uint8) % 2 == 1
    with np.errstate(invalid="ignore"):  # signalling NaN
        made = evaluated(report.paste(array))
        if kind.kind not in "biu":  # one NaN is as good as another
            array = np.where(np.isnan(array), np.array(NAN, kind), array)
            made = np.where(np.isnan(made), np.array(NAN, kind), made)
    assert same_bits(made, array)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((0, 3), np.float32), "np.zeros((0, 3), dtype=np.float32)"),
        (
            np.float32([[0.1, -INF], [NAN, -0.0]]),
            "np.array([[0.1, -np.inf], [np.nan, -0.0]], dtype=np.float32)",
        ),
        (np.full((70000,), NAN, np.float16), "np.full((70000,), np.nan, dtype=np.float16)"),
        (np.array(2.5, ml_dtypes.bfloat16), "np.array(2.5, dtype=ml_dtypes.bfloat16)"),
        (np.array([True, False]), "np.array([True, False], dtype=bool)"),
        (np.array([[-100]]), "np.array([[-100]], dtype=np.int64)"),
    ],
)
def test_arrays_as_they_are_pasted(array, text):
    assert report.paste(array) == text


def test_zeros_of_both_signs_are_not_one_constant():
    array = np.array([0.0, -0.0, 0.0, 0.0, 0.0], np.float32)
    assert same_bits(evaluated(report.paste(array)), array)


def test_a_large_array_is_told_by_its_recipe():
    made = "recipes.build({'normal': [200], 'seed': 1}, 'float32', {})"
    array = evaluated(made)
    assert report.paste(array, made) == made
    assert report.paste(array[:3], f"{made}[0:3]").startswith("np.array([")
    assert same_bits(evaluated(report.paste(array)), array)


# --- what came and what is right ------------------------------------------------------------------


def shown(case, outcome: Outcome) -> Shown:
    (point,) = case.points()
    return report.shown(case, Smallest(point, outcome, judge(case, point, outcome)))


def test_a_failing_input_as_texts():
    case = make(inputs={"x": {"values": [0.0, 0.0]}}, options={"axis": -1})
    found = shown(case, Outcome(outputs={"y": np.float32([0.25, 0.75])}))
    assert found.inputs == {"x": "np.array([0.0, 0.0], dtype=np.float32)"}
    assert found.options == {"axis": "-1"}
    assert (found.got, found.right) == ("y = [0.25, 0.75]", "y = [0.5, 0.5]")
    assert found.problem.startswith("y at [0] is 0.25, and has to be 0.5")


@pytest.mark.parametrize(
    ("case", "right"),
    [
        (make("raises"), "an exception"),
        (make("distribution", verdict="must_not"), "anything but numbers in [0, 1] that sum to 1"),
        (make("repeatable"), "the same bits in every call"),
        (make("one_of", allowed=({"name": "strict", "y": [NAN]}, {"name": "limit", "y": [1.0]})),
         "strict: y = [nan]; or limit: y = [1.0]"),
    ],
)  # fmt: skip
def test_what_is_right_under_other_laws(case, right):
    found = shown(case, Outcome(error="crash", message="ended by SIGSEGV"))
    assert found.right == right
    assert found.got == "crash: ended by SIGSEGV"


def test_a_right_answer_that_nobody_knows_is_no_error():
    case = make()
    point = Point("", {"x": np.zeros((2, 3), np.float32)}, {}, {"axis": 7})
    small = Smallest(point, Outcome(error="crash"), judge(case, point, Outcome(error="crash")))
    assert report.shown(case, small).right.startswith("not known: ")


# --- for people -----------------------------------------------------------------------------------


def test_a_failure_says_all_that_is_needed_to_repeat_it():
    assert report.failure_text(FAILED).splitlines() == [
        "FAIL softmax/nan[float32] at n=127",
        "  y at [0, 3] is 0.0",
        "  smallest failing input:",
        "      import numpy as np",
        "      x = np.array([np.nan, 0.0], dtype=np.float32)",
        "      axis = -1",
        "  there: y at [0] is 0.0, and has to be nan",
        "  came:  y = [0., 1.]",
        "  right: y = [nan, nan]",
        "  why:   A NaN taints its row.",
        "  see:   B018, B032",
    ]


def test_an_input_that_breaks_several_cases_is_shown_once():
    text = printed([FAILED, replace(FAILED, instance="softmax/other[float32]", reason="Another.")])
    assert text.count("x = np.array([np.nan, 0.0], dtype=np.float32)") == 1
    assert "  fails at the input shown for softmax/nan[float32]\n  why:   Another." in text


def test_an_input_that_was_not_made_smaller_is_not_called_the_smallest():
    text = report.failure_text(replace(FAILED, shown=replace(SHOWN, shrunk=False)))
    assert "\n  failing input:\n" in text


def test_imports_and_notes_are_shown_where_they_are_needed():
    inputs = {
        "x": "recipes.build({'zeros': [2]}, 'bfloat16', {})",
        "y": "np.array(1.0, dtype=ml_dtypes.bfloat16)",
    }
    small = Shown(inputs, {}, "a", "b", note="not made smaller")
    text = report.failure_text(result("fail", problem="x" * 1000, shown=small))
    assert "import ml_dtypes\n" in text
    assert "from online_softmax.conformance import recipes\n" in text
    assert "(not made smaller)" in text
    assert f"{'x' * 500} ...\n" in text


def printed(results: list[Result]) -> str:
    stream = io.StringIO()
    report.show_results(Console(file=stream, width=150, highlight=False), SUBJECT, {"numpy": "2.0"}, results)
    return stream.getvalue()


def test_tables_by_operation_and_kind_with_totals_last():
    text = printed(ALL)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    heading = "pass fail known unexpected pass recorded not offered worst error / bound"
    assert f"operation {heading}" in lines
    assert "softmax 1 1 1 1 1 1 inf" in lines
    assert "masked . . . . . 1" in lines
    assert lines[-1] == (
        "mine:softmax (numpy 2.0): 1 pass, 1 fail, 1 known, 1 unexpected pass, 1 recorded, 1 not offered"
    )
    assert report.failure_text(FAILED) in text
    assert "UNEXPECTED PASS softmax/new[float32]" in text
    assert "known to fail: softmax/old[float32]: hardware drops it" in lines
    assert "recorded: softmax/free[float32]: strict" in lines


def test_markup_in_a_subjects_text_is_text():
    assert "[bold]raised[/bold]" in printed([result("fail", problem="[bold]raised[/bold]")])


def test_totals():
    totals = Totals.of(ALL)
    assert tuple(totals.counts) == STATUSES
    assert totals.failing == 2
    assert Totals.of([]).text() == "no cases"


# --- for machines ---------------------------------------------------------------------------------


def test_junit_counts_and_texts():
    root = ElementTree.fromstring(report.as_junit(SUBJECT, ALL))
    (suite,) = root
    for element in (root, suite):
        counts = {name: element.attrib[name] for name in ("tests", "failures", "errors", "skipped", "time")}
        assert counts == {"tests": "6", "failures": "2", "errors": "0", "skipped": "2", "time": "1.500"}
    assert suite.attrib["name"] == "mine:softmax"
    cases = {case.attrib["name"]: case for case in suite}
    assert list(cases) == [each.instance for each in ALL]
    assert {case.attrib["classname"] for case in suite} == {"online_softmax.softmax"}
    failure = cases["softmax/nan[float32]"].find("failure")
    assert failure is not None
    assert failure.attrib == {"message": "y at [0, 3] is 0.0", "type": "fail"}
    assert failure.text == report.failure_text(FAILED)
    assert {name: [child.tag for child in case] for name, case in cases.items()} == {
        "softmax/ordinary[float32]": [],
        "softmax/nan[float32]": ["failure"],
        "softmax/old[float32]": ["skipped"],
        "softmax/new[float32]": ["failure"],
        "softmax/free[float32]": ["system-out"],
        "softmax/where[float32]": ["skipped"],
    }


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_junit_is_xml_whatever_a_subject_says(text):
    root = ElementTree.fromstring(report.as_junit(SUBJECT, [result("fail", problem=text)]))
    assert root.find("testsuite/testcase/failure") is not None


def test_json_has_all_fields():
    plain = json.loads(report.as_json(SUBJECT, {"numpy": "2.0"}, ALL, kit="0.1.0"))
    assert list(plain) == ["version", "kit", "subject", "totals", "results"]
    assert plain["version"] == report.FORMAT
    assert plain["subject"] == {
        "spec": "mine:softmax", "op": "softmax", "framework": "numpy", "versions": {"numpy": "2.0"},
    }  # fmt: skip
    assert plain["totals"] == Totals.of(ALL).counts
    assert [each["status"] for each in plain["results"]] == [each.status for each in ALL]
    failed = plain["results"][1]
    assert failed["ratio"] is None
    assert failed["shown"]["inputs"] == SHOWN.inputs
    assert plain["results"][0]["ratio"] == 0.25


# --- known failures -------------------------------------------------------------------------------

CASES = [make(id=f"softmax/{name}", dtype=dtype) for name in ("a", "b") for dtype in ("float32", "float16")]


def listed(tmp_path: Path, text: str) -> known.Known:
    path = tmp_path / "known.txt"
    path.write_text(text, encoding="utf-8")
    return known.read(path, CASES)


def test_a_list_of_known_failures(tmp_path):
    text = "# of this kernel\n\nsoftmax/a[float16]  # sums in 16 bits # twice\n  softmax/b\n"
    found = listed(tmp_path, text)
    assert [found.reason(case) for case in CASES] == [
        None, "sums in 16 bits # twice", *["listed without a reason"] * 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("softmax/a\n\nsoftmax/c # gone\n", r"known\.txt, line 3: no case is called 'softmax/c'"),
        ("softmax/a[float64]\n", "line 1: no case is called"),
        ("softmax/a\nsoftmax/a # again\n", r"line 2: softmax/a is there twice"),
    ],
)
def test_a_name_that_no_case_has_is_an_error_with_its_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        listed(tmp_path, text)


def test_a_list_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.txt: the list of known failures cannot be read"):
        known.read(tmp_path / "missing.txt", CASES)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary: the list of known failures cannot be read"):
        known.read(tmp_path / "binary", CASES)


def test_what_fails_now_is_written_as_a_list(tmp_path):
    path = tmp_path / "known.txt"
    results = [
        result("fail", "a", problem="y is\nwrong"),
        result("known", "b", problem="p", listed="hardware # yes"),
        result("pass", "c"),
        result("unexpected pass", "d"),
    ]
    known.write(path, results, "mine:softmax")
    found = known.read(path, CASES)
    assert found.reasons == {"softmax/a[float32]": "y is wrong", "softmax/b[float32]": "hardware # yes"}


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_whole_or_as_before(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    files.write_safely(path, "first")
    assert path.read_text() == "first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~files._umask()

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        files.write_safely(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["out.json"]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    files.write_safely("/dev/null", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    files.write_safely(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_path_that_cannot_be_written_is_refused_before(tmp_path):
    files.check_writable("--json", None)
    files.check_writable("--json", tmp_path / "new.json")
    with pytest.raises(ValueError, match=r"--json: .* is a folder"):
        files.check_writable("--json", tmp_path)
    with pytest.raises(ValueError, match=r"--junit: .* there is no folder"):
        files.check_writable("--junit", tmp_path / "none" / "out.xml")
