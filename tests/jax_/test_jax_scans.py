"""Scans, windows, segments and top-k of JAX arrays: values, special values, derivatives, transformations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers import ulp
from jax.test_util import check_grads
from scan_helpers import allowed

import online_softmax as osm
from online_softmax.frontends.jax.scans import logaddexp, logcumsumexp, window_logsumexp
from online_softmax.frontends.jax.segments import segment_logsumexp, segment_softmax
from online_softmax.frontends.jax.topk import softmax_topk

INF, NAN = np.inf, np.nan
#: Merges and elementary functions are in float32, in float64 for float64: the bounds are those of NumPy's
#: functions, which are in double, in the format computed in.
UNITS = {"float32": 2.0**-24, "float64": 2.0**-53}
IDS = np.array([0, 0, 2, 2, 2, 3, 5])

Function = Callable[[Any], Any]
ONE: dict[str, tuple[Function, Function]] = {
    "cumulative": (logcumsumexp, osm.logcumsumexp),
    "reverse": (partial(logcumsumexp, reverse=True), partial(osm.logcumsumexp, reverse=True)),
    "exclusive": (partial(logcumsumexp, exclusive=True), partial(osm.logcumsumexp, exclusive=True)),
    "window of 3": (partial(window_logsumexp, window=3), partial(osm.window_logsumexp, window=3)),
    "window of 100": (partial(window_logsumexp, window=100), partial(osm.window_logsumexp, window=100)),
    "segments": (
        partial(segment_logsumexp, ids=IDS, axis=-1), partial(osm.segment_logsumexp, ids=IDS, axis=-1),
    ),
    "softmax of segments": (
        partial(segment_softmax, ids=IDS, axis=-1), partial(osm.segment_softmax, ids=IDS, axis=-1),
    ),
}  # fmt: skip
each = pytest.mark.parametrize("name", ONE)


def x_of(dtype: str) -> np.ndarray:
    return (3 * np.random.default_rng(1).standard_normal((2, 7))).astype(np.dtype(dtype))


@each
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_values_are_those_of_numpys_functions(name: str, dtype: str) -> None:
    ours, numpys = ONE[name]
    x = x_of(getattr(ml_dtypes, dtype, dtype))
    with jax.enable_x64(True):
        made = np.asarray(ours(jnp.asarray(x)))
    assert made.dtype == x.dtype
    right = numpys(x.astype(np.float64))
    u = UNITS["float64" if dtype == "float64" else "float32"]
    # A few merges, each within some ten units of roundoff of the sizes that go into it.
    size = np.where(np.isfinite(right), np.abs(right) + 10, 0)
    finite = np.isfinite(right)
    np.testing.assert_array_less(
        np.abs(np.where(finite, made, 0).astype(np.float64) - np.where(finite, right, 0)),
        16 * u * size + 0.5 * ulp(right, x.dtype) + 1e-300,
    )
    np.testing.assert_array_equal(made.astype(np.float64)[~finite], right[~finite])


def test_a_small_tail_beside_a_great_element_is_kept() -> None:
    """log1p of the tail, and never log of a sum that has lost it."""
    x = np.array([0.0, -40.0, -41.0, -80.0])
    with jax.enable_x64(True):
        found = [np.asarray(f(x)) for f in (logcumsumexp, partial(window_logsumexp, window=4))]
        pair = float(logaddexp(jnp.float64(0.0), jnp.float64(-40.0)))
    right = np.array([0.0, np.exp(-40), np.exp(-40) + np.exp(-41), np.exp(-40) + np.exp(-41) + np.exp(-80)])
    for made in found:
        assert (np.abs(made - right) <= allowed(right, np.zeros(4), np.dtype(np.float64), merges=2)).all()
    assert abs(pair - np.exp(-40)) <= 2.0**-53 * 8 * np.exp(-40)


SPECIAL = np.array(
    [[-INF, -INF, 0, 1, NAN, 2, 3], [-INF, 1, INF, 0, 1, 2, 3], [-INF] * 7, [0, INF, NAN, INF, 0, 0, -INF]]
)


@each
def test_special_values_are_those_of_numpys_functions(name: str) -> None:
    ours, numpys = ONE[name]
    with jax.enable_x64(True):
        made = np.asarray(ours(jnp.asarray(SPECIAL)))
    np.testing.assert_allclose(made, numpys(SPECIAL), rtol=1e-14)


@each
def test_derivatives_of_two_orders(name: str) -> None:
    ours = ONE[name][0]
    with jax.enable_x64(True):
        x = jnp.asarray(x_of("float64"))
        shown = np.isfinite(ours(x))  # of an empty group there is no difference to take
        compiled = jax.jit(lambda x: jnp.where(shown, ours(x), 0))
        check_grads(compiled, (x,), 2, ("fwd", "rev"), rtol=1e-4, atol=1e-4)


VJPS: dict[str, tuple[Function, Callable[..., Any]]] = {
    "cumulative": (logcumsumexp, osm.logcumsumexp_vjp),
    "window of 3": (partial(window_logsumexp, window=3), partial(osm.window_logsumexp_vjp, window=3)),
    "segments": (
        partial(segment_logsumexp, ids=IDS, axis=-1), partial(osm.segment_logsumexp_vjp, ids=IDS, axis=-1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VJPS)
def test_gradients_of_special_values_are_those_of_numpys_functions(name: str) -> None:
    ours, numpys = VJPS[name]
    x = np.array([[-INF, -INF, -INF, 0, 1, -INF, 2], [-INF] * 7])
    with jax.enable_x64(True):
        y, back = jax.vjp(ours, jnp.asarray(x))
        do = np.random.default_rng(2).standard_normal(y.shape)
        (made,) = back(jnp.asarray(do))
        bad = jax.grad(lambda x: ours(x).sum())(jnp.asarray([[1.0, 2, 3, 4, 5, 6, NAN]]))
    np.testing.assert_allclose(made, numpys(do, x), rtol=1e-12, atol=1e-14)
    assert np.isnan(bad).any()


@each
def test_vmap_and_jit_change_nothing(name: str) -> None:
    ours = ONE[name][0]
    x = jnp.asarray(x_of("float32"))
    whole = np.asarray(ours(x))
    np.testing.assert_allclose(jax.jit(jax.vmap(ours))(x), whole, rtol=2.0**-22)


def test_other_axes_empty_and_no_dimensions() -> None:
    x = x_of("float32")
    np.testing.assert_allclose(logcumsumexp(x.T, 0), logcumsumexp(x).T, rtol=2.0**-22)
    np.testing.assert_allclose(window_logsumexp(x.T, 3, 0), window_logsumexp(x, 3).T, rtol=2.0**-22)
    by_rows = segment_logsumexp(x.T, ids=IDS)
    assert by_rows.shape == (6, 2)
    np.testing.assert_allclose(by_rows, segment_logsumexp(x, ids=IDS, axis=1).T, rtol=2.0**-22)
    for made in (logcumsumexp(2.5), window_logsumexp(2.5, 3)):
        assert made.shape == ()
        assert float(made) == 2.5
    assert logcumsumexp(np.zeros((3, 0), np.float32)).shape == (3, 0)
    assert window_logsumexp(np.zeros((3, 0), np.float32), 2).shape == (3, 0)
    nothing = segment_logsumexp(np.zeros((0, 2), np.float32), ids=np.zeros(0, np.int32), num_segments=3)
    np.testing.assert_array_equal(nothing, np.full((3, 2), -INF))


def test_pairs_promote_as_jax_does_and_keep_the_rules_of_infinities() -> None:
    assert logaddexp(jnp.float16(1), 2).dtype == jnp.float16
    assert logaddexp(jnp.bfloat16(1), jnp.float16(1)).dtype == jnp.float32
    assert logaddexp(1, 2).dtype == jnp.float32
    a = np.array([INF, -INF, -INF, NAN, 0, 1e30, 88], np.float32)
    b = np.array([-INF, -INF, 3, 0, 0, -1e30, 88.5], np.float32)
    np.testing.assert_allclose(logaddexp(a, b), osm.logaddexp(a, b), rtol=2.0**-23)
    with jax.enable_x64(True):
        at = (jnp.asarray([-INF, -INF, 0.0, 1.0]), jnp.asarray([-INF, 1.0, 0.0, 3.0]))
        made = jax.vjp(logaddexp, *at)[1](jnp.ones(4))
        right = osm.logaddexp_vjp(1.0, *map(np.asarray, at))
        for ours, numpys in zip(made, right, strict=True):
            np.testing.assert_allclose(ours, numpys, rtol=1e-14)
        some = [jnp.asarray(np.random.default_rng(i).standard_normal((3, 1 + 3 * i))) for i in (0, 1)]
        check_grads(logaddexp, some, 2, ("fwd", "rev"))
        check_grads(logaddexp, (jnp.zeros(2), jnp.zeros(2)), 2, ("fwd", "rev"))


def test_groups_by_offsets_and_by_ids_in_any_order() -> None:
    x = x_of("float32")[0]
    by_ids = segment_logsumexp(x, ids=IDS)
    by_offsets = segment_logsumexp(x, offsets=np.array([0, 2, 2, 5, 6, 6, 7]))
    np.testing.assert_array_equal(by_ids, by_offsets)
    order = np.random.default_rng(0).permutation(7)
    np.testing.assert_allclose(segment_logsumexp(x[order], ids=IDS[order]), by_ids, rtol=2.0**-22)
    soft = segment_softmax(x[order], ids=IDS[order])
    np.testing.assert_allclose(soft, segment_softmax(x, ids=IDS)[order], rtol=2.0**-21)
    traced = jax.jit(lambda ids: segment_logsumexp(x, ids=ids, num_segments=6))
    np.testing.assert_array_equal(traced(IDS), by_ids)
    # What belongs to no group is left out.
    cut = traced(np.where(IDS == 3, -1, IDS))
    np.testing.assert_array_equal(cut, np.where(np.arange(6) == 3, -INF, by_ids))


TIES = np.array([[1, 3, 3, -INF, NAN], [-0.0, 0.0, -1, 0.0, -0.0], [-INF] * 5, [INF, 1, 2, 3, INF]])


@pytest.mark.parametrize("k", [0, 2, 5])
def test_topk(k: int) -> None:
    for x in (TIES, 3 * np.random.default_rng(0).standard_normal((4, 5))):
        right = osm.softmax_topk(x, k)
        with jax.enable_x64(True):
            made = softmax_topk(x, k)
        np.testing.assert_array_equal(made.indices, right.indices)
        np.testing.assert_allclose(made.values, right.values, rtol=1e-14)
        np.testing.assert_allclose(made.lse, right.lse, rtol=1e-14)
    x = TIES.astype(ml_dtypes.bfloat16).T
    made, right = jax.jit(lambda x: softmax_topk(x, k, 0))(x), osm.softmax_topk(x, k, 0)
    assert made.values.dtype == x.dtype
    assert made.lse.dtype == np.float32
    np.testing.assert_array_equal(made.indices, right.indices)


def test_topk_has_derivatives() -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(x_of("float64"))
        check_grads(
            jax.jit(lambda x: (softmax_topk(x, 3).values, softmax_topk(x, 3).lse)), (x,), 2, ("fwd", "rev"),
            rtol=1e-4, atol=1e-4,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: softmax_topk(np.zeros(3), 4), ValueError, "k is 4: 0 to 3"),
        (lambda: softmax_topk(1.0, 0), ValueError, "x has no dimensions"),
        (lambda: softmax_topk(np.zeros(3), 1.0), TypeError, r"k is 1\.0"),
        (lambda: logcumsumexp(np.zeros(3), 1), ValueError, "axis 1 is out of range"),
        (lambda: logcumsumexp(np.zeros(3), reverse=1), TypeError, "reverse=1"),
        (lambda: logcumsumexp(np.zeros(3, np.complex64)), TypeError, "x holds complex64"),
        (lambda: window_logsumexp(np.zeros(3), 0), ValueError, "window=0"),
        (lambda: logaddexp(np.zeros(3), np.zeros(4)), ValueError, "a has shape"),
        (lambda: logaddexp("a", 1), TypeError, "a is a str"),
        (lambda: segment_logsumexp(np.zeros(3)), ValueError, "neither ids nor offsets"),
        (lambda: segment_logsumexp(np.zeros(3), ids=np.zeros(2, int)), ValueError, "ids has 2 entries"),
        (lambda: segment_logsumexp(np.zeros(1), ids=np.array([-1])), ValueError, r"ids\[0\]=-1"),
        (
            lambda: segment_logsumexp(np.zeros(1), ids=np.array([2]), num_segments=2),
            ValueError, r"ids\[0\]=2",
        ),
        (lambda: segment_logsumexp(np.zeros(1), ids=np.zeros(1)), TypeError, "ids holds float"),
        (lambda: segment_logsumexp(np.zeros(3), offsets=np.array([0, 2])), ValueError, r"offsets\[-1\]=2"),
        (lambda: segment_logsumexp(np.zeros(3), offsets=np.array([0, 2, 1, 3])), ValueError, "comes after 2"),
        (
            lambda: jax.jit(lambda ids: segment_logsumexp(np.zeros(1), ids=ids))(np.zeros(1, int)),
            TypeError, "ids is traced",
        ),
    ],
)  # fmt: skip
def test_wrong_calls_name_what_is_wrong(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
