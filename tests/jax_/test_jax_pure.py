"""The path in JAX's own operations, whatever the device: rows, losses, and attention by blocks of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import chosen, optional_operands
from helpers import FORMATS, assert_close, bound, row, truth
from jax.test_util import check_grads

import online_softmax as osm
from online_softmax import reference
from online_softmax.frontends.jax import attention_scores, counter, pure_attention, pure_losses, pure_rows

INF, NAN = np.inf, np.nan
OPS = ("softmax", "log_softmax", "logsumexp")


# --- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f64", "f32", "bf16"])
@pytest.mark.parametrize("op", OPS)
def test_rows_stay_within_the_bound(op: str, name: str) -> None:
    dtype = FORMATS[name]
    for kind in ("random", "ramp", "constant", "tail"):
        x = np.stack([row(kind, dtype, 129)] * 2)
        with jax.enable_x64(True):
            made = np.asarray(getattr(pure_rows, op)(jnp.asarray(x), (1,)))
        assert made.dtype == dtype
        wide = x.astype(np.float64)
        right = truth(op, wide)
        limit = bound(op, wide, right, dtype)
        if name != "f64":  # XLA flushes what is subnormal in float32
            limit = limit + 2.0**-126
        # A logarithm near 0 is held to its own size, a log-sum-exp to that of the maximum.
        size = np.abs(wide).max(-1, keepdims=op != "logsumexp")
        limit = limit + 2 * np.finfo(np.float64 if name == "f64" else np.float32).eps * size
        assert_close(made, right, limit, f"{op} {name} {kind}")


@pytest.mark.parametrize("op", OPS)
def test_rows_follow_the_rules_of_masks_and_infinities(op: str) -> None:
    rng = np.random.default_rng(0)
    keep = rng.random((3, 4, 5)) < 0.6
    keep[0, 0] = False
    x = np.where(keep, rng.standard_normal(keep.shape), NAN)
    special = np.array(
        [[NAN, 1, 2], [INF, 1, 2], [-INF, -INF, -INF], [-INF, 0, 1], [INF, NAN, 0]]
    )  # fmt: skip
    ours, numpys = getattr(pure_rows, op), getattr(osm, op)
    with jax.enable_x64(True):
        for axis in ((2,), (0, 2), ()):
            made = ours(jnp.asarray(x), axis, jnp.asarray(keep))
            np.testing.assert_allclose(made, numpys(x, axis, where=keep), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(ours(jnp.asarray(special), (1,)), numpys(special, 1), rtol=1e-14)

        def finite(x: Any) -> Any:
            y = ours(x, (2,), jnp.asarray(keep))
            return jnp.sum(jnp.where(jnp.isfinite(y), y, 0) ** 2)

        assert np.isfinite(jax.grad(finite)(jnp.asarray(x))).all()
        assert ours(jnp.zeros((3, 0)), (1,)).shape == ((3,) if op == "logsumexp" else (3, 0))


def test_a_logarithm_near_0_keeps_its_bits() -> None:
    made = pure_rows.log_softmax(jnp.asarray([0.0, -30.0, -31.0], jnp.float32), (0,))
    right = -np.log1p(np.exp(-30) + np.exp(-31))
    assert abs(float(made[0]) - right) <= 2.0**-24 * 8 * abs(right)


@pytest.mark.parametrize("op", OPS)
def test_rows_have_derivatives_of_two_orders(op: str) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 4)))
        compiled = jax.jit(lambda x: getattr(pure_rows, op)(x, (0, 2)))
        check_grads(compiled, (x,), 2, ("fwd", "rev"), rtol=1e-4, atol=1e-4)
        do = np.random.default_rng(1).standard_normal(compiled(x).shape)
        made = jax.vjp(compiled, x)[1](jnp.asarray(do))[0]
    right = getattr(reference, f"{op}_vjp")(np.asarray(x), do, axis=(0, 2))
    np.testing.assert_allclose(made, right, rtol=1e-12, atol=1e-14)


# --- losses -------------------------------------------------------------------------------------------------

COUNTS = np.array([0.7, 0.2, 1.1, 0.0, 0.4, 0.9, 0.3])
LOSSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothing": {"label_smoothing": 0.1, "z_loss": 0.2},
    "all": {
        "weight": COUNTS, "label_smoothing": 0.2, "smoothing": "megatron", "softcap": 3.0, "temperature": 2.0,
    },
}  # fmt: skip


def of_losses(options: dict[str, Any]) -> dict[str, Any]:
    given = {
        "class_weight": None, "label_smoothing": 0.0, "megatron": False, "z_loss": 0.0, "softcap": None,
        "temperature": 1.0, "ignore_index": -100,
    }  # fmt: skip
    for name, value in options.items():
        if name == "weight":
            given["class_weight"] = jnp.asarray(value)
        elif name == "smoothing":
            given["megatron"] = value == "megatron"
        else:
            given[name] = value
    return given


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name: str) -> None:
    rng = np.random.default_rng(0)
    x, t = 3 * rng.standard_normal((5, 7)), np.array([0, 6, -100, 3, 2])
    x[2] = NAN  # of an ignored row nothing is read
    d, dlse = rng.standard_normal((2, 5))
    dlse[2] = 0
    right = osm.cross_entropy(x, t, reduction="none", return_lse=True, **LOSSES[name])
    back = osm.cross_entropy_backward(
        d, np.where(np.isnan(x), 0, x), t, dlse=dlse, reduction="none", **LOSSES[name]
    )
    with jax.enable_x64(True):
        options = of_losses(LOSSES[name])
        index = jnp.asarray(t)

        def rows(x: Any) -> Any:
            return pure_losses.cross_entropy_rows(x, index, **options)

        def gradient(d: Any, dlse: Any, x: Any) -> Any:
            return pure_losses.cross_entropy_rows_grad(d, dlse, x, index, **options)

        loss, lse = jax.jit(rows)(x)
        made = jax.jit(gradient)(d, dlse, x)
        clean = jnp.asarray(np.where(np.isnan(x), 0, x))
        by_jax = jax.jit(lambda x: jax.vjp(rows, x)[1]((jnp.asarray(d), jnp.asarray(dlse)))[0])(clean)
        check_grads(jax.jit(gradient), (d, dlse, clean), 1, ("fwd", "rev"), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss, right.loss, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(lse, right.lse, rtol=1e-13)
    np.testing.assert_allclose(made, back, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(by_jax, back, rtol=1e-11, atol=1e-14)


def test_losses_of_odd_rows() -> None:
    x = np.array([[INF, 0], [-INF, -INF], [-INF, 0], [0, 1e5], [0, 0], [0, 0], [0, 0]], np.float32)
    t = np.array([0, 1, 0, 1, 2, -1, -100])
    loss, lse = pure_losses.cross_entropy_rows(jnp.asarray(x), jnp.asarray(t), **of_losses({}))
    np.testing.assert_array_equal(loss, [NAN, NAN, INF, 0, NAN, NAN, 0])
    np.testing.assert_allclose(lse, [INF, -INF, 0, 1e5, *[np.log(2)] * 3], rtol=2.0**-23)
    sure = pure_losses.cross_entropy_rows(jnp.asarray([[60.0, 0.0]]), jnp.asarray([0]), **of_losses({}))[0]
    assert abs(float(sure[0]) - np.exp(-60)) <= 2.0**-20 * np.exp(-60)


# --- attention ----------------------------------------------------------------------------------------------


def of_attention(options: dict[str, Any]) -> dict[str, Any]:
    given = {
        "mask": None, "bias": None, "scale": None, "causal": False, "window": None, "softcap": None,
        "sinks": None, "alibi_slopes": None, "dropout_p": 0.0, "seed": 0, **options,
    }  # fmt: skip
    given["lower_right"] = given.pop("causal_align", "lower_right") == "lower_right"
    return {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Sets the keys of a block, and the scores that a block may have before queries are cut."""

    def small(keys: int, scores: int = 1 << 22) -> None:
        monkeypatch.setattr(attention_scores, "KEYS", keys)
        monkeypatch.setattr(attention_scores, "SCORES", scores)

    return small


