"""`error_bound`: how far from the truth the statistics and results of a row may be, whatever goes wrong.

`order="any"` is one law, whose bounds are in `any_order`; the rest of this is about the others. Rigorous for
the arithmetic that `partial_sums` names, and not to first order: see there. Each result is one
more step on top of the bound on the sum s.

    s       relative error rho: what the order of summation makes of the leaves' errors
    log s   max(log(1 + rho), -log(least s / s)), then e_log * |log s|
    lse     the error of log s, then one rounding of m + log s
    log y   the error of log s, u * (M - x_j) for the first difference, one rounding of the second
    y       the exponential's error and y times the error of s, over the least s; then one rounding
    o       the same for the weighted sum: (error of sum w * v + |o| * error of s) / least s, rounded

The least s is the greater of s - error and of the maximum's own exponential, which no later addition lowers.
Sources: Blanchard, Higham & Higham 2021 (batch log-sum-exp and softmax); Rump 2012 (min(|a|, |b|) in a sum).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .any_order import FLOOR, LAWS, any_order
from .partial_sums import EVALUATION, Amount, Model, balanced, chain, merge
from .roundoff import Array, Rounding

ALGORITHMS: Final = ("batch", "streaming", "blocked", "tree")
ORDERS: Final = ("row", "any")
#: Entries of a block ("blocked") or leaf ("tree") where none is given.
BLOCK: Final = 128
#: Default errors of exp and log in units of u: one unit in the last place. One rounding is 1.
FUNCTION_UNITS: Final = 2.0
#: A bound is made greater by this part of it, and by float64's own floor: more than its making may have lost.
SLACK: Final = 1e-10


@dataclass(frozen=True)
class ErrorBound:
    """Bounds on |computed - true|, float64. 0 where the result is exact whatever the arithmetic: rows whose
    maximum is not finite (results NaN or infinite), entries of -inf. Infinite where a result may overflow, or
    may be anything.

    Attributes:
        s: (...) relative error of the sum of exponentials, at the row's maximum.
        lse: (...) absolute error of the log-sum-exp.
        y, log_y: (..., n) absolute error of softmax and log-softmax.
        o: (..., d) absolute error of the attention output, or None where no values were given.
    """

    s: Array
    lse: Array
    y: Array
    log_y: Array
    o: Array | None = None


@dataclass(frozen=True)
class _Plan:
    """What one call asks for, checked."""

    algorithm: str
    block: int
    depth: int | None
    model: Model
    e_log: float
    out: Rounding | None
    order: str = "row"


def error_bound(
    x: ArrayLike,
    algorithm: str | None = None,
    format: DTypeLike | None = None,
    *,
    order: str = "row",
    block: int | None = None,
    depth: int | None = None,
    exp_error: float | None = None,
    log_error: float | None = None,
    exp_format: DTypeLike | None = None,
    out_format: DTypeLike | None = None,
    values: ArrayLike | None = None,
    flush: bool = False,
    exact_top: bool = True,
) -> ErrorBound:
    """Bounds on the error of s, lse, y, log y and attention output of rows x, by one of four algorithms or by
    the law of `order="any"`.

    Args:
        x: (..., n) rows, up to float64. Entries that `format` does not hold are taken to be rounded to it
            first, and that error is in the bound.
        algorithm: "batch" (maximum, then exponentials, then one running sum), "streaming" (one entry at a
            time, the sum rescaled at each new maximum), "blocked" (one block at a time: its maximum joined,
            its exponentials summed one by one, the sum so far rescaled, the block's added), "tree" (each
            block a state of its own, the states merged in pairs).
        format: of the differences, exponentials, sums, logarithm and quotients: float64, float32, float16 or
            bfloat16, by name or dtype.
        order: "row", or "any" for the law of `order="any"` (derived in `numerics.any_order`), which is one
            algorithm: none is named then. Its format is float32 or float64; where None, float64 for x of
            float64, else float32. Of the options below it has out_format, and flush, which changes nothing.
        block: entries of a block, "blocked" and "tree" only; 128 where None.
        depth: "batch" only: most additions a term goes through; None for one running sum.
        exp_error, log_error: relative errors of the functions, 2u where None. exp is at most 1 up to 0.
        exp_format: format the exponentials are kept in, where not `format` (rescale factors stay in
            `format`).
        out_format: format lse, y, log y and o are rounded to at the end.
        values: (..., n, d), or what broadcasts to it: the v of the attention output sum(y_i * v_i), made as
            sum(exp * v) / s in the same order as s; finite but where x is -inf, which takes no part.
        flush: results below the normal numbers become 0.
        exact_top: the maximum's own exponential is exactly 1, as exp(x - m) makes it. False for a kernel that
            takes another pivot than the maximum: its every exponential errs. Factors for a maximum that stays
            are 1 in any case.

    Raises: ValueError for an argument that is none of these. Cost: under a microsecond an entry; memory
    about 30 float64 arrays of x's size (of the values' size, with values).
    """
    if order == "any":
        refused: dict[str, object] = {"algorithm": algorithm, "block": block, "depth": depth}
        refused |= {"exp_error": exp_error, "log_error": log_error, "exp_format": exp_format}
        refused |= {"values": values, "exact_top": None if exact_top else exact_top}
        plan = _plan_any(x, format, out_format, refused)
    else:
        plan = _plan(
            _named(order, algorithm), format,
            block, depth, exp_error, log_error, exp_format, out_format, flush, exact_top,
        )  # fmt: skip
    rows = _real(x, "x")
    if rows.ndim == 0:
        raise ValueError("x: a single number is given: rows (..., n) would do")
    v = None if values is None else _values(values, rows)
    with np.errstate(all="ignore"):
        return _bound(rows, v, plan)


def _named(order: str, algorithm: str | None) -> str:
    if order not in ORDERS:
        raise ValueError(f"order: {order!r} is unknown: one of {', '.join(ORDERS)} would do")
    if algorithm is None:
        raise ValueError(f"algorithm: none is given: one of {', '.join(ALGORITHMS)} would do")
    return algorithm


def _plan_any(
    x: ArrayLike, format: DTypeLike | None, out_format: DTypeLike | None, refused: dict[str, object]
) -> _Plan:
    for name, given in refused.items():
        if given is not None:
            raise ValueError(f"{name}: it is given with order='any': no {name}, or order='row', would do")
    if format is None:
        format = "float64" if np.asarray(x).dtype == np.float64 else "float32"
    arithmetic = Rounding.of(format)
    if arithmetic.dtype.name not in LAWS:
        raise ValueError(
            f"format: {arithmetic.dtype.name!r} is given with order='any': one of {', '.join(LAWS)} would do"
        )
    out = None if out_format is None else Rounding.of(out_format, name="out_format")
    return _Plan("any", BLOCK, None, Model(arithmetic, 0.0), 0.0, out, "any")


def _plan(
    algorithm: str,
    format: DTypeLike | None,
    block: int | None,
    depth: int | None,
    exp_error: float | None,
    log_error: float | None,
    exp_format: DTypeLike | None,
    out_format: DTypeLike | None,
    flush: bool,
    exact_top: bool,
) -> _Plan:
    check_algorithm(algorithm, block)
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, (int, np.integer))):
        raise ValueError(f"depth: {depth!r} is given: a whole number of at least 0 would do")
    if depth is not None and (algorithm != "batch" or not 0 <= depth < 1 << 62):
        raise ValueError(f"depth: {depth} is given to {algorithm!r}: 0 or more, with 'batch', would do")
    arithmetic = Rounding.of(format, flush=flush)
    default = FUNCTION_UNITS * arithmetic.u
    errors = {"exp_error": exp_error, "log_error": log_error}
    for name, value in errors.items():
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{name}: {value} is given: a relative error from 0 to below 1 would do")
    stored = None if exp_format is None else Rounding.of(exp_format, flush=flush, name="exp_format")
    out = None if out_format is None else Rounding.of(out_format, flush=flush, name="out_format")
    return _Plan(
        algorithm,
        BLOCK if block is None else block,
        depth,
        Model(arithmetic, default if exp_error is None else exp_error, stored, exact_top),
        default if log_error is None else log_error,
        out,
    )


def check_algorithm(algorithm: str, block: int | None) -> None:
    """ValueError where the algorithm is unknown, or the block is not a positive length or not applied."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: {algorithm!r} is unknown: one of {', '.join(ALGORITHMS)} would do")
    if block is not None and (isinstance(block, bool) or not isinstance(block, (int, np.integer))):
        raise ValueError(f"block: {block!r} is given: a whole number of at least 1 would do")
    if block is not None and (algorithm not in ("blocked", "tree") or block < 1):
        raise ValueError(
            f"block: {block} is given to {algorithm!r}: 1 or more, with blocked or tree, would do"
        )


