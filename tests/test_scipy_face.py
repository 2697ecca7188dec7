"""SciPy's names: its signatures, formats and shapes, and its values where its documentation asks for them."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import array_api_strict as xs
import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import scipy.special
import torch
from helpers import assert_close, assert_same_bits, bound, noise, truth
from scipy_helpers import assert_alike, assert_equal, theirs

import online_softmax
import online_softmax.scipy as ours

NAMES = ("softmax", "log_softmax", "logsumexp")
FORMATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint16, np.uint32, np.uint64)
AXES: tuple[Any, ...] = (None, 0, 1, -1, (0, 1), (0, 2), (-1, 0), ())
INF, NAN = np.inf, np.nan


def test_signatures_are_scipy_s() -> None:
    def parameters(function: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    for name in NAMES:
        assert parameters(getattr(ours, name)) == parameters(inspect.unwrap(getattr(scipy.special, name)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_formats_shapes_and_values(name: str, axis: Any, dtype: Any) -> None:
    x = noise((3, 4, 5), np.dtype(dtype))
    made = getattr(ours, name)(x, axis=axis)
    assert_alike(made, theirs(name)(x, axis=axis))
    over = tuple(range(3)) if axis is None else tuple(np.atleast_1d(np.array(axis, int)) % 3)
    kept = [d for d in range(3) if d not in over]
    rows = x.astype(np.float64).transpose([*kept, *over]).reshape([x.shape[d] for d in kept] + [-1])
    expected = truth(name, rows)
    got = made if name == "logsumexp" else made.transpose([*kept, *over]).reshape(rows.shape)
    assert_close(got, expected, bound(name, rows, expected, np.dtype(dtype)))
    assert_same_bits(made, getattr(online_softmax, name)(x, axis=axis))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value", [2, 2.5, True, [1, 2], [[1.5, 2], [3, -4]], (1, 2.0), np.float32(3), np.int8(3)]
)
def test_lists_and_scalars(name: str, value: Any) -> None:
    made = getattr(ours, name)(value)
    if isinstance(value, bool):
        assert made == {"softmax": 1.0, "log_softmax": 0.0, "logsumexp": 1.0}[name]
        return
    assert_alike(made, theirs(name)(value))
    rows = np.asarray(value, np.float64).reshape(-1)
    expected = truth(name, rows)
    assert_close(np.reshape(made, expected.shape), expected, bound(name, rows, expected, made.dtype))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(name: str, dtype: Any) -> None:
    x = np.array([[1, 5, 3], [0, 2, 120]], dtype)
    made = getattr(ours, name)(x, axis=1)
    assert_alike(made, theirs(name)(x, axis=1))
    rows = x.astype(np.float64)
    expected = truth(name, rows)
    assert_close(made, expected, bound(name, rows, expected, made.dtype))


def test_integers_that_wrap_in_scipy() -> None:
    """Its differences leave the format: the results here are those of the values."""
    expected = scipy.special.softmax([127.0, -128.0])
    np.testing.assert_array_equal(ours.softmax(np.array([127, -128], np.int8)), expected.astype(np.float16))
    made = ours.softmax(np.array([1, 2], np.uint8))
    np.testing.assert_array_equal(made, truth("softmax", np.array([1.0, 2.0])).astype(np.float16))
    assert made.dtype == np.float16
    np.testing.assert_array_equal(
        ours.softmax(np.array([True, False])), ours.softmax(np.array([1, 0], np.int8))
    )


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_past_float64(dtype: Any) -> None:
    """Their differences count, as in SciPy, and not what they round to."""
    x = np.array([[2**62, 2**62 + 1, 2**62 + 3], [5, 2**61, 7]], dtype)
    rows = np.array([[0.0, 1.0, 3.0], [-(2.0**61), 0.0, -(2.0**61)]])
    expected = truth("softmax", rows)
    made = ours.softmax(x, axis=1)
    assert_close(made, expected, bound("softmax", rows, expected, made.dtype))
    np.testing.assert_array_equal(
        ours.log_softmax(x, axis=1),
        ours.log_softmax(np.array([[-3, -2, 0], [-(2**61) + 5, 0, -(2**61) + 7]]), axis=1),
    )
    if dtype is np.int64:
        least = np.array([-(2**63), 2**63 - 1])
        np.testing.assert_array_equal(ours.softmax(least), [0, 1])
        np.testing.assert_array_equal(ours.log_softmax(least), [-(2.0**64), 0])


WEIGHTS: tuple[tuple[Any, Any], ...] = (
    ([1.0, 2.0, 3.0], [1, 2, 3]),
    ([1.0, 2.0, 3.0], 2.5),
    ([1.0, 2.0, 3.0], [0, 2, 0]),
    ([1.0, 2.0, 3.0], [0, 0, 0]),
    ([1.0, 2.0, 3.0], [-1, 1, 0]),
    ([1.0, 2.0, 3.0], [1, -1, 0]),
    ([1.0, 1.0, 0.0], [1, -1, 0]),
    ([NAN, 2.0, 3.0], [0, 1, 1]),
    ([INF, 2.0, 3.0], [0, 1, 1]),
    ([INF, 2.0, 3.0], [-1, 1, 1]),
    ([INF, INF, 3.0], [-1, 1, 1]),
    ([-INF, -INF, -INF], [1, 1, 1]),
    ([-INF, 2.0, -INF], [1, -1, -1]),
    ([NAN, 2.0, 3.0], [1, 1, 1]),
    ([1.0, 2.0, 3.0], [INF, 1, 1]),
    ([1.0, 2.0, 3.0], [-INF, 1, 1]),
    ([1.0, 2.0, 3.0], [NAN, 1, 1]),
    ([700.0, 720.0, 730.0], [1, -1, 1]),
)


@pytest.mark.parametrize(("a", "b"), WEIGHTS)
@pytest.mark.parametrize("dtype", [*FORMATS, np.longdouble, np.complex64, np.complex128])
@pytest.mark.parametrize("return_sign", [False, True])
def test_weights(a: Any, b: Any, dtype: Any, return_sign: bool) -> None:
    x, options = np.array(a, dtype), {"b": b, "return_sign": return_sign}
    made, expected = ours.logsumexp(x, **options), theirs("logsumexp")(x, **options)
    assert_alike(made, expected)
    # Three terms at most: their exponentials, sum and logarithm in either library, of numbers up to 733.
    units = 32 * np.finfo(dtype).eps
    for got, like in zip(np.atleast_1d(made), np.atleast_1d(expected), strict=True):
        np.testing.assert_allclose(got, like, rtol=units, atol=units)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.float32([1, 2]), 2),
        (np.float32([1, 2]), 2.5),
        (np.float32([1, 2]), [1, 2]),
        (np.float16([1, 2]), 1.5),
        (np.float32([1, 2]), np.array([1, 2])),
        (np.float16([1, 2]), np.float32([1, 2])),
        (1.0, [1, 2]),
        (1, 2),
        ([1, 2], np.float32([1, 2])),
        ([1.0, 2], [[1.0, 2], [3, 4]]),
        (np.ones((3, 1)), np.ones((1, 4))),
        (np.int8([1, 2]), np.int8([1, 2])),
        (np.float32(1), np.float64([1, 2])),
        (np.ones((2, 0)), np.ones(1)),
        ([1.0, 2], [1j, 2]),
        (np.float32([1, 2]), 2j),
        (np.complex64([1, 2j]), [1.0, 2]),
        (np.longdouble(1), [1, 2]),
    ],
)
@pytest.mark.parametrize("axis", [None, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_promotion_and_broadcasting(a: Any, b: Any, axis: Any, keepdims: bool) -> None:
    if np.size(a) == 0 and axis is None:
        assert ours.logsumexp(a, b=b) == -INF  # SciPy raises IndexError
        return
    options = {"b": b, "axis": axis, "keepdims": keepdims}
    made, expected = ours.logsumexp(a, **options), theirs("logsumexp")(a, **options)
    assert_alike(made, expected)
    np.testing.assert_allclose(made, expected, rtol=16 * np.finfo(made.dtype).eps)
    for part in zip(
        ours.logsumexp(a, return_sign=True, **options),
        theirs("logsumexp")(a, return_sign=True, **options),
        strict=True,
    ):
        assert_alike(*part)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "row",
    [
        [-INF, -INF],
        [INF, 0.0],
        [0.0, INF, -INF],
        [INF, INF],
        [INF, -INF],
        [INF, NAN, 0.0],
        [NAN, 1.0],
        [-INF, 3.0],
        [NAN, NAN],
        [1e300, -1e300],
        [0.0],
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.longdouble])
def test_special_rows(name: str, row: list[float], dtype: Any) -> None:
    with np.errstate(over="ignore"):
        x = np.array([row, row[::-1], [0.0] * len(row)], dtype)
    made, expected = getattr(ours, name)(x, axis=1), theirs(name)(x, axis=1)
    assert_alike(made, expected)
    np.testing.assert_allclose(made, expected, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("value", [INF, -INF, NAN, np.array(INF)])
@pytest.mark.parametrize("name", NAMES)
def test_special_scalars(name: str, value: Any) -> None:
    assert_equal(getattr(ours, name)(value), theirs(name)(value))


@pytest.mark.parametrize(
    ("shape", "axis"), [((0,), 0), ((0, 3), 0), ((0, 3), 1), ((2, 0, 3), 1), ((2, 0, 3), (0,)), ((0,), None)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.longdouble, np.complex64])
@pytest.mark.parametrize("keepdims", [False, True])
def test_empty_arrays(shape: tuple[int, ...], axis: Any, dtype: Any, keepdims: bool) -> None:
    x = np.zeros(shape, dtype)
    made, signed = (ours.logsumexp(x, axis, keepdims=keepdims, return_sign=s) for s in (False, True))
    if dtype is not np.complex64:  # SciPy divides 0 by 0
        assert_equal(made, theirs("logsumexp")(x, axis, keepdims=keepdims))
    assert np.all(made == -INF)
    assert np.all(signed[0] == -INF)
    assert np.all(signed[1] == 0)
    assert signed[1].dtype == made.dtype
    for name in ("softmax", "log_softmax"):
        try:
            expected = theirs(name)(x, axis)
        except ValueError:
            with pytest.raises(
                ValueError, match=r"x has shape .*, with nothing along axis=.*: one entry would do"
            ):
                getattr(ours, name)(x, axis)
        else:
            assert_equal(getattr(ours, name)(x, axis), expected)


def test_an_empty_sum_of_several_axes() -> None:
    assert ours.logsumexp(np.zeros((0, 3)), return_sign=True) == (-INF, 0.0)
    made = ours.logsumexp(np.zeros((2, 0)), axis=(0, 1), keepdims=True)
    np.testing.assert_array_equal(made, [[-INF]])


def test_weights_that_cancel_and_weights_of_0() -> None:
    """SciPy's results are NaN, which neither its documentation nor the sum asks for."""
    for dtype in (np.float64, np.longdouble, np.complex128):
        size, sign = ours.logsumexp(np.array([1e4, 1e4], dtype), b=[1, -1], return_sign=True)
        assert (size, sign) == (-INF, 0)
        size, sign = ours.logsumexp(np.array([INF, -INF], dtype), b=[0, 1], return_sign=True)
        assert (size, sign) == (-INF, 0)