#: Names of options, keys of a block, scores of one.
CUTS = [
    pytest.param(("mask", "bias", "sinks", "slopes", "softcap", "dropout"), 8, 1000, id="many options"),
    pytest.param(("causal", "bias of -inf"), 8, 1 << 22, id="causal"),
    pytest.param(("upper left", "scale"), 256, 1 << 22, id="one block"),
    pytest.param(("window", "padding mask"), 2, 300, id="window in pieces"),
]


@pytest.mark.parametrize(("names", "keys", "scores"), CUTS)
def test_attention_and_its_gradients(
    blocks: Callable[[int, int], None], names: tuple[str, ...], keys: int, scores: int
) -> None:
    blocks(keys, scores)
    options = chosen(names)
    q, k, v = optional_operands("float64")
    rng = np.random.default_rng(0)
    do, dlse = rng.standard_normal((2, 4, 9, 5)), rng.standard_normal((2, 4, 9))
    right = osm.attention(q, k, v, return_lse=True, **options)
    back = osm.attention_backward(do, q, k, v, *right, dlse=dlse, bias_grad="bias" in options, **options)
    with jax.enable_x64(True):
        given = of_attention(options)
        out, lse = jax.jit(lambda *a: pure_attention.forward(*a, **given))(q, k, v)
        made = jax.jit(lambda *a: pure_attention.backward(*a, **given))(do, dlse, q, k, v, *right)
    np.testing.assert_allclose(out, right.output, rtol=0, atol=2.0**-53 * 512)
    np.testing.assert_allclose(lse, right.lse, rtol=0, atol=2.0**-53 * 512)
    for ours, numpys in zip(made, back, strict=True):
        assert (ours is None) == (numpys is None)
        if ours is not None:
            np.testing.assert_allclose(ours, numpys, rtol=0, atol=2.0**-53 * 4096)


