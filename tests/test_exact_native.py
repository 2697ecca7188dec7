"""The native kernels of the law in whole numbers: every instruction set, format, operation, layout, mask and
number of threads gives the bits of the definition, `online_softmax.exact`."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_cases import DTYPES, dtype_of, expected, rows_of, same

from online_softmax import cpu, cpu_exact, exact

Array = Any
ROOT = Path(__file__).resolve().parents[1]


def got(x: Array, axes: tuple[int, ...], where: Array | None = None, **options: Any) -> dict[str, Array]:
    """As `exact_cases.expected`, by the kernels."""
    m, a = cpu_exact.state(x, axes, where=where, **options)
    found = {"m": m, "a": a, "lse": cpu_exact.logsumexp(x, axes, where=where, **options)}
    found["log_sum"] = cpu_exact.log_sum(m, a)
    for name in ("softmax", "log_softmax"):
        out = np.full_like(x, 7)
        cpu_exact.softmax(x, out, axes, where=where, log=name == "log_softmax", **options)
        found[name] = out
    assert same(cpu_exact.lse(m, a), found["lse"])
    return found


def check(found: dict[str, Array], want: dict[str, Array], what: str) -> None:
    for name, value in want.items():
        assert same(found[name], value), f"{what}: {name}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", cpu.isas())
def test_rows_of_every_length(isa: str, dtype: str) -> None:
    for n in (*range(1, 71), 127, 128, 129, 200):
        x = rows_of(dtype, n, seed=n)
        check(got(x, (1,), isa=isa), expected(x), f"n {n}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", cpu.isas())
def test_long_rows(isa: str, dtype: str) -> None:
    for n in (1023, 4096, 4097, 5000):
        x = rows_of(dtype, n, seed=n)[:: 1 if isa != "scalar" else 5]
        check(got(x, (1,), isa=isa), expected(x), f"n {n}")
    x = rows_of(dtype, 40000)[1::9]  # beyond what is kept
    check(got(x, (1,), isa=isa), expected(x), "n 40000")


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(dtype: str) -> None:
    """Every order of axes, steps, reversed axes and reduced axes."""
    random = np.random.default_rng(3)
    base = (random.standard_normal((6, 10, 37)) * 6).astype(dtype_of(dtype))
    views = [base.transpose(p) for p in permutations(range(3))] + [base[:, ::-2, ::3], base[::-1, :, ::-1]]
    views += [np.broadcast_to(base[:, :1], (6, 4, 37)), np.broadcast_to(base[:, :, :1], (6, 10, 5))]
    for x in views:
        for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
            kept = tuple(a for a in range(3) if a not in axes)
            turned = x.transpose(*kept, *axes)
            rows = turned.reshape(*turned.shape[: len(kept)], -1)
            want = expected(rows)
            for name in ("softmax", "log_softmax"):
                want[name] = want[name].reshape(turned.shape).transpose(np.argsort((*kept, *axes)))
            check(got(x, axes), want, f"strides {x.strides} axes {axes}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_masks(dtype: str, axis: int) -> None:
    random = np.random.default_rng(4)
    for n in (1, 5, 40, 3000):
        x = rows_of(dtype, n, seed=n)[::3]
        each = random.random(x.shape) < 0.6
        each[0] = False  # a row with nothing left
        for where in (each, np.broadcast_to(random.random(n) < 0.3, x.shape)):
            want = expected(x, where)
            if axis == 0:
                want["softmax"], want["log_softmax"] = want["softmax"].T, want["log_softmax"].T
            array, mask = (x, where) if axis else (np.ascontiguousarray(x.T), where.T)
            check(got(array, (axis,), mask), want, f"n {n}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_splits(dtype: str) -> None:
    """Many rows, few long ones, columns: cut for the threads as they may be, merged in any order."""
    random = np.random.default_rng(5)
    for shape, axis in product(((2, 150000), (70, 4100)), (0, 1)):
        x = (random.standard_normal(shape) * 9).astype(dtype_of(dtype))
        x = np.ascontiguousarray(x.T) if axis == 0 else x
        want = got(x, (axis,), threads=1)
        first = (slice(0, 1), slice(None)) if axis else (slice(None), slice(0, 1))
        some = expected(np.moveaxis(x[first], axis, -1))
        assert same(np.moveaxis(want["softmax"][first], axis, -1), some["softmax"])
        assert same(want["a"][:1], some["a"])
        for threads in (2, 5):
            check(got(x, (axis,), threads=threads), want, f"{shape} axis {axis} threads {threads}")
        cuts = np.sort(random.integers(0, x.shape[axis] + 1, 6))
        pieces = [cpu_exact.state(p, (axis,)) for p in np.split(x, cuts, axis)]
        random.shuffle(pieces)
        while len(pieces) > 1:
            pieces.append(cpu_exact.merge(pieces.pop(0), pieces.pop(0)))
        (m, a), out = pieces[0], np.empty_like(x)
        assert same(m, want["m"])
        assert same(a, want["a"])
        for part, to in zip(np.split(x, cuts, axis), np.split(out, cuts, axis), strict=True):
            cpu_exact.normalize(part, m, a, to, (axis,))
        assert same(out, want["softmax"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", cpu.isas())
def test_alignment_and_in_place(isa: str, dtype: str) -> None:
    """Rows wherever they start, results large enough to go around the cache, and x itself as the result."""
    random = np.random.default_rng(6)
    size = dtype_of(dtype).itemsize
    rows, n = (9 << 20) // (2048 * size), 2051
    flat = (random.standard_normal(rows * n + 40) * 6).astype(dtype_of(dtype))
    some = slice(0, None, 37)
    for at in (0, 1, 5):
        x = flat[at : at + rows * 2048].reshape(rows, 2048)
        y = np.full_like(flat, 7)[40 - at :][: rows * 2048].reshape(rows, 2048)
        cpu_exact.softmax(x, y, (1,), isa=isa)
        assert same(y[some], expected(x[some])["softmax"])
    x = flat[: rows * n].reshape(rows, n)
    want = expected(x[some])
    for log in (False, True):
        y = x.copy()
        cpu_exact.softmax(y, y, (1,), log=log, isa=isa)
        assert same(y[some], want["log_softmax" if log else "softmax"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", cpu.isas())
def test_elements_under_a_foreign_state(isa: str, dtype: str) -> None:
    """Elements above the maximum, below it, NaN and infinite, under states of other rows."""
    form = exact.format_of(dtype_of(dtype))
    x = rows_of(dtype, 60, seed=8)
    m, a = exact.state(rows_of(dtype, 45, seed=9).astype(form.dtype), form)
    for shift in range(0, len(x), 7):
        state = np.roll(m, shift), np.roll(a, shift, 0)
        with np.errstate(all="ignore"):
            for log, law in ((False, exact.value), (True, exact.log_value)):
                want = law(x.astype(form.dtype), state[0][:, None], state[1][:, None], form).astype(x.dtype)
                out = np.empty_like(x)
                cpu_exact.normalize(x, *state, out, (1,), log=log, isa=isa)
                assert same(out, want), (shift, log)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_merge_of_every_pair(dtype: str) -> None:
    form = exact.format_of(dtype_of(dtype))
    states = [exact.state(rows_of(dtype, n, seed=n), form) for n in (1, 33)]
    states.append(exact.identity((1,), form))
    m, a = (np.concatenate(parts) for parts in zip(*states, strict=True))
    n = len(m)
    left, right = (m.repeat(n), a.repeat(n, 0)), (np.tile(m, n), np.tile(a, (n, 1)))
    want, found = exact.merge(left, right, form), cpu_exact.merge(left, right)
    assert same(found[0], want[0])
    assert same(found[1], want[1])
    assert same(cpu_exact.lse(*want), exact.lse(*want, form))
    assert same(cpu_exact.log_sum(*want), exact.log_sum(*want, form))
    shaped = tuple(s.reshape(n, n, *s.shape[1:]).swapaxes(0, 1) for s in want)
    assert same(cpu_exact.lse(*shaped), exact.lse(*shaped, form))


def test_empty() -> None:
    for shape, axes in (((3, 0), (1,)), ((0, 3), (1,)), ((0, 3), (0,)), ((2, 0, 3), (0, 2))):
        x = np.empty(shape, np.float32)
        m, a = cpu_exact.state(x, axes)
        left = tuple(n for d, n in enumerate(shape) if d not in axes)
        assert m.shape == left
        assert a.shape == (*left, 3)
        assert np.all(m == -np.inf)
        assert not a.any()
        assert np.all(cpu_exact.logsumexp(x, axes) == -np.inf)
        cpu_exact.softmax(x, x.copy(), axes)
    lone = np.float32(2.5).reshape(())
    assert cpu_exact.logsumexp(lone, ()) == np.float32(2.5)


def test_expected_checksums_are_those_of_the_definition() -> None:
    for dtype, checksum in cpu_exact._EXPECTED.items():
        want = expected(cpu_exact._probe(np.dtype(dtype)))
        parts = (want[k].tobytes() for k in ("m", "a", "lse", "softmax", "log_softmax"))
        assert zlib.crc32(b"".join(parts)) == checksum


def test_arguments_are_checked() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="isa is 'sse9'"):
        cpu_exact.state(x, (1,), isa="sse9")
    with pytest.raises(ValueError, match="threads is 0"):
        cpu_exact.softmax(x, x.copy(), (1,), threads=0)


def run(code: str) -> str:
    paths = os.pathsep.join((str(ROOT / "tests"), *filter(None, sys.path)))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bits_where_subnormal_numbers_are_flushed() -> None:
    """The definition's answers are made before, the kernels run after the flag is set."""
    pytest.importorskip("torch")
    code = """
import numpy as np, torch
from online_softmax import cpu, cpu_exact
from exact_cases import DTYPES, expected, rows_of
from test_exact_native import got
cases = [(x, expected(x)) for d in DTYPES for n in (1, 7, 70, 2000) for x in [rows_of(d, n)]]
assert torch.set_flush_denormal(True)
assert float(np.float32(1e-40) * np.float32(1)) == 0
bad = 0
for x, want in cases:
    for isa in cpu.isas():
        found = got(x, (1,), isa=isa)
        bad += sum(found[k].tobytes() != v.tobytes() for k, v in want.items() if not (v != v).any())
        keep = [not np.isnan(row.astype(np.float32)).any() for row in want["softmax"]]
        bad += sum(found[k][keep].tobytes() != v[keep].tobytes() for k, v in want.items())
print(bad)
"""
    assert run(code) == "0\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs fesetround of glibc's libm.so.6")
@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00])
def test_another_rounding_mode_is_refused(mode: int) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the modes' numbers are those of x86-64")
    code = f"""
import ctypes, numpy as np
from online_softmax import cpu_exact
x = np.ones((2, 3), np.float32)
ctypes.CDLL("libm.so.6").fesetround({mode})
try:
    cpu_exact.state(x, (1,))
except RuntimeError as error:
    print("to nearest" in str(error))
"""
    assert run(code) == "True\n"
