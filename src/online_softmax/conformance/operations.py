"""The operations that cases speak of: their operands, options and outputs, and the oracle that knows what is
right.

The oracle is `online_softmax.reference`: slow, in the widest float there is. Everything a case holds a
subject to comes from it, so an input that nobody has written down (a shrunk one) has its right value too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import reference

Array = NDArray[Any]
Inputs = Mapping[str, Array]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: as cases and commands name it.
        operands: name -> axes; positional, in this order. "*" stands for any shape, shared by all that have
        it; "* n" has
            it with one axis more or less; letters name axes that several arrays share.
        optional: arrays given by keyword, likewise.
        options: name -> default.
        outputs: names in order; a subject has to return the first.
        oracle: the reference's function: operands by position, the rest by keyword; further results than
            `outputs` are left aside.
        fixed: keywords that make the reference return all outputs.
        statistics: outputs that may come in a wider format than the operands.
        forward: of a gradient: the operation that it differentiates.
        wrt: of a gradient: the operands that `outputs` are gradients of, in their order.
        cotangents: of a gradient: the operands that are upstream gradients; none stands for 1.
    """

    name: str
    operands: Mapping[str, str]
    outputs: tuple[str, ...]
    oracle: Callable[..., Any]
    optional: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    statistics: tuple[str, ...] = ()
    forward: str = ""
    wrt: tuple[str, ...] = ()
    cotangents: tuple[str, ...] = ()


def expected(op: str, inputs: Inputs, options: Options) -> dict[str, Array]:
    """The right outputs: float64, int64 for indices.

    Raises what the reference raises for operands or options that it refuses.
    """
    row = OPERATIONS[op]
    further = {name: array for name, array in inputs.items() if name not in row.operands}
    made = row.oracle(*(inputs[name] for name in row.operands), **further, **options, **row.fixed)
    results = made if isinstance(made, tuple) else (made,)
    return {name: np.asarray(result) for name, result in zip(row.outputs, results, strict=False)}


def _merge_states(m_a: Array, s_a: Array, m_b: Array, s_b: Array) -> Any:
    return reference.merge_states((m_a, s_a), (m_b, s_b))


_UPSTREAM: Final = MappingProxyType({"dloss": 1.0})
_LSE: Final = MappingProxyType({"return_lse": True})
_AXIS: Final = MappingProxyType({"axis": -1})
_LOSS: Final = MappingProxyType({"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"})
_ATTENTION: Final = MappingProxyType(
    {"scale": None, "causal": False, "causal_align": "lower_right", "window": None, "softcap": None}
)
_QKV: Final = MappingProxyType({"q": "B H L D", "k": "B G S D", "v": "B G S E"})
_SCORES: Final = MappingProxyType({"mask": "B H L S", "bias": "B H L S", "sinks": "H"})

_ALL: Final = (
    Operation("softmax", {"x": "*"}, ("y",), reference.softmax, optional={"where": "*"}, options=_AXIS),
    Operation(
        "log_softmax",
        {"x": "*"},
        ("y",),
        reference.log_softmax,
        optional={"where": "*"},
        options=_AXIS,
    ),
    Operation(
        "logsumexp",
        {"x": "*"},
        ("lse",),
        reference.logsumexp,
        optional={"b": "*", "where": "*"},
        options={"axis": -1, "keepdims": False},
        statistics=("lse",),
    ),
    Operation(
        "softmax_topk",
        {"x": "*"},
        ("values", "indices", "lse"),
        reference.softmax_topk,
        options={"k": 1, "axis": -1},
        statistics=("lse",),
    ),
    Operation(
        "logaddexp",
        {"a": "*", "b": "*"},
        ("lse",),
        reference.logaddexp,
    ),
    Operation("logcumsumexp", {"x": "*"}, ("lse",), reference.logcumsumexp, options=_AXIS),
    Operation(
        "cross_entropy",
        {"logits": "N C", "targets": "N"},
        ("loss",),
        reference.cross_entropy,
        optional={"weight": "C"},
        options=_LOSS,
        statistics=("loss",),
    ),
    Operation(
        "linear_cross_entropy",
        {"hidden": "N D", "weight": "V D", "targets": "N"},
        ("loss",),
        reference.linear_cross_entropy,
        optional={"bias": "V"},
        options=_LOSS | {"softcap": None},
        statistics=("loss",),
    ),
    Operation(
        "attention",
        _QKV,
        ("o", "lse"),
        reference.attention,
        fixed=_LSE,
        optional=_SCORES,
        options=_ATTENTION,
        statistics=("lse",),
    ),
    Operation(
        "decode_attention",
        {"q": "B H L D", "k_cache": "B G S D", "v_cache": "B G S E"},
        ("o", "lse"),
        reference.decode_attention,
        fixed=_LSE,
        optional={"seqlens_k": "B", "block_table": "B M"},
        options={"scale": None},
        statistics=("lse",),
    ),
    Operation(
        "varlen_attention",
        {"q": "T H D", "k": "U G D", "v": "U G E", "cu_seqlens_q": "I", "cu_seqlens_k": "I"},
        ("o", "lse"),
        reference.varlen_attention,
        fixed=_LSE,
        options={"scale": None, "causal": False},
        statistics=("lse",),
    ),
    Operation(
        "merge_attention",
        {"o_a": "* E", "lse_a": "*", "o_b": "* E", "lse_b": "*"},
        ("o", "lse"),
        reference.merge_attention,
        statistics=("lse",),
    ),
    Operation(
        "merge_states",
        {"m_a": "*", "s_a": "*", "m_b": "*", "s_b": "*"},
        ("m", "s"),
        _merge_states,
        statistics=("m", "s"),
    ),
    Operation(
        "softmax_grad",
        {"x": "*", "dy": "*"},
        ("dx",),
        reference.softmax_vjp,
        optional={"where": "*"},
        options=_AXIS,
        forward="softmax",
        wrt=("x",),
        cotangents=("dy",),
    ),
    Operation(
        "log_softmax_grad",
        {"x": "*", "dy": "*"},
        ("dx",),
        reference.log_softmax_vjp,
        optional={"where": "*"},
        options=_AXIS,
        forward="log_softmax",
        wrt=("x",),
        cotangents=("dy",),
    ),
    Operation(
        "logsumexp_grad",
        {"x": "*", "dlse": "*"},
        ("dx",),
        reference.logsumexp_vjp,
        optional={"b": "*", "where": "*"},
        options=_AXIS,
        forward="logsumexp",
        wrt=("x",),
        cotangents=("dlse",),
    ),
    Operation(
        "cross_entropy_grad",
        {"logits": "N C", "targets": "N"},
        ("dlogits",),
        reference.cross_entropy_vjp,
        fixed=_UPSTREAM,
        optional={"weight": "C"},
        options=_LOSS,
        forward="cross_entropy",
        wrt=("logits",),
    ),
    Operation(
        "linear_cross_entropy_grad",
        {"hidden": "N D", "weight": "V D", "targets": "N"},
        ("dhidden", "dweight"),
        reference.linear_cross_entropy_vjp,
        fixed=_UPSTREAM,
        optional={"bias": "V"},
        options=_LOSS | {"softcap": None},
        forward="linear_cross_entropy",
        wrt=("hidden", "weight"),
    ),
    Operation(
        "attention_grad",
        _QKV | {"do": "B H L E"},
        ("dq", "dk", "dv"),
        reference.attention_vjp,
        optional=_SCORES,
        options=_ATTENTION,
        forward="attention",
        wrt=("q", "k", "v"),
        cotangents=("do",),
    ),
)
OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType({op.name: op for op in _ALL})
