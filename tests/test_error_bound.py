"""`error_bound` holds for every algorithm in every format on rows made to break it, and is not much too
wide."""

from __future__ import annotations

import math
from dataclasses import astuple

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from online_softmax.numerics import bounds
from online_softmax.numerics.error_bound import ALGORITHMS, ErrorBound, error_bound
from online_softmax.numerics.hard_rows import hard_rows
from online_softmax.numerics.roundoff import Rounding
from online_softmax.numerics.simulate import Simulation, simulate

FORMATS = ("float32", "float16", "bfloat16")
WAYS = [
    ("batch", None, "running"),
    ("batch", None, "pairwise"),
    ("streaming", None, "running"),
    ("blocked", 16, "running"),
    ("blocked", 128, "running"),
    ("tree", 1, "running"),
    ("tree", 16, "running"),
]
wide = np.longdouble
#: Relative error of the true values: sums of up to some thousand terms.
TRUTH = 32 * float(np.finfo(wide).eps)


def depth_of(order: str, n: int) -> int | None:
    return None if order == "running" else max(0, n - 1).bit_length()


def truth(x: np.ndarray, v: np.ndarray | None = None) -> Simulation:
    """Rows of finite maximum in the widest float."""
    x = x.astype(wide)
    m = x.max(axis=-1)
    w = np.exp(x - m[..., None])
    s = w.sum(axis=-1)
    y = w / s[..., None]
    o = None if v is None else (y[..., None] * v.astype(wide)).sum(axis=-2)
    return Simulation(m, s, m + np.log(s), y, x - m[..., None] - np.log(s)[..., None], o)


def share(
    name: str, computed: np.ndarray, true: np.ndarray, bound: np.ndarray, scale: np.ndarray | float = 1
) -> np.ndarray:
    """error / bound, 0 where both are infinite alike; asserts that it is nowhere above 1.

    What the true values are good to is allowed on top: of logarithms, that of the sum they are taken of.
    """
    computed = computed.astype(wide)
    least = 1.0 if name in ("lse", "log_y") else 0.0
    with np.errstate(all="ignore"):
        error = np.where(computed == true, 0, np.abs(computed - true) / scale).astype(np.float64)
        error = np.where(np.isnan(error), np.inf, error)
        size = np.maximum(np.abs(true / scale), least)
        bound = bound + np.where(np.isfinite(true), TRUTH * size, 0).astype(np.float64)
    broken = ~(error <= bound)
    assert not broken.any(), (name, np.argwhere(broken)[:3], error[broken][:3], np.asarray(bound)[broken][:3])
    with np.errstate(all="ignore"):
        return np.where((error == 0) | np.isinf(bound), 0, error / bound)


def hold(result: Simulation, true: Simulation, bound: ErrorBound) -> dict[str, np.ndarray]:
    """Assert that all results keep within the bound; the shares of it they reach."""
    reached = {"s": share("s", result.s, true.s, bound.s, true.s)}
    for name in ("lse", "y", "log_y"):
        reached[name] = share(name, getattr(result, name), getattr(true, name), getattr(bound, name))
    if true.o is not None:
        assert result.o is not None
        assert bound.o is not None
        reached["o"] = share("o", result.o, true.o, bound.o)
    return reached


def rows_of(format: str, n: int, seeds: range) -> np.ndarray:
    return np.concatenate([np.stack(list(hard_rows(n, format, seed).values())) for seed in seeds])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("algorithm", "block", "order"), WAYS)
