"""Every function of arrays, with arguments that serve it, and its call with arrays of another kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import online_softmax

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 5)).astype(np.float32)
Q = RNG.standard_normal((1, 2, 4, 8)).astype(np.float32)
#: Every function that takes arrays, with arguments that serve it.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "softmax": ((X,), {"axis": 0}),
    "log_softmax": ((X,), {"where": X > -1}),
    "logsumexp": ((X,), {"b": np.abs(X), "return_sign": True}),
    "softmax_topk": ((X, 2), {}),
    "attention": ((Q, Q, Q), {"causal": True, "return_lse": True}),
    "cross_entropy": ((X, np.array([0, 4, -100])), {"riders": ("entropy",)}),
    "cross_entropy_backward": ((1.0, X, np.array([0, 4, 2])), {}),
    "cross_entropy_with_gradient": ((X, np.array([0, 4, 2])), {"weight": np.arange(5.0)}),
    "linear_cross_entropy": ((X, X, np.array([0, 2, 1])), {"bias": X[:, 0]}),
    "linear_cross_entropy_backward": ((1.0, X, X, np.array([0, 2, 1])), {}),
    "linear_cross_entropy_with_gradient": ((X, X, np.array([0, 2, 1])), {"return_lse": True}),
    "sample": ((X,), {"temperature": np.ones(3), "seed": 3}),
    "logaddexp": ((X, X), {}),
    "logaddexp_vjp": ((X, X, X), {}),
    "logcumsumexp": ((X,), {"axis": 0}),
    "logcumsumexp_vjp": ((X, X), {"axis": 0}),
    "window_logsumexp": ((X, 2), {}),
    "window_logsumexp_vjp": ((X, X, 2), {}),
    "segment_logsumexp": ((X,), {"ids": np.array([0, 0, 1])}),
    "segment_softmax": ((X,), {"offsets": np.array([0, 1, 3])}),
    "segment_logsumexp_vjp": ((X[:2], X), {"ids": np.array([0, 0, 1])}),
    "segment_softmax_vjp": ((X, X), {"ids": np.array([0, 0, 1])}),
    "attention_backward": ((Q, Q, Q, Q, Q, Q[..., 0]), {}),
    "attention_jvp": ((Q, Q, Q, Q, Q, Q), {}),
    "attention_double_backward": ((Q, Q, Q, Q, Q, Q, Q), {}),
    "merge_attention_vjp": ((Q, Q[..., 0], Q, Q[..., 0], Q), {}),
}


def mapped(value: Any, of: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
    """A value with every array in it replaced."""
    if isinstance(value, tuple):
        parts = [mapped(part, of) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return of(value) if isinstance(value, np.ndarray | np.generic) else value


def call(name: str, of: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
    args, options = CALLS[name]
    changed = {key: mapped(value, of) for key, value in options.items()}
    return getattr(online_softmax, name)(*mapped(args, of), **changed)
