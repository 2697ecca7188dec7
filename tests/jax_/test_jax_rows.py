"""softmax, log_softmax and logsumexp of JAX arrays: values, semantics of jax.nn, transformations, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FORMATS, assert_close, assert_same_bits, bound, noise, truth
from jax.test_util import check_grads
from jax_cases import LOOPS, float64, primitives_of, tree_close, without_handlers

import online_softmax as osm
import online_softmax.jax as ours

OPS = ("softmax", "log_softmax", "logsumexp")
AXES = (-1, 0, 1, (0, 2), None)
MASK = np.random.default_rng(3).random((4, 1, 5)) < 0.6
MASK[2] = False  # rows with nothing in them


def call(op: str, x: Any, axis: Any = -1, **options: Any) -> Any:
    return getattr(ours, op)(x, axis, **options)


def peer(op: str, x: Any, axis: Any = -1, **options: Any) -> Any:
    return getattr(jax.nn, op)(x, axis, **options)


@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("masked", [False, True])
def test_values_are_within_the_bound(op: str, dtype: np.dtype, masked: bool) -> None:
    with float64():
        x = noise((6, 300), dtype)
        where = np.random.default_rng(1).random(x.shape) < 0.5 if masked else None
        y = call(op, jnp.asarray(x), where=where)
        assert y.dtype == dtype
        wide = x.astype(np.float64)
        right = truth(op, wide, where)
        seen = wide if where is None else np.where(where, wide, -np.inf)
        assert_close(np.asarray(y), right, bound(op, seen, right, dtype), op)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(3, 5), (70, 400)])
def test_bits_are_those_of_the_numpy_face(op: str, shape: tuple[int, ...]) -> None:
    x = noise(shape, np.dtype(np.float32))
    assert_same_bits(np.asarray(call(op, x)), getattr(osm, op)(x), op)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("masked", [False, True])
def test_axes_and_masks_as_jax_nn(op: str, axis: Any, masked: bool) -> None:
    with float64():  # in which jax.nn's own cancellation does not show
        x = noise((4, 6, 5), np.dtype(np.float64))
        where = MASK if masked else None
        a, b = call(op, x, axis, where=where), peer(op, x, axis, where=where)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-13, 1e-14)


@pytest.mark.parametrize("op", OPS)
def test_special_values(op: str) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[0, nan, 1], [0, inf, 1], [-inf, -inf, -inf], [-inf, 0, 0]], np.float32)
    np.testing.assert_array_equal(np.asarray(call(op, x)), getattr(osm, op)(x))


@pytest.mark.parametrize("op", OPS)
def test_scalars_empty_arrays_and_no_axes(op: str) -> None:
    one = jnp.float32(3.0)
    for axis in (None, ()):
        assert call(op, one, axis).shape == ()
        assert float(call(op, one, axis)) == float(getattr(osm, op)(np.float32(3), ()))
    empty = np.zeros((0, 3), np.float32)
    np.testing.assert_array_equal(np.asarray(call(op, empty, 0)), getattr(osm, op)(empty, 0))
    np.testing.assert_array_equal(np.asarray(call(op, empty, 1)), getattr(osm, op)(empty, 1))
    x = noise((2, 3), np.dtype(np.float32))
    np.testing.assert_array_equal(np.asarray(call(op, x, ())), getattr(osm, op)(x, ()))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16"])
def test_integers_are_computed_in_the_default_float(op: str, dtype: str) -> None:
    x = np.arange(5).astype(dtype)
    y = call(op, x)
    assert y.dtype == peer("softmax", jnp.arange(5)).dtype == np.float32
    assert_same_bits(np.asarray(y), np.asarray(call(op, x.astype(np.float32))))


def test_bool_counts_as_number_and_8_bits_go_through_float32() -> None:
    assert_same_bits(
        np.asarray(ours.softmax(np.array([True, False]))),
        np.asarray(ours.softmax(np.array([1.0, 0.0], np.float32))),
    )
    x = jnp.asarray([0.5, 1.0, -2.0], jnp.float8_e4m3fn)
    assert ours.softmax(x).dtype == jnp.float8_e4m3fn
    assert_same_bits(np.asarray(ours.softmax(x), np.float32), osm.softmax(np.asarray(x)).astype(np.float32))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
def test_logsumexp_with_weights_and_sign(axis: Any, keepdims: bool) -> None:
    x, b = noise((4, 6, 5), np.dtype(np.float32)), noise((6, 5), np.dtype(np.float32), 1)
    b[0, 0] = 0
    for options in ({}, {"b": np.abs(b)}, {"b": b, "return_sign": True}, {"return_sign": True}):
        options = {**options, "keepdims": keepdims}
        tree_close(ours.logsumexp(x, axis, **options), jax.nn.logsumexp(x, axis, **options), 3e-6, 1e-5)


@pytest.mark.parametrize("op", OPS)
def test_derivatives_of_both_modes_and_orders(op: str) -> None:
    with float64():
        x = jnp.asarray(noise((2, 4), np.dtype(np.float64), scale=1.0))
        where = jnp.asarray([[True, False, True, True]])
        # What is masked is -inf in the logarithm, which has no finite difference.
        finite = jax.jit(lambda x: jnp.where(jnp.isfinite(y := call(op, x, where=where)), y, 0))
        check_grads(finite, (x,), 2, ["fwd", "rev"])


@pytest.mark.parametrize("op", OPS)
def test_gradients_as_jax_nn(op: str) -> None:
    x = jnp.asarray(noise((3, 4, 5), np.dtype(np.float32)))
    where = MASK[:3]
    for axis in (-1, (0, 1)):

        def total(f: Any, x: Any, axis: Any = axis) -> Any:
            y = f(op, x, axis, where=where)
            return jnp.sum(jnp.where(jnp.isfinite(y), y, 0) ** 2)

        made = jax.jit(jax.grad(lambda x: total(call, x)))(x)
        right = jax.jit(jax.grad(lambda x: total(peer, x)))(x)
        assert np.isfinite(np.asarray(made)).all()
        held = np.isfinite(np.asarray(right))  # jax.nn has NaN for rows without anything
        np.testing.assert_allclose(np.asarray(made)[held], np.asarray(right)[held], 2e-5, 2e-5)


def test_what_a_mask_hides_reaches_no_gradient() -> None:
    x = jnp.asarray([[1.0, jnp.nan, 2.0], [0.0, jnp.inf, 1.0]])
    where = jnp.asarray([True, False, True])
    for op in OPS:
        gradient = jax.grad(
            lambda x, op=op: jnp.sum(
                jnp.where(
                    where,
                    call(op, x, where=where)[..., None] if op == "logsumexp" else call(op, x, where=where),
                    0,
                )
            )
        )(x)
        assert np.isfinite(np.asarray(gradient)).all(), op
        assert (np.asarray(gradient)[:, 1] == 0).all(), op


def test_hessian_and_jacfwd() -> None:
    with float64():
        x = jnp.asarray(noise((5,), np.dtype(np.float64)))
        p = jax.nn.softmax(x)
        np.testing.assert_allclose(
            jax.jit(jax.hessian(ours.logsumexp))(x), jnp.diag(p) - jnp.outer(p, p), 1e-12, 1e-14
        )
        np.testing.assert_allclose(
            jax.jit(jax.jacfwd(ours.softmax))(x), jax.jit(jax.jacrev(ours.softmax))(x), 1e-12, 1e-14
        )


@pytest.mark.parametrize("op", OPS)
def test_vmap_batches_every_argument_without_a_loop(op: str) -> None:
    x = noise((3, 4, 5), np.dtype(np.float32))
    where = np.random.default_rng(0).random((4, 3, 5)) < 0.7

    def both(x: Any, where: Any) -> Any:
        return call(op, x, where=where)

    cases = (((0, 1), (x, where)), ((0, None), (x, where[:, 0])), ((None, 1), (x[0], where)))
    for axes, args in cases:
        mapped = jax.vmap(both, axes)
        each = [
            both(*(np.take(a, i, d) if d is not None else a for a, d in zip(args, axes, strict=True)))
            for i in range(3)
        ]
        np.testing.assert_array_equal(np.asarray(mapped(*args)), np.stack(each))
        assert not primitives_of(mapped, *args) & LOOPS
        assert "online_softmax_rows" in primitives_of(mapped, *args)


@pytest.mark.parametrize("op", OPS)
def test_without_handlers_the_same_law(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise((4, 6, 5), np.dtype(np.float32))
    native = [np.asarray(call(op, x, axis, where=MASK)) for axis in AXES]
    with without_handlers(monkeypatch):
        for axis, right in zip(AXES, native, strict=True):
            np.testing.assert_allclose(np.asarray(call(op, x, axis, where=MASK)), right, 2e-6, 1e-7)
        info = ours.info()
        assert info["jax_ffi"] is False
        assert "headers" in info["jax_ffi_reason"]
    assert ours.info()["jax_ffi"] is True
    assert osm.info()["jax_ffi"] is True


def test_the_first_use_registers_and_a_build_without_says_so(fresh_python: Any) -> None:
    script = """