def _real(x: ArrayLike, name: str) -> Array:
    array = np.asarray(x)
    if array.dtype.kind in "cOUSmM":
        raise ValueError(f"{name}: dtype {array.dtype} is given: real numbers up to float64 would do")
    return array.astype(np.float64)


def _values(values: ArrayLike, rows: Array) -> Array:
    """(..., d, n) float64, 0 where the score is -inf. ValueError for a wrong shape or values not finite."""
    v = _real(values, "values")
    try:
        if v.ndim < 2:
            raise ValueError("no axes of n and d")
        v = np.broadcast_to(v, (*rows.shape, v.shape[-1]))
    except ValueError:
        raise ValueError(
            f"values: shape {v.shape} is given with x of {rows.shape}: (..., n, d), or what broadcasts to "
            "it, would do"
        ) from None
    v = np.where(rows[..., None] == -np.inf, 0, v)
    with np.errstate(invalid="ignore"):
        usable = np.isfinite(np.max(rows, axis=-1, initial=-np.inf))[..., None, None]
    if not (np.isfinite(v) | ~usable).all():
        raise ValueError("values: not all are finite: finite ones would do")
    return np.where(usable, np.swapaxes(v, -1, -2), 0)


def _bound(rows: Array, v: Array | None, plan: _Plan) -> ErrorBound:
    top = np.max(rows, axis=-1, keepdims=True, initial=-np.inf)
    finite = np.isfinite(top)
    used = np.where(finite, rows, 0.0)
    dtype = plan.model.format.dtype
    held = used.astype(dtype).astype(np.float64)
    kept = np.isfinite(np.max(held, axis=-1, keepdims=True, initial=-np.inf)) | (rows.shape[-1] == 0)
    held = np.where(kept, held, 0.0)
    v_held = None if v is None else v.astype(dtype).astype(np.float64)
    result = _of_rows(held, v_held, plan)
    if (held != used).any() or (v is not None and (v != v_held).any()):
        result = _with_operands(result, (used, held), (v, v_held))
    found = [result.s, result.lse, result.y, result.log_y] + ([] if result.o is None else [result.o])
    flat, lost = finite[..., 0], ~kept[..., 0]
    masks = [(flat, lost), (flat, lost), (finite, ~kept), (finite, ~kept), (finite, ~kept)]
    out = []
    for error, (real, overflown) in zip(found, masks, strict=False):
        certain = np.where(np.isnan(error) | overflown, np.inf, error)
        grown = certain * (1 + SLACK + 8 * rows.shape[-1] * EVALUATION)
        out.append(np.where(real, grown, 0))
    exact = (rows == -np.inf) & finite
    out[2], out[3] = np.where(exact, 0, out[2]), np.where(exact, 0, out[3])
    return ErrorBound(*out)


