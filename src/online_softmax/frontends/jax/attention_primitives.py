"""Attention, its tangent and its gradient as primitives.

The tangent is linear in those of the operands, and its transpose is the native backward, which is linear in
the cotangents: forward and reverse mode, of each other too, need no other rule. Tangents, and derivatives of
the gradient, are made from `pure_attention`, a block of keys at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from . import checks, manual, native, primitives, pure_attention
from .attention_factors import gradient_factors, in_order
from .linear_rules import linear_in, transposed_by
from .pure_rows import wide_dtype

Array = Any


class Options(NamedTuple):
    """What is known when the computation is built.

    Attributes:
        left, right: keys seen to the left and to the right of a query's place, -1 for all.
        softcap: 0 for none.
        bshd: operands are (batch, length, heads, features), else (batch, heads, length, features).
        present: names of the operands past q, k and v, in the order of `attention_factors.ORDER`.
        period: dropout, and sinks, are those of so many batch elements, again and again: `vmap` lays its axis
            before that of the batch.
    """

    scale: float
    softcap: float
    lower_right: bool
    left: int
    right: int
    drop: float
    bshd: bool
    present: tuple[str, ...]
    period: int

    @property
    def smooth(self) -> tuple[str, ...]:
        """Operands that derivatives are taken by; they come first."""
        return ("q", "k", "v", *(name for name in self.present if name in ("bias", "sinks")))


def attention(operands: dict[str, Array], options: Options) -> tuple[Array, Array]:
    """(output, lse) in q's layout, output in q's format, lse in float32 (float64 for float64).

    Args:
        operands: q, k, v of one format the core reads; bias in lse's format and bool mask, of four axes that
            broadcast to (batch, heads, queries, keys); sinks (1 or batch, heads) and slopes (batch, heads) in
            lse's format; numbers (batch, 3) uint32, the halves of dropout's seed and the number of the batch
            element, and firsts (heads,) int32, the numbers of the heads.
    """
    given = manual.alike(*(operands[name] for name in in_order(options)))
    out, lse = _attention.bind(*given, options=options)
    return out, lse


def _shape_of(q: Any, v: Any) -> tuple[int, ...]:
    return (*q.shape[:3], v.shape[3])


def _outputs(*operands: Any, options: Options) -> list[Any]:
    q, _, v, *_ = operands
    return primitives.shaped(operands, (_shape_of(q, v), q.dtype), (q.shape[:3], wide_dtype(q.dtype)))


def _tangents(*operands: Any, options: Options, wrt: tuple[str, ...]) -> list[Any]:
    return _outputs(*operands[len(wrt) :], options=options)


def _gradients(do: Any, dlse: Any, *operands: Any, options: Options, wrt: tuple[str, ...]) -> list[Any]:
    of = dict(zip(options.smooth, operands, strict=False))
    return primitives.shaped((do, dlse, *operands), *((of[name].shape, of[name].dtype) for name in wrt))


# ---- in JAX's own operations


def _in_jax(*operands: Array, options: Options) -> list[Array]:
    return _by_period(_forward, dict(zip(in_order(options), operands, strict=True)), options)


def _tangent_in_jax(*operands: Array, options: Options, wrt: tuple[str, ...]) -> list[Array]:
    n, m = len(wrt), len(options.smooth)
    smooth, rest = operands[n : n + m], operands[n + m + 2 :]
    moved = dict(zip(wrt, operands[:n], strict=True))

    def outputs(*changed: Array) -> list[Array]:
        given = {**dict(zip(options.smooth, smooth, strict=True)), **dict(zip(wrt, changed, strict=True))}
        return _in_jax(*(given[name] for name in options.smooth), *rest, options=options)

    at = tuple(dict(zip(options.smooth, smooth, strict=True))[name] for name in wrt)
    return list(jax.jvp(outputs, at, tuple(moved.values()))[1])


def _gradient_in_jax(
    do: Array, dlse: Array, *operands: Array, options: Options, wrt: tuple[str, ...]
) -> list[Array]:
    m = len(options.smooth)
    given = dict(zip(options.smooth, operands[:m], strict=True))
    given |= {"do": do, "dlse": dlse, "out": operands[m], "lse": operands[m + 1]}
    given |= dict(zip(in_order(options)[m:], operands[m + 2 :], strict=True))
    made = _by_period(_backward, given, options)
    return [made[("q", "k", "v", "bias", "sinks").index(name)] for name in wrt]


def _forward(given: dict[str, Array], options: Options) -> list[Array]:
    out, lse = pure_attention.forward(
        *(_turned(given[n], options) for n in "qkv"), **_keywords(given, options)
    )
    return [_turned(out, options), _turned(lse, options)]


def _backward(given: dict[str, Array], options: Options) -> list[Array]:
    names = ("do", "dlse", "q", "k", "v", "out", "lse")
    dq, dk, dv, dbias, dsinks = pure_attention.backward(
        *(_turned(given[n], options) for n in names), **_keywords(given, options)
    )
    made = [_turned(a, options) for a in (dq, dk, dv)]
    nothing = jnp.zeros(())
    # The gradient of sinks goes to the first row of a period: the others are the same sinks.
    rows = 1 if "sinks" not in given else given["sinks"].shape[0]
    of_sinks = nothing if dsinks is None else jnp.pad(dsinks[None], ((0, rows - 1), (0, 0)))
    return [*made, nothing if dbias is None else dbias, of_sinks]


def _by_period(function: Any, given: dict[str, Array], options: Options) -> list[Array]:
    """`function` of each period of the batch on its own, side by side."""
    batch = given["q"].shape[0]
    if batch == options.period or not batch:
        return list(function(given, options))
    times = batch // options.period
    shared = {name for name, a in given.items() if name == "firsts" or a.shape[0] != batch}
    split = {
        name: a if name in shared else a.reshape(times, options.period, *a.shape[1:])
        for name, a in given.items()
    }
    axes = {name: None if name in shared else 0 for name in given}
    made = jax.vmap(lambda each: function(each, options), in_axes=(axes,))(split)
    return [a.reshape(-1, *a.shape[2:]) if a.ndim > 1 else a for a in made]


def _turned(array: Array, options: Options) -> Array:
    """From q's layout to (batch, heads, length, ...), or back."""
    return jnp.swapaxes(array, 1, 2) if options.bshd else array


