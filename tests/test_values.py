"""Every variant, at every size that a vector width or a block can get wrong, against the float64
reference."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from helpers import (
    FORMATS,
    LONG,
    SIZES,
    WIDTH,
    assert_close,
    assert_same_bits,
    bound,
    noise,
    row,
    row_kinds,
    truth,
    ulp,
)

import online_softmax as osm
from online_softmax import cpu, reference

VARIANTS = [tuple(name.split(".")) for name in cpu.variants()]
ELEMENTWISE = [v for v in VARIANTS if v[0] in ("softmax", "log_softmax", "logsumexp")]
#: Rows on which exp without a shift neither overflows nor loses bits to underflow.
TAME = ("random", "ramp", "constant")


def ids(variants: list[tuple[str, ...]]) -> list[str]:
    return [".".join(v) for v in variants]


@cache
def truth_of_row(op: str, kind: str, dtype: np.dtype, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(row in float64, true result), one row."""
    x = row(kind, dtype, n).astype(np.float64)[None]
    return x, np.asarray(getattr(reference, op)(x, axis=-1))


def kinds(dtype: np.dtype, algorithm: str) -> tuple[str, ...]:
    return TAME if algorithm == "naive" else row_kinds(dtype)


def test_every_variant_is_known_here():
    known = {"softmax", "log_softmax", "logsumexp", "topk", "softmax_topk", "state"}
    assert {op for op, *_ in VARIANTS} <= known
    assert {fmt for _, fmt, *_ in VARIANTS} == set(FORMATS)
    assert {isa for _, _, isa, *_ in VARIANTS} == set(cpu.isas())
    for op in ("softmax", "log_softmax", "logsumexp"):
        assert {a for o, _, _, a in ELEMENTWISE if o == op} >= set(cpu.ALGORITHMS) - {"auto", "cached"}


@pytest.mark.parametrize("variant", ELEMENTWISE, ids=ids(ELEMENTWISE))
def test_sizes(variant):
    op, fmt, isa, algorithm = variant
    dtype = FORMATS[fmt]
    for kind in kinds(dtype, algorithm):
        for n in SIZES + LONG:
            x, expected = truth_of_row(op, kind, dtype, n)
            got = getattr(osm, op)(row(kind, dtype, n)[None], isa=isa, algorithm=algorithm, threads=1)
            assert got.dtype == dtype
            allowed = bound(op, x, expected, dtype, shifted=algorithm != "naive")
            assert_close(got, expected, allowed, f"{kind}[{n}]")


@pytest.mark.parametrize("variant", ELEMENTWISE, ids=ids(ELEMENTWISE))
def test_batches(variant):
    """1 to 9 rows: kernels take several at a time, so what is left over matters. Off an aligned address as
    well."""
    op, fmt, isa, algorithm = variant
    dtype = FORMATS[fmt]
    for n in (1, 3, WIDTH - 1, WIDTH + 1, 64, 128, 257):
        base = noise((10 * n + 1,), dtype, seed=n)
        for rows in range(1, 10):
            x = base[1 : 1 + rows * n].reshape(rows, n)
            wide = x.astype(np.float64)
            expected = truth(op, wide)
            got = getattr(osm, op)(x, isa=isa, algorithm=algorithm, threads=2)
            assert_close(
                got, expected, bound(op, wide, expected, dtype, shifted=algorithm != "naive"), f"{x.shape}"
            )


FAST = [v for v in ELEMENTWISE if v[0] != "logsumexp"]


@pytest.mark.parametrize("variant", FAST, ids=ids(FAST))
def test_fast_precision(variant):
    op, fmt, isa, algorithm = variant
    dtype = FORMATS[fmt]
    for kind in kinds(dtype, algorithm):
        for n in (1, 3, WIDTH + 1, 129, 1025, 4097):
            x, expected = truth_of_row(op, kind, dtype, n)
            given = row(kind, dtype, n)[None]
            got = getattr(osm, op)(given, isa=isa, algorithm=algorithm, precision="fast", threads=1)
            allowed = bound(op, x, expected, dtype, shifted=algorithm != "naive", fast=dtype.itemsize == 2)
            assert_close(got, expected, allowed, f"{kind}[{n}]")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("algorithm", ["online", "auto"])
def test_rows_past_the_caches(op, fmt, algorithm):
    """Rows that no core's cache holds, split over threads and merged as states."""
    dtype, n = FORMATS[fmt], 1_300_003
    for kind in ("random", "ramp", "constant"):
        x = row(kind, dtype, n)[None]
        wide = x.astype(np.float64)
        expected = getattr(reference, op)(wide, axis=-1)
        allowed = bound(op, wide, expected, dtype)
        for threads in (1, 2):
            got = getattr(osm, op)(x, algorithm=algorithm, threads=threads)
            assert_close(got, expected, allowed, f"{kind}, {threads} threads")