def _of_rows(rows: Array, v: Array | None, plan: _Plan) -> ErrorBound:
    """Bounds for rows of finite maximum that the format holds."""
    if rows.shape[-1] == 0:
        zero, o = np.zeros(rows.shape[:-1]), None if v is None else np.zeros(v.shape[:-1])
        return ErrorBound(zero, zero, np.zeros(rows.shape), np.zeros(rows.shape), o)
    if plan.order == "any":
        return ErrorBound(*any_order(rows, plan.model.format, plan.out))
    model, arithmetic = plan.model, plan.model.format
    top = np.max(rows, axis=-1, keepdims=True)
    distance = top - rows
    s = _sum(rows, None, plan)
    low = np.maximum(s.value - s.error, model.least_top * (1 - SLACK))
    log_s = np.log(s.value)
    missing = np.minimum(s.error / s.value, 1 - model.least_top / s.value + 4 * EVALUATION)
    off = np.maximum(np.log1p(s.error / s.value), -np.log1p(-missing))
    off = off + plan.e_log * (log_s + off)

    lse = np.abs(top[..., 0] + log_s)
    lse_error = off + arithmetic.of_sum(lse + off)

    log_y = distance + log_s[..., None]
    log_y_error = arithmetic.of_sum(distance) + off[..., None]
    log_y_error = log_y_error + arithmetic.of_sum(log_y + log_y_error)

    leaf = model.leaf(distance)
    y = leaf.value / s.value[..., None]
    y_error = (leaf.error + y * s.error[..., None]) / low[..., None]
    y_error = y_error + arithmetic.error(y + y_error) + FLOOR
    if model.exact_top:
        # No exponential is above 1, and the sum is at least the maximum's own 1: a computed y is at most 1.
        y_error = np.minimum(y_error, np.maximum(y, 1 - y) + 4 * EVALUATION)

    o = o_error = None
    if v is not None:
        weighted = _sum(rows, v, plan)
        o = np.abs(weighted.value) / s.value[..., None]
        o_error = (weighted.error + o * s.error[..., None]) / low[..., None]
        o_error = o_error + arithmetic.error(o + o_error) + rows.shape[-1] * FLOOR
    if plan.out is not None:
        lse_error = lse_error + plan.out.error(lse + lse_error)
        log_y_error = log_y_error + plan.out.error(log_y + log_y_error)
        y_error = y_error + plan.out.error(y + y_error)
        o_error = None if o is None or o_error is None else o_error + plan.out.error(o + o_error)
    return ErrorBound(s.error / s.value, lse_error, y_error, log_y_error, o_error)


