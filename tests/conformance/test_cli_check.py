"""`online-softmax check`: what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from online_softmax.cli import main
from online_softmax.conformance.cases import load_cases

CASES = """
[[case]]
id = "softmax/nan"
op = "softmax"
dtypes = ["float32", "float16"]
law = "value"
reason = "A NaN taints its row."
tags = ["nan"]
sources = ["B018"]
inputs.x = { values = [[nan, 0.0, 3.0], [0.0, 1.0, 2.0]] }

[[case]]
id = "softmax/lengths"
op = "softmax"
law = "value"
reason = "Vector bodies and tails agree."
tags = ["size"]
sweep = { n = [1, 2, 127, 128] }
inputs.x = { normal = [2, "n"], seed = 1, scale = 3.0 }

[[case]]
id = "softmax/gigabytes"
op = "softmax"
law = "value"
reason = "Offsets in 64 bits."
tags = ["huge"]
inputs.x = { values = [0.0] }

[[case]]
id = "logsumexp/ordinary"
op = "logsumexp"
law = "value"
reason = "As defined."
tags = ["accuracy"]
inputs.x = { values = [0.0, 1.0] }
"""


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "cases.toml"
    path.write_text(CASES, encoding="utf-8")
    return path


@pytest.fixture
def check(cases, capsys):
    """Runs the command on these cases; its exit code, and what it printed on both streams."""

    def run(name: str, *more: str) -> tuple[int, str, str]:
        target = [name] if ":" not in name else [name, "--op", "softmax"]
        code = main(["check", *target, "--cases", str(cases), *more])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_an_honest_subject_exits_0(check):
    code, out, err = check("faulty_subjects:honest")
    assert (code, err) == (0, "")
    assert "FAIL" not in out
    assert re.fullmatch(r"faulty_subjects:honest \(numpy [\d.]+\): 3 pass", out.splitlines()[-1])


def test_ours_is_checked_in_all_operations(check):
    code, out, _ = check("ours")
    assert code == 0
    assert out.splitlines()[-1].endswith(": 4 pass")
    assert re.search(r"^ *logsumexp +1 +\.", out, re.MULTILINE)


def test_a_faulty_one_exits_1_and_shows_its_smallest_input(check):
    code, out, err = check("faulty_subjects:tail_at_127")
    assert (code, err) == (1, "")
    assert out.startswith("FAIL softmax/lengths[float32] at n=127\n")
    assert "      x = np.full((1, 127), 0.0, dtype=np.float32)\n" in out
    assert "  why:   Vector bodies and tails agree.\n" in out
    assert out.splitlines()[-1].endswith(": 2 pass, 1 fail")


def test_a_failing_input_is_left_as_it_is_on_demand(check):
    code, out, _ = check("faulty_subjects:tail_at_127", "--no-shrink")
    assert code == 1
    assert "x = recipes.build({'normal': [2, 'n'], 'seed': 1, 'scale': 3.0}, 'float32', {'n': 127})" in out


def test_a_crash_and_a_hang_are_failures(check):
    code, out, _ = check("faulty_subjects:segfaults", "--no-shrink", "--case", "softmax/nan*")
    assert code == 1
    assert out.count("crash: ended by SIGSEGV, in segfaults") == 4
    code, out, _ = check("faulty_subjects:hangs", "--timeout", "1", "--tags", "size")
    assert code == 1
    assert "timeout: no answer within 1 s, in hangs" in out
    assert "softmax/lengths[float32] at n=127" in out


# --- choice ---------------------------------------------------------------------------------------


def listed(check, *more: str) -> list[str]:
    code, out, _ = check("ours", "--list", *more)
    assert code == 0
    lines = out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} cases"
    return [line.split(": ")[0] for line in lines[:-1]]


def test_cases_are_chosen(check):
    nan = ["softmax/nan[float32]", "softmax/nan[float16]"]
    assert listed(check) == [*nan, "softmax/lengths[float32]", "logsumexp/ordinary[float32]"]
    assert "softmax/gigabytes[float32]" in listed(check, "--huge")
    assert listed(check, "--op", "logsumexp") == ["logsumexp/ordinary[float32]"]
    assert listed(check, "--dtypes", "float16") == nan[1:]
    assert listed(check, "--tags", "nan,accuracy") == [*nan, "logsumexp/ordinary[float32]"]
    assert listed(check, "--case", "*nan*") == nan
    assert listed(check, "--case", "softmax/nan[float16]") == nan[1:]
    assert listed(check, "--case", "softmax/na?") == nan
    both = listed(check, "--case", "softmax/nan[float16]", "--case", "logsumexp/*")
    assert both == [*nan[1:], "logsumexp/ordinary[float32]"]


def test_a_list_needs_no_target_and_says_why(cases, capsys):
    assert main(["check", "--list", "--cases", str(cases), "--tags", "size"]) == 0
    out = capsys.readouterr().out
    assert out == "softmax/lengths[float32]: must value (size): Vector bodies and tails agree.\n1 cases\n"


def test_the_kits_own_cases_are_the_default(capsys):
    assert main(["check", "--list", "--op", "softmax"]) == 0
    lines = capsys.readouterr().out.splitlines()
    own = [case for case in load_cases(op="softmax") if "huge" not in case.tags]
    assert [line.split(": ")[0] for line in lines[:-1]] == [case.instance for case in own]


# --- files ----------------------------------------------------------------------------------------


def test_files_are_written(check, tmp_path):
    junit, plain = tmp_path / "out.xml", tmp_path / "out.json"
    code, _, _ = check("faulty_subjects:tail_at_127", "--junit", str(junit), "--json", str(plain))
    assert code == 1
    assert ElementTree.parse(junit).getroot().attrib["failures"] == "1"
    found = json.loads(plain.read_text())
    assert found["subject"]["spec"] == "faulty_subjects:tail_at_127"
    assert found["totals"]["fail"] == 1
    assert [each["instance"] for each in found["results"] if each["status"] == "fail"] == [
        "softmax/lengths[float32]"
    ]
    assert sorted(os.listdir(tmp_path)) == ["cases.toml", "out.json", "out.xml"]


def test_known_failures_go_round(check, tmp_path):
    path = tmp_path / "known.txt"
    assert check("faulty_subjects:tail_at_127", "--write-known", str(path))[0] == 1
    assert path.read_text().splitlines()[1].startswith("softmax/lengths[float32]  # y at [1, 126] is 0.0")
    code, out, _ = check("faulty_subjects:tail_at_127", "--known", str(path))
    assert code == 0
    assert "known to fail: softmax/lengths[float32]: y at [1, 126] is 0.0" in out
    assert out.splitlines()[-1].endswith(": 2 pass, 1 known")
    code, out, _ = check("faulty_subjects:honest", "--known", str(path))
    assert code == 1
    assert "UNEXPECTED PASS softmax/lengths[float32]" in out


# --- wrong calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TARGET: package.module:callable or one of ours, "),
        (["faulty_subjects:honest"], "op has to say what it computes"),
        (["faulty_subjects"], "package.module:callable would do"),
        (["ours", "--op", "hardmax"], "hardmax"),
        (["ours", "--op", "attention"], "--op: 'attention' has no cases: one of logsumexp, softmax would do"),
        (["ours", "--framework", "tensorflow"], "tensorflow"),
        (
            ["ours", "--dtypes", "float31"],
            "--dtypes: no case has 'float31': one of float16, float32 would do",
        ),
        (["ours", "--dtypes", ","], "--dtypes: ',' names nothing"),
        (["ours", "--tags", "nam"], "--tags: no case has 'nam'"),
        (["ours", "--case", "softmax/x*"], r"--case: 'softmax/x\*' is no case"),
        (["ours", "--case", "*gigabytes*"], "no case is left"),
        (["ours", "--timeout", "0"], "--timeout: 0.0: a positive number"),
        (["ours", "--timeout", "nan"], "--timeout: nan: a positive number"),
        (["ours", "--known", "missing.txt"], "missing.txt: the list of known failures cannot be read"),
        (["ours", "--json", "/no/such/folder/x.json"], "--json: .* there is no folder"),
        (["ours", "--json", "same.x", "--junit", "same.x"], "--json: same.x is given to --junit too"),
        (["ours", "--cases", "missing.toml"], "missing.toml: cannot be read"),
        (["no_such_module:f", "--op", "softmax"], "no_such_module:f.*No module named"),
        (["faulty_subjects:NOT_CALLABLE", "--op", "softmax"], "a callable would do"),
        (["raises_at_import:f", "--op", "softmax"], "raises_at_import:f: .*no licence found"),
    ],
)
def test_a_wrong_call_exits_2_with_one_line(arguments, message, cases, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["check", *arguments, "--cases", str(cases)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert re.search(message, printed.err), printed.err
    assert os.listdir(tmp_path) == ["cases.toml"]


def test_a_run_that_tests_nothing_is_a_wrong_call(cases, capsys):
    cases.write_text(CASES.split("[[case]]")[1].join(["[[case]]", "options = { axis = 0 }\n"]))
    assert main(["check", "faulty_subjects:no_axis", "--op", "softmax", "--cases", str(cases)]) == 2
    printed = capsys.readouterr()
    assert "nothing was tested: no case is offered (has neither axis nor dim)" in printed.err
    assert "2 not offered" in printed.out


def test_an_interrupt_ends_the_subject(cases):
    script = "import sys; from online_softmax.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = [
        "check",
        "faulty_subjects:hangs",
        "--op",
        "softmax",
        "--cases",
        str(cases),
        "--timeout",
        "60",
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        end = time.monotonic() + 30
        while not (found := children.read_text().split()) and time.monotonic() < end:
            time.sleep(0.1)
        (child,) = found
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert not Path(f"/proc/{child}").exists()
