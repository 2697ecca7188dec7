"""Face of the native core's attention: a call described, then run forward or backward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import _core
from .attention_sums import Sums
from .cpu import DTYPES, address, numpy_dtype, plan_of

Array = NDArray[Any]
#: Formats that k and v may be stored in beside q's own, by their code in the core.
STORED: Final = {
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.float16): 2,
    np.dtype(ml_dtypes.bfloat16): 3,
    np.dtype(ml_dtypes.float8_e4m3fn): 4,
    np.dtype(ml_dtypes.float8_e5m2): 5,
    np.dtype(np.int8): 6,
}
_CODE: Final = {numpy_dtype(name): STORED[numpy_dtype(name)] for name in DTYPES}


@dataclass(frozen=True)
class Problem:
    """One call, checked by whoever makes it.

    Attributes:
        q: (batch, heads, queries, d) of a served dtype, any strides; (1, heads, all queries, d) where
            sequences lie side by side.
        k, v: (batch, groups, keys, d) and (batch, groups, keys, dv) of q's dtype or, for float32, float16 and
            bfloat16 queries, of any in STORED but float64; (1, groups, all keys, d) side by side; (blocks,
            groups, places of a block, d) where there is a `table`.
        sequences: (batch, 4) int64: first query, queries, first key and keys of each.
        window: keys seen to the left and to the right of a query's place, -1 for all. The place of a
            sequence's query i is i + keys - queries where `lower_right`, else i.
        softcap: 0 for none.
        mask: bool, bias: float32 (float64 for float64 operands), of the shape of the scores, any strides.
        sinks: (heads,), slopes: (batch, heads), k_scales, v_scales: (batch, groups), float64, C-contiguous.
        table: (batch, blocks of a sequence) int64, the last axis contiguous.
        dropout_p, seed: which weights are dropped; 0 for none.
        origin: batch, head, query and key that the first of each are in a whole of which this is a part. Then
            a query's place is its number there, whatever `lower_right`, and dropout counts from there.
    """

    q: Array
    k: Array
    v: Array
    sequences: Array
    scale: float
    softcap: float = 0.0
    lower_right: bool = True
    window: tuple[int, int] = (-1, -1)
    mask: Array | None = None
    bias: Array | None = None
    sinks: Array | None = None
    slopes: Array | None = None
    k_scales: Array | None = None
    v_scales: Array | None = None
    table: Array | None = None
    dropout_p: float = 0.0
    seed: int = 0
    origin: tuple[int, int, int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sequences", np.ascontiguousarray(self.sequences, np.int64))

    @property
    def empty(self) -> bool:
        """Whether there is no query at all."""
        return not math.prod(self.q.shape[:3]) or not len(self.sequences)


def forward(
    problem: Problem,
    out: Array,
    lse: Array | None,
    *,
    any_order: bool = False,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Attention into `out` and `lse`, never forming the scores.

    Args:
        out: of q's shape but for the features, in q's format or, for partial results, in that of `lse`.
        lse: out's shape without features, float32 or float64, any strides; None where not wanted.
        any_order: whether keys are summed by the law of `attention_sums`.
    """
    call = _described(problem, isa, threads)
    _array(call, "o", out)
    if lse is not None:
        _array(call, "lse", lse)
    if any_order:
        call.any_order()
    if not problem.empty:
        call.forward(out.dtype != problem.q.dtype, lse is not None and lse.dtype != np.float64)


