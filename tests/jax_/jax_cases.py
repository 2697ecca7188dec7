"""What the tests of the JAX face share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest

from online_softmax.frontends.jax import native
from online_softmax.frontends.jax.native import Handlers

#: Operations that walk over something: what is batched must not contain them.
LOOPS = {"scan", "while"}


@contextmanager
def float64() -> Iterator[None]:
    """JAX with float64, which it leaves out by default."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


@contextmanager
def without_handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The face as it is in a build without jaxlib's headers."""
    with monkeypatch.context() as patch:
        patch.setattr(native, "handlers", lambda: Handlers(False, "built without jaxlib's headers"))
        jax.clear_caches()
        try:
            yield
        finally:
            jax.clear_caches()


def primitives_of(function: Callable[..., Any], *args: Any) -> set[str]:
    """Names of all primitives in what a function becomes, inner computations included."""
    found: set[str] = set()

    def walk(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            found.add(equation.primitive.name)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                walk(inner)

    walk(jax.make_jaxpr(function)(*args).jaxpr)
    return found


def tree_close(actual: Any, expected: Any, rtol: float, atol: float) -> None:
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol, atol)
