"""`online-softmax formats`: what it prints, how it fails, and the page in docs that shows it."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from test_cli import fails

from online_softmax.cli import formats as command
from online_softmax.cli import main
from online_softmax.numerics.formats import FORMATS, Format, keeps_subnormals
from online_softmax.numerics.spread import score_spread
from online_softmax.numerics.verdicts import verdict

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "formats.md"
SCORES = ROOT / "examples" / "attention_scores.npy"


def run(capsys, *arguments: str) -> str:
    assert main(["formats", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def as_json(capsys, *arguments: str) -> dict[str, Any]:
    return json.loads(run(capsys, "--json", *arguments))


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def cells(text: str, heading: str) -> dict[str, list[str]]:
    """First cell -> the others, of the table whose headings hold `heading`."""
    rows = text[text.index(heading) :].splitlines()[2:]
    found = {}
    for row in rows:
        if not row.strip():
            break
        first, *rest = re.split(r"\s{2,}", row.strip())
        found[first] = rest
    return found


# --- output -------------------------------------------------------------------------------------------


def test_the_tables_hold_the_figures(capsys):
    text = run(capsys)
    ranges, exps, sums = (cells(text, heading) for heading in ("mantissa", "ln largest", "stalls at"))
    assert list(ranges) == list(exps) == list(sums) == list(FORMATS)
    assert ranges["float16"] == ["15", "-14", "10", "11", "2^-11", "65504", "2^-14", "2^-24"]
    assert sums["float8_e4m3fn"] == ["16", "448", "465"]
    for name, fmt in FORMATS.items():
        thresholds = (fmt.exp_overflows_above, fmt.exp_zero_below(False), fmt.exp_zero_below(True))
        assert exps[name][0] == f"{fmt.log_largest:.6f}"
        for at, real, x in zip(thresholds, exps[name][1::2], exps[name][2::2], strict=True):
            assert real == f"{at.real:.6f}"
            # Digits enough to tell the number from its neighbours.
            assert float(x) == pytest.approx(float(at.x), rel=float(fmt.unit_roundoff) / 2)
            if fmt.precision <= 11:
                assert float(x) == at.x
        assert ranges[name][2:4] == [str(fmt.mantissa_bits), str(fmt.precision)]
        assert float(ranges[name][5]) == pytest.approx(float(fmt.largest), rel=5e-7)


def test_every_verdict_is_printed_with_its_reason(capsys):
    flat = " ".join(run(capsys, "--columns", "4096", "--largest-logit", "20").split())
    for name, fmt in FORMATS.items():
        found = verdict(fmt, columns=4096, largest_logit=20.0)
        said = [f"{part} {j.usable} {j.why}" for part in command.PARTS if (j := getattr(found, part))]
        assert f"{name} {' '.join(said)}" in flat


def test_notes_tell_of_saturation_and_of_this_machine(capsys):
    text = run(capsys)
    assert "note: float8_e4m3fn has no infinity: overflow is NaN, or 448 where a conversion saturates" in text
    here = "underflows gradually" if keeps_subnormals() else "flushes subnormals to zero"
    assert text.endswith(f"note: on this machine NumPy's float32 arithmetic {here}\n")
    assert "infinity" not in run(capsys, "--format", "float16")


def test_json_has_every_figure(capsys):
    found = as_json(capsys)
    assert found["workload"] == {
        "columns": 131072,
        "largest_logit": 88.0,
        "smallest_logit": -88.0,
        "tolerance": 0.01,
    }
    assert found["keeps_subnormals_here"] is keeps_subnormals()
    assert found["formats"] == [f.as_json() | {"verdict": verdict(f).as_json()} for f in FORMATS.values()]
    float32 = found["formats"][1]
    # ln(2^128 - 2^103) and ln(2^-150), from mpmath with 40 digits.
    assert float32["exp_overflows_above"]["real_digits"].startswith("88.7228390818706")
    assert float32["exp_zero_below"]["gradual"]["real_digits"].startswith("-103.972077083991796")
    assert "scores" not in found


@pytest.mark.parametrize(
    ("options", "workload"),
    [
        (["--columns", "7"], {"columns": 7}),
        (["--largest-logit", "5"], {"largest_logit": 5.0, "smallest_logit": -5.0}),
        (["--smallest-logit", "-9"], {"smallest_logit": -9.0}),
        (["--tolerance", "0.25"], {"tolerance": 0.25}),
    ],
)
def test_options_of_the_workload_are_applied(capsys, options, workload):
    found = as_json(capsys, *options)
    assert found["workload"].items() >= workload.items()
    assert [f["verdict"] for f in found["formats"]] == [
        verdict(f, **found["workload"]).as_json() for f in FORMATS.values()
    ]


def test_flush_judges_every_format_so(capsys):
    found = as_json(capsys, "--flush", "--emax", "15", "--precision", "11")["formats"]
    assert [f["flush"] for f in found] == [True] * (len(FORMATS) + 1)
    assert "subnormal results flushed to zero" in run(capsys, "--flush")
    assert found[3]["verdict"]["safe"]["usable"] == "no"


def test_only_the_formats_named_each_once(capsys):
    found = as_json(capsys, "--format", "tf32", "--format", "float64", "--format", "tf32")
    assert [f["name"] for f in found["formats"]] == ["tf32", "float64"]


def test_a_custom_format_stands_beside_the_others(capsys):
    options = ["--emax", "8", "--precision", "4", "--emin", "-6", "--no-subnormals", "--finite-only"]
    found = as_json(capsys, "--format", "float8_e4m3fn", *options)["formats"]
    own = Format("custom", 8, 4, -6, subnormals=False, finite_only=True)
    assert [f["name"] for f in found] == ["float8_e4m3fn", "custom"]
    assert found[1] == own.as_json() | {"verdict": verdict(own).as_json()}
    text = run(capsys, *options)
    assert cells(text, "mantissa")["custom"][-1] == "none"


def test_formats_beyond_float64_are_printed(capsys):
    text = run(capsys, "--emax", "16383", "--precision", "113")
    assert cells(text, "mantissa")["custom"][5:] == ["1.189731e+4932", "2^-16382", "2^-16494"]
    assert cells(text, "ln largest")["custom"][1] == "11356.523406"
    assert cells(run(capsys, "--emax", "2", "--precision", "4"), "stalls at")["custom"] == ["never", "7", "8"]


# --- scores -------------------------------------------------------------------------------------------


def test_scores_are_measured_and_judged_by(capsys):
    found = as_json(capsys, "--scores", str(SCORES), "--head-dim", "32")
    seen = score_spread(np.load(SCORES), 32)
    assert found["scores"] == seen.as_json()
    assert found["workload"] == {
        "columns": 256,
        "largest_logit": seen.scaled.largest,
        "smallest_logit": seen.scaled.smallest,
        "tolerance": 0.01,
    }
    text = run(capsys, "--scores", str(SCORES), "--head-dim", "32")
    assert "attention_scores.npy: 1536 rows of scores, head_dim 32" in text
    table = cells(text, "widest row")
    assert table["q.k/sqrt(head_dim)"] == ["-14.89", "7.755", "22.64", "19.68", "2.25"]
    failing = cells(text, "naive softmax fails in")
    assert list(failing) == list(FORMATS)
    assert failing["float16"] == [f"{seen.raw.fails('float16'):.2%} of rows", "0.00% of rows"]


def test_raw_scores_are_scaled_and_a_given_workload_goes_first(tmp_path, capsys):
    file = tmp_path / "[bold]raw.npy"
    np.save(file, np.float16([[8.0, -4.0, 2.0]]))
    options = ["--scores", str(file), "--head-dim", "16", "--raw", "--columns", "5", "--largest-logit", "3"]
    found = as_json(capsys, *options)
    assert found["scores"] == score_spread([[8.0, -4.0, 2.0]], 16, scaled=False).as_json()
    assert found["workload"] == {
        "columns": 5,
        "largest_logit": 3.0,
        "smallest_logit": -1.0,
        "tolerance": 0.01,
    }
    assert "[bold]raw.npy: 1 rows of scores" in run(capsys, *options)


# --- failure ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("--format float8", "--format: 'float8' is unknown: one of float64, .*float8_e5m2 would do"),
        ("--columns 0", "columns: 0 is out of range"),
        ("--largest-logit nan", "largest_logit: nan is out of range"),
        ("--smallest-logit 100", "smallest_logit: 100.0 is out of range; a finite number up to 88.0"),
        ("--tolerance 2", "tolerance: 2.0 is out of range"),
        ("--emax 5", "--precision: needed beside --emax"),
        ("--precision 5", "--emax: needed beside --precision"),
        ("--emax 5 --precision 1", "precision: 1 is out of range"),
        ("--emin -5", "--emin: describes a format of your own; give --emax and --precision too"),
        ("--no-subnormals", "--no-subnormals: describes a format of your own"),
        ("--finite-only", "--finite-only: describes a format of your own"),
        ("--head-dim 64", "--head-dim: belongs to --scores"),
        ("--raw", "--raw: belongs to --scores"),
        (f"--scores {SCORES}", "--head-dim: needed beside --scores"),
        (f"--scores {SCORES} --head-dim 0", "--head-dim: 0 is out of range"),
        ("--scores nowhere.npy --head-dim 8", ".*nowhere.npy"),
        ("--emax x --precision 3", ".*x"),
    ],
)
def test_a_wrong_call_ends_with_one_line(capsys, options, match):
    fails(capsys, ["formats", *options.split()], match)


def test_scores_that_hold_nan_are_refused(tmp_path, capsys):
    np.save(tmp_path / "nan.npy", [1.0, math.nan])
    fails(
        capsys,
        ["formats", "--scores", str(tmp_path / "nan.npy"), "--head-dim", "4"],
        "scores: NaN or .inf among",
    )


# --- the page -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/score_spread.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("score_spread", ROOT / "scripts" / "score_spread.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(script):
    text = PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text


def test_the_page_shows_what_the_command_prints(capsys):
    shown = PAGE.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    assert lines(shown) == lines(run(capsys))


def test_a_stale_page_is_told_and_mended(script, tmp_path, monkeypatch, capsys):
    text = PAGE.read_text(encoding="utf-8")
    stale = tmp_path / "formats.md"
    measured = text.split("<!-- spread: begin -->\n")[1].split("\n<!-- spread: end -->")[0]
    monkeypatch.setattr(script, "spread_part", lambda: measured)
    monkeypatch.setattr(script, "PAGE", stale)
    stale.write_text(text.replace("65504", "65505"), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["score_spread.py", "--check"])
    assert script.main() == 1
    assert capsys.readouterr().err == "formats.md is not current: run scripts/score_spread.py\n"
    monkeypatch.setattr("sys.argv", ["score_spread.py"])
    assert script.main() == 0
    assert stale.read_text(encoding="utf-8") == text
    with pytest.raises(SystemExit, match=re.escape("needs the lines <!-- formats: begin -->")):
        script.page("nothing")


def test_the_python_of_the_page_gives_what_it_says():
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    checked = 0
    for line in code.splitlines():
        if "  # " in line:
            expression, result = line.split("  # ")
            assert repr(eval(expression, names)) == result
            checked += 1
        else:
            exec(line, names)
    assert checked == 3


@pytest.mark.parametrize(
    "option", ["--columns", "--largest-logit", "--smallest-logit", "--tolerance", "--flush"]
)
def test_the_page_names_the_options_of_the_verdict(option):
    assert option in PAGE.read_text(encoding="utf-8")