def test_it_holds_on_hard_rows(format: str, algorithm: str, block: int | None, order: str) -> None:
    for n, seeds in (
        (1, range(2)),
        (2, range(10)),
        (3, range(10)),
        (17, range(20)),
        (130, range(20)),
        (1500, range(3)),
    ):
        x = rows_of(format, n, seeds)
        v = (3 * np.random.default_rng(n).standard_normal((*x.shape, 2))).astype(x.dtype)
        way = {"block": block, "values": v}
        result = simulate(x, algorithm, format, order=order, **way)
        hold(result, truth(x, v), error_bound(x, algorithm, format, depth=depth_of(order, n), **way))


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("exp_format", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_holds_for_mixed_formats_and_flushed_subnormals(
    algorithm: str, exp_format: str | None, flush: bool
) -> None:
    for format in FORMATS:
        x = rows_of(format, 200, range(10))
        v = np.random.default_rng(5).standard_normal((*x.shape, 2)).astype(x.dtype)
        v[::3] *= np.asarray(1e-4, x.dtype)
        way = {"exp_format": exp_format, "flush": flush, "values": v}
        hold(simulate(x, algorithm, format, **way), truth(x, v), error_bound(x, algorithm, format, **way))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_it_holds_for_an_exp_that_errs_one_way(format: str, algorithm: str, sign: int) -> None:
    """Errors of 7u, all of one sign, are the worst that is allowed: 8u with the rounding."""
    u = bounds.unit_roundoff(format)

    def exp(a: np.ndarray) -> np.ndarray:
        return np.where(a == 0, 1.0, np.minimum(np.exp(a) * (1 + sign * 6.9 * u), 1.0))

    for n in (17, 400):
        x = rows_of(format, n, range(6))
        result = simulate(x, algorithm, format, exp=exp)
        hold(result, truth(x), error_bound(x, algorithm, format, exp_error=8 * u))
        with pytest.raises(AssertionError):
            hold(result, truth(x), error_bound(x, algorithm, format, exp_error=0.1 * u))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_holds_for_another_pivot_than_the_maximum(algorithm: str) -> None:
    """A kernel whose exponential of the maximum is not 1: all of them err by e."""
    u = bounds.unit_roundoff("float32")
    x = rows_of("float32", 100, range(3))
    result = simulate(x, algorithm, "float32", exp=lambda a: np.exp(a) * (1 - 6.9 * u))
    # Rescaling by 1 - 6.9u where the maximum stays is no part of the model.
    if algorithm == "batch":
        hold(result, truth(x), error_bound(x, algorithm, "float32", exp_error=8 * u, exact_top=False))
    constant = error_bound([[1.0, 1.0]], algorithm, "float32", exp_error=8 * u, exact_top=False)
    assert constant.s[0] >= 8 * u
    assert error_bound([[1.0, 1.0]], algorithm, "float32", exp_error=8 * u).s[0] < 1.01 * u


@pytest.mark.parametrize(("algorithm", "block", "order"), WAYS)
def test_it_holds_in_float64_against_50_digits(algorithm: str, block: int | None, order: str) -> None:
    n = 40
    x = rows_of("float64", n, range(2))
    result = simulate(x, algorithm, "float64", block=block, order=order)
    bound = error_bound(x, algorithm, "float64", block=block, depth=depth_of(order, n))
    with mpmath.workdps(50):
        for i, row in enumerate(x):
            m = max(map(mpmath.mpf, row.tolist()))
            w = [mpmath.exp(mpmath.mpf(a) - m) for a in row.tolist()]
            s = mpmath.fsum(w)
            off = [abs(result.s[i] - s) / s, abs((mpmath.mpf(float(result.lse[i])) - m) - mpmath.log(s))]
            assert off[0] <= bound.s[i]
            assert off[1] <= bound.lse[i]
            for k in range(n):
                assert abs(mpmath.mpf(float(result.y[i, k])) - w[k] / s) <= bound.y[i, k]
                if np.isfinite(result.log_y[i, k]):
                    true = mpmath.mpf(float(x[i, k])) - m - mpmath.log(s)
                    assert abs(mpmath.mpf(float(result.log_y[i, k])) - true) <= bound.log_y[i, k]
                else:
                    assert x[i, k] == -np.inf or bound.log_y[i, k] == np.inf


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    x=arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=24),
        elements=st.one_of(
            st.floats(width=16, allow_nan=False, allow_infinity=False),
            st.floats(-20, 20, width=16),
            st.sampled_from([-np.inf, 0.0, -65504.0, 65504.0, -17.5, -10.0]),
        ),
    ),
    format=st.sampled_from(FORMATS),
    way=st.sampled_from(WAYS),
    flush=st.booleans(),
)
def test_it_holds_on_rows_found_by_search(
    x: np.ndarray, format: str, way: tuple[str, int | None, str], flush: bool
) -> None:
    algorithm, block, order = way
    x = x.astype(Rounding.of(format).dtype)
    x = x[np.max(x.astype(np.float64), axis=-1) > -np.inf]
    v = np.broadcast_to(np.array([1.0, -3.0], x.dtype), (*x.shape, 2))
    result = simulate(x, algorithm, format, block=block, order=order, flush=flush, values=v)
    options = {"block": block, "depth": depth_of(order, x.shape[-1]), "flush": flush, "values": v}
    hold(result, truth(x, v), error_bound(x, algorithm, format, **options))


@pytest.mark.parametrize("out_format", ["float16", "bfloat16"])
def test_a_final_rounding_is_counted(out_format: str) -> None:
    x = rows_of("float16", 300, range(5))
    v = np.random.default_rng(0).standard_normal((*x.shape, 2)).astype(np.float16)
    result = simulate(x, "blocked", "float32", values=v)
    out = Rounding.of(out_format).dtype
    with np.errstate(over="ignore"):
        rounded = Simulation(
            result.m, result.s, *(getattr(result, name).astype(out) for name in ("lse", "y", "log_y", "o"))
        )
    hold(rounded, truth(x, v), error_bound(x, "blocked", "float32", out_format=out_format, values=v))
    plain = error_bound(x, "blocked", "float32", values=v)
    with pytest.raises(AssertionError):
        hold(rounded, truth(x, v), plain)


