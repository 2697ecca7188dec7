"""JAX: jax.nn, jax.numpy and jax.lax, called outside of jit."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Final

from ...extras import require
from ..cases import NotOffered
from . import Adapter, Library, versions_of

#: Calls after which compiled programs are let go: those of a thousand shapes fill gigabytes.
_KEPT: Final = 100


def load(variant: str) -> Adapter:
    """The adapter; there are no variants. MissingExtra where JAX is not installed."""
    if variant:
        raise ValueError(f"variant {variant!r} of jax: it has none")
    require("jax", "jax", "the subject jax")
    functions = (
        softmax, log_softmax, logsumexp, softmax_topk, logaddexp, logcumsumexp, attention, decode_attention,
    )  # fmt: skip
    return Library(
        name="jax",
        framework="jax",
        versions=versions_of("jax", "jaxlib"),
        functions=_letting_go({f.__name__: f for f in functions}),
        lacks="JAX has no such function",
    )


def _letting_go(functions: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    import jax

    calls = itertools.count(1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) % _KEPT == 0:
                jax.clear_caches()
            return function(*args, **kwargs)

        return call

    return {name: counted(function) for name, function in functions.items()}


def softmax(x: Any, axis: Any, where: Any = None) -> Any:
    """jax.nn.softmax."""
    import jax

    return jax.nn.softmax(x, axis=axis, where=where)


def log_softmax(x: Any, axis: Any, where: Any = None) -> Any:
    """jax.nn.log_softmax."""
    import jax

    return jax.nn.log_softmax(x, axis=axis, where=where)


def logsumexp(x: Any, axis: Any, keepdims: Any, b: Any = None, where: Any = None) -> Any:
    """jax.nn.logsumexp."""
    import jax

    return jax.nn.logsumexp(x, axis=axis, b=b, where=where, keepdims=keepdims)


def softmax_topk(x: Any, k: Any, axis: Any) -> Any:
    """jax.lax.top_k of jax.nn.softmax."""
    import jax

    values, indices = jax.lax.top_k(jax.nn.softmax(x, axis=axis), k, axis=axis)
    return values, indices


def logaddexp(a: Any, b: Any) -> Any:
    """jax.numpy.logaddexp."""
    import jax

    return jax.numpy.logaddexp(a, b)


def logcumsumexp(x: Any, axis: Any) -> Any:
    """jax.lax.cumlogsumexp, which counts axes from the left alone."""
    import jax

    return jax.lax.cumlogsumexp(x, axis + x.ndim if -x.ndim <= axis < 0 else axis)


def attention(
    q: Any,
    k: Any,
    v: Any,
    scale: Any,
    causal: Any,
    causal_align: Any,
    window: Any,
    mask: Any = None,
    bias: Any = None,
    lengths: Any = None,
) -> Any:
    """jax.nn.dot_product_attention, whose arrays are (batch, length, heads, features)."""
    import jax

    square = q.shape[-2] == k.shape[-2]
    if causal and causal_align == "lower_right" and not square:
        raise NotOffered("is_causal aligns upper left")
    if window is not None and (None in window or not square):
        raise NotOffered("local_window_size takes two lengths and as many queries as keys")
    if k.shape[-1] != v.shape[-1]:
        raise NotOffered("keys and values have one length of features")
    o, lse = jax.nn.dot_product_attention(
        *(a.swapaxes(1, 2) for a in (q, k, v)),
        bias=_four_axes(bias),
        mask=_four_axes(mask),
        scale=scale,
        is_causal=causal,
        key_value_seq_lengths=lengths,
        local_window_size=None if window is None else tuple(window),
        return_residual=True,
    )
    return o.swapaxes(1, 2), lse.swapaxes(1, 2)


def decode_attention(q: Any, k_cache: Any, v_cache: Any, scale: Any, seqlens_k: Any = None) -> Any:
    """jax.nn.dot_product_attention with key_value_seq_lengths."""
    lengths = None if seqlens_k is None else seqlens_k.astype("int32")
    return attention(q, k_cache, v_cache, scale, False, "lower_right", None, lengths=lengths)


def _four_axes(a: Any) -> Any:
    return None if a is None else a.reshape((1,) * (4 - a.ndim) + a.shape)
