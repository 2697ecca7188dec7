"""Derivatives of the primitives that stand for a tangent or a gradient: linear in their first operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad

from . import checks

Array = Any


def linear_in(
    primitive: Primitive,
    linear: Callable[..., int],
    in_jax: Callable[..., list[Array]],
    real: Callable[..., int],
) -> None:
    """Forward mode of a primitive that is linear in its first operands and smooth in some that follow.

    The tangent of the linear operands goes through the primitive itself, that of the others through the
    derivative of `in_jax`.

    Args:
        linear: number of linear operands, from the parameters.
        real: number of operands that follow these and may have a tangent.
    """

    def jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
        n = linear(**parameters)
        m = n + real(**parameters)
        made = primitive.bind(*primals, **parameters)
        total: list[Any] = [None] * len(made)
        if not all(type(t) is ad.Zero for t in tangents[:n]):
            moved = [ad.instantiate_zeros(t) for t in tangents[:n]]
            total = list(primitive.bind(*moved, *primals[n:], **parameters))
        if not all(type(t) is ad.Zero for t in tangents[n:m]):
            function = _compiled(in_jax, *sorted(parameters.items()))
            moved = [ad.instantiate_zeros(t) for t in tangents[n:m]]

            def others(*smooth: Array) -> list[Array]:
                return function(*primals[:n], *smooth, *primals[m:])

            _, more = jax.jvp(others, tuple(primals[n:m]), tuple(moved))
            total = [b if a is None else a + b for a, b in zip(total, more, strict=True)]
        return made, total

    ad.primitive_jvps[primitive] = jvp


def transposed_by(
    primitive: Primitive, linear: Callable[..., int], transpose: Callable[..., list[Array]]
) -> None:
    """Reverse mode: `transpose(cotangents, others, **parameters)` gives one for each linear operand."""

    def rule(cotangents: Any, *operands: Any, **parameters: Any) -> Any:
        n = linear(**parameters)
        cts = [ad.instantiate_zeros(ct) for ct in cotangents]
        made = transpose(cts, operands[n:], **parameters)
        given = [
            ct if ad.is_undefined_primal(operand) else None
            for ct, operand in zip(made, operands[:n], strict=True)
        ]
        return [*given, *([None] * (len(operands) - n))]

    ad.primitive_transposes[primitive] = rule


@cache
def _compiled(in_jax: Callable[..., list[Array]], *parameters: tuple[str, Any]) -> Callable[..., list[Array]]:
    """One computation, where it is run at once, and not one an operation."""
    compiled: Callable[..., list[Array]] = jax.jit(partial(checks.any_rank(in_jax), **dict(parameters)))
    return compiled
