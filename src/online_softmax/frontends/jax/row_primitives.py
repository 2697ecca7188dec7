"""softmax, log_softmax and logsumexp as one primitive, with its derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from . import checks, manual, native, primitives, pure_rows
from .primitives import Axes, Factors

Array = Any
#: Codes of native/table.h.
_OP = {"softmax": 0, "log_softmax": 1, "logsumexp": 2}


def rows(x: Array, where: Array | None, *, op: str, axes: tuple[int, ...]) -> Array:
    """`op` of x over `axes`.

    Args:
        x: float64, float32, float16 or bfloat16, of at least one axis.
        where: bool, of x's rank, axes as long as x's or 1; or None.
        axes: non-negative, unique, at least one.

    Returns: x's shape and format; of logsumexp without `axes`, in float32 (float64 for float64).
    """
    operands = (x,) if where is None else (x, where)
    return _rows.bind(*manual.alike(*operands), op=op, axes=axes)[0]


def _left(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def _abstract(x: Any, *where: Any, op: str, axes: tuple[int, ...]) -> list[Any]:
    if op != "logsumexp":
        return primitives.shaped((x, *where), (x.shape, x.dtype))
    return primitives.shaped((x, *where), (_left(x.shape, axes), pure_rows.wide_dtype(x.dtype)))


def _in_core(x: Array, *where: Array, op: str, axes: tuple[int, ...], over: dict[str, Any]) -> list[Array]:
    # The result has the shape of what is at hand, which may be a part of the whole.
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _abstract(x, *where, op=op, axes=axes)]
    reduced = sum(1 << axis for axis in axes)
    return native.call("online_softmax_rows", results, (x, *where), op=_OP[op], reduced=reduced)[:1]


def _in_jax(x: Array, *where: Array, op: str, axes: tuple[int, ...]) -> list[Array]:
    if op == "logsumexp":
        x = x.astype(pure_rows.wide_dtype(x.dtype))
    return [getattr(pure_rows, op)(x, axes, *where)]


def _factors(x: Array, *where: Array, op: str, axes: tuple[int, ...]) -> Factors:
    names = tuple(f"d{i}" for i in range(x.ndim))
    operands: list[Axes] = [names]
    for mask in where:
        operands.append(tuple(f"w{i}" if n != x.shape[i] else f"d{i}" for i, n in enumerate(mask.shape)))
    result = names if op != "logsumexp" else tuple(n for i, n in enumerate(names) if i not in axes)
    return Factors(operands, [result], {n for i, n in enumerate(names) if i not in axes}, {})


def _batch(args: Any, dims: Any, *, op: str, axes: tuple[int, ...]) -> Any:
    size = primitives.mapped_size(args, dims)
    x = primitives.mapped_first(args[0], dims[0], size)
    # A mask that is not mapped stays one for all.
    where = [
        jnp.moveaxis(a, d, 0) if d is not None else a[None] for a, d in zip(args[1:], dims[1:], strict=True)
    ]
    return _rows.bind(x, *where, op=op, axes=tuple(a + 1 for a in axes)), [0]


def _jvp(primals: Any, tangents: Any, *, op: str, axes: tuple[int, ...]) -> Any:
    x, *where = primals
    mask = where[0] if where else None
    y = rows(x, mask, op=op, axes=axes)
    wide = pure_rows.wide_dtype(x.dtype)
    t = ad.instantiate_zeros(tangents[0]).astype(wide)
    if mask is not None:  # what takes no part never enters arithmetic
        t = jnp.where(mask, t, 0)
    if op == "softmax":
        p = y.astype(wide)
        dy = p * (t - jnp.sum(p * t, axes, keepdims=True))
    elif op == "log_softmax":
        p = jnp.exp(y.astype(wide))
        dy = t - jnp.sum(p * t, axes, keepdims=True)
        if mask is not None:
            dy = jnp.where(mask, dy, 0)
    else:
        z = x.astype(wide) if mask is None else jnp.where(mask, x.astype(wide), -jnp.inf)
        # A row that `where` leaves nothing of has no share to give, and -inf - -inf would be NaN.
        lse = jnp.expand_dims(y, axes)
        nothing = None if mask is None else ~jnp.any(jnp.broadcast_to(mask, x.shape), axes, keepdims=True)
        lse = lse if nothing is None else jnp.where(nothing, 0, lse)
        dy = jnp.sum(jnp.exp(z - lse) * t, axes)
    return [y], [dy.astype(y.dtype)]


_rows = primitives.define(
    "online_softmax_rows",
    abstract=_abstract,
    in_core=_in_core,
    in_jax=_in_jax,
    batch=_batch,
    factors=_factors,
)
ad.primitive_jvps[_rows] = checks.any_rank(_jvp)