@pytest.mark.parametrize("fmt", ["f32", "f64"])
@pytest.mark.parametrize("gap", [1.0, 10.0, 16.0, 30.0])
def test_relative_accuracy_near_zero(fmt, gap):
    """The largest term is taken out of the sum, so what is left of log keeps its leading digits."""
    dtype = FORMATS[fmt]
    x = np.array([0, -gap, -gap - 1], dtype)
    expected = np.log1p(np.exp(-gap) + np.exp(-gap - 1))
    # Exponent error u*gap, exp, one addition, log1p, and the rounding of each.
    allowed = (gap + 8) * 2 * (2.0**-53 if fmt == "f64" else 2.0**-24) * expected
    assert abs(float(osm.logsumexp(x)) - expected) <= allowed
    assert abs(float(osm.log_softmax(x)[0]) + expected) <= allowed


@pytest.mark.parametrize("fmt", FORMATS)
def test_small_calls_give_the_bits_of_the_general_path(fmt):
    """The short way for small arrays is the same kernel: naming the default axis by `dim` takes the long
    way."""
    dtype = FORMATS[fmt]
    for n in (1, 2, 3, 17, 128, 129, 1000, 4097, 16384):
        for shape in ((n,), (1, n), (3, n)):
            x = noise(shape, dtype, seed=n)
            for op in ("softmax", "log_softmax", "logsumexp"):
                fn = getattr(osm, op)
                assert_same_bits(fn(x), fn(x, dim=-1), f"{op} {shape}")
            for op in ("softmax", "log_softmax"):
                fn, out = getattr(osm, op), np.empty_like(x)
                assert fn(x, out=out) is out
                assert_same_bits(out, fn(x, dim=-1), f"{op} {shape} out")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("isa", cpu.isas())
def test_topk(fmt, isa):
    dtype = FORMATS[fmt]
    for n in (1, 2, 3, 15, 16, 17, 127, 128, 129, 1025, 4097):
        x = noise((3, n), dtype, seed=n)
        x[1] = np.round(x[1].astype(np.float64)).astype(dtype)  # ties
        wide = x.astype(np.float64)
        full, lse = reference.softmax(wide, axis=-1), reference.logsumexp(wide, axis=-1)
        for k in sorted({1, min(2, n), min(5, n), min(64, n), n if n < 200 else 100}):
            got = osm.softmax_topk(x, k, isa=isa)
            order = np.argsort(-wide, axis=-1, kind="stable")[:, :k]
            assert got.indices.dtype == np.int64
            np.testing.assert_array_equal(got.indices, order, err_msg=f"k={k} of {n}")
            expected = np.take_along_axis(full, order, -1)
            allowed = np.take_along_axis(bound("softmax", wide, full, dtype), order, -1)
            assert got.values.dtype == dtype
            assert_close(got.values, expected, allowed, f"k={k} of {n}")
            stats = FORMATS["f64" if fmt == "f64" else "f32"]
            assert got.lse.dtype == stats
            assert_close(got.lse, lse, bound("logsumexp", wide, lse, stats), f"k={k} of {n}")


@pytest.mark.parametrize("fmt", FORMATS)
def test_topk_of_every_axis(fmt):
    x = noise((5, 18, 7), FORMATS[fmt])
    for axis in range(-3, 3):
        got = osm.softmax_topk(x, 4, axis)
        lanes = np.moveaxis(x, axis, -1)
        want = osm.softmax_topk(np.ascontiguousarray(lanes), 4)
        np.testing.assert_array_equal(np.moveaxis(got.indices, axis, -1), want.indices)
        wide = lanes.astype(np.float64)
        full = reference.softmax(wide, axis=-1)
        allowed = np.take_along_axis(bound("softmax", wide, full, x.dtype), want.indices, -1)
        assert_close(np.moveaxis(got.values, axis, -1), np.take_along_axis(full, want.indices, -1), allowed)
        assert got.lse.shape == lanes.shape[:-1]


@pytest.mark.parametrize("fmt", ["f32", "f64", "f16", "bf16"])
def test_weights(fmt):
    """b as a weight of each term: signs, zeros, broadcasting, with and without a mask."""
    dtype = FORMATS[fmt]
    rng = np.random.default_rng(1)
    for n in (1, 3, 17, 129, 1025):
        x = noise((4, n), dtype, seed=n)
        for b in (
            rng.uniform(0, 2, (4, n)),
            rng.uniform(0, 2, n),
            rng.uniform(0.5, 1, (4, 1)),
            rng.integers(0, 3, n),
        ):
            wide, weight = x.astype(np.float64), np.broadcast_to(b, x.shape)
            expected = reference.logsumexp(wide, axis=-1, b=weight)
            got = osm.logsumexp(x, b=b)
            assert got.dtype == dtype
            # Positive weights: one more product a term, and weights may be held in float32.
            allowed = bound("logsumexp", wide, expected, dtype) + 4 * (2.0**-53 if fmt == "f64" else 2.0**-24)
            np.testing.assert_array_equal(np.isinf(got.astype(np.float64)), np.isinf(expected))
            assert_close(got, expected, allowed, f"b of {np.shape(b)}, n={n}")
            lse, sign = osm.logsumexp(x, b=b, return_sign=True)
            assert_same_bits(lse, got)
            np.testing.assert_array_equal(sign.astype(np.float64), np.where(np.isinf(expected), 0, 1))
            assert sign.dtype == dtype


