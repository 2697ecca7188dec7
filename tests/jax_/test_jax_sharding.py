"""Computations cut over several devices: the same results, and nothing gathered."""

from __future__ import annotations

from typing import Any

import pytest

SETUP = r"""
import re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from online_softmax.jax import attention, cross_entropy, info, logsumexp, softmax

assert info()["jax_ffi"], info()
mesh = Mesh(np.array(jax.devices()), ("x",))
assert mesh.size == 2
rng = np.random.default_rng(0)

def hold(function, args, specs, allowed=(), exact=True):
    whole = jax.jit(function)(*args)
    parts = [jax.device_put(a, NamedSharding(mesh, P(*s))) for a, s in zip(args, specs)]
    compiled = jax.jit(function).lower(*parts).compile()
    text = compiled.as_text()
    moved = set(re.findall(r"(all-gather|all-reduce|all-to-all|collective-permute)[^ ]*\(", text))
    assert moved <= set(allowed), moved
    assert 'custom_call_target="online_softmax' in text
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(compiled(*parts)), strict=True):
        if exact:
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        else:
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-5, 1e-6)
"""

ROWS = """
x = rng.standard_normal((4, 6, 10)).astype(np.float32)
hold(softmax, (x,), [("x",)])
hold(softmax, (x,), [(None, "x")])
hold(lambda x: softmax(x, 0), (x,), [(None, None, "x")])
mask = rng.random((4, 1, 10)) < 0.7
hold(lambda x, w: logsumexp(x, -1, where=w), (x, mask), [("x",), ("x",)])
hold(jax.vmap(lambda x: softmax(x, 0)), (x,), [("x",)])
hold(jax.grad(lambda x: jnp.sum(softmax(x) ** 2)), (x,), [("x",)])
"""

LOSSES = """
x = rng.standard_normal((4, 6, 10)).astype(np.float32)
t = rng.integers(0, 10, (4, 6)).astype(np.int32)
hold(lambda x, t: cross_entropy(x, t, reduction="none", return_lse=True), (x, t), [("x",), ("x",)])
rows = lambda x, t: jnp.sum(jnp.sin(cross_entropy(x, t, reduction="none")))
hold(jax.grad(rows), (x, t), [("x",), ("x",)])
# The mean's denominator is a sum over all rows.
hold(jax.grad(cross_entropy), (x, t), [("x",), ("x",)], ["all-reduce"])
"""

SHARD_MAP = """
x = rng.standard_normal((4, 7, 2, 8)).astype(np.float32)
t = rng.integers(0, 8, (4, 7, 2)).astype(np.int32)
def gradient(x, t):
    def total(x):
        loss = cross_entropy(softmax(x), t, reduction="sum")
        return loss + jnp.sum(attention(x, x, x) ** 2) + jnp.sum(logsumexp(x, -1))
    return jax.grad(total)(x)
each = jax.shard_map(gradient, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
np.testing.assert_allclose(jax.jit(each)(x, t), gradient(x, t), 1e-5, 1e-5)
"""

# Operands that are the same on all devices beside some that are not; loops, in all modes of derivatives.
SHARD_MAP_LOOPS = """
from online_softmax.jax import linear_cross_entropy
h, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 6), (5, 6)))
q, b = rng.standard_normal((2, 4, 2, 6)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
k, t = rng.standard_normal((2, 4, 2, 6)).astype(np.float32), np.arange(4, dtype=np.int32)

def linear(h, w, t):
    return linear_cross_entropy(h, w, t, reduction="sum")
def scores(q, b, k):
    return jnp.sum(attention(q, k[: len(q)] * 0 + k[:1], k[:1] + 0 * q, bias=b, sinks=b[:2]) ** 2)
def weighted(h, w, t):
    return jnp.sum(cross_entropy(h, t, row_weight=w[0, :1], reduction="sum"))

for total, a, shared, rest, spec in (
    (linear, h, w, t, P("x")), (scores, q, b, k, P()), (weighted, h, w, t, P("x"))
):
    def gradients(a, shared, rest):
        return jax.grad(total, (0, 1))(a, shared, rest)
    def moved(a, shared, rest):
        return jax.jvp(lambda *at: gradients(*at, rest), (a, shared), (a, shared))
    want = jax.jit(moved)(a, shared, rest)
    specs = (P("x"), P(), spec)
    each = jax.shard_map(moved, mesh=mesh, in_specs=specs, out_specs=((P("x"), P()),) * 2)
    for got, one in zip(jax.tree.leaves(jax.jit(each)(a, shared, rest)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(got, one, 1e-4, 1e-4)
"""

ATTENTION = """
q, k, v = (rng.standard_normal((4, 7, n, 8)).astype(np.float32) for n in (4, 2, 2))
bias, sinks = rng.standard_normal((1, 4, 7, 7)).astype(np.float32), np.ones(4, np.float32)
def forward(q, k, v):
    return attention(q, k, v, causal=True, return_lse=True, dropout_p=0.3, seed=3)
def backward(q, k, v):
    return jax.grad(lambda *a: jnp.sum(attention(*a, causal=True, dropout_p=0.3) ** 2), (0, 1, 2))(q, k, v)
def of_all(*a):
    total = lambda q, k, v, b, s: jnp.sum(attention(q, k, v, bias=b, sinks=s) ** 2)
    return jax.grad(total, (0, 1, 2, 3, 4))(*a)
for spec in (("x",), (None, None, "x")):  # the batch, or groups of heads
    hold(forward, (q, k, v), [spec] * 3)
    hold(backward, (q, k, v), [spec] * 3)
    # The gradients of what the batch shares are sums over it.
    allowed = ["all-reduce"] if spec == ("x",) else []
    hold(of_all, (q, k, v, bias, sinks), [spec] * 3 + [(), ()], allowed, exact=False)
"""


@pytest.mark.parametrize(
    "script",
    [ROWS, LOSSES, ATTENTION, SHARD_MAP, SHARD_MAP_LOOPS],
    ids=["rows", "losses", "attention", "shard_map", "loops"],
)
def test_nothing_is_gathered(script: str, fresh_python: Any) -> None:
    flags = "--xla_force_host_platform_device_count=2"
    done = fresh_python(SETUP + script, timeout=200, XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr[-3000:]
