"""Attention of JAX arrays: values and gradients of the core, jax.nn, transformations, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FORMATS, assert_same_bits
from jax.test_util import check_grads
from jax_cases import float64, primitives_of, tree_close, without_handlers

import online_softmax as osm
import online_softmax.jax as ours

BATCH, HEADS, GROUPS, QUERIES, KEYS, D, DV = 2, 4, 2, 5, 7, 3, 2
SHAPES = ((BATCH, QUERIES, HEADS, D), (BATCH, KEYS, GROUPS, D), (BATCH, KEYS, GROUPS, DV))
RANDOM = np.random.default_rng(0)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "upper left": {"causal": True, "causal_align": "upper_left"},
    "window": {"window": (2, 1)},
    "left window": {"window": (1, None), "scale": -0.3},
    "softcap": {"softcap": 1.5},
    "mask": {"mask": RANDOM.random((BATCH, HEADS, QUERIES, KEYS)) < 0.6},
    "padding mask": {"mask": np.arange(KEYS) < 4},
    "bias": {"bias": RANDOM.standard_normal((1, HEADS, QUERIES, KEYS))},
    "broadcast bias": {"bias": RANDOM.standard_normal((QUERIES, 1))},
    "sinks": {"sinks": np.array([0.5, -30.0, 4.0, 0.0])},
    "slopes": {"alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0625])},
    "dropout": {"dropout_p": 0.3, "seed": (1 << 40) + 5},
    "all": {
        "causal": True, "dropout_p": 0.2, "softcap": 2.0, "bias": RANDOM.standard_normal(KEYS),
        "sinks": np.array([0.5, -1.0, 2.0, 0.0]),
    },
}  # fmt: skip
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def operands(dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in SHAPES)


def differentiable(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    moved = {name: options[name] for name in ("bias", "sinks") if name in options}
    return moved, {name: value for name, value in options.items() if name not in moved}


def cotangents(lse: np.ndarray) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(9)
    do = rng.standard_normal((BATCH, QUERIES, HEADS, DV))
    return jnp.asarray(do), jnp.asarray(np.where(np.isfinite(lse), rng.standard_normal(lse.shape), 0))


@every_option
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
def test_output_and_lse_are_those_of_the_numpy_face(options: dict[str, Any], dtype: np.dtype) -> None:
    with float64():
        q, k, v = operands(dtype)
        made = ours.attention(q, k, v, return_lse=True, **options)
        right = osm.attention(q, k, v, layout="BSHD", return_lse=True, **options)
        assert_same_bits(np.asarray(made.output), right.output, "output")
        assert_same_bits(np.asarray(made.lse), right.lse, "lse")


@every_option
def test_gradients_are_those_of_the_numpy_face(options: dict[str, Any]) -> None:
    with float64():
        q, k, v = operands()
        moved, rest = differentiable(options)
        right = osm.attention(q, k, v, layout="BSHD", return_lse=True, **options)
        do, dlse = cotangents(right.lse)

        def gradients(q: Any, k: Any, v: Any, moved: Any) -> Any:
            _, back = jax.vjp(
                lambda q, k, v, m: tuple(ours.attention(q, k, v, return_lse=True, **rest, **m)),
                q,
                k,
                v,
                moved,
            )
            return back((do, dlse))

        dq, dk, dv, of_moved = jax.jit(gradients)(q, k, v, moved)
        given = osm.attention_backward(
            np.asarray(do), q, k, v, *right, dlse=np.asarray(dlse), bias_grad="bias" in options,
            layout="BSHD", **options,
        )  # fmt: skip
        tree_close((dq, dk, dv), (given.q, given.k, given.v), 1e-12, 1e-13)
        for name, value in of_moved.items():
            np.testing.assert_allclose(value, getattr(given, name), 1e-12, 1e-13)


@every_option
def test_forward_mode_is_the_transpose_of_reverse_mode(options: dict[str, Any]) -> None:
    with float64():
        moved, rest = differentiable(options)
        at = (*operands(), moved)
        by = (*operands(seed=1), jax.tree.map(np.cos, moved))

        def f(q: Any, k: Any, v: Any, m: Any) -> Any:
            return tuple(ours.attention(q, k, v, return_lse=True, **rest, **m))

        (_, lse), (t_out, t_lse) = jax.jit(lambda a, b: jax.jvp(f, a, b))(at, by)
        do, dlse = cotangents(np.asarray(lse))
        back = jax.jit(lambda a: jax.vjp(f, *a)[1]((do, dlse)))(at)
        seen = jnp.isfinite(lse)
        left = jnp.sum(do * t_out) + jnp.sum(jnp.where(seen, dlse * t_lse, 0))
        right = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(by), strict=True))
        np.testing.assert_allclose(left, right, 1e-10)


def test_derivatives_of_both_modes_and_orders() -> None:
    with float64():
        q, k, v = (a[:1, :3] for a in operands())
        bias, sinks = 0.3 * np.ones((3, 1)), np.array([0.5, -1.0, 2.0, 0.0])

        @jax.jit
        def both(q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
            options = {"causal": True, "softcap": 2.0, "dropout_p": 0.2}
            return tuple(ours.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True, **options))

        check_grads(both, (q, k, v, bias, sinks), 2, ["fwd", "rev"])


@every_option
def test_vmap_batches_every_argument_without_a_loop(options: dict[str, Any]) -> None:
    with float64():
        q, k, v = operands()
        moved, rest = differentiable(options)
        qs, ks = np.stack([q, q + 1, q * 2]), np.stack([k, k / 2, k + 1], 1)
        many = jax.tree.map(lambda a: np.stack([a, 2 * a, 3 * a], -1), moved)

        def f(q: Any, k: Any, v: Any, m: Any) -> Any:
            return tuple(ours.attention(q, k, v, return_lse=True, **rest, **m))

        def gradients(q: Any, k: Any, v: Any, m: Any) -> Any:
            outputs, back = jax.vjp(f, q, k, v, m)
            return back(
                jax.tree.map(jnp.cos, (outputs[0], jnp.where(jnp.isfinite(outputs[1]), outputs[1], 0)))
            )

        for function in (f, gradients):
            one = jax.jit(function)
            for axes, last in (((0, 1, None, -1), many), ((0, 1, None, None), moved)):
                mapped = jax.vmap(function, axes)
                made = jax.jit(mapped)(qs, ks, v, last)
                each = [
                    one(
                        qs[i],
                        ks[:, i],
                        v,
                        jax.tree.map(lambda a, i=i: a[..., i], many) if last is many else moved,
                    )
                    for i in range(3)
                ]
                tree_close(made, jax.tree.map(lambda *a: np.stack(a), *each), 1e-12, 1e-12)
            assert "online_softmax_attention" in primitives_of(mapped, qs, ks, v, last)


@pytest.mark.parametrize("name", ["plain", "causal", "mask", "bias", "all", "slopes", "dropout"])
def test_without_handlers_the_same_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with float64():
        moved, rest = differentiable(OPTIONS[name])
        q, k, v = operands()
        qs = np.stack([q, q + 1])

        def both(q: Any, m: Any) -> Any:
            def total(q: Any, k: Any, v: Any, m: Any) -> Any:
                return jnp.sum(jnp.sin(ours.attention(q, k, v, **rest, **m)))

            return ours.attention(q, k, v, **rest, **m), jax.grad(total, (0, 1, 2, 3))(q, k, v, m)

        right = jax.jit(jax.vmap(both, (0, None)))(qs, moved)
        with without_handlers(monkeypatch):
            tree_close(jax.jit(jax.vmap(both, (0, None)))(qs, moved), right, 1e-10, 1e-11)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"mask": True}, {"bias": True}, {"window": (2, 1)}]
)
def test_as_jax_nn(options: dict[str, Any]) -> None:
    with float64():
        q, k, v = (a[:, :5] for a in operands())
        v = np.concatenate([v, v[..., :1]], -1)  # jax.nn wants as many features as in q
        given = dict(options)
        rng = np.random.default_rng(4)
        if "mask" in given:
            given["mask"] = (rng.random((BATCH, 1, 5, 5)) < 0.7) | np.eye(5, dtype=bool)
        if "bias" in given:
            given["bias"] = rng.standard_normal((1, HEADS, 5, 5))
        theirs = {
            ("local_window_size" if n == "window" else "is_causal" if n == "causal" else n): a
            for n, a in given.items()
        }
        right = jax.nn.dot_product_attention(*map(jnp.asarray, (q, k, v)), implementation="xla", **theirs)
        np.testing.assert_allclose(ours.attention(q, k, v, **given), right, 2e-6, 1e-7)


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_ranks_and_layouts(rank: int, layout: str) -> None:
    q, k, v = operands(np.float32)
    if layout == "BHSD":
        q, k, v = (np.swapaxes(a, 1, 2) for a in (q, k, v))
    if rank < 4:
        q, k, v = (a[0] for a in (q, k, v))
    if rank < 3:
        q, k, v = (a[0] if layout == "BHSD" else a[:, 0] for a in (q, k, v))
    made = ours.attention(q, k, v, layout=layout, return_lse=True, causal=True)
    right = osm.attention(q, k, v, layout=layout, return_lse=True, causal=True)
    assert_same_bits(np.asarray(made.output), right.output)
    assert_same_bits(np.asarray(made.lse), right.lse)


def test_seeds_of_every_form() -> None:
    q, k, v = operands(np.float32)
    right = osm.attention(q, k, v, layout="BSHD", dropout_p=0.5, seed=(3 << 32) + 7)
    for seed in ((3 << 32) + 7, np.array([3, 7], np.uint32)):
        assert_same_bits(np.asarray(ours.attention(q, k, v, dropout_p=0.5, seed=seed)), right)
    traced = jax.jit(lambda s: ours.attention(q, k, v, dropout_p=0.5, seed=s))
    assert_same_bits(np.asarray(traced(7)), osm.attention(q, k, v, layout="BSHD", dropout_p=0.5, seed=7))
    key = jax.random.key(5)
    words = np.asarray(jax.random.key_data(key))
    assert_same_bits(
        np.asarray(ours.attention(q, k, v, dropout_p=0.5, seed=key)),
        np.asarray(ours.attention(q, k, v, dropout_p=0.5, seed=words)),
    )
    seeds = jnp.arange(3, dtype=jnp.uint32)
    mapped = jax.vmap(lambda s: ours.attention(q, k, v, dropout_p=0.5, seed=s))(seeds)
    for i in range(3):
        assert_same_bits(np.asarray(mapped[i]), osm.attention(q, k, v, layout="BSHD", dropout_p=0.5, seed=i))


def test_nothing_to_see_and_nothing_there() -> None:
    q, k, v = operands(np.float32)
    out, lse = ours.attention(q, k[:, :0], v[:, :0], return_lse=True)
    np.testing.assert_array_equal(out, 0)
    np.testing.assert_array_equal(lse, -np.inf)
    assert ours.attention(q[:0], k[:0], v[:0]).shape == (0, QUERIES, HEADS, DV)
    assert ours.attention(q[:, :0], k, v).shape == (BATCH, 0, HEADS, DV)
    gradient = jax.grad(lambda q: jnp.sum(ours.attention(q, k, v, mask=np.zeros(KEYS, bool))))(q)
    np.testing.assert_array_equal(gradient, 0)


Q, K, V = operands(np.float32)
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: ours.attention([1.0], K, V), TypeError, "q is a list"),
    (lambda: ours.attention(Q.astype(np.complex64), K, V), TypeError, "q holds complex64"),
    (lambda: ours.attention(Q, K.astype(np.float16), V), TypeError, "k is float16 and q is float32"),
    (lambda: ours.attention(Q[0], K, V), ValueError, "k has 4 dimensions: 3 like q"),
    (lambda: ours.attention(Q[..., :2], K, V), ValueError, "k has 3 features and q 2"),
    (lambda: ours.attention(Q[:, :, :3], K, V), ValueError, "q has 3 heads and k 2"),
    (lambda: ours.attention(Q, K[:, :3], V), ValueError, "v has 7 values for 3 keys"),
    (lambda: ours.attention(Q, K, V, mask=np.ones(7)), TypeError, "mask is float"),
    (lambda: ours.attention(Q, K, V, mask=np.ones(6, bool)), ValueError, "mask of shape"),
    (lambda: ours.attention(Q, K, V, bias=np.ones((1, 1, 1, 1, 7))), ValueError, "bias has 5 dimensions"),
    (lambda: ours.attention(Q, K, V, sinks=np.ones(3)), ValueError, "sinks has shape"),
    (lambda: ours.attention(Q, K, V, alibi_slopes=np.ones(3)), ValueError, "alibi_slopes has shape"),
    (lambda: ours.attention(Q, K, V, window=3), TypeError, "window is 3"),
    (lambda: ours.attention(Q, K, V, window=(-1, 0)), ValueError, "window is"),
    (lambda: ours.attention(Q, K, V, softcap=-1), ValueError, "softcap is -1"),
    (lambda: ours.attention(Q, K, V, scale="x"), TypeError, "scale is 'x'"),
    (lambda: ours.attention(Q, K, V, scale=1e300), ValueError, "scale is 1e"),
    (lambda: ours.attention(Q, K, V, dropout_p=1), ValueError, "dropout_p is 1"),
    (lambda: ours.attention(Q, K, V, dropout_p=0.5, seed=-1), ValueError, "seed is -1"),
    (lambda: ours.attention(Q, K, V, dropout_p=0.5, seed=0.5), TypeError, "seed has shape"),
    (lambda: ours.attention(Q, K, V, layout="SBHD"), ValueError, "layout is 'SBHD'"),
    (lambda: ours.attention(Q, K, V, causal_align="left"), ValueError, "causal_align is 'left'"),
    (lambda: ours.attention(Q, K, V, causal=1), TypeError, "causal=1"),
    (lambda: jax.jit(lambda c: ours.attention(Q, K, V, causal=c))(True), TypeError, "causal is traced"),
    (lambda: jax.jit(lambda c: ours.attention(Q, K, V, scale=c))(0.5), TypeError, "scale is traced"),
]


@pytest.mark.parametrize(("bad", "kind", "message"), BAD, ids=[m for _, _, m in BAD])
def test_bad_arguments_are_named(bad: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        bad()
