"""The libraries ours is measured against: contenders, or the reason why one cannot take part.

Every peer reads the same memory as ours and, where it can, writes the same caller's memory: JAX alone copies
its input once, before any timing. A peer is told to use two threads in its own way.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import THREADS
from benchmarks.cases import JAX, ORT_FRESH, ORT_OUT, SCIPY, TORCH_FRESH, TORCH_OUT, Workload
from benchmarks.contender import Absent, Contender
from benchmarks.data import DTYPES, Array

Entry = Contender | Absent
Builder = Callable[[Workload, Array, Array | None], list[Entry]]

# How long the worker threads of each library spin after a call, with room: libgomp 3*10^5 pauses, ONNX
# Runtime and XLA about a millisecond.
TORCH_SETTLE, POOL_SETTLE = 0.008, 0.003


def _torch(workload: Workload, x: Array, out: Array | None) -> list[Entry]:
    import torch

    torch.set_num_threads(THREADS)
    function: Callable[..., Any] = getattr(torch, workload.op)

    def tensor(a: Array) -> Any:
        if workload.dtype == "bfloat16":
            return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(a)

    def numpy(t: Any) -> Array:
        if workload.dtype == "bfloat16":
            bits: Array = t.view(torch.int16).numpy()
            return bits.view(DTYPES["bfloat16"])
        values: Array = t.numpy()
        return values

    scores, axis = tensor(x), workload.axis
    entries: list[Entry] = [Contender(TORCH_FRESH, lambda: function(scores, axis), numpy, TORCH_SETTLE)]
    if out is not None:
        target = tensor(out)
        entries.append(Contender(TORCH_OUT, lambda: function(scores, axis, out=target), numpy, TORCH_SETTLE))
    return entries


def _scipy(workload: Workload, x: Array, out: Array | None) -> list[Entry]:
    from scipy import special

    function: Callable[..., Any] = getattr(special, workload.op)
    axis = workload.axis
    try:
        function(np.ones((2, 3), x.dtype), axis=-1)
    except (TypeError, ValueError) as error:
        return [Absent(SCIPY, f"refuses {workload.dtype}: {str(error).splitlines()[0]}")]
    # It may answer in a wider format: rounded to the scores' own, as everybody's answer is.
    return [Contender(SCIPY, lambda: function(x, axis=axis), lambda y: np.asarray(y).astype(x.dtype))]


def _jax(workload: Workload, x: Array, out: Array | None) -> list[Entry]:
    import jax

    function = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax, "logsumexp": jax.nn.logsumexp}[
        workload.op
    ]
    axis, transposed = workload.axis, workload.layout == "transposed"
    compiled = jax.jit(lambda a: function(a.T if transposed else a, axis=axis))
    scores = jax.device_put(x.T if transposed else x)
    return [Contender(JAX, lambda: compiled(scores).block_until_ready(), np.asarray, POOL_SETTLE)]


def _onnx_model(workload: Workload, element: int, rank: int, axis: int) -> bytes:
    """A model of one node: Softmax, LogSoftmax or ReduceLogSumExp over `axis`."""
    from onnx import TensorProto, helper

    sizes = [f"d{i}" for i in range(rank)]
    if workload.op == "logsumexp":
        node = helper.make_node("ReduceLogSumExp", ["x", "axes"], ["y"], keepdims=0)
        constants = [helper.make_tensor("axes", TensorProto.INT64, [1], [axis])]
        result = sizes[:axis] + sizes[axis + 1 :]
    else:
        name = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[workload.op]
        node = helper.make_node(name, ["x"], ["y"], axis=axis)
        constants, result = [], sizes
    graph = helper.make_graph(
        [node],
        "one_node",
        [helper.make_tensor_value_info("x", element, sizes)],
        [helper.make_tensor_value_info("y", element, result)],
        constants,
    )
    # The oldest versions that define the nodes this way, so that any current runtime reads them.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(model.SerializeToString())


def _onnxruntime(workload: Workload, x: Array, out: Array | None) -> list[Entry]:
    import onnxruntime as ort
    from onnx import TensorProto
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    names = (ORT_FRESH, ORT_OUT) if out is not None else (ORT_FRESH,)
    if not x.flags.c_contiguous:
        return [Absent(name, "takes C-order arrays alone") for name in names]
    element = {
        "float32": TensorProto.FLOAT,
        "float16": TensorProto.FLOAT16,
        "bfloat16": TensorProto.BFLOAT16,
    }[workload.dtype]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = THREADS, 1, 4
    model = _onnx_model(workload, element, x.ndim, workload.axis % x.ndim)
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except NoKernel:
        return [Absent(name, f"has no CPU kernel for {workload.dtype}") for name in names]

    def bind() -> Any:
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, element, x.shape, x.ctypes.data)
        return binding

    fresh = bind()

    def call_fresh() -> Any:
        # Bound anew each time: a binding keeps its last result, and a fresh one is what is measured.
        fresh.clear_binding_outputs()
        fresh.bind_output("y", "cpu")
        session.run_with_iobinding(fresh)
        return fresh

    def read(binding: Any) -> Array:
        # By address: the runtime hands no bfloat16 to NumPy.
        value = binding.get_outputs()[0]
        nbytes = int(np.prod(value.shape())) * x.dtype.itemsize
        memory = (ctypes.c_uint8 * nbytes).from_address(value.data_ptr())
        return np.frombuffer(memory, x.dtype).reshape(value.shape()).copy()

    entries: list[Entry] = [Contender(ORT_FRESH, call_fresh, read, POOL_SETTLE)]
    if out is not None:
        bound = bind()
        bound.bind_output("y", "cpu", 0, element, out.shape, out.ctypes.data)
        entries.append(
            Contender(ORT_OUT, lambda: session.run_with_iobinding(bound), lambda _: out, POOL_SETTLE)
        )
    return entries


# Builder, the modules it needs, and the contenders it stands for.
_PEERS: tuple[tuple[Builder, tuple[str, ...], tuple[str, ...]], ...] = (
    (_torch, ("torch",), (TORCH_OUT, TORCH_FRESH)),
    (_scipy, ("scipy",), (SCIPY,)),
    (_jax, ("jax",), (JAX,)),
    (_onnxruntime, ("onnxruntime", "onnx"), (ORT_OUT, ORT_FRESH)),
)


def peers(workload: Workload, x: Array, out: Array | None) -> list[Entry]:
    """Every peer on this workload. `out`: memory for a result, None where the operation reduces."""
    entries: list[Entry] = []
    for build, modules, names in _PEERS:
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            entries += [Absent(name, f"{' and '.join(missing)} not installed") for name in names]
        else:
            entries += build(workload, x, out)
    return entries
