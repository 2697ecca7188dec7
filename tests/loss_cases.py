"""What the tests of losses share: operands, options, the truth, and what a result is held to.

The truth is the reference's, with the options that it has not (row weights, softcap, temperature, Megatron's
smoothing) written out here. The tolerance is the rounding bound of a row's softmax, `error_bound`, carried
through the formulas of the loss and of its gradient, and the one rounding of the result.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from helpers import (
    DEPTH,
    EXP_UNITS,
    EXP_UNITS_OF_16_BITS,
    FORMATS,
    LOG_UNITS,
    REFERENCE_UNITS,
    assert_close,
    assert_same_bits,
    ulp,
)

import online_softmax as osm
from online_softmax import cpu, reference
from online_softmax.conformance.tolerance.losses import targets as coefficients
from online_softmax.numerics import bounds

INF, NAN = np.inf, np.nan
Array = np.ndarray
every_isa = pytest.mark.parametrize("isa", cpu.isas())
every_format = pytest.mark.parametrize("fmt", FORMATS)

CLASSES = 21
#: For logits (7, 21) or (3, 21, 2) with indices; what probabilities do not have is left out by `for_kind`.
OPTIONS: dict[str, dict[str, Any]] = {
    "weight": {"weight": np.random.default_rng(1).uniform(0, 3, CLASSES)},
    "row weight": {"row_weight": np.random.default_rng(2).uniform(0, 2, (7,))},
    "ignored": {"ignore_index": 3},
    "smoothing": {"label_smoothing": 0.3},
    "megatron": {"label_smoothing": 0.3, "smoothing": "megatron"},
    "z-loss": {"z_loss": 0.25},
    "softcap": {"softcap": 2.5},
    "temperature": {"temperature": 0.4},
    "none": {"reduction": "none"},
    "sum": {"reduction": "sum"},
    "zero": {"empty": "zero"},
}


def pairs(kind: str = "indices") -> list[Any]:
    """Every option alone, and all pairs that do not say the same thing twice; none at all first."""
    names = [name for name in OPTIONS if kind == "indices" or name != "ignored"]
    chosen = [()] + [(name,) for name in names] + list(itertools.combinations(names, 2))
    return [
        pytest.param(some, id=" + ".join(some) or "plain")
        for some in chosen
        if len({key for name in some for key in OPTIONS[name]}) == sum(len(OPTIONS[name]) for name in some)
    ]


def chosen(names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for name in names for key, value in OPTIONS[name].items()}


def operands(
    fmt: str, shape: tuple[int, ...] = (7, CLASSES), kind: str = "indices", seed: int = 0
) -> tuple[Array, Array]:
    """Logits of a few units, and targets: indices or probabilities that do not sum to 1."""
    rng = np.random.default_rng(seed)
    logits = (3 * rng.standard_normal(shape)).astype(FORMATS[fmt])
    if kind == "probabilities":
        return logits, rng.uniform(0, 1, shape) ** 2
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    return logits, rng.integers(0, shape[1 if len(shape) > 1 else 0], rows)


@dataclass(frozen=True)
class Truth:
    """Of one call, float64: rows flat, classes last."""

    loss: Any
    rows: Array  # the loss of each row, row weight included
    lse: Array
    gradient: Array  # of the logits' shape
    # What the bounds are made of.
    z: Array
    slope: Array
    share: Array
    own: Array  # (n, C) bool: the target, of indices
    g: Array  # upstream of each row's loss
    dlse: Array
    denominator: float
    weights: Array


def truth(
    logits: Array, targets: Any, *, dloss: Any = 1.0, dlse: Any = None, weight: Any = None,
    row_weight: Any = None,
    ignore_index: int = -100, label_smoothing: float = 0.0, smoothing: str = "pytorch", z_loss: float = 0.0,
    softcap: float | None = None, temperature: float = 1.0, reduction: str = "mean", empty: str = "nan",
) -> Truth:  # fmt: skip
    """Classes on axis 1 of logits, or the only one."""
    x = logits.astype(np.float64)
    at = 1 if x.ndim > 1 else 0
    classes = x.shape[at]
    shape = x.shape[:at] + x.shape[at + 1 :]
    with np.errstate(all="ignore"):
        z = x if softcap is None else softcap * np.tanh(x / softcap)
        slope = np.ones_like(x) if softcap is None else 1 / np.cosh(x / softcap) ** 2
        z, slope = z / temperature, slope / temperature
    e = label_smoothing * classes / (classes - 1) if smoothing == "megatron" else label_smoothing
    common = {"weight": weight, "ignore_index": ignore_index, "label_smoothing": e, "z_loss": z_loss}
    by_row = np.broadcast_to(1.0 if row_weight is None else np.asarray(row_weight, np.float64), shape)
    rows, lse = reference.cross_entropy(z, targets, reduction="none", return_lse=True, **common)
    kept = (
        np.asarray(targets) != ignore_index
        if np.asarray(targets).dtype.kind in "iu"
        else np.ones(shape, bool)
    )
    rows = np.where(kept, rows * by_row, 0)
    inputs = {"logits": z, "targets": np.asarray(targets)}
    if weight is not None:
        inputs["weight"] = np.asarray(weight, np.float64)
    share, _, divisor = coefficients(inputs, {"label_smoothing": e, "ignore_index": ignore_index})
    denominator = float((divisor * by_row.reshape(-1)).sum())
    with np.errstate(all="ignore"):
        if reduction == "none":
            loss, g = rows, np.broadcast_to(np.asarray(dloss, np.float64), shape) * by_row
        elif reduction == "sum":
            loss, g = rows.sum(), dloss * by_row
        else:
            nothing = denominator == 0 and empty == "zero"
            loss = 0.0 if nothing else rows.sum() / np.float64(denominator)
            g = by_row * (0.0 if nothing else dloss / np.float64(denominator))
    upstream = None if dlse is None else np.broadcast_to(np.asarray(dlse, np.float64), shape)
    gradient = reference.cross_entropy_vjp(z, targets, g, dlse=upstream, reduction="none", **common)
    with np.errstate(all="ignore"):
        gradient = np.where(gradient == 0, 0, gradient * slope)
    own = np.zeros(share.shape, bool)
    if np.asarray(targets).dtype.kind in "iu":
        flat = np.asarray(targets).reshape(-1)
        own = (np.arange(classes) == flat[:, None]) & kept.reshape(-1)[:, None]

    def last(a: Array) -> Array:
        return np.moveaxis(a, at, -1).reshape(-1, classes)

    return Truth(
        loss, rows.reshape(-1), np.asarray(lse).reshape(-1), gradient, last(z), last(slope), share, own,
        np.where(kept, g, 0).reshape(-1), np.zeros(len(share)) if upstream is None else upstream.reshape(-1),
        denominator, by_row.reshape(-1),
    )  # fmt: skip


def limits(right: Truth, dtype: np.dtype[Any], options: dict[str, Any]) -> tuple[Array, Array, Array]:
    """Largest errors of (loss of each row, lse of each row, gradient (n, C)) before their last rounding."""
    single = dtype != np.float64
    computed = FORMATS["f32" if single else "f64"]
    u = bounds.unit_roundoff(computed)
    mapped = options.get("softcap") is not None or options.get("temperature", 1.0) != 1.0
    z, z_loss = right.z, abs(options.get("z_loss", 0.0))
    finite = np.isfinite(z.max(axis=-1, keepdims=True))
    rows = np.where(finite, z, 0.0)
    # Rows of NaN and infinities have no rounding error.
    right = replace(right, slope=np.where(finite, right.slope, 0.0), share=np.where(finite, right.share, 0.0))
    short = dtype.itemsize == 2 and not mapped
    of_row = bounds.error_bound(
        rows, "batch", computed, depth=DEPTH, exp_error=u * (EXP_UNITS_OF_16_BITS if short else EXP_UNITS),
        log_error=LOG_UNITS * u, exact_top=False,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        p = np.where(finite, np.exp(rows - right.lse[:, None]), 0.0)
        lse = np.where(np.isfinite(right.lse), np.abs(right.lse), 0.0)
        far = np.where(np.isfinite(rows), np.abs(rows), 0.0)
        # A score is rounded where softcap or temperature make it: quotient, tanh of 4 units, two products.
        size = far.max(axis=-1)
        dz = 8 * u * size if mapped else np.zeros(len(rows))
        live = np.isfinite(rows)
        log_y = np.where(right.share > 0, np.where(live, of_row.log_y, 0), 0)
        loss = (right.share * log_y).sum(axis=-1)
        total = right.share.sum(axis=-1)
        if np.count_nonzero(right.share, axis=-1).max(initial=0) > 1:
            # Sums of scores from a pivot of the row: difference, weight, product, three additions.
            reach = np.where(live, rows, -np.inf).max(-1) - np.where(live, rows, np.inf).min(-1)
            loss = loss + 8 * u * total * (2 * reach + np.log(rows.shape[-1]))
        loss = loss + 2 * dz * total + z_loss * (2 * lse * (of_row.lse + dz) + 4 * u * lse**2)
        loss = right.weights * loss + 4 * u * np.where(np.isfinite(right.rows), np.abs(right.rows), 0)
        g, dlse = np.abs(right.g), np.abs(right.dlse)
        by = g * total + dlse + 2 * z_loss * lse * g
        of_p = of_row.y
        others = of_p.sum(axis=-1, keepdims=True) - of_p
        of_p = np.where(right.own, np.minimum(of_p, others), of_p)
        error = by[:, None] * (of_p + p * np.expm1(2 * dz)[:, None] + np.exp(-104.0 if single else -745.0))
        error = error + p * (2 * z_loss * g * (of_row.lse + dz))[:, None]
        shared = right.share - np.where(right.own, right.share, 0)
        error = error + 6 * u * (np.where(right.own, 0, by[:, None] * p) + g[:, None] * shared)
        # The target's gradient is put together in float64, whatever the logits are.
        error = error + 8 * 2.0**-53 * np.where(
            right.own, by[:, None] * p + g[:, None] * right.share * (1 - p), 0
        )
        # Slopes: 4e / (1 + e)^2 with e = exp(-2 |x / cap|), whose argument is rounded.
        steep = 0.0
        if options.get("softcap") is not None:
            x = np.arccosh(np.sqrt(1 / np.clip(right.slope * options.get("temperature", 1.0), 1e-300, 1)))
            steep = u * (16 + 8 * x)
        size = by[:, None] * p + g[:, None] * right.share
        gradient = np.abs(right.slope) * (error + (steep + (6 * u if mapped else 0)) * size)
        if options.get("softcap") is not None:  # that exponential is 0 from here on
            gradient = (
                gradient + 4 * np.exp(-87.0 if single else -708.0) / options.get("temperature", 1.0) * size
            )
    lse_error = of_row.lse + dz
    if not single:
        loss = loss + REFERENCE_UNITS * u * np.where(np.isfinite(right.rows), np.abs(right.rows), 0)
    return loss, lse_error, gradient


def hold(
    logits: Array,
    targets: Any,
    *,
    isa: str | None = None,
    threads: int | None = None,
    dloss: Any = 1.0,
    dlse: Any = None,
    label: str = "",
    **options: Any,
) -> None:
    """Loss, lse and gradient are within the bound; forward, backward and both in one have the same bits."""
    right = truth(logits, targets, dloss=dloss, dlse=dlse, **options)
    dtype = logits.dtype
    wide = FORMATS["f64" if dtype == np.float64 else "f32"]
    of_loss, of_lse, of_gradient = limits(right, dtype, options)
    run = {"isa": isa, "threads": threads}
    made = osm.cross_entropy(logits, targets, return_lse=True, **options, **run)
    loss = np.asarray(made.loss)
    assert loss.dtype == wide, label
    assert made.lse.dtype == wide, label
    at = 1 if logits.ndim > 1 else 0
    shape = logits.shape[:at] + logits.shape[at + 1 :]
    reduction = options.get("reduction", "mean")
    if reduction == "none":
        allowed = of_loss.reshape(shape)
    else:
        allowed = of_loss.sum() + len(of_loss) * 2.0**-53 * np.nansum(
            np.abs(right.rows[np.isfinite(right.rows)])
        )
        if reduction == "mean" and right.denominator:
            allowed = allowed / right.denominator
    assert_close(loss, right.loss, allowed + 0.5 * ulp(np.asarray(right.loss), wide), f"loss {label}")
    lse = right.lse.reshape(shape)
    assert_close(made.lse, lse, of_lse.reshape(shape) + 0.5 * ulp(lse, wide), f"lse {label}")
    gradient = osm.cross_entropy_backward(dloss, logits, targets, dlse=dlse, **options, **run)
    assert gradient.dtype == dtype, label
    back = np.moveaxis(of_gradient.reshape(*shape, -1), -1, at)
    unit = bounds.unit_roundoff(wide)
    with np.errstate(invalid="ignore"):
        last = 0.5 * ulp(right.gradient, dtype) + unit * np.where(
            np.isfinite(right.gradient), np.abs(right.gradient), 0
        )
    assert_close(gradient, right.gradient, back + last, f"gradient {label}")
    if dlse is None:
        fused = osm.cross_entropy_with_gradient(logits, targets, dloss=dloss, **options, **run)
        assert_same_bits(fused.gradient, gradient, f"fused gradient {label}")
        assert_same_bits(
            fused.loss, osm.cross_entropy(logits, targets, **options, **run), f"fused loss {label}"
        )
        assert_same_bits(fused.loss, loss, f"loss beside lse {label}")