import sys
from online_softmax import _core
_core.jax_targets = lambda plan: {}
import online_softmax.jax as ours
assert "torch" not in sys.modules
info = ours.info()
assert info["jax_ffi"] is False and info["jax_ffi_reason"] == "built without jaxlib's headers", info
import numpy as np
assert abs(float(ours.softmax(np.ones(4, np.float32))[0]) - 0.25) < 1e-7
"""
    done = fresh_python(script, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_package_alone_loads_no_jax(fresh_python: Any) -> None:
    done = fresh_python("import sys, online_softmax as o; o.softmax([1.0]); assert 'jax' not in sys.modules")
    assert done.returncode == 0, done.stderr


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: ours.softmax([1.0, 2.0]), TypeError, "x is a list"),
    (lambda: ours.softmax(np.ones(2, np.complex64)), TypeError, "x holds complex64"),
    (lambda: ours.softmax(np.ma.ones(2)), TypeError, "x is a masked array"),
    (lambda: ours.softmax(np.ones(2, np.float32), 1), ValueError, "axis 1 is out of range"),
    (lambda: ours.softmax(np.float32(1)), ValueError, "axis -1 is out of range"),
    (lambda: ours.softmax(np.ones((2, 2), np.float32), (0, -2)), ValueError, "twice"),
    (lambda: ours.softmax(np.ones(2, np.float32), 0.5), TypeError, "axis is 0.5"),
    (lambda: ours.softmax(np.ones(2, np.float32), True), TypeError, "axis is True"),
    (
        lambda: ours.softmax(np.ones(2, np.float32), where=np.ones(2, np.float32)),
        TypeError,
        "where holds float32",
    ),
    (lambda: ours.softmax(np.ones(2, np.float32), where=np.ones(3, bool)), ValueError, "where of shape"),
    (lambda: ours.softmax(np.ones(2, np.float32), where=[True]), TypeError, "where is a list"),
    (lambda: ours.logsumexp(np.ones(2, np.float32), b=np.ones(3, np.float32)), ValueError, "b of shape"),
    (lambda: ours.logsumexp(np.ones(2, np.float32), keepdims=1), TypeError, "keepdims=1"),
    (lambda: jax.jit(ours.softmax)(np.ones((2, 2), np.float32), 1), TypeError, "axis is traced"),
    (
        lambda: jax.jit(lambda k: ours.logsumexp(np.ones(2, np.float32), keepdims=k))(True),
        TypeError,
        "keepdims is traced",
    ),
]


@pytest.mark.parametrize(("bad", "kind", "message"), BAD, ids=[m for _, _, m in BAD])
def test_bad_arguments_are_named(bad: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        bad()
