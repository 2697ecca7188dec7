"""ONNX Runtime on the CPU: models of one or two nodes, kept as sessions."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...extras import require
from ..cases import NotOffered
from . import Adapter, Library, versions_of

Array = NDArray[Any]

#: The oldest versions of the standard that define the nodes as they are used here.
_OPSET: Final = 18
_OPSET_ATTENTION: Final = 24
_IR: Final = 11
#: NumPy reads bfloat16 from no session: it is bound by address.
_BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
_building = threading.Lock()


@dataclass(frozen=True)
class _Node:
    """A node of a model: its kind, the names of its inputs and outputs, its attributes."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...] = ()


def load(variant: str) -> Adapter:
    """The adapter; there are no variants. MissingExtra where onnxruntime or onnx is not installed."""
    if variant:
        raise ValueError(f"variant {variant!r} of onnxruntime: it has none")
    _module("onnx")
    state = _module("onnxruntime").capi.onnxruntime_pybind11_state
    functions = (softmax, log_softmax, logsumexp, softmax_topk, cross_entropy, attention, decode_attention)
    return Library(
        name="onnxruntime",
        framework="numpy",
        versions=versions_of("onnxruntime", "onnx"),
        functions={f.__name__: f for f in functions},
        refusals=(state.NotImplemented, state.InvalidGraph, state.Fail),
        refusal="Could not find an implementation|Type '[^']*' of input parameter|Input rank must be >= 1",
        lacks="ONNX has no such operator",
    )


def _module(name: str) -> Any:
    return require(name, "bench", "the subject onnxruntime")


def softmax(x: Any, axis: Any) -> Any:
    """Softmax."""
    return _run([_Node("Softmax", ("x",), ("y",), (("axis", axis),))], {"x": x})


def log_softmax(x: Any, axis: Any) -> Any:
    """LogSoftmax."""
    return _run([_Node("LogSoftmax", ("x",), ("y",), (("axis", axis),))], {"x": x})


def logsumexp(x: Any, axis: Any, keepdims: Any) -> Any:
    """ReduceLogSumExp."""
    node = _Node("ReduceLogSumExp", ("x", "axes"), ("y",), (("keepdims", int(keepdims)),))
    return _run([node], {"x": x, "axes": np.atleast_1d(np.asarray(axis, dtype=np.int64))})


def softmax_topk(x: Any, k: Any, axis: Any) -> Any:
    """TopK of Softmax."""
    nodes = [
        _Node("Softmax", ("x",), ("y",), (("axis", axis),)),
        _Node("TopK", ("y", "k"), ("values", "indices"), (("axis", axis),)),
    ]
    return _run(nodes, {"x": x, "k": np.array([k], dtype=np.int64)}, outputs=("values", "indices"))


def cross_entropy(logits: Any, targets: Any, ignore_index: Any, reduction: Any, weight: Any = None) -> Any:
    """SoftmaxCrossEntropyLoss."""
    given = {"x": logits, "targets": targets} | ({} if weight is None else {"weight": weight})
    attributes = (("ignore_index", ignore_index), ("reduction", reduction))
    return _run([_Node("SoftmaxCrossEntropyLoss", tuple(given), ("y",), attributes)], given)


def attention(
    q: Any,
    k: Any,
    v: Any,
    scale: Any,
    causal: Any,
    causal_align: Any,
    softcap: Any,
    mask: Any = None,
    bias: Any = None,
    lengths: Any = None,
) -> Any:
    """Attention of the standard's version 24, whose causal mask without a cache is aligned upper left."""
    if mask is not None and bias is not None:
        raise NotOffered("attn_mask is one of a bool mask and added scores")
    if causal and causal_align == "lower_right" and q.shape[-2] != k.shape[-2]:
        raise NotOffered("is_causal without a cache aligns upper left")
    attn_mask = bias if mask is None else mask
    places = ("q", "k", "v", "attn_mask", "past_key", "past_value", "lengths")
    values = (q, k, v, attn_mask, None, None, lengths)
    given = {name: value for name, value in zip(places, values, strict=True) if value is not None}
    inputs = [name if name in given else "" for name in places]
    while not inputs[-1]:
        inputs.pop()
    attributes: dict[str, Any] = {"is_causal": int(causal)}
    attributes |= {} if scale is None else {"scale": float(scale)}
    attributes |= {} if softcap is None else {"softcap": float(softcap)}
    node = _Node("Attention", tuple(inputs), ("y",), tuple(attributes.items()))
    return _run([node], given, opset=_OPSET_ATTENTION)


def decode_attention(q: Any, k_cache: Any, v_cache: Any, scale: Any, seqlens_k: Any = None) -> Any:
    """Attention with nonpad_kv_seqlen."""
    lengths = None if seqlens_k is None else seqlens_k.astype(np.int64)
    return attention(q, k_cache, v_cache, scale, False, "lower_right", None, lengths=lengths)


def _run(
    nodes: list[_Node], inputs: Mapping[str, Array], outputs: tuple[str, ...] = ("y",), opset: int = _OPSET
) -> Any:
    """Outputs of the model of these nodes: an array, or a tuple of them."""
    kinds = tuple((name, _element(a.dtype), a.ndim) for name, a in inputs.items())
    with _building:
        session = _session(tuple(nodes), kinds, outputs, opset)
    if any(a.dtype == _BFLOAT16 for a in inputs.values()):
        found = _run_bound(session, inputs, outputs)
    else:
        found = session.run(None, {name: np.ascontiguousarray(a) for name, a in inputs.items()})
    return tuple(found) if len(found) > 1 else found[0]


def _element(dtype: np.dtype[Any]) -> int:
    helper, tensor = _module("onnx.helper"), _module("onnx").TensorProto
    named = {"bfloat16": tensor.BFLOAT16, "float8_e4m3fn": tensor.FLOAT8E4M3FN}
    named["float8_e5m2"] = tensor.FLOAT8E5M2
    return int(named.get(dtype.name) or helper.np_dtype_to_tensor_dtype(dtype))


@functools.lru_cache(maxsize=512)
def _session(
    nodes: tuple[_Node, ...], inputs: tuple[tuple[str, int, int], ...], outputs: tuple[str, ...], opset: int
) -> Any:
    helper, tensor = _module("onnx.helper"), _module("onnx").TensorProto
    taken = [
        helper.make_tensor_value_info(n, kind, [f"{n}{i}" for i in range(rank)]) for n, kind, rank in inputs
    ]
    # Of the first input's format, of any rank: the runtime infers what is not said.
    formats = {name: tensor.INT64 if name == "indices" else inputs[0][1] for name in outputs}
    made = [helper.make_tensor_value_info(name, kind, None) for name, kind in formats.items()]
    operators = [helper.make_node(n.kind, n.inputs, n.outputs, **dict(n.attributes)) for n in nodes]
    graph = helper.make_graph(operators, "case", taken, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR)
    runtime = _module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _run_bound(session: Any, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> list[Array]:
    binding = session.io_binding()
    kept = {name: np.ascontiguousarray(a) for name, a in inputs.items()}
    for name, a in kept.items():
        binding.bind_input(name, "cpu", 0, _element(a.dtype), a.shape, a.ctypes.data)
    for name in outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    found = []
    for name, value in zip(outputs, binding.get_outputs(), strict=True):
        dtype: np.dtype[Any] = np.dtype(np.int64) if name == "indices" else _BFLOAT16
        count = int(np.prod(value.shape())) * dtype.itemsize
        memory = ctypes.string_at(value.data_ptr(), count) if count else b""
        found.append(np.frombuffer(memory, dtype).reshape(value.shape()).copy())
    return found
