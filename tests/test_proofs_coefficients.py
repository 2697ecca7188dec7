"""The constants that the proofs speak of are those of the C++ sources, and what is proved of them holds."""

from __future__ import annotations

import importlib.util
import re
import shutil
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import exact_model
import mpmath
import numpy as np
import pytest

from online_softmax import exact

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("exp.inl.h", "scans_double.inl.h", "exact.h", "same_log.h", "tanh.inl.h")


def _load() -> ModuleType:
    """scripts/proof_coefficients.py, which is in no package."""
    path = ROOT / "scripts" / "proof_coefficients.py"
    spec = importlib.util.spec_from_file_location("proof_coefficients", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _load()
CONSTANTS = {name: value for name, _, value in SCRIPT.entries(ROOT)}


def number(x: Fraction) -> mpmath.mpf:
    return mpmath.mpf(x.numerator) / x.denominator


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with the sources and the generated file."""
    (tmp_path / "native").mkdir()
    (tmp_path / "proofs").mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / "native" / name, tmp_path / "native")
    shutil.copy(ROOT / SCRIPT.OUTPUT, tmp_path / "proofs")
    return tmp_path


def test_the_generated_file_is_current() -> None:
    assert SCRIPT.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "constant"),
    [
        ("exp.inl.h", "0x1.3b2de0p-7f", "0x1.3b2de2p-7f", "f32_degree_6"),
        ("exp.inl.h", "low = 0x1.4ae0c0p-26f", "low = 0x1.4ae0c2p-26f", "f32_log2e_low"),
        ("scans_double.inl.h", "0x1.00a58546bf153p-16", "0x1.00a58546bf154p-16", "f64_degree_7"),
        ("exact.h", "0x1.c4beee69db273p-36", "-0x1.c4beee69db273p-36", "exact64_polynomial"),
        ("same_log.h", "1.0 / 23", "1.0 / 25", "log_series"),
        ("tanh.inl.h", "-17.0 / 315", "-17.0 / 316", "f64_tanh_series"),
    ],
)
def test_a_changed_constant_is_seen(
    copy: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, constant: str
) -> None:
    source = copy / "native" / file
    text = source.read_text(encoding="utf-8")
    assert text.count(old) == 1
    arguments = ["--root", str(copy)]
    assert SCRIPT.main([*arguments, "--check"]) == 0
    source.write_text(text.replace(old, new), encoding="utf-8")
    assert SCRIPT.main([*arguments, "--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert {n for n, _, v in SCRIPT.entries(copy) if v != CONSTANTS[n]} >= {constant}
    assert SCRIPT.main(arguments) == 0
    assert SCRIPT.main([*arguments, "--check"]) == 0


def test_a_missing_constant_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = copy / "native" / "exact.h"
    source.write_text(source.read_text(encoding="utf-8").replace("log2e_low", "rest"), encoding="utf-8")
    assert SCRIPT.main(["--root", str(copy), "--check"]) == 2
    assert re.search(r"native/exact\.h: log2e_low .*not found", capsys.readouterr().err)


def test_the_law_in_python_has_the_same_constants() -> None:
    for form, name in ((exact.FLOAT32, "exact32"), (exact.FLOAT64, "exact64")):
        assert CONSTANTS[f"{name}_polynomial"] == tuple(map(Fraction, form.coefficients))
        assert CONSTANTS[f"{name}_log2e"] == form.log2e
        assert CONSTANTS[f"{name}_large"] == form.large
    assert CONSTANTS["exact64_log2e_low"] == exact.FLOAT64.log2e_low
    assert CONSTANTS["exact64_far"] == exact.FLOAT64.far


@pytest.mark.parametrize(
    ("magic", "bits"),
    [("f32_magic", 24), ("f32_unshifted_magic", 24), ("f64_magic", 53), (Fraction(3 * 2**51), 53)],
)
def test_adding_and_subtracting_a_large_number_rounds_to_a_nearest_whole(
    magic: str | Fraction, bits: int
) -> None:
    large = CONSTANTS[magic] if isinstance(magic, str) else magic
    halves = np.arange(-300, 301) / 2
    spread = np.concatenate([halves, np.nextafter(halves, np.inf), np.nextafter(halves, -np.inf)])
    for y in map(Fraction, spread.tolist()):
        n = exact_model.rounded(exact_model.rounded(y + large, bits) - large, bits)
        assert n.denominator == 1
        assert abs(y - n) <= Fraction(1, 2)


def test_a_pair_is_the_number() -> None:
    for x in (
        Fraction(3),
        Fraction(0),
        Fraction(-5, 8),
        Fraction(3 * 2**40),
        Fraction(float.fromhex("0x1p-60")),
    ):
        m, e = SCRIPT.pair(x)
        assert m * Fraction(2) ** e == x
        assert m % 2 == 1 or x == 0


def _proved(file: str, pattern: str) -> dict[str, tuple[str, ...]]:
    text = (ROOT / "proofs" / file).read_text(encoding="utf-8")
    return {found[0]: found[1:] for found in re.findall(pattern, text)}


APPROXIMATIONS = _proved(
    "ExpPolynomial.v", r"Theorem (\w+_approximates) : approximates (\w+) ([\d.]+) ([\de.-]+)\."
)


@pytest.mark.parametrize("theorem", APPROXIMATIONS)
def test_polynomials_are_as_near_as_is_proved(theorem: str) -> None:
    """And not much nearer: the bounds say something."""
    name, reach, bound = APPROXIMATIONS[theorem]
    c = [number(x) for x in CONSTANTS[name]]
    with mpmath.workdps(30):
        worst = mpmath.mpf(0)
        for k in range(-150, 151):
            f = mpmath.mpf(reach) * k / 150
            value = 1 + f * mpmath.polyval(c[::-1], f)
            worst = max(worst, abs(value / mpmath.power(2, f) - 1))
    assert 0.9 * float(bound) < worst <= float(bound)


def test_every_polynomial_is_proved() -> None:
    names = {n for n in CONSTANTS if "degree" in n or "polynomial" in n}
    assert names == {name for name, _, _ in APPROXIMATIONS.values()}


def test_words_of_log2e_and_log2_leave_out_what_is_proved() -> None:
    with mpmath.workdps(60):
        log2e = 1 / mpmath.log(2)
        left = {
            "log2e_words_f32": log2e
            - number(CONSTANTS["f32_log2e_high"])
            - number(CONSTANTS["f32_log2e_low"]),
            "log2e_words_f64": log2e
            - number(CONSTANTS["f64_log2e_high"])
            - number(CONSTANTS["f64_log2e_low"]),
            "log2_words": mpmath.log(2) - number(CONSTANTS["log2_high"]) - number(CONSTANTS["log2_low"]),
        }
        pattern = r"Theorem (\w+_words\w*) : .* <= ([\de.-]+)\."
        bounds = _proved("ExpPolynomial.v", pattern) | _proved("LogTanhSeries.v", pattern)
        assert bounds.keys() == left.keys()
        for name, rest in left.items():
            assert 0.9 * float(bounds[name][0]) < abs(rest) <= float(bounds[name][0]), name


def test_series_of_log_and_tanh_are_as_near_as_is_proved() -> None:
    bounds = _proved(
        "LogTanhSeries.v",
        r"(?s)Theorem (log_series_approximates|tanh_series_f\d\d)\b.*?<= ([\de.-]+)\.\nProof",
    )
    assert len(bounds) == 3

    def series(name: str, x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.polyval([number(c) for c in CONSTANTS[name]][::-1], x * x)

    with mpmath.workdps(30):
        for k in range(1, 101):
            s = mpmath.mpf("0.171573") * k / 100
            log = 2 * s + 2 * s**3 * series("log_series", s)
            off = abs(log - mpmath.log((1 + s) / (1 - s)))
            assert off <= float(bounds["log_series_approximates"][0])
            for name, reach in (("f32", 0.5), ("f64", 0.2)):
                x = mpmath.mpf(reach) * k / 100
                off = abs(x + x**3 * series(f"{name}_tanh_series", x) - mpmath.tanh(x))
                assert off <= float(bounds[f"tanh_series_{name}"][0])
