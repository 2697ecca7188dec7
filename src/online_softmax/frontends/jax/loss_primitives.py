"""Cross-entropy of rows, its tangent and its gradient as primitives.

The loss has a rule for its tangent, which is linear in the logits' tangent and has the native gradient for a
transpose: one sweep for the cotangents of loss and lse together, with nothing kept but the logits. Tangents,
and derivatives past the first, are made in JAX's own operations from `pure_losses`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from ...loss_rules import Rules
from . import checks, manual, native, primitives, pure_losses
from .linear_rules import linear_in, transposed_by
from .primitives import Axes, Factors
from .pure_rows import wide_dtype

Array = Any


class Options(NamedTuple):
    """What is known when the computation is built. softcap: None for no cap."""

    label_smoothing: float
    megatron: bool
    z_loss: float
    softcap: float | None
    temperature: float
    ignore_index: int


def loss_rows(
    logits: Array, targets: Array, class_weight: Array | None, options: Options
) -> tuple[Array, Array]:
    """Loss and lse of each row, float32 (float64 for float64).

    Args:
        logits: (..., classes) of a format the core reads, at least one class.
        targets: (...) int32 or int64; one that is neither a class nor ignore_index gives NaN.
        class_weight: (classes,) in the format of the results, or None: a constant.
    """
    operands = manual.alike(logits, targets, *_optional(class_weight))
    loss, lse = _loss.bind(*operands, options=options)
    return loss, lse


def _optional(class_weight: Array | None) -> tuple[Array, ...]:
    return () if class_weight is None else (class_weight,)


def _of_rows(logits: Any, targets: Any, *weight: Any, options: Options) -> list[Any]:
    wide = wide_dtype(logits.dtype)
    return primitives.shaped((logits, targets, *weight), (targets.shape, wide), (targets.shape, wide))


def _of_tangent(t: Any, logits: Any, targets: Any, *weight: Any, options: Options) -> list[Any]:
    wide = wide_dtype(logits.dtype)
    return primitives.shaped((t, logits, targets, *weight), (targets.shape, wide), (targets.shape, wide))


def _of_gradient(
    d_loss: Any, d_lse: Any, logits: Any, targets: Any, *weight: Any, options: Options
) -> list[Any]:
    return primitives.shaped((d_loss, d_lse, logits, targets, *weight), (logits.shape, logits.dtype))


def _keywords(weight: tuple[Array, ...], options: Options) -> dict[str, Any]:
    return {"class_weight": weight[0] if weight else None, **options._asdict()}


def _loss_in_jax(logits: Array, targets: Array, *weight: Array, options: Options) -> list[Array]:
    return list(pure_losses.cross_entropy_rows(logits, targets, **_keywords(weight, options)))


def _gradient_in_jax(
    d_loss: Array, d_lse: Array, logits: Array, targets: Array, *weight: Array, options: Options
) -> list[Array]:
    keywords = _keywords(weight, options)
    return [pure_losses.cross_entropy_rows_grad(d_loss, d_lse, logits, targets, **keywords)]


def _tangent_in_jax(t: Array, logits: Array, targets: Array, *weight: Array, options: Options) -> list[Array]:
    wide = wide_dtype(logits.dtype)
    one, none = jnp.ones(targets.shape, wide), jnp.zeros(targets.shape, wide)
    made = []
    for d_loss, d_lse in ((one, none), (none, one)):
        (slope,) = _gradient_in_jax(d_loss, d_lse, logits.astype(wide), targets, *weight, options=options)
        made.append(jnp.sum(slope * t.astype(wide), -1))
    return made


def _attributes(options: Options, classes: int) -> dict[str, Any]:
    o = options
    smoothing = "megatron" if o.megatron else "pytorch"
    rules = Rules(
        o.ignore_index, o.label_smoothing, smoothing, o.z_loss, o.softcap or 0.0, o.temperature, "none", "nan"
    )
    rule = rules.rule(classes)
    return {
        "sharp": float(rule.sharp), "uniform": float(rule.uniform), "z_loss": float(rule.z_loss),
        "softcap": float(rule.softcap), "inverse_temperature": float(rule.inverse_temperature),
        "ignore_index": o.ignore_index,
    }  # fmt: skip


def _loss_in_core(
    logits: Array, targets: Array, *weight: Array, options: Options, over: dict[str, Any]
) -> list[Array]:
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _of_rows(logits, targets, options=options)]
    attributes = _attributes(options, logits.shape[-1])
    return native.call("online_softmax_loss", results, (logits, targets, *weight), **attributes)


def _gradient_in_core(
    d_loss: Array, d_lse: Array, logits: Array, targets: Array, *weight: Array, options: Options,
    over: dict[str, Any],
) -> list[Array]:  # fmt: skip
    results = [jax.ShapeDtypeStruct(logits.shape, logits.dtype)]
    operands = (d_loss, d_lse, logits, targets, *weight)
    return native.call(
        "online_softmax_loss_grad", results, operands, **_attributes(options, logits.shape[-1])
    )


def _axes_of(targets: Array) -> Axes:
    return tuple(f"d{i}" for i in range(targets.ndim))


def _loss_factors(logits: Array, targets: Array, *weight: Array, options: Options) -> Factors:
    rows = _axes_of(targets)
    operands: list[Axes] = [(*rows, "c"), rows, *([("c",)] if weight else [])]
    return Factors(operands, [rows, rows], {str(r) for r in rows}, {})


def _gradient_factors(
    d_loss: Array, d_lse: Array, logits: Array, targets: Array, *weight: Array, options: Options
) -> Factors:
    rows = _axes_of(targets)
    operands: list[Axes] = [rows, rows, (*rows, "c"), rows, *([("c",)] if weight else [])]
    return Factors(operands, [(*rows, "c")], {str(r) for r in rows}, {})


def _batch_by(name: str, operands: int) -> Any:
    """Rows of the mapped axis are rows like any others; `operands` of them come before the weights."""

    def batch(args: Any, dims: Any, *, options: Options) -> Any:
        primitive, in_jax = _PRIMITIVES[name]
        if any(d is not None for d in dims[operands:]):  # weights of their own for each: no way of the core
            made = jax.vmap(partial(checks.any_rank(in_jax), options=options), in_axes=tuple(dims))(*args)
        else:
            size = primitives.mapped_size(args, dims)
            first = [primitives.mapped_first(a, d, size) for a, d in zip(args[:operands], dims, strict=False)]
            made = primitive.bind(*first, *args[operands:], options=options)
        return made, [0] * len(made)

    return batch


_loss = primitives.define(
    "online_softmax_loss", abstract=_of_rows, in_core=_loss_in_core, in_jax=_loss_in_jax,
    batch=_batch_by("loss", 2), factors=_loss_factors,
)  # fmt: skip
_tangent = primitives.define(
    "online_softmax_loss_tangent", abstract=_of_tangent, in_jax=_tangent_in_jax, batch=_batch_by("tangent", 3)
)
_gradient = primitives.define(
    "online_softmax_loss_gradient", abstract=_of_gradient, in_core=_gradient_in_core, in_jax=_gradient_in_jax,
    batch=_batch_by("gradient", 4), factors=_gradient_factors,
)  # fmt: skip
_PRIMITIVES: dict[str, tuple[Any, Any]] = {
    "loss": (_loss, _loss_in_jax),
    "tangent": (_tangent, _tangent_in_jax),
    "gradient": (_gradient, _gradient_in_jax),
}


def _loss_jvp(primals: Any, tangents: Any, *, options: Options) -> Any:
    made = _loss.bind(*primals, options=options)
    return made, _tangent.bind(ad.instantiate_zeros(tangents[0]), *primals, options=options)


def _tangent_transpose(cts: list[Array], others: Any, *, options: Options) -> list[Array]:
    made: list[Array] = _gradient.bind(*cts, *others, options=options)
    return made


def _gradient_transpose(cts: list[Array], others: Any, *, options: Options) -> list[Array]:
    made: list[Array] = _tangent.bind(*cts, *others, options=options)
    return made


ad.primitive_jvps[_loss] = checks.any_rank(_loss_jvp)
linear_in(_tangent, lambda options: 1, _tangent_in_jax, lambda options: 1)
transposed_by(_tangent, lambda options: 1, _tangent_transpose)
linear_in(_gradient, lambda options: 2, _gradient_in_jax, lambda options: 1)
transposed_by(_gradient, lambda options: 2, _gradient_transpose)
