"""Attention of NumPy arrays differentiated forward, and its backward differentiated once more: documents,
checks, routes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import attention_derivatives as core
from .. import cpu_attention
from ..attention_tiles import Keep, Options, Tangents
from . import arrays, checks
from . import attention_arguments as arguments

Array = checks.Array


class AttentionTangents(NamedTuple):
    """Attention's results, and how they move."""

    output: Array
    lse: Array
    d_output: Array
    d_lse: Array


class AttentionDoubleGradients(NamedTuple):
    """Gradients with respect to what attention's backward is given."""

    do: Array
    q: Array
    k: Array
    v: Array
    #: None where no dlse was given.
    dlse: Array | None
    #: None where no bias was given.
    bias: Array | None
    #: None where no sinks were given.
    sinks: Array | None


@arrays.routed
def attention_jvp(
    q: Any, k: Any, v: Any, dq: Any, dk: Any, dv: Any, *, dbias: Any = None, dsinks: Any = None,
    mask: Any = None, bias: Any = None, scale: Any = None, causal: Any = False,
    causal_align: str = "lower_right", window: Any = None, softcap: Any = None, sinks: Any = None,
    alibi_slopes: Any = None, dropout_p: Any = 0.0, seed: Any = 0, layout: str = "BHSD",
) -> AttentionTangents:  # fmt: skip
    """`attention` with its log-sum-exps, and how both move with q, k, v, bias and sinks: one pass over tiles
    of the scores, whose matrix is never there.

    Args:
        dq, dk, dv: the tangents of q, k and v, in their shapes and format. None stands for 0.
        dbias, dsinks: those of bias and sinks, in their shapes. None stands for 0.
        The others: as in `attention`.

    Returns: AttentionTangents(output, lse, d_output, d_lse): the first two as `attention` gives them, with
    their tangents in the same shapes and formats. Everything is computed in float64 and rounded at the end.
    A query that sees nothing has tangents of 0 (its lse that of its sink, where there is one); one with NaN
    or +inf among its scores has tangents of NaN. Tangents of what a query does not see are not read for it.

    Raises: TypeError and ValueError, naming the argument, before anything is computed.

    Cost: 6 * (d + d of the output) flops a pair of query and key, less what lies in tiles outside mask,
    causal triangle and window; scratch of some 4 MiB and of one head's keys and values in float64. A tile
    with values that are not finite costs a pass over it for each such row. In NumPy, in float64, and many
    times slower than `attention`; how many threads work is up to NumPy's BLAS (OPENBLAS_NUM_THREADS=1 is
    often faster). Not for sequences side by side, seqlens_k, block_table, origin and 8-bit keys.
    """
    call = prepared(
        q, k, v, mask=mask, bias=bias, scale=scale, causal=causal, causal_align=causal_align, window=window,
        softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes, dropout_p=dropout_p, seed=seed,
        layout=layout,
    )  # fmt: skip
    return moved(call, dq, dk, dv, dbias, dsinks)


def moved(call: Prepared, dq: Any, dk: Any, dv: Any, dbias: Any, dsinks: Any) -> AttentionTangents:
    """`attention_jvp` of a call that has been checked."""
    moves = call.moves(("dq", dq), ("dk", dk), ("dv", dv), ("dbias", dbias), ("dsinks", dsinks))
    output, d_output = (np.empty(call.output_shape, call.compute) for _ in range(2))
    lse, d_lse = (np.empty(call.lse_shape, call.wide) for _ in range(2))
    made = core.Moved(call.four(output), call.three(lse), call.four(d_output), call.three(d_lse))
    core.jvp(*call.operands, moves, call.options, made)
    output, d_output = (checks.cast(a, call.result) for a in (output, d_output))
    return AttentionTangents(output, lse, d_output, d_lse)