def _keywords(given: dict[str, Array], options: Options) -> dict[str, Any]:
    o, sinks, numbers = options, given.get("sinks"), given.get("numbers")
    side = tuple(None if n < 0 else n for n in (o.left, o.right))
    return {
        "mask": given.get("mask"), "bias": given.get("bias"), "scale": o.scale, "causal": False,
        "lower_right": o.lower_right, "window": side, "softcap": o.softcap or None,
        "sinks": None if sinks is None else sinks[0], "alibi_slopes": given.get("slopes"),
        "dropout_p": o.drop, "seed": 0 if numbers is None else numbers[0, :2],
    }  # fmt: skip


# ---- in the core


def _attributes(options: Options) -> dict[str, Any]:
    codes = {"bias": 1, "sinks": 2, "mask": 4, "slopes": 8, "numbers": 16}
    o = options
    return {
        "present": sum(codes.get(name, 0) for name in o.present), "bshd": o.bshd, "scale": float(o.scale),
        "softcap": float(o.softcap), "lower_right": o.lower_right, "left": o.left, "right": o.right,
        "drop": float(o.drop),
    }  # fmt: skip


def _plain(avals: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]


def _in_core(*operands: Array, options: Options, over: dict[str, Any]) -> list[Array]:
    results = _plain(_outputs(*operands, options=options))
    return native.call("online_softmax_attention", results, operands, **_attributes(options))


def _gradient_in_core(
    do: Array, dlse: Array, *operands: Array, options: Options, wrt: tuple[str, ...], over: dict[str, Any]
) -> list[Array]:
    m = len(options.smooth)
    # The gradient of sinks is made wherever there are sinks; that of the bias costs a pass of its own.
    made = tuple(n for n in options.smooth if n != "bias" or n in wrt)
    results = _plain(_gradients(do, dlse, *operands, options=options, wrt=made))
    q, k, v, *more = operands[:m]
    given = (do, dlse, q, k, v, operands[m], operands[m + 1], *more, *operands[m + 2 :])
    found = dict(zip(made, native.call(
        "online_softmax_attention_grad", results, given, of_bias="bias" in wrt, **_attributes(options)
    ), strict=True))  # fmt: skip
    for name in ("bias", "sinks"):
        if name in wrt:
            found[name] = _summed(found[name], name == "bias", over)
    return [found[name] for name in wrt]


def _summed(part: Array, heads_too: bool, over: dict[str, Any]) -> Array:
    """What each device has summed over its part of the batch and the heads, over all of these."""
    axes = over.get("b", ()) if part.shape[0] == 1 else ()
    axes += over.get("g", ()) if heads_too and part.shape[1] == 1 else ()
    return jax.lax.psum(part, axes) if axes else part


# ---- vmap: its axis and that of the batch become one


def _merged(array: Array, dim: int | None, size: int, each: int) -> Array:
    """(size * each, ...), of an array whose first axis is the batch of `each`, or 1."""
    array = primitives.mapped_first(array, dim, size)
    if array.shape[1] != each:
        array = jnp.broadcast_to(array, (size, each, *array.shape[2:]))
    return array.reshape(size * each, *array.shape[2:])


