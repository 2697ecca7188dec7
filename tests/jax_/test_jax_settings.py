"""The JAX face under settings that are not JAX's defaults, and operands that JAX would change or refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import float64, tree_close

import online_softmax
import online_softmax.jax as osj

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)
Q = jnp.asarray(np.random.default_rng(1).normal(size=(1, 4, 2, 4)), jnp.float32)
TARGETS = jnp.arange(3)
GIVEN = (Q, jnp.zeros(4), jnp.zeros(2))
MOVED = (Q, Q[0, :, 0, 0], Q[0, 0, :, 0])


def _attention(q: Any, bias: Any, sinks: Any) -> Any:
    slopes, mask = jnp.ones(2), jnp.ones((4, 4), bool)
    options = {"causal": True, "softcap": 3.0, "dropout_p": 0.1, "mask": mask, "alibi_slopes": slopes}
    return osj.attention(q, q, q, bias=bias, sinks=sinks, **options).sum()


def _loss(x: Any) -> Any:
    options = {"label_smoothing": 0.1, "z_loss": 0.1, "softcap": 3.0}
    return osj.cross_entropy(x, TARGETS, weight=jnp.arange(1.0, 6), row_weight=jnp.ones(1), **options)


CALLS: dict[str, Callable[[], Any]] = {
    "softmax": lambda: osj.softmax(X, where=X[0] > -9),
    "logsumexp": lambda: osj.logsumexp(X, b=jnp.ones(5), axis=-1),
    "hessian of logsumexp": lambda: jax.hessian(lambda x: osj.logsumexp(x, where=x[0] > -9))(X[:1]),
    "gradient of attention": lambda: jax.grad(_attention, (0, 1, 2))(*GIVEN),
    "tangent of attention": lambda: jax.jvp(_attention, GIVEN, MOVED),
    "derivative of attention's gradient": lambda: jax.jvp(jax.grad(_attention), GIVEN, MOVED),
    "derivative of the loss' gradient": lambda: jax.jvp(jax.grad(_loss), (X,), (X,)),
    "linear loss": lambda: jax.grad(
        lambda h: osj.linear_cross_entropy(h, X, TARGETS, bias=jnp.ones(3), memory=64)
    )(X),
    "sample": lambda: osj.sample(X, top_k=3, top_p=0.9, min_p=0.1, temperature=jnp.ones(3)),
    "logaddexp": lambda: jax.grad(lambda x: osj.logaddexp(x, X).sum())(X[0]),
    "logcumsumexp": lambda: jax.grad(lambda x: osj.logcumsumexp(x).sum())(X),
    "window_logsumexp": lambda: osj.window_logsumexp(X, 3),
    "segment_softmax": lambda: jax.grad(lambda x: osj.segment_softmax(x, ids=TARGETS % 2)[0].sum())(X),
    "softmax_topk": lambda: jax.grad(lambda x: osj.softmax_topk(x, 2).values[0].sum())(X),
}


@pytest.mark.parametrize("name", CALLS)
def test_operands_of_different_ranks_are_the_library_s_own_affair(name: str) -> None:
    want = CALLS[name]()
    with jax.numpy_rank_promotion("raise"):
        tree_close(CALLS[name](), want, 1e-6, 1e-6)


@pytest.mark.parametrize("name", ["softmax", "gradient of attention", "derivative of the loss' gradient"])
def test_operations_run_where_jit_is_disabled(name: str) -> None:
    want = CALLS[name]()
    with jax.disable_jit():
        tree_close(CALLS[name](), want, 1e-5, 1e-6)


@pytest.mark.parametrize(
    "value",
    [
        np.array([None]),
        np.array(["a"]),
        np.array([1], "M8[D]"),
        np.zeros(1, [("a", "f4")]),
        np.ones(1, np.longdouble),
    ],
)
def test_what_jax_has_no_format_for_is_refused_by_name(value: np.ndarray) -> None:
    for call in (
        lambda: osj.softmax(value),
        lambda: osj.softmax(X, where=value),
        lambda: osj.attention(Q, Q, Q, bias=value),
        lambda: osj.cross_entropy(X, value),
        lambda: osj.segment_softmax(X, ids=value),
    ):
        with pytest.raises(TypeError, match=r"^(x|where|bias|targets|ids) holds .* would do$"):
            call()


def test_a_number_past_jax_s_integers_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="x is 1180591620717411303424"):
        osj.softmax(1 << 70)


def test_words_that_are_traced_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="layout is traced"):
        jax.jit(lambda word: osj.attention(Q, Q, Q, layout=word))(1.0)


def test_integers_of_64_bits_keep_their_value_without_int64() -> None:
    large = np.array([1 << 40, (1 << 40) - (1 << 20), 0])
    assert osj.logsumexp(large) == np.float32(1 << 40)
    assert osj.logaddexp(large[0], large[2]) == np.float32(1 << 40)
    np.testing.assert_array_equal(osj.softmax(large), [1, 0, 0])


@pytest.mark.parametrize("wide", [False, True])
def test_targets_of_64_bits_are_no_classes_where_their_low_bits_are(wide: bool) -> None:
    targets = np.array([(1 << 32) + 1, 1, -100])
    losses = {
        "rows": lambda: osj.cross_entropy(X, targets, reduction="none"),
        "linear": lambda: osj.linear_cross_entropy(X, X, targets, reduction="none"),
    }
    for make in losses.values():
        if wide:
            with float64():
                loss = np.asarray(make())
        else:
            loss = np.asarray(make())
        np.testing.assert_array_equal(np.isnan(loss), [True, False, False])
        assert loss[2] == 0


def test_seeds_in_arrays_are_the_seeds_that_they_hold() -> None:
    seed = (1 << 40) + 3
    logits = np.zeros((40, 50), np.float32)
    for tokens in (osj.sample(jnp.asarray(logits), seed=s).tokens for s in (seed, np.array(seed))):
        np.testing.assert_array_equal(tokens, online_softmax.sample(logits, seed=seed)[0])
    one, other = (osj.attention(Q, Q, Q, dropout_p=0.5, seed=s) for s in (seed, np.array(seed)))
    np.testing.assert_array_equal(one, other)


def test_a_seed_is_checked_without_dropout_too() -> None:
    with pytest.raises(TypeError, match="seed"):
        osj.attention(Q, Q, Q, seed="abc")


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int32])
def test_groups_may_be_more_than_the_format_of_ids_holds(dtype: Any) -> None:
    ids = jnp.asarray([5, 0, 5], dtype)
    y = jax.jit(lambda ids: osj.segment_logsumexp(jnp.zeros(3), ids=ids, num_segments=300))(ids)
    np.testing.assert_allclose(y[:6], [0, *[-np.inf] * 4, np.log(2)], 1e-6)
    assert (y[6:] == -jnp.inf).all()