@arrays.routed
def attention_double_backward(
    do: Any, q: Any, k: Any, v: Any, gdq: Any, gdk: Any, gdv: Any, *, dlse: Any = None, gdbias: Any = None,
    gdsinks: Any = None, mask: Any = None, bias: Any = None, scale: Any = None, causal: Any = False,
    causal_align: str = "lower_right", window: Any = None, softcap: Any = None, sinks: Any = None,
    alibi_slopes: Any = None, dropout_p: Any = 0.0, seed: Any = 0, layout: str = "BHSD",
) -> AttentionDoubleGradients:  # fmt: skip
    """The backward of attention's backward: two passes over tiles of the scores, whose matrix is never there.

    The backward maps do, q, k, v (and dlse, bias, sinks) to gradients of q, k, v (and bias, sinks). Given
    cotangents of these gradients, what they mean for the backward's own arguments.

    Args:
        do: the gradient of the output, in its shape and in q's format.
        gdq, gdk, gdv: cotangents of the gradients of q, k and v, in their shapes and format. None stands for
            0.
        dlse: the gradient of the lse, in q's shape without features. None stands for 0.
        gdbias, gdsinks: cotangents of the gradients of bias and sinks, in their shapes. None stands for 0.
        The others: as in `attention`.

    Returns: AttentionDoubleGradients(do, q, k, v, dlse, bias, sinks), each in the shape and format of its
    argument (dlse: float32, float64 for float64; float64 for integers), None for a dlse, bias or sinks that
    was not given. Everything is computed in float64 and rounded at the end. A query that sees nothing
    passes nothing on, and its do is not read; what a query does not see is not read for it.

    Raises: TypeError and ValueError, naming the argument, before anything is computed.

    Cost: some 20 * d + 12 * (d of the output) flops a pair of query and key, less what lies in tiles outside
    mask, causal triangle and window; scratch of some 5 MiB, of one head's keys and values, tangents and
    gradients in float64, and of the gradient of bias in float64. A tile with values that are not finite
    costs a pass over it for each such row. In NumPy, see
    `attention_jvp`. The formulas are in the package's attention_derivatives.py.
    """
    call = prepared(
        q, k, v, mask=mask, bias=bias, scale=scale, causal=causal, causal_align=causal_align, window=window,
        softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes, dropout_p=dropout_p, seed=seed,
        layout=layout,
    )  # fmt: skip
    return doubled(call, do, dlse, gdq, gdk, gdv, gdbias, gdsinks)


def doubled(
    call: Prepared, do: Any, dlse: Any, gdq: Any, gdk: Any, gdv: Any, gdbias: Any, gdsinks: Any
) -> AttentionDoubleGradients:
    """`attention_double_backward` of a call that has been checked."""
    moves = call.moves(("gdq", gdq), ("gdk", gdk), ("gdv", gdv), ("gdbias", gdbias), ("gdsinks", gdsinks))
    g = call.four(_like(do, "do", call.output_shape, "the output", call.result))
    above = None if dlse is None else call.three(_like(dlse, "dlse", call.lse_shape, "the lse", None))
    by_do, by_q, by_k, by_v = (
        np.empty(shape, call.compute) for shape in (call.output_shape, *(a.shape for a in call.given))
    )
    by_lse = None if dlse is None else np.empty(call.lse_shape, call.wide)
    by_bias = None if call.bias is None else np.zeros(call.bias.shape)
    by_sinks = None if call.sinks is None else np.zeros(call.sinks.shape)
    to = core.Gradients(
        call.four(by_do), call.four(by_q), call.four(by_k), call.four(by_v),
        None if by_lse is None else call.three(by_lse),
        None if by_bias is None else _leading(by_bias), by_sinks,
    )  # fmt: skip
    core.double_backward(g, above, *call.operands, moves, call.options, to)
    by_do, by_q, by_k, by_v = (checks.cast(a, call.result) for a in (by_do, by_q, by_k, by_v))
    return AttentionDoubleGradients(
        by_do, by_q, by_k, by_v, by_lse, _in_format(by_bias, call.bias), _in_format(by_sinks, call.sinks)
    )


class Prepared(NamedTuple):
    """A checked call: q, k and v as given, and the rest as the core reads it."""

    given: tuple[Array, Array, Array]
    bias: Array | None
    sinks: Array | None
    options: Options
    layout: str
    result: np.dtype[Any]
    #: Formats that the core stores outputs and log-sum-exps in.
    compute: np.dtype[Any]
    wide: np.dtype[Any]

    @property
    def output_shape(self) -> tuple[int, ...]:
        q, _, v = self.given
        return (*q.shape[:-1], v.shape[-1])

    @property
    def lse_shape(self) -> tuple[int, ...]:
        return tuple(self.given[0].shape[:-1])

    @property
    def operands(self) -> tuple[Array, Array, Array]:
        q, k, v = self.given
        return self.four(q), self.four(k), self.four(v)

    def four(self, array: Array) -> Array:
        """(batch, heads, length, features), a view."""
        return arguments.four(array, "", self.layout, self.given[0].ndim)

    def three(self, array: Array) -> Array:
        """(batch, heads, length), a view."""
        return self.four(array[..., None])[..., 0]

    def moves(self, *named: tuple[str, Any]) -> Tangents:
        """The directions of q, k, v, bias and sinks, each with its name."""
        found: list[Array | None] = []
        for (name, value), of, like in zip(
            named, ("q", "k", "v", "bias", "sinks"), (*self.given, self.bias, self.sinks), strict=True
        ):
            if value is None:
                found.append(None)
            elif like is None:
                would = f"{of} of the shape of {name}, zeros where there is none, would do"
                raise ValueError(f"{name} is given and {of} is not: {would}")
            else:
                found.append(_like(value, name, like.shape, of, self.result if of in "qkv" else None))
        q, k, v = (None if a is None else self.four(a) for a in found[:3])
        return Tangents(q, k, v, None if found[3] is None else _leading(found[3]), found[4])


