"""softmax_topk of tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from .. import checks as arguments
from .. import numpy as arrays
from . import checks, memory, mode, row_ops
from .checks import LAST_AXIS
from .registry import Op, Rule, front


class TopK(NamedTuple):
    """Result of `softmax_topk`."""

    values: torch.Tensor
    indices: torch.Tensor
    lse: torch.Tensor


def softmax_topk(x: torch.Tensor, k: int, axis: Any = LAST_AXIS, *, dim: Any = None) -> TopK:
    """The k largest softmax values over one dimension, their indices, and the lse of the whole row, in one
    read of x.

    Args:
        x: float64, float32, float16, bfloat16 (float8: computed in float32), at least one dimension, any
            strides.
        k: 0 to the dimension's length.
        axis, dim: one argument under two names, an int. Default: the last.

    Returns: `TopK(values, indices, lse)`. values: x's format and shape with k in place of the dimension,
    descending by logit, ties by the lower index. indices: int64. lse: x's shape without the dimension,
    float64 for float64, else float32. values and lse are differentiable, to any order.

    Raises: TypeError, ValueError and IndexError naming the argument.

    Cost: one read of x; the gradient takes a softmax of x and two more passes.
    """
    x = checks.tensor(x, "x", converted=True)
    over = arguments.single_axis(axis, dim, x.ndim)
    return TopK(*_TOPK(x, arguments.count(k, x.shape[over]), over))


def _cpu(x: torch.Tensor, k: int, dim: int) -> tuple[torch.Tensor, ...]:
    found = arrays.softmax_topk(memory.array(x), k, dim, threads=mode.threads())
    values, indices, lse = (memory.tensor(np.ascontiguousarray(part)) for part in found)
    # NumPy's ascontiguousarray makes a dimension of none.
    return values, indices, lse.reshape([n for d, n in enumerate(x.shape) if d != dim])


def _cuda(x: torch.Tensor, k: int, dim: int) -> tuple[torch.Tensor, ...]:
    from ...gpu import ops as gpu  # Triton is loaded when a CUDA tensor asks for it

    values, indices, lse = gpu.softmax_topk(x.detach(), k, dim)
    return values.contiguous().to(x.dtype), indices.contiguous(), lse.contiguous()


def _fake(x: torch.Tensor, k: int, dim: int) -> tuple[torch.Tensor, ...]:
    shape = [k if d == dim else n for d, n in enumerate(x.shape)]
    lse = torch.float64 if x.dtype == torch.float64 else torch.float32
    left = [n for d, n in enumerate(x.shape) if d != dim]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64), x.new_empty(left, dtype=lse)


class _TopK(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        x, _, ctx.dim = inputs
        values, indices, _ = output
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(x, values, indices)
        ctx.save_for_forward(x, values, indices)

    @staticmethod
    def backward(ctx: Any, dv: torch.Tensor, _: Any, dlse: torch.Tensor) -> Any:
        x, values, indices = ctx.saved_tensors
        p = row_ops.WEIGHTS(x, [ctx.dim], None)
        given = values * dv.to(values.dtype)
        lse = dlse.unsqueeze(ctx.dim).to(x.dtype)
        dx = p * (lse - given.sum(ctx.dim, keepdim=True))
        return dx.scatter_add(ctx.dim, indices, given), None, None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> Any:
        x, values, indices = ctx.saved_tensors
        mean = (row_ops.WEIGHTS(x, [ctx.dim], None) * t).sum(ctx.dim)
        moved = values * (t.gather(ctx.dim, indices) - mean.unsqueeze(ctx.dim))
        return moved, None, mean if x.dtype == torch.float64 else mean.float()


def _vmap(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, k: int, dim: int) -> Any:
    return torch.ops.online_softmax.softmax_topk(front(x, in_dims[0]), k, dim + 1), (0, 0, 0)


_TOPK = Op(
    "softmax_topk(Tensor x, int k, int dim) -> (Tensor, Tensor, Tensor)", cpu=_cpu, cuda=_cuda, fake=_fake,
    rule=_TopK, vmap=_vmap,
)  # fmt: skip