@pytest.mark.parametrize("format", FORMATS)
def test_rounding_the_row_first_is_counted(format: str) -> None:
    x = 5 * np.random.default_rng(1).standard_normal((50, 100)) + 30
    v = np.random.default_rng(2).standard_normal((50, 100, 3))
    for algorithm in ALGORITHMS:
        bound = error_bound(x, algorithm, format, values=v)
        hold(simulate(x, algorithm, format, values=v), truth(x, v), bound)
        held = x.astype(Rounding.of(format).dtype)
        assert (error_bound(held, algorithm, format).lse < bound.lse).any()


def test_rows_without_a_finite_maximum_are_exact() -> None:
    x = np.array([[np.nan, 1.0], [np.inf, 0.0], [-np.inf, -np.inf], [0.0, -np.inf]])
    for algorithm in ALGORITHMS:
        for part in astuple(error_bound(x, algorithm, "float16", values=np.ones((4, 2, 1)))):
            assert (part[:3] == 0).all()
        one = error_bound(x[3:], algorithm, "float16")
        assert one.s == 0
        assert one.y[0, 1] == 0 == one.log_y[0, 1]
    empty = error_bound(np.zeros((3, 0)), "batch", "float32", values=np.zeros((3, 0, 2)))
    assert empty.lse.tolist() == [0, 0, 0]
    assert empty.y.shape == (3, 0)
    assert empty.o is not None
    assert empty.o.tolist() == [[0, 0]] * 3


def test_what_may_overflow_has_no_bound() -> None:
    """65504 equal entries are the most a float16 sum can hold, where it does not stall first."""
    few, many = np.zeros((1, 40_000)), np.zeros((1, 70_000))
    assert np.isfinite(error_bound(few, "tree", "float16").s).all()
    assert np.isinf(error_bound(many, "tree", "float16").s).all()
    assert np.isinf(float(simulate(many, "tree", "float16").s[0]))
    assert np.isfinite(error_bound(many, "batch", "float16").s).all()
    assert float(simulate(many[:, :5000], "batch", "float16").s[0]) == 2048
    # A row, a value or a logarithm the format cannot hold.
    assert np.isinf(error_bound([[1e6, 0.0]], "batch", "float16").lse).all()
    assert np.isinf(error_bound([[0.0, 0.0]], "batch", "float16", values=[[[6e4], [6e4]]]).o).all()
    assert np.isinf(error_bound([[65504.0, -65504.0]], "batch", "float16").log_y).tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"algorithm": "pairwise"}, "algorithm"),
        ({"format": "float8_e5m2"}, "format"),
        ({"format": "nonsense"}, "format"),
        ({"block": 4}, "block"),
        ({"algorithm": "tree", "block": 0}, "block"),
        ({"algorithm": "tree", "depth": 3}, "depth"),
        ({"depth": -1}, "depth"),
        ({"exp_error": -1e-3}, "exp_error"),
        ({"exp_error": math.nan}, "exp_error"),
        ({"log_error": 1.0}, "log_error"),
        ({"exp_format": "int8"}, "exp_format"),
        ({"out_format": "float8"}, "out_format"),
        ({"values": np.zeros((2, 2))}, "values"),
        ({"values": np.full((1, 3, 1), np.nan)}, "values"),
        ({"x": 1.0}, "x"),
        ({"x": np.array(["a"])}, "x"),
        ({"x": np.array([1j])}, "x"),
    ],
)
def test_a_wrong_call_names_its_argument(options: dict, named: str) -> None:
    call = {"x": np.zeros((1, 3)), "algorithm": "batch", "format": "float16"} | options
    with pytest.raises(ValueError, match=rf"^{named}: .* would do$"):
        error_bound(**call)


def test_values_at_masked_entries_are_not_read() -> None:
    x, v = np.array([[0.0, -np.inf]]), np.array([[[1.0], [np.nan]]])
    bound = error_bound(x, "batch", "float32", values=v)
    assert bound.o is not None
    assert bound.o[0, 0] <= 4 * 2.0**-24
    assert simulate(x, "batch", "float32", values=v).o == 1


def test_the_algorithms_end_alike_on_special_rows() -> None:
    x = np.array([[np.nan, 0.0, 1.0], [np.inf, 0.0, 1.0], [-np.inf] * 3], np.float16)
    for algorithm in ALGORITHMS:
        result = simulate(x, algorithm, "float16")
        np.testing.assert_array_equal(result.lse.astype(float), [np.nan, np.inf, -np.inf])
        assert np.isnan(result.y.astype(float)).all()


def test_a_wrong_simulation_names_its_argument() -> None:
    for options, named in (
        ({"order": "random"}, "order"),
        ({"algorithm": "tree", "order": "pairwise"}, "order"),
        ({"row": np.zeros((2, 0))}, "row"),
        ({"values": np.zeros((3, 1))}, "values"),
    ):
        call = {"row": np.zeros((1, 3)), "algorithm": "batch", "format": ml_dtypes.bfloat16} | options
        with pytest.raises(ValueError, match=rf"^{named}: .* would do$"):
            simulate(**call)
