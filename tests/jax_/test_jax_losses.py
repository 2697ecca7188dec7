"""Cross-entropy of JAX arrays: values and gradients of the core, transformations, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FORMATS, assert_close, assert_same_bits, noise, ulp
from jax.test_util import check_grads
from jax_cases import LOOPS, float64, primitives_of, without_handlers
from loss_cases import limits, truth

import online_softmax as osm
import online_softmax.jax as ours

ROWS, CLASSES = (3, 4), 7
TARGETS = np.random.default_rng(0).integers(0, CLASSES, ROWS).astype(np.int32)
TARGETS[1, 2] = -100
WEIGHT = np.random.default_rng(1).random(CLASSES)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smoothing": {"label_smoothing": 0.1},
    "megatron and weights": {"label_smoothing": 0.1, "smoothing": "megatron", "weight": WEIGHT},
    "z_loss, softcap, temperature": {"z_loss": 1e-2, "softcap": 3.0, "temperature": 0.7},
    "row weights": {"row_weight": np.random.default_rng(2).random((3, 1)), "weight": WEIGHT},
    "ignored": {"ignore_index": 2},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def logits(dtype: Any = np.float64) -> np.ndarray:
    return noise((*ROWS, CLASSES), np.dtype(dtype))


def valid(options: dict[str, Any]) -> np.ndarray:
    """Targets of which none is out of range under the options."""
    ignored = options.get("ignore_index", -100)
    return np.where(TARGETS == -100, ignored, TARGETS)


@every_option
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
def test_loss_and_lse_are_those_of_the_numpy_face(options: dict[str, Any], dtype: np.dtype) -> None:
    with float64():
        x, t = logits(dtype), valid(options)
        made = ours.cross_entropy(x, t, return_lse=True, **options)
        right = osm.cross_entropy(x, t, axis=-1, return_lse=True, **options)
        assert_same_bits(np.asarray(made.lse), right.lse)
        assert made.loss.dtype == np.asarray(right.loss).dtype
        # JAX rounds the weight of a row, the sum and the quotient.
        u = np.finfo(made.loss.dtype).eps
        np.testing.assert_allclose(np.asarray(made.loss), right.loss, 32 * u, 0)


@every_option
def test_gradients_are_those_of_the_numpy_face(options: dict[str, Any]) -> None:
    with float64():
        x, t = logits(), valid(options)
        none = options.get("reduction") == "none"
        g, h = np.random.default_rng(5).standard_normal((2, *ROWS))

        def total(x: Any) -> Any:
            loss, lse = ours.cross_entropy(x, t, return_lse=True, **options)
            return jnp.sum(loss * g if none else loss) + jnp.sum(lse * h)

        made = jax.jit(jax.grad(total))(x)
        right = osm.cross_entropy_backward(g if none else 1.0, x, t, dlse=h, axis=-1, **options)
        np.testing.assert_allclose(made, right, 1e-12, 1e-15)


@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", ["plain", "smoothing", "z_loss, softcap, temperature"])
def test_values_are_within_the_bound(name: str, dtype: np.dtype) -> None:
    with float64():
        options = {**OPTIONS[name], "reduction": "none"}
        x = noise((5, 130), dtype)
        t = np.random.default_rng(0).integers(0, 130, 5)
        right = truth(x, t, **options)
        of_loss, of_lse, of_gradient = limits(right, dtype, options)
        loss, lse = ours.cross_entropy(x, t, return_lse=True, **options)
        wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        assert_close(loss, right.loss, of_loss + 0.5 * ulp(right.loss, wide), "loss")
        assert_close(lse, right.lse, of_lse + 0.5 * ulp(right.lse, wide), "lse")
        gradient = jax.grad(lambda x: jnp.sum(ours.cross_entropy(x, t, **options)))(jnp.asarray(x))
        last = 0.5 * ulp(right.gradient, dtype) + np.finfo(wide).eps * np.abs(right.gradient)
        assert_close(np.asarray(gradient), right.gradient, of_gradient + last, "gradient")


def test_derivatives_of_both_modes_and_orders() -> None:
    with float64():
        x = jnp.asarray(logits()[:2, 2:])  # one row is ignored
        options = {
            "label_smoothing": 0.1,
            "z_loss": 0.05,
            "softcap": 3.0,
            "weight": WEIGHT,
            "row_weight": [2.0, 0.5],
        }
        options["row_weight"] = np.asarray(options["row_weight"])

        @jax.jit
        def both(x: Any) -> Any:
            return tuple(ours.cross_entropy(x, TARGETS[:2, 2:], return_lse=True, **options))

        check_grads(both, (x,), 2, ["fwd", "rev"])


def test_row_weights_have_a_gradient() -> None:
    with float64():
        x, w = logits(), np.random.default_rng(2).random(ROWS)
        rows = osm.cross_entropy(x, TARGETS, axis=-1, reduction="none")
        made = jax.grad(lambda w: ours.cross_entropy(x, TARGETS, row_weight=w, reduction="sum"))(w)
        np.testing.assert_allclose(made, rows, 1e-12)


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_axis_of_the_classes(axis: int) -> None:
    x = logits(np.float32)
    moved = np.moveaxis(x, -1, axis)
    assert_same_bits(
        np.asarray(ours.cross_entropy(moved, TARGETS, axis=axis)), np.asarray(ours.cross_entropy(x, TARGETS))
    )


def test_vmap_batches_every_argument_without_a_loop() -> None:
    x, w, r = logits(np.float32), WEIGHT.astype(np.float32), np.ones(4, np.float32)
    stacks = (x, TARGETS, np.stack([w, 2 * w, w**2]), np.stack([r, 2 * r, 3 * r]))

    def loss(x: Any, t: Any, w: Any, r: Any) -> Any:
        return ours.cross_entropy(x, t, weight=w, row_weight=r, label_smoothing=0.1)

    for axes in ((0, 0, None, None), (0, None, None, 0), (None, 0, None, None), (0, 0, 0, 0)):
        args = [a if d == 0 else a[0] for a, d in zip(stacks, axes, strict=True)]
        for function in (loss, jax.grad(loss)):
            mapped = jax.jit(jax.vmap(function, axes))
            each = [
                function(*(a[i] if d == 0 else a for a, d in zip(args, axes, strict=True))) for i in range(3)
            ]
            np.testing.assert_allclose(np.asarray(mapped(*args)), np.stack(each), 2e-6, 1e-7)
            assert not primitives_of(mapped, *args) & LOOPS


def test_nothing_is_counted_and_nothing_is_there() -> None:
    x = logits(np.float32)
    ignored = np.full(ROWS, -100, np.int32)
    assert np.isnan(float(ours.cross_entropy(x, ignored)))
    assert float(ours.cross_entropy(x, ignored, empty="zero")) == 0
    gradient = jax.grad(lambda x: ours.cross_entropy(x, ignored, empty="zero"))(x)
    np.testing.assert_array_equal(gradient, 0)
    none = np.zeros((0, 5), np.float32)
    assert float(ours.cross_entropy(none, np.zeros(0, np.int32), reduction="sum")) == 0
    assert ours.cross_entropy(none, np.zeros(0, np.int32), reduction="none").shape == (0,)
    one = np.array([0.5, 1.0], np.float32)
    assert ours.cross_entropy(one, np.int32(1)).shape == ()


@pytest.mark.parametrize("native", [True, False])
def test_an_index_out_of_range_is_nan(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = logits(np.float32)[0]
    for bad in (CLASSES, -1):
        t = np.array([0, bad, 2, 3])

        def rows(x: Any, t: Any = t) -> Any:
            return ours.cross_entropy(x, t, reduction="none")

        if native:
            loss, gradient = rows(x), jax.grad(lambda x, rows=rows: jnp.sum(rows(x)))(x)
        else:
            with without_handlers(monkeypatch):
                loss, gradient = rows(x), jax.grad(lambda x, rows=rows: jnp.sum(rows(x)))(x)
        np.testing.assert_array_equal(np.isnan(loss), [False, True, False, False])
        np.testing.assert_array_equal(np.isnan(gradient).all(-1), [False, True, False, False])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64"])
def test_targets_of_any_integers(dtype: str) -> None:
    with float64():
        x, t = logits(), np.where(TARGETS == -100, 0, TARGETS)
        assert float(ours.cross_entropy(x, t.astype(dtype))) == float(ours.cross_entropy(x, t))


def test_integer_logits_are_computed_in_the_default_float() -> None:
    x = np.arange(14).reshape(2, 7)
    made = ours.cross_entropy(x, np.array([1, 2]))
    assert made.dtype == np.float32
    assert float(made) == float(ours.cross_entropy(x.astype(np.float32), np.array([1, 2])))


X, T = logits(np.float32), TARGETS
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: ours.cross_entropy([[1.0]], [0]), TypeError, "logits is a list"),
    (lambda: ours.cross_entropy(np.float32(1), np.int32(0)), ValueError, "logits has no dimensions"),
    (lambda: ours.cross_entropy(np.ones((2, 0), np.float32), T[0, :2]), ValueError, "logits has no classes"),
    (lambda: ours.cross_entropy(X, X), TypeError, "targets holds float32"),
    (lambda: ours.cross_entropy(X, T[0]), ValueError, "targets has shape"),
    (lambda: ours.cross_entropy(X, T, weight=np.ones(3)), ValueError, "weight has shape"),
    (lambda: ours.cross_entropy(X, T, row_weight=np.ones(3)), ValueError, "row_weight has shape"),
    (lambda: ours.cross_entropy(X, T, label_smoothing=1.0), ValueError, "label_smoothing is 1.0"),
    (
        lambda: ours.cross_entropy(X, T, label_smoothing=0.9, smoothing="megatron"),
        ValueError,
        "smoothing='megatron'",
    ),
    (lambda: ours.cross_entropy(X, T, softcap=0), ValueError, "softcap is 0"),
    (lambda: ours.cross_entropy(X, T, temperature=0), ValueError, "temperature is 0"),
    (lambda: ours.cross_entropy(X, T, reduction="max"), ValueError, "reduction is 'max'"),
    (lambda: ours.cross_entropy(X, T, empty=0), ValueError, "empty is 0"),
    (lambda: ours.cross_entropy(X, T, ignore_index=1.5), TypeError, "ignore_index is 1.5"),
    (lambda: ours.cross_entropy(X, T, axis=3), ValueError, "axis 3 is out of range"),
    (lambda: jax.jit(lambda c: ours.cross_entropy(X, T, softcap=c))(3.0), TypeError, "softcap is traced"),
]


@pytest.mark.parametrize(("bad", "kind", "message"), BAD, ids=[m for _, _, m in BAD])
def test_bad_arguments_are_named(bad: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        bad()