def _sum(rows: Array, v: Array | None, plan: _Plan) -> Amount:
    """Sum of exp(x - M), or of that times each column of v: (...) or (..., d)."""
    floor = plan.model.least_top if v is None else 0.0
    if v is not None:
        rows = rows[..., None, :]
    model = plan.model

    def leaves(at: Array, top: Array, v: Array | None) -> Amount:
        leaf = model.leaf(np.where(at == -np.inf, np.inf, top - at))
        return leaf if v is None else model.weigh(leaf, v)

    if plan.algorithm == "batch":
        top = np.max(rows, axis=-1, keepdims=True)
        terms = leaves(rows, top, v)
        if plan.depth is not None:
            return balanced(terms, plan.depth, model)
        return chain(terms, top, model, floor=floor)
    if plan.algorithm == "streaming":
        top = np.maximum.accumulate(rows, axis=-1)
        return chain(leaves(rows, top, v), top, model, floor=floor)

    cut = _blocks(rows, plan.block, -np.inf)
    v = None if v is None else _blocks(v, plan.block, 0.0)
    top = np.max(cut, axis=-1)
    if plan.algorithm == "blocked":
        top = np.maximum.accumulate(top, axis=-1)
        terms = leaves(cut, top[..., None], v)
        return chain(chain(terms, top[..., None], model, floor=0.0), top, model, floor=floor)
    terms = leaves(cut, top[..., None], v)
    return _tree(chain(terms, top[..., None], model, floor=floor), top, model, floor)


def _blocks(a: Array, block: int, fill: float) -> Array:
    """(..., n) as (..., blocks, block), the last one filled up."""
    block = min(block, a.shape[-1])
    short = -a.shape[-1] % block
    padded = np.concatenate((a, np.full((*a.shape[:-1], short), fill)), axis=-1)
    return padded.reshape(*a.shape[:-1], -1, block)


def _tree(states: Amount, top: Array, model: Model, floor: float) -> Amount:
    """Neighbours merged in pairs, level by level; one left over goes up as it is."""
    top = np.broadcast_to(top, np.broadcast_shapes(top.shape, states.value.shape))
    while top.shape[-1] > 1:
        even = top.shape[-1] // 2 * 2
        a, b = (Amount(*(part[..., k:even:2] for part in states)) for k in (0, 1))
        merged = merge(a, b, (top[..., :even:2], top[..., 1:even:2]), model, floor=floor)
        rest = (part[..., even:] for part in states)
        states = Amount(*(np.concatenate(pair, axis=-1) for pair in zip(merged, rest, strict=True)))
        top = np.concatenate((np.maximum(top[..., :even:2], top[..., 1:even:2]), top[..., even:]), axis=-1)
    return Amount(*(part[..., 0] for part in states))


def _with_operands(
    bound: ErrorBound, rows: tuple[Array, Array], values: tuple[Array | None, Array | None]
) -> ErrorBound:
    """The bound for rows and values that were rounded before: the exact change of each result comes on
    top."""
    given, held = (_exact(r, v) for r, v in zip(rows, values, strict=True))

    # Both results are evaluated in float64, and may be equal there although the operands are not.
    changed = (rows[0] != rows[1]).any(axis=-1)
    if values[0] is not None:
        other = changed | (values[0] != values[1]).any(axis=(-2, -1))

    def moved(name: str) -> Array:
        a, b = given[name], held[name]
        anew = other if name == "o" else changed
        anew = anew.reshape(anew.shape + (1,) * (a.ndim - anew.ndim))
        return np.where(anew, np.abs(a - b) + SLACK / 100 * (np.abs(a) + np.abs(b)), 0)

    ratio = np.exp(held["log_s"] - given["log_s"])
    s = bound.s * ratio + np.abs(ratio - 1) + np.where(changed, SLACK / 100, 0)
    o = None if bound.o is None else bound.o + moved("o")
    return ErrorBound(s, bound.lse + moved("lse"), bound.y + moved("y"), bound.log_y + moved("log_y"), o)


def _exact(rows: Array, v: Array | None) -> dict[str, Array]:
    top = np.max(rows, axis=-1, keepdims=True)
    weights = np.exp(rows - top)
    s = weights.sum(axis=-1, keepdims=True)
    log_s = np.log(s)
    y = weights / s
    found = {"log_s": log_s[..., 0], "lse": (top + log_s)[..., 0], "y": y, "log_y": rows - top - log_s}
    if v is not None:
        found["o"] = (y[..., None, :] * v).sum(axis=-1)
    return found
