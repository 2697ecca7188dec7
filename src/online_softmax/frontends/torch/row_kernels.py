"""The kernels behind softmax, log_softmax and logsumexp: of x, over dimensions, with `where` or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from ... import _core, cpu, cpu_exact
from .. import numpy as arrays
from . import memory, mode

#: Codes of the formats that the core reads and writes as they are.
CODES: Final = {dtype: cpu.CODES[memory.NUMPY[dtype]] for dtype in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16
)}  # fmt: skip
_MAP, _LOG, _LSE = 0, 1, 2
_Kernel = Callable[[torch.Tensor, list[int], torch.Tensor | None], torch.Tensor]
_core.use_tensors(torch.Tensor, torch.empty_like)
#: Small calls by name: a result, or None where a tensor is not CPU memory, contiguous, of at most 16384
#: elements and a format of the core's. They ask nothing else of it: `mode.eager` does.
SMALL: Final = {
    "softmax": _core.softmax_small_tensor,
    "log_softmax": _core.log_softmax_small_tensor,
    "logsumexp": _core.logsumexp_small_tensor,
}


def _small(name: str, x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> Any:
    """The result of a small call on the last dimension, or None where x is not one."""
    if where is not None or len(dims) != 1 or dims[0] != x.ndim - 1 or x.is_neg():
        return None
    return SMALL[name](x)


def _operands(
    x: torch.Tensor, dims: list[int], where: torch.Tensor | None
) -> tuple[torch.Tensor, list[int], torch.Tensor | None]:
    """x and where of one shape, with at least one dimension to reduce: none to reduce is a row an element."""
    x = x.resolve_neg()
    if x._is_zerotensor():  # zeros without memory
        x = torch.zeros_like(x)
    if where is not None:
        where = where.expand(x.shape)
    if dims:
        return x, dims, where
    return x.unsqueeze(-1), [x.ndim], None if where is None else where.unsqueeze(-1)


def _bits(dims: list[int]) -> int:
    return sum(1 << d for d in dims)


def _map_cpu(name: str, x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    small: torch.Tensor | None = _small(name, x, dims, where)
    return map_rows(name, x, dims, where) if small is None else small


def map_rows(name: str, x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    """softmax or log_softmax of a CPU tensor of any size."""
    y = memory.empty_like(x)
    code = CODES.get(x.dtype)
    if code is None:
        function = arrays.log_softmax if name == "log_softmax" else arrays.softmax
        keep, threads = memory.optional(where), mode.threads()
        function(memory.array(x), tuple(dims), where=keep, out=memory.array(y), threads=threads)
        return y
    x, over, where = _operands(x, dims, where)
    out = y if dims else y.unsqueeze(-1)
    _core.map_array(
        mode.plan(), _LOG if name == "log_softmax" else _MAP, code, x.shape, _bits(over),
        *memory.place(x), *memory.place(out), *memory.place(where),
    )  # fmt: skip
    return y


def softmax_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return _map_cpu("softmax", x, dims, where)


def log_softmax_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return _map_cpu("log_softmax", x, dims, where)


def logsumexp_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    small: torch.Tensor | None = _small("logsumexp", x, dims, where)
    return lse_rows(x, dims, where) if small is None else small


def lse_rows(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    """logsumexp of a CPU tensor of any size."""
    code = CODES.get(x.dtype)
    if code is None:
        keep, threads = memory.optional(where), mode.threads()
        found = arrays.logsumexp(memory.array(x), tuple(dims), where=keep, threads=threads)
        return memory.tensor(np.asarray(found))
    shape = [n for d, n in enumerate(x.shape) if d not in dims]
    wide = x.dtype == torch.float64
    lse = torch.empty(shape, dtype=torch.float64 if wide else torch.float32, device="cpu")
    x_, over, where = _operands(x, dims, where)
    _core.reduce_array(
        mode.plan(), _LSE, code, x_.shape, _bits(over), *memory.place(x_), lse.data_ptr(), 0, not wide,
        *memory.place(where), 0, (),
    )  # fmt: skip
    return lse.to(x.dtype)


def _weights(softmax: _Kernel, x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    """Softmax, 0 in rows that have nothing but -inf: the gradient of their log-sum-exp."""
    if where is None:
        y = first = softmax(x, dims, None)
        # A row is NaN throughout or not at all, so that its first element tells.
        for d in dims:
            first = first.narrow(d, 0, min(1, x.shape[d]))
        if not first.isnan().any():
            return y
    keep = x != -torch.inf
    return softmax(x, dims, keep if where is None else where & keep)


def weights_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return _weights(softmax_cpu, x, dims, where)


# ---- order="any"


def _map_any(log: bool, x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    y = memory.empty_like(x)
    if x.dtype not in CODES:
        function = arrays.log_softmax if log else arrays.softmax
        keep, threads = memory.optional(where), mode.threads()
        function(memory.array(x), tuple(dims), where=keep, out=memory.array(y), threads=threads, order="any")
        return y
    x, over, where = _operands(x, dims, where)
    out = y if dims else y.unsqueeze(-1)
    cpu_exact.softmax(
        memory.array(x), memory.array(out), tuple(over), where=memory.optional(where), log=log,
        threads=mode.threads(),
    )  # fmt: skip
    return y


def softmax_any_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return _map_any(False, x, dims, where)


def log_softmax_any_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return _map_any(True, x, dims, where)


def logsumexp_any_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    keep, threads = memory.optional(where), mode.threads()
    lse = arrays.logsumexp(memory.array(x), tuple(dims), where=keep, threads=threads, order="any")
    return memory.tensor(np.asarray(lse))


def weights_any_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return _weights(softmax_any_cpu, x, dims, where)


#: The kernels by the name of their operation.
CPU: Final = {
    "softmax": softmax_cpu,
    "log_softmax": log_softmax_cpu,
    "logsumexp": logsumexp_cpu,
    "logsumexp_weights": weights_cpu,
    "softmax_any": softmax_any_cpu,
    "log_softmax_any": log_softmax_any_cpu,
    "logsumexp_any": logsumexp_any_cpu,
    "logsumexp_weights_any": weights_any_cpu,
}


def cuda(name: str) -> _Kernel:
    """The kernel of an operation for CUDA tensors."""

    def kernel(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
        from ...gpu import ops as gpu  # Triton is loaded when a CUDA tensor asks for it

        if len(dims) != 1 or where is not None:
            what = "where" if where is not None else f"dim={tuple(dims)}"
            raise NotImplementedError(f"{what} with CUDA tensors: one dimension and no where would do")
        x = x.detach()
        of = name.removesuffix("_any")
        order: dict[str, Any] = {"order": "any"} if name.endswith("_any") else {}
        if name == "logsumexp_weights":
            lse = gpu.logsumexp(x, dims[0])
            return gpu.logsumexp_backward(x, lse, torch.ones_like(lse), dims[0])
        function = {
            "softmax": gpu.softmax, "log_softmax": gpu.log_softmax, "logsumexp": gpu.logsumexp,
            "logsumexp_weights": gpu.softmax,
        }[of]  # fmt: skip
        made: torch.Tensor = function(x, dims[0], **order)
        if of != "logsumexp_weights":
            return made.to(x.dtype)
        # Rows of -inf alone have no distribution, and their log-sum-exp no gradient.
        return torch.where((x == -torch.inf).all(dims[0], keepdim=True), 0, made)

    return kernel