def prepared(
    q: Any, k: Any, v: Any, *, mask: Any, bias: Any, scale: Any, causal: Any, causal_align: str, window: Any,
    softcap: Any, sinks: Any, alibi_slopes: Any, dropout_p: Any, seed: Any, layout: str,
) -> Prepared:  # fmt: skip
    arrays = {name: checks.array(value, name) for name, value in (("q", q), ("k", k), ("v", v))}
    result = checks.result_dtype(arrays["q"].dtype, None)
    for name, array in arrays.items():
        if checks.result_dtype(array.dtype, None) != result:
            raise TypeError(f"{name} is {array.dtype} and q is {result}: one format for all would do")
    if not isinstance(layout, str) or layout not in arguments.LAYOUTS:
        raise ValueError(f"layout is {layout!r}: one of {', '.join(arguments.LAYOUTS)} would do")
    rank = arrays["q"].ndim
    four = {name: arguments.four(array, name, layout, rank) for name, array in arrays.items()}
    sizes = arguments.sizes_of(**four, paged=False)
    batch, keys = four["k"].shape[0], four["k"].shape[2]
    scores = (batch, sizes.heads, sizes.queries, keys)
    added = None if bias is None else checks.array(bias, "bias")
    if added is not None:
        arguments.bias_of(added, scores, rank, added.dtype)
    logits = None if sinks is None else checks.array(sinks, "sinks")
    lower_right, window = arguments.band_of(causal, causal_align, window, None)
    dropout_p, seed = arguments.dropout_of(dropout_p, seed)
    options = Options(
        scale=arguments.scale_of(scale, sizes.d, checks.FLOAT64),
        softcap=arguments.softcap_of(softcap, checks.FLOAT64),
        band=(keys - sizes.queries if lower_right else 0, *window),
        mask=arguments.mask_of(mask, scores, rank),
        bias=None if added is None else _leading(added),
        slopes=arguments.heads_of(alibi_slopes, "alibi_slopes", sizes.heads, checks.FLOAT64, batch),
        sinks=arguments.heads_of(logits, "sinks", sizes.heads, checks.FLOAT64),
        dropout_p=dropout_p,
        keep=keep_of(dropout_p, seed),
    )
    compute = checks.compute_dtype(result)
    wide = np.dtype(np.float64 if compute == np.float64 else np.float32)
    return Prepared(
        (arrays["q"], arrays["k"], arrays["v"]), added, logits, options, layout, result, compute, wide
    )


def keep_of(dropout_p: float, seed: int, origin: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Keep | None:
    """Which weights stay, those that stay in `attention`. None for all of them."""
    if dropout_p == 0:
        return None

    def keep(batch: int, head: int, queries: slice, keys: slice) -> Array:
        shape = (1, 1, queries.stop - queries.start, keys.stop - keys.start)
        local = (batch, head, queries.start, keys.start)
        place = (origin[0] + local[0], origin[1] + local[1], origin[2] + local[2], origin[3] + local[3])
        return cpu_attention.keep(dropout_p, seed, shape, place).reshape(shape[2:])

    return keep


def _like(value: Any, name: str, shape: tuple[int, ...], of: str, dtype: np.dtype[Any] | None) -> Array:
    """`value` where it has the shape of another argument and, unless that is None, the format."""
    array = checks.array(value, name)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: {shape}, that of {of}, would do")
    if dtype is not None and checks.result_dtype(array.dtype, None) != dtype:
        raise TypeError(f"{name} is {array.dtype}: {dtype}, the format of q, k and v, would do")
    return array


def _leading(array: Array) -> Array:
    """Four dimensions, those that are missing of length 1."""
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _in_format(gradient: Array | None, like: Array | None) -> Array | None:
    """The gradient in the format of what it belongs to."""
    if gradient is None or like is None:
        return None
    return checks.cast(gradient, checks.result_dtype(like.dtype, None))