def _merge(names: Sequence[str], args: Any, dims: Any, alone: set[str]) -> tuple[list[Array], int, int]:
    """Operands with the mapped axis in that of the batch; those in `alone` may stay one for all."""
    size = primitives.mapped_size(args, dims)
    at = names.index("q")
    each = args[at].shape[0 if dims[at] != 0 else 1]
    made = []
    for name, array, dim in zip(names, args, dims, strict=True):
        if name == "firsts" or (name in alone and dim is None and array.shape[0] == 1):
            made.append(array)
        else:
            made.append(_merged(array, dim, size, each))
    return made, size, each


def _batch(args: Any, dims: Any, *, options: Options) -> Any:
    made, size, each = _merge(in_order(options), args, dims, {"bias", "mask", "sinks"})
    found = _attention.bind(*made, options=options)
    return [a.reshape(size, each, *a.shape[1:]) for a in found], [0, 0]


def _batch_tangent(args: Any, dims: Any, *, options: Options, wrt: tuple[str, ...]) -> Any:
    names = [
        *(f"d_{n}" for n in wrt),
        *options.smooth,
        "out",
        "lse",
        *in_order(options)[len(options.smooth) :],
    ]
    # A tangent has the shape of its operand: what has one may not stay one for all.
    made, size, each = _merge(names, args, dims, {"mask"} | ({"bias", "sinks"} - set(wrt)))
    found = _tangent.bind(*made, options=options, wrt=wrt)
    return [a.reshape(size, each, *a.shape[1:]) for a in found], [0, 0]


def _batch_gradient(args: Any, dims: Any, *, options: Options, wrt: tuple[str, ...]) -> Any:
    names = ["do", "dlse", *options.smooth, "out", "lse", *in_order(options)[len(options.smooth) :]]
    made, size, each = _merge(names, args, dims, {"mask"} | ({"bias", "sinks"} - set(wrt)))
    found = []
    for name, array in zip(wrt, _gradient.bind(*made, options=options, wrt=wrt), strict=True):
        split = array.reshape(size, each, *array.shape[1:])
        i = names.index(name)
        shape = args[i].shape if dims[i] is None else args[i].shape[: dims[i]] + args[i].shape[dims[i] + 1 :]
        found.append(jnp.sum(split, 1, keepdims=True) if shape[0] == 1 != each else split)
    return found, [0] * len(found)


_attention = primitives.define(
    "online_softmax_attention", abstract=_outputs, in_core=_in_core, in_jax=_in_jax, batch=_batch,
    factors=lambda *operands, options: gradient_factors(operands, options, ()),
)  # fmt: skip
_tangent = primitives.define(
    "online_softmax_attention_tangent", abstract=_tangents, in_jax=_tangent_in_jax, batch=_batch_tangent
)
_gradient = primitives.define(
    "online_softmax_attention_gradient", abstract=_gradients, in_core=_gradient_in_core,
    in_jax=_gradient_in_jax, batch=_batch_gradient,
    factors=lambda *operands, options, wrt: gradient_factors(operands, options, wrt),
)  # fmt: skip


def _jvp(primals: Any, tangents: Any, *, options: Options) -> Any:
    made = _attention.bind(*primals, options=options)
    m = len(options.smooth)
    moved = dict(zip(options.smooth, tangents, strict=False))
    wrt = tuple(n for n in options.smooth if n in "qkv" or type(moved[n]) is not ad.Zero)
    linear = [ad.instantiate_zeros(moved[name]) for name in wrt]
    return made, _tangent.bind(*linear, *primals[:m], *made, *primals[m:], options=options, wrt=wrt)


def _tangent_transpose(
    cts: list[Array], others: Any, *, options: Options, wrt: tuple[str, ...]
) -> list[Array]:
    made: list[Array] = _gradient.bind(*cts, *others, options=options, wrt=wrt)
    return made


def _gradient_transpose(
    cts: list[Array], others: Any, *, options: Options, wrt: tuple[str, ...]
) -> list[Array]:
    made: list[Array] = _tangent.bind(*cts, *others, options=options, wrt=wrt)
    return made


# Output and lse are operands of the gradient like any others: where the operands move, JAX moves them too.
ad.primitive_jvps[_attention] = checks.any_rank(_jvp)
linear_in(_tangent, lambda options, wrt: len(wrt), _tangent_in_jax, lambda options, wrt: len(options.smooth))
transposed_by(_tangent, lambda options, wrt: len(wrt), _tangent_transpose)
linear_in(_gradient, lambda options, wrt: 2, _gradient_in_jax, lambda options, wrt: len(options.smooth) + 2)
transposed_by(_gradient, lambda options, wrt: 2, _gradient_transpose)