@pytest.mark.parametrize("name", NAMES)
def test_bad_arguments(name: str) -> None:
    function, first = getattr(ours, name), "a" if name == "logsumexp" else "x"
    with pytest.raises(np.exceptions.AxisError, match="axis=2 is out of range for 1 dimensions"):
        function([1.0, 2.0], axis=2)
    with pytest.raises(ValueError, match=r"axis=\(0, 0\) names an axis twice"):
        function([1.0, 2.0], axis=(0, 0))
    with pytest.raises(TypeError, match=r"axis=\[0\] holds a list"):
        function([1.0, 2.0], axis=[0])
    with pytest.raises(np.exceptions.AxisError, match="axis=3 is out of range"):
        function([1j, 2.0], axis=3)
    with pytest.raises(TypeError, match=f"{first} holds <U1: real numbers would do"):
        function(["a"])
    with pytest.raises(ValueError, match=f"{first} could not be read as an array"):
        function([[1.0], [2.0, 3.0]])
    with pytest.raises(
        TypeError, match=f"{first} is a masked array, whose mask would be lost: {first}.data would"
    ):
        function(np.ma.array([1.0, 2.0], mask=[True, False]))


def test_bad_weights() -> None:
    with pytest.raises(ValueError, match=r"b has shape \(3,\) and a \(2,\): shapes that broadcast"):
        ours.logsumexp([1.0, 2.0], b=[1, 2, 3])
    with pytest.raises(TypeError, match="b holds <U1"):
        ours.logsumexp([1.0, 2.0], b=["a", "b"])
    with pytest.raises(
        TypeError, match="a and b are bfloat16 and float8_e5m2, which promote to no common format"
    ):
        ours.logsumexp(np.ones(2, ml_dtypes.bfloat16), b=np.ones(2, ml_dtypes.float8_e5m2))