def test_what_a_query_does_not_see_leaves_no_trace(blocks: Callable[[int], None]) -> None:
    """NaN in keys, values and gradients reaches those who see it, and nobody else."""
    blocks(4)
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((1, 2, n, d)) for n, d in ((6, 2), (6, 2), (6, 3), (6, 3)))
    k[0, 0, 5], v[0, 0, 4, 1], do[0, 1, 5] = NAN, INF, NAN
    with jax.enable_x64(True):
        given = of_attention({"causal": True})
        out, lse = jax.jit(lambda *a: pure_attention.forward(*a, **given))(q, k, v)
        made = jax.jit(lambda *a: pure_attention.backward(*a, **given))(do, None, q, k, v, out, lse)
    right = osm.attention(q, k, v, causal=True, return_lse=True)
    np.testing.assert_allclose(lse, right.lse, rtol=1e-14)
    np.testing.assert_array_equal(np.isfinite(out).all(-1), np.isfinite(right.output).all(-1))
    np.testing.assert_allclose(out[0, :, :4], right.output[0, :, :4], rtol=0, atol=2.0**-53 * 64)
    dq, dk, dv = made[:3]
    # Head 0: queries 4 and 5 see what is no number, and with them all keys. Head 1: query 5 alone has it.
    np.testing.assert_array_equal(np.isfinite(dq).all(-1), [[[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]])
    assert not np.isfinite(dk[0, 0]).any()
    assert np.isnan(dv).all()


def test_queries_and_keys_that_are_not_there() -> None:
    q, k = jnp.ones((1, 2, 3, 4)), jnp.zeros((1, 1, 0, 4))
    sinks = jnp.asarray([0.5, -INF])
    given = of_attention({"sinks": sinks})
    out, lse = pure_attention.forward(q, k, k, **given)
    np.testing.assert_array_equal(out, np.zeros(q.shape))
    np.testing.assert_array_equal(lse, np.broadcast_to(sinks[None, :, None], (1, 2, 3)))
    made = pure_attention.backward(out + 1, None, q, k, k, out, lse, **given)
    assert all((np.asarray(g) == 0).all() for g in made if g is not None)
    for shape in ((1, 2, 0, 4), (0, 2, 3, 4)):
        out, lse = pure_attention.forward(jnp.ones(shape), jnp.ones((shape[0], 1, 5, 4)), jnp.ones(
            (shape[0], 1, 5, 4)), **of_attention({}))  # fmt: skip
        assert out.shape == shape
        assert lse.shape == shape[:3]


def test_attention_has_derivatives_of_two_orders(blocks: Callable[[int], None]) -> None:
    blocks(4)
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal(s) for s in ((1, 2, 3, 2), (1, 1, 6, 2), (1, 1, 6, 3), (1, 2, 3, 3)))
    bias, sinks, dlse = rng.standard_normal((2, 3, 6)), rng.standard_normal(2), rng.standard_normal((1, 2, 3))
    with jax.enable_x64(True):

        def options(bias: Any, sinks: Any) -> dict[str, Any]:
            return of_attention({"bias": bias, "sinks": sinks, "causal": True, "softcap": 2.0})

        def ours(q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
            return pure_attention.forward(q, k, v, **options(bias, sinks))

        def gradient(do: Any, dlse: Any, q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
            made = pure_attention.forward(q, k, v, **options(bias, sinks))
            return pure_attention.backward(do, dlse, q, k, v, *made, **options(bias, sinks))

        operands = (q, k, v, bias, sinks)
        by_jax = jax.jit(lambda *a: jax.vjp(ours, *a)[1]((jnp.asarray(do), jnp.asarray(dlse))))(*operands)
        for made, right in zip(jax.jit(gradient)(do, dlse, *operands), by_jax, strict=True):
            np.testing.assert_allclose(made, right, rtol=1e-10, atol=1e-12)
        check_grads(jax.jit(gradient), (do, dlse, *operands), 1, ("rev",), rtol=1e-3, atol=1e-3)


def temporaries(length: int) -> int:
    """Bytes that a compiled gradient holds beside operands and results, at this many queries and keys."""
    given = of_attention({"softcap": 2.0})

    def both(do: Any, q: Any, k: Any, v: Any) -> Any:
        out, lse = pure_attention.forward(q, k, v, **given)
        return pure_attention.backward(do, None, q, k, v, out, lse, **given)[:3]

    shape = jax.ShapeDtypeStruct((1, 1, length, 8), jnp.float32)
    made = jax.jit(both).lower(shape, shape, shape, shape).compile().memory_analysis()
    assert made is not None
    return int(made.temp_size_in_bytes)


def test_memory_of_attention_is_linear_in_the_length(blocks: Callable[[int], None]) -> None:
    blocks(32)
    few, many = temporaries(256), temporaries(1024)
    assert many <= 4.5 * few
    assert many < 1024 * 1024 * 4


@pytest.mark.parametrize("seed", [0, 12345678901234567890])
def test_dropouts_mask_is_that_of_numpys_function(seed: int) -> None:

    @jax.jit
    def numbers() -> Any:
        rows = counter.dropout_rows(seed, 2, 3, jnp.arange(4))
        return counter.dropout_numbers(counter.Word(rows.high[..., None], rows.low[..., None]), jnp.arange(5))

    made = np.asarray(numbers()) >= round(0.3 * 2**32)
    np.testing.assert_array_equal(made, osm.dropout_mask((2, 3, 4, 5), 0.3, seed))