def test_negative_sums():
    x, b = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]), np.array([1.0, -1.0])
    log = np.log(np.e - 1)
    lse, sign = osm.logsumexp(x, b=b, return_sign=True)
    np.testing.assert_allclose(lse, [log, log, -np.inf], rtol=8 * 2.0**-53)
    np.testing.assert_array_equal(sign, [-1, 1, 0])
    np.testing.assert_array_equal(np.isnan(osm.logsumexp(x, b=b)), [True, False, False])


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_formats(name):
    """Computed in float32 and rounded once, whatever the size."""
    x = noise((5, 33), np.dtype(getattr(ml_dtypes, name)))
    wide = x.astype(np.float64)
    for op in ("softmax", "log_softmax", "logsumexp"):
        expected = getattr(reference, op)(wide, axis=-1)
        got = getattr(osm, op)(x)
        assert got.dtype == x.dtype
        single = bound(op, wide, expected, FORMATS["f32"])
        assert_close(got, expected, single + 0.5 * ulp(expected, x.dtype), op)


@pytest.mark.parametrize("fmt", FORMATS)
def test_states(fmt):
    """m is the true maximum to the bit, s within the bound of a sum; merged pieces are the whole's state."""
    dtype = FORMATS[fmt]
    stats = FORMATS["f64" if fmt == "f64" else "f32"]
    for n in (*SIZES, *LONG):
        for kind in row_kinds(dtype):
            x = np.stack([row(kind, dtype, n), row(kind, dtype, n)[::-1]])
            whole = osm.SoftmaxState.of(x)
            m, s = reference.state(x.astype(np.float64))
            assert whole.dtype == stats
            np.testing.assert_array_equal(whole.m, m.astype(stats))
            lse = m + np.log(s) if n else m
            allowed = bound("logsumexp", x.astype(np.float64), lse, stats)
            assert_close(whole.lse, lse, allowed, f"{kind}[{n}]")
            parts = [osm.SoftmaxState.of(piece) for piece in np.array_split(x, 3, axis=1)]
            assert_close(osm.SoftmaxState.merge_many(parts).lse, lse, 2 * allowed, f"{kind}[{n}] merged")


@pytest.mark.parametrize("fmt", FORMATS)
def test_states_of_every_axis_and_layout(fmt):
    x = noise((5, 6, 7), FORMATS[fmt]).transpose(1, 2, 0)[::-1]
    keep = noise((6, 7, 5), FORMATS["f32"], seed=3) > 0
    x[2, 3, 1], x[0, 0, 0] = np.nan, np.inf
    x[4] = -np.inf
    for axis in (0, 1, 2, (0, 2), (0, 1, 2), None):
        for where in (None, keep, keep[:, :1], np.zeros(5, bool)):
            state = osm.SoftmaxState.of(x, axis, where=where)
            m, s = reference.state(x.astype(np.float64), axis, where=where)
            np.testing.assert_array_equal(state.m, m)
            assert_close(state.s, s, 2.0**-19 * np.where(np.isfinite(s), s, 0))


def test_integers_count_as_float64():
    for dtype in (np.int8, np.uint16, np.int64, np.bool_):
        x = np.array([[0, 1, 1], [1, 0, 0]], dtype)
        for op in ("softmax", "log_softmax", "logsumexp"):
            got = getattr(osm, op)(x)
            assert got.dtype == np.float64
            assert_same_bits(got, getattr(osm, op)(x.astype(np.float64)))


@pytest.mark.parametrize(
    "target", ["float64", "float32", "float16", "bfloat16", np.float32, np.dtype(np.float16)]
)
@pytest.mark.parametrize("given", ["f64", "f32", "f16", "bf16"])
def test_dtype_rounds_first(given, target):
    x = noise((3, 40), FORMATS[given])
    dtype = FORMATS["bf16"] if target == "bfloat16" else np.dtype(target)
    for op in (osm.softmax, osm.log_softmax):
        got = op(x, dtype=target)
        assert got.dtype == dtype
        assert_same_bits(got, op(x.astype(dtype), dim=-1))


@pytest.mark.parametrize("isa", cpu.isas())
def test_exp_of_the_kernels(isa):
    """Within one ulp over the whole range, subnormal results included."""
    x = np.concatenate(
        [np.linspace(-104, 88.72, 200_001), -np.logspace(-30, 0, 301), np.logspace(-30, 0, 301)]
    )
    x = x.astype(np.float32)
    with np.errstate(under="ignore"):
        expected = np.exp(x.astype(np.float64))
    assert_close(cpu.exp(x, isa=isa), expected, 1.0 * ulp(expected, FORMATS["f32"]), isa)