def partial(
    problem: Problem,
    keys: tuple[int, int],
    o: Array,
    pivot: Array,
    weight: Array,
    *,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """What keys [first, last) of each sequence alone come to: o = sum(exp(score - pivot) * v), weight =
    sum(exp(score - pivot)), as raw sums, and -inf for the pivot where a query sees none of them.

    Args:
        o: of q's shape but for the features, float32 (float64 for float64 operands).
        pivot, weight: o's shape without features, float64, any strides.

    The bits of a row follow from the query, these keys and their values alone. Sinks do not count.
    """
    call = _described(problem, isa, threads)
    for name, array in (("o", o), ("lse", pivot), ("rest", weight)):
        _array(call, name, array)
    call.keys(*keys)
    if not problem.empty:
        call.forward(True, False)


def sums(
    problem: Problem,
    level: Array,
    features: dict[str, Array],
    *,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """The partials of all super-tiles, added to sums by `attention_sums`, which has the law and the formats.

    Args:
        level: (batch, heads, queries), float32 (float64 for float64 operands), any strides, as all here.
        features: with a last, contiguous axis beside: "bins" int32 of 1 + dv, "a" int64 of slices * (1 + dv),
            slice by slice, "odd" uint8 of dv.

    Sinks do not count.
    """
    call = _described(problem, isa, threads)
    for name, array in {"level": level, **features}.items():
        _array(call, name, array)
    call.any_order()
    if not problem.empty:
        call.forward(True, False)


def merged(left: Sums, right: Sums) -> Sums:
    """`attention_sums.merge`, bit for bit."""
    made, given = _planes(left, copied=True), _planes(right)
    plan, code = plan_of(None, "auto", None, "exact"), _CODE[made.level.dtype]
    to, more = [address(a) for a in made], [address(a) for a in given]
    _core.attention_sums_merge(plan, code, made.level.size, made.odd.shape[-1], to, more)
    return made._replace(a=np.swapaxes(made.a, -1, -2))


def read(sums: Sums) -> tuple[Array, Array]:
    """`attention_sums.read`, bit for bit: o rounded to the format, lse float64."""
    given = _planes(sums)
    o: Array = np.empty(given.odd.shape, given.level.dtype)
    lse: Array = np.empty(given.level.shape)
    plan, code = plan_of(None, "auto", None, "exact"), _CODE[o.dtype]
    at = [address(a) for a in given]
    _core.attention_sums_read(plan, code, lse.size, given.odd.shape[-1], at, address(o), address(lse))
    return o, lse


def _planes(sums: Sums, *, copied: bool = False) -> Sums:
    """The same sums as the core has them: in C order, a slice by slice."""
    turned = sums._replace(a=np.swapaxes(sums.a, -1, -2))
    if copied:
        return Sums(*(np.array(a, order="C") for a in turned))
    return Sums(*(np.ascontiguousarray(a).reshape(a.shape) for a in turned))


def backward(
    problem: Problem,
    given: dict[str, Array],
    made: dict[str, Array],
    *,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Gradients, by the output and log-sum-exps of the forward.

    Args:
        given: "o" and "d_out" of q's format and the output's shape, "lse" as `forward` made it, "d_lse" alike
            but float64, or absent for 0.
        made: "q_grad", "k_grad", "v_grad" of q's format and the shapes of q, k, v; "bias_grad" float64 or of
            bias's format, of four axes, those of length 1 summed over, zeros to begin with, or absent;
            "delta", float64 of the shape of lse: sum(d_out * o) - d_lse.

    Cost: the scores are made anew; memory for one q in the format of products, two where keys are more than
    1024, times the heads in flight.
    """
    call = _described(problem, isa, threads)
    for name, array in {**given, **made}.items():
        _array(call, name, array, summed=name == "bias_grad")
    if len(problem.sequences) and problem.q.shape[1]:
        bias = made.get("bias_grad")
        call.backward(given["lse"].dtype != np.float64, bias is not None and bias.dtype == np.float64)


def keep(
    dropout_p: float,
    seed: int,
    shape: tuple[int, int, int, int],
    origin: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> NDArray[np.bool_]:
    """Which weights dropout keeps: bool of `shape` (batch, heads, queries, keys), counted from `origin`."""
    made = np.empty(shape, np.bool_)
    for batch, head, query in np.ndindex(shape[:3]):
        at = (origin[0] + batch, origin[1] + head, origin[2] + query, origin[3])
        _core.keep_array(dropout_p, seed, at, shape[3], address(made[batch, head, query]))
    return made


def arithmetic_peak(dtype: np.dtype[Any], *, isa: str | None = None, threads: int | None = None) -> float:
    """Flops a second of multiply-adds that stay in registers, in the format that products of `dtype` are made
    in: float64 for float64, else float32. Measured anew at each call, over some tenths of a second."""
    return _core.arithmetic_peak(plan_of(isa, "auto", threads, "exact"), _CODE[dtype])


def _described(problem: Problem, isa: str | None, threads: int | None) -> _core.Attention:
    p = problem
    sizes = (len(p.sequences), p.q.shape[1], p.k.shape[1], p.q.shape[3], p.v.shape[3])
    plan = plan_of(isa, "auto", threads, "exact")
    call = _core.Attention(plan, _CODE[p.q.dtype], STORED[p.k.dtype], sizes, p.sequences.ravel().tolist())
    call.scores(p.scale, p.softcap)
    call.band(p.lower_right, *p.window)
    call.dropout(p.dropout_p, p.seed)
    if p.origin is not None:
        call.origin(p.origin)
    arrays = {"q": p.q, "k": p.k, "v": p.v, "mask": p.mask, "bias": p.bias}
    for name, array in arrays.items():
        if array is not None:
            _array(call, name, array)
    numbers = {"slopes": p.slopes, "sinks": p.sinks, "k_scales": p.k_scales, "v_scales": p.v_scales}
    for name, array in numbers.items():
        if array is not None:
            call.numbers(name, address(array))
    if p.table is not None:
        call.blocks(address(p.table), p.table.strides[0] // 8, p.k.shape[2])
    return call


def _array(call: _core.Attention, name: str, array: Array, *, summed: bool = False) -> None:
    """An axis of one batch has a stride of 0: sequences side by side share it. So has any axis of length 1
    that is `summed` over."""
    alone = range(array.ndim if summed else 1)
    strides = [
        0 if d in alone and n == 1 else s
        for d, (n, s) in enumerate(zip(array.shape, array.strides, strict=True))
    ]
    call.array(name, address(array), strides)
