"""The 16-bit formats: exp of every value, and pairs through merge, softmax and log-sum-exp.

A compiled driver does the work (native/exhaustive): it decides for each result whether it is the correctly
rounded one. Here its findings are held to the promise, its counts to numpy, and its reference to mpmath.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

from online_softmax import cpu

ROOT = Path(__file__).parent.parent
DRIVER = ROOT / "build" / "exhaustive" / "exhaustive"
pytestmark = pytest.mark.skipif(
    not DRIVER.exists(), reason="build/exhaustive/exhaustive is not here: `make exhaustive` builds it"
)

CODES = 1 << 16
FORMATS = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
#: Half an ulp for the rounding, and what the float before it may be off by (`helpers.EXP_UNITS_OF_16_BITS`).
BOUND = 0.512
#: Units of the states' sums: see native/exhaustive/pairs.cpp.
SUM_BOUNDS = {"2^-24": 2.1, "2^-53": 8.0}
#: float32 results of exp, as in test_exp.py.
FLOAT_BOUND = 1.01
#: Every STRIDE-th code with all codes: for the check sampled most, for the others, and for all with the
#: instruction sets that are not the default. `make exhaustive` takes every code. Primes: all bits vary.
CLOSEST = "softmax.columns.cached"
STRIDE, STRIDE_OF_OTHERS, STRIDE_ELSEWHERE = 7, 509, 1021
#: Relative error the driver's reference answers for (kExactError in exact.h).
EXACT = mpmath.mpf(2) ** -84

Finding = dict[str, Any]


def drive(*arguments: str, status: int = 0) -> list[Finding]:
    """The findings of a run, which has to end with this exit code."""
    done = subprocess.run(
        [str(DRIVER), "--json", *arguments], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == status, done.stdout[-4000:] + done.stderr
    return list(json.loads(done.stdout)["checks"])


@cache
def names() -> tuple[str, ...]:
    listed = subprocess.run([str(DRIVER), "--list"], capture_output=True, text=True, timeout=60, check=True)
    return tuple(listed.stdout.split())


def value(fmt: str, code: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return code.astype(np.uint16).view(FORMATS[fmt]).astype(np.float64)


def check(finding: Finding, pairs: int) -> None:
    """Every result as promised, and as many of them as there are."""
    label = f"{finding['check']}.{finding['format']}.{finding['isa']}"
    assert finding["violations"] == 0, f"{label}: {finding['shown']}"
    assert finding["undecided"] == 0, label
    assert finding["pairs"] == pairs, label
    assert finding["results"] == pairs * (2 if "softmax" in label else 1), label
    if finding["unit"] == "ulp":
        assert finding["bound"] == BOUND
        assert finding["worst"] <= BOUND, label
    else:
        assert finding["bound"] == SUM_BOUNDS[finding["unit"]]
        assert 0 < finding["worst"] <= finding["bound"], label


def run_pairs(only: str, isa: str, stride: int) -> list[Finding]:
    found = drive("--isa", isa, "--only", only, "--stride", str(stride))
    for finding in found:
        check(finding, len(range(0, CODES, stride)) * CODES)
    return found


def test_the_list_is_known_here() -> None:
    assert {name.split(".")[0] for name in names()} == {
        "exp", "exps", "merge", "softmax", "logsumexp", "state",
    }  # fmt: skip
    assert CLOSEST in names()


@pytest.mark.parametrize("isa", cpu.isas())
def test_exp_of_every_value(isa: str) -> None:
    found = drive("--isa", isa, "--only", "exp")
    assert {(f["check"], f["format"]) for f in found} == {(c, f) for c in ("exp", "exps") for f in FORMATS}
    for finding in found:
        values = value(finding["format"], np.arange(CODES))
        # Those of weighted sums are relative to the maximum, here 0.
        asked = CODES if finding["check"] == "exp" else np.count_nonzero(~(values > 0))
        check(finding, asked)
        if finding["check"] == "exp":
            assert 0.5 <= finding["float32_ulps"] <= FLOAT_BOUND


def test_a_large_sample_of_one_way() -> None:
    found = run_pairs(CLOSEST, cpu.default_isa(), STRIDE)
    assert [f["format"] for f in found] == list(FORMATS)


@pytest.mark.parametrize("isa", cpu.isas())
def test_a_sample_of_every_way(isa: str) -> None:
    """All but `CLOSEST` with the default instruction set, all with the others."""
    rest = [n for n in names() if not n.startswith("exp") and (isa != cpu.default_isa() or n != CLOSEST)]
    stride = STRIDE_OF_OTHERS if isa == cpu.default_isa() else STRIDE_ELSEWHERE
    found = run_pairs(",".join(rest), isa, stride)
    assert [f["check"] for f in found] == rest * len(FORMATS)


@pytest.mark.parametrize("kind", ["value", "special"])
def test_a_wrong_result_is_found(kind: str) -> None:
    """One result of every check is spoilt: that of (0, 1), or of (0, NaN)."""
    found = drive("--inject", kind, "--stride", str(CODES - 1), status=1)
    assert [f["check"] for f in found] == list(names()) * len(FORMATS)
    for finding in found:
        # The float of exp is held to two bounds.
        spoilt = 2 if finding["check"] == "exp" and kind == "value" else 1
        assert finding["violations"] == spoilt, finding
        assert finding["isa"] in finding["shown"][0]


def correctly_rounded(exact: np.ndarray, fmt: str) -> np.ndarray:
    """Numbers of at least 0 in float64, none of them a tie, to the nearest value of the format."""
    values = value(fmt, np.arange(CODES // 2))
    values = values[np.isfinite(values)]
    middles = (values[:-1] + values[1:]) / 2
    past = values[-1] + (values[-1] - values[-2]) / 2
    return np.where(exact >= past, np.inf, values[np.searchsorted(middles, exact)])


def count_wrong(got: np.ndarray, exact: np.ndarray, fmt: str) -> int:
    return int(np.count_nonzero(got.astype(np.float64) != correctly_rounded(exact, fmt)))


@pytest.mark.parametrize("fmt", FORMATS)
def test_its_counts_are_those_of_numpy(fmt: str) -> None:
    """exp, and all pairs (0, b) of finite b: as many results are not correctly rounded as numpy finds."""
    b = value(fmt, np.arange(CODES))
    codes, b = b[np.isfinite(b)].astype(FORMATS[fmt]), b[np.isfinite(b)]
    pairs = np.stack([np.zeros_like(codes), codes], axis=1)
    softmax = np.empty_like(pairs)
    cpu.softmax(pairs, softmax, (1,), algorithm="cached")
    lse, _ = cpu.logsumexp(pairs, (1,), algorithm="cached")
    with np.errstate(over="ignore", under="ignore"):
        exp = cpu.exp(codes.astype(np.float32)).astype(FORMATS[fmt])
        mine = {
            "exp": count_wrong(exp, np.exp(b), fmt),
            "softmax.rows.cached": sum(
                count_wrong(softmax[:, i], 1 / (1 + np.exp(d)), fmt) for i, d in enumerate((b, -b))
            ),
            "logsumexp.rows.cached": count_wrong(
                lse.astype(FORMATS[fmt]), np.maximum(b, 0) + np.log1p(np.exp(-np.abs(b))), fmt
            ),
        }
    found = drive(
        "--format", fmt, "--only", "exp,softmax.rows.cached,logsumexp.rows.cached", "--stride", str(CODES)
    )
    assert {f["check"]: f["not_correctly_rounded"] for f in found if f["check"] != "exps"} == mine
    assert any(mine.values()) or fmt == "bf16"


def some_pairs(fmt: str) -> np.ndarray:
    """Finite codes at random: any two, neighbours, numbers near 0, and pairs whose log-sum-exp is near 0."""
    random = np.random.default_rng(16)
    top = int(np.argmin(np.isfinite(value(fmt, np.arange(CODES // 2)))))  # infinity
    any_two = random.integers(0, top, (150, 2)) | random.integers(0, 2, (150, 2)) << 15
    first = random.integers(0, top, 150)
    near = np.stack([first, np.clip(first + random.integers(-40, 40, 150), 0, top - 1)], axis=1)
    small = random.integers(0, 300, (50, 2)) | random.integers(0, 2, (50, 2)) << 15
    a = -random.uniform(0.1, 3.0, 100)
    cancels = (
        np.stack([a, np.log(-np.expm1(a))], axis=1).astype(FORMATS[fmt]).view(np.uint16).astype(np.int64)
    )
    return np.concatenate([any_two, near, near | 0x8000, small, cancels])


@pytest.mark.parametrize("fmt", FORMATS)
def test_its_reference_is_that_of_mpmath(fmt: str) -> None:
    pairs = some_pairs(fmt)
    given = [f"{code:04x}" for code in pairs.ravel()]
    shown = subprocess.run(
        [str(DRIVER), "--show", fmt, *given], capture_output=True, text=True, timeout=60, check=True
    )
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(lines) == len(pairs)
    values = value(fmt, pairs)
    with mpmath.workdps(400):  # a difference of bfloat16 numbers has up to 80 digits, 1 + exp(d) some 300
        for line, (a, b) in zip(lines, values, strict=True):
            assert (line["a"], line["b"]) == (a, b)
            a, b = mpmath.mpf(a), mpmath.mpf(b)
            # Past 600 the reference takes 600: 0 and 1 in every format.
            d = min(max(b - a, -600), 600)
            share, lse = 1 / (1 + mpmath.exp(d)), max(a, b) + mpmath.log1p(mpmath.exp(-abs(b - a)))
            assert abs(mpmath.fsum(line["softmax"]) - share) <= EXACT * share, line
            assert abs(mpmath.fsum(line["logsumexp"]) - lse) <= EXACT * (max(abs(a), abs(b)) + 1), line


def test_what_will_not_do_is_refused() -> None:
    for given, would_do in (
        (["--isa", "sse9"], cpu.default_isa()),
        (["--only", "softmin"], "--list"),
        (["--stride", "0"], "1 to 65536"),
        (["--show", "f16", "7c00", "0000"], "finite"),
        (["--format", "f32"], "bf16"),
    ):
        done = subprocess.run([str(DRIVER), *given], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert given[1 if given[0] != "--show" else 2] in done.stderr
        assert would_do in done.stderr
        assert not done.stdout