def test_bfloat16_and_pandas() -> None:
    x = noise((3, 4), np.dtype(ml_dtypes.bfloat16))
    assert_same_bits(ours.softmax(x, 1), online_softmax.softmax(x))
    assert_same_bits(ours.logsumexp(x, 1), online_softmax.logsumexp(x))
    frame = pd.DataFrame([[1.0, 2.0], [3.0, 5.0]])
    for name in NAMES:
        assert_alike(getattr(ours, name)(frame, axis=1), getattr(scipy.special, name)(frame, axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_other_libraries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise((3, 4), np.dtype(np.float32))
    made = getattr(ours, name)(xs.asarray(x), axis=1)
    assert type(made) is type(xs.asarray(x))
    assert_same_bits(np.from_dlpack(made), getattr(ours, name)(x, axis=1))

    class Face:
        @staticmethod
        def recorded(*args: Any, **options: Any) -> Any:
            return args, options

    setattr(Face, name, Face.recorded)
    monkeypatch.setitem(vars(online_softmax), "torch", Face)
    tensor = torch.from_numpy(x)
    # SciPy's default is not the framework's: it is always said.
    assert getattr(ours, name)(tensor) == ((tensor,), {"axis": None})
    assert getattr(ours, name)(tensor, axis=1) == ((tensor,), {"axis": 1})


def test_every_option_of_logsumexp_together() -> None:
    """Within the errors of two sums of up to 24 terms: theirs and ours."""
    a, b = noise((2, 3, 4), np.dtype(np.float64)), noise((3, 4), np.dtype(np.float64), seed=1)
    eps = np.finfo(np.float64).eps
    for axis, keepdims, sign in itertools.product(AXES, (False, True), (False, True)):
        options = {"axis": axis, "b": b, "keepdims": keepdims, "return_sign": sign}
        made, expected = ours.logsumexp(a, **options), theirs("logsumexp")(a, **options)
        assert_alike(made, expected)
        over = tuple(range(3)) if axis is None else axis
        terms = b * np.exp(a)
        relative = np.sum(np.abs(terms), axis=over, keepdims=keepdims) / np.abs(
            np.sum(terms, axis=over, keepdims=keepdims)
        )
        size, like = (made[0], expected[0]) if sign else (made, expected)
        # A term: its exponent, of size 20 at most, exponential and weight.
        allowed = 2 * (24 + 20 + 4) * eps * relative + 2 * eps * np.abs(like)
        np.testing.assert_array_equal(np.isnan(size), np.isnan(like))
        assert np.all(np.isnan(size) | (np.abs(size - like) <= allowed))
        if sign:
            np.testing.assert_array_equal(made[1], expected[1])
