"""The pytest plugin: cases as items, and nothing at all where it is not asked for."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from online_softmax.conformance.cases import load_cases

pytest_plugins = ["pytester"]

PLUGIN = "online_softmax.conformance.plugin"
#: An installed package brings the plugin with it.
LOADED = any(entry.value == PLUGIN for entry in metadata.entry_points(group="pytest11"))
MINE = "--online-softmax-subject=faulty_subjects:"
SOFTMAX = "--online-softmax-op=softmax"

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs pytest in a folder of its own, with warnings as errors; in a process of its own where that
    matters."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    flags = () if LOADED else ("-p", PLUGIN)

    def call(*arguments: str, apart: bool = False) -> pytest.RunResult:
        given = (*flags, "-p", "no:cacheprovider", "-W", "error", *arguments)
        if apart:
            return pytester.runpytest_subprocess(*given, timeout=120)
        return pytester.runpytest_inprocess(*given)

    return call


def names(pattern: str) -> list[str]:
    return [case.instance for case in load_cases(op="softmax") if pattern in case.instance]


#: All that run without being asked for.
ORDINARY = [case for case in load_cases(op="softmax") if "huge" not in case.tags]
NAN = names("nan-at-each-position[float32]")
#: One case that faulty subjects fail, by -k.
CHOICE = ("-k", "nan-at-each-position and float32")


def test_the_case_of_these_tests_is_there():
    assert NAN == ["softmax/nan-at-each-position[float32]"]


def test_a_faulty_subject_fails_with_its_smallest_input(run):
    found = run(MINE + "drops_nan", SOFTMAX, *CHOICE, apart=True)
    found.assert_outcomes(failed=1, deselected=len(ORDINARY) - 1)
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    text = found.stdout.str()
    assert "x = np.array([[np.nan, 0.0]], dtype=np.float32)" in text
    assert "  right: y = [[nan, nan]]" in text
    assert f"FAILED online-softmax::{NAN[0]}" in text
    assert f"collected {len(ORDINARY)} items / {len(ORDINARY) - 1} deselected / 1 selected" in text
    assert "Traceback" not in text
    assert "plugin.py" not in text


def test_an_honest_subject_passes_beside_other_tests(run, pytester):
    pytester.makepyfile("def test_other(): pass")
    found = run(MINE + "honest", SOFTMAX, "-v", "-k", "test_other or (nan-at-each-position and float32)")
    found.assert_outcomes(passed=2, deselected=len(ORDINARY) - 1)
    assert found.ret == 0


def test_what_is_not_offered_is_skipped_with_the_reason(run):
    found = run(MINE + "no_axis", SOFTMAX, "-rs", "-k", "masked and float32")
    outcomes = found.parseoutcomes()
    assert outcomes["skipped"] >= 1
    assert "failed" not in outcomes
    assert "not offered: has no where" in found.stdout.str()


def test_known_failures_are_expected_and_strict(run, pytester):
    path = pytester.path / "known.txt"
    path.write_text(f"{NAN[0]}  # the maximum drops NaN\n")
    listed = f"--online-softmax-known={path}"
    found = run(MINE + "drops_nan", SOFTMAX, listed, "-rx", *CHOICE)
    assert found.ret == 0
    assert found.parseoutcomes()["xfailed"] == 1
    assert "the maximum drops NaN" in found.stdout.str()
    found = run(MINE + "honest", SOFTMAX, listed, *CHOICE)
    assert found.ret == 1
    assert f"UNEXPECTED PASS {NAN[0]}" in found.stdout.str()
    found = run(MINE + "drops_nan", SOFTMAX, listed, "--runxfail", *CHOICE)
    assert found.parseoutcomes()["failed"] == 1


def test_a_crash_and_a_hang_end_no_session(run):
    found = run(
        MINE + "segfaults", SOFTMAX, "-k", "nan-taints-its-row and float32 or axis-out-of-range and float32"
    )
    assert found.ret == 1
    assert "crash: ended by SIGSEGV, in segfaults" in found.stdout.str()
    found = run(MINE + "hangs_with_the_lock", SOFTMAX, "--online-softmax-timeout=1", *CHOICE)
    assert found.parseoutcomes()["failed"] == 1
    assert "timeout: no answer within 1 s" in found.stdout.str()


def test_what_free_cases_came_to_is_in_the_junit_file(run, pytester):
    free = [case for case in load_cases(op="softmax", dtypes=["float32"]) if case.verdict == "free"]
    name = free[0].id.removeprefix("softmax/")
    found = run(MINE + "honest", SOFTMAX, "--junitxml=out.xml", "-k", f"{name} and float32")
    assert found.ret == 0
    properties = ElementTree.parse(pytester.path / "out.xml").getroot().iter("property")
    assert [each.attrib["name"] for each in properties][:1] == ["recorded"]


# --- wrong calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SOFTMAX], "--online-softmax-op: is of no effect without --online-softmax-subject"),
        ([MINE + "honest"], "op has to say what it computes"),
        ([MINE + "honest", "--online-softmax-op=hardmax"], "hardmax"),
        ([MINE + "honest", SOFTMAX, "--online-softmax-framework=tensorflow"], "tensorflow"),
        (
            [MINE + "honest", SOFTMAX, "--online-softmax-known=missing.txt"],
            "missing.txt: the list of known failures",
        ),
        (
            [MINE + "honest", SOFTMAX, "--online-softmax-timeout=soon"],
            "--online-softmax-timeout: 'soon': a positive",
        ),
        (
            [MINE + "honest", SOFTMAX, "--online-softmax-timeout=-1"],
            "timeout=-1.0: a positive number of seconds",
        ),
        ([MINE + "NOT_CALLABLE", SOFTMAX], "a callable would do"),
        (["--online-softmax-subject=raises_at_import:x", SOFTMAX], "no licence found"),
    ],
)
def test_a_wrong_call_is_a_usage_error(run, arguments, message):
    found = run(*arguments)
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    text = found.stdout.str() + found.stderr.str()
    assert message in text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text


# --- nobody else is disturbed ---------------------------------------------------------------------


def test_without_the_option_nothing_changes(run, pytester):
    assert run(apart=True).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    pytester.makepyfile(
        """
        import sys

        def test_nothing_of_the_kit_is_loaded():
            ours = {name for name in sys.modules if name.startswith("online_softmax.conformance")}
            assert ours <= {"online_softmax.conformance", "online_softmax.conformance.plugin"}
        """
    )
    run("--strict-markers", "--strict-config", apart=True).assert_outcomes(passed=1)


def test_the_module_itself_imports_nothing_but_pytest():
    text = (Path(__file__).parents[2] / "src/online_softmax/conformance/plugin.py").read_text(
        encoding="utf-8"
    )
    top = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert top == [
        "from __future__ import annotations",
        "from typing import TYPE_CHECKING, Any",
        "import pytest",
    ]
