"""The face of the GPU kernels: torch tensors in, torch tensors out, on the same device and stream.

Common to all: tensors hold float32, float16 or bfloat16 in any strides (no copy is made); statistics are
float32; results have the format of x, log-sum-exps are float32. `dim` is one axis. `algorithm` is a name in
`launch.ALGORITHMS`, or "auto" for the one that moves fewest bytes; `block` forces the size of a block or
chunk, a power of two (`launch.MIN_BLOCK` to `launch.MAX_BLOCK`). With order="row" the bits of a result depend
on the row, its format, `algorithm`, `block` and the device; with "any" on the elements of the row alone (see
`any_order`). Nothing is recorded for autograd: the
gradients are functions of their own. Bytes moved: see `launch`.

Special values, by the maximum m of a row: NaN, +inf and -inf give NaN (log-)softmax; the log-sum-exp is m. An
empty row has log-sum-exp -inf. "naive" does not shift and overflows where exp(x) does, for comparison.

Accuracy: 16-bit softmax is rounded once; float32 errs by the rounding of x - m, up to 2^-24 * |x - m|
relatively, as
PyTorch's. log_softmax is (x - m) - log(s) of float32 statistics: near 0, where one term dominates, it keeps
the absolute
accuracy of s (2^-24) and not the relative one that the NumPy functions keep.

Raises TypeError and ValueError before any work, with the argument's name, what was given and what would do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch

from . import any_order, backward, checks, device, launch, layout, rows, topk

INTERPRETED: Final = device.INTERPRETED
#: Kernels by the name a Launch gives.
KERNELS: Final = MappingProxyType(
    {
        "looped": rows.looped,
        "cached": rows.cached,
        "chunk_states": rows.chunk_states,
        "chunk_results": rows.chunk_results,
        "row_lse": rows.row_lse,
        "topk": topk.topk,
        "backward_cached": backward.backward_cached,
        "backward_online": backward.backward_online,
        "lse_backward": backward.lse_backward,
    }
)


class TopK(NamedTuple):
    """Result of `softmax_topk`: values and indices with k in place of the axis, lse without it."""

    values: torch.Tensor
    indices: torch.Tensor
    lse: torch.Tensor


class Launched(NamedTuple):
    """A launch with its kernel: what `kernel[grid](..., **constants, **options)` is called with."""

    kernel: Any
    grid: tuple[int]
    constants: dict[str, Any]
    options: dict[str, Any]


def launches(
    op: str,
    algorithm: str,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    block: int | None = None,
    *,
    align: int | None = None,
    k: int = 1,
    warp_size: int = 32,
) -> tuple[Launched, ...]:
    """The kernels `op` runs over `rows` adjacent rows of `columns` elements, in order; empty for no elements.

    Args:
        op: a name in `launch.ALGORITHMS`.
        align: power of two up to 16 that divides columns and all row strides; None for adjacent rows.
        k: entries a row of softmax_topk.
        warp_size: threads of a warp, 64 on CDNA.

    Raises as `launch.plan` does.
    """
    if dtype not in checks.SERVED:
        raise TypeError(f"dtype={dtype}: {', '.join(map(str, checks.SERVED))} would do")
    planned = launch.plan(op, algorithm, rows, columns, dtype.itemsize, block=block, align=align, k=k)
    return tuple(Launched(KERNELS[p.kernel], p.grid, p.constants, p.options(warp_size)) for p in planned)


def softmax(
    x: torch.Tensor,
    dim: int = -1,
    *,
    algorithm: str = "auto",
    block: int | None = None,
    out: torch.Tensor | None = None,
    order: str = "row",
) -> torch.Tensor:
    """exp(x) / sum(exp(x)) over `dim`, in x's shape and format.

    out: a tensor of x's shape, format and device to write to and return: x itself, or memory apart from x.
    """
    return _normalised("softmax", x, dim, algorithm, block, out, order)


def log_softmax(
    x: torch.Tensor,
    dim: int = -1,
    *,
    algorithm: str = "auto",
    block: int | None = None,
    out: torch.Tensor | None = None,
    order: str = "row",
) -> torch.Tensor:
    """x - logsumexp(x) over `dim`, in x's shape and format. `out` as for `softmax`."""
    return _normalised("log_softmax", x, dim, algorithm, block, out, order)


def logsumexp(
    x: torch.Tensor, dim: int = -1, *, algorithm: str = "auto", block: int | None = None, order: str = "row"
) -> torch.Tensor:
    """log(sum(exp(x))) over `dim`: float32, x's shape without it."""
    x, dim = _operand(x, dim, "logsumexp", algorithm, block)
    if checks.any_order(order, algorithm):
        return any_order.logsumexp(x, dim, block)
    lse = _statistic(x, dim)
    if not x.numel():
        return lse.fill_(-math.inf)
    _run("logsumexp", algorithm, block, {"x": x, "y": layout.like_rows(lse, dim, x.shape[dim])}, dim)
    return lse


def softmax_topk(x: torch.Tensor, k: int, dim: int = -1, *, block: int | None = None) -> TopK:
    """The k largest probabilities over `dim`, in x's format, their int64 indices, and the float32 lse.

    Descending by logit, NaN first of all, equal logits by the lower index. k: 0 to the axis' length, at most
    `launch.MAX_K`. One pass; besides, k * (1 + ln(length / k)) replacements a row on average.
    """
    x, dim = _operand(x, dim, "softmax_topk", "auto", block)
    columns, k = x.shape[dim], checks.count(k)
    launch.check_k(k, columns)
    if not k or not x.numel():
        values, indices = (_topk_empty(x, dim, k, dtype) for dtype in (x.dtype, torch.int64))
        return TopK(values, indices, logsumexp(x, dim))
    lse = _statistic(x, dim)
    values, indices = (lse.new_empty((*lse.shape, k), dtype=dtype) for dtype in (x.dtype, torch.int64))
    first = {"value": values[..., 0], "index": indices[..., 0], "lse": lse}
    tensors = {"x": x, **{name: layout.like_rows(t, dim, columns) for name, t in first.items()}}
    _run("softmax_topk", "auto", block, tensors, dim, k=k)
    return TopK(values.movedim(-1, dim), indices.movedim(-1, dim), lse)


def softmax_backward(
    y: torch.Tensor, dy: torch.Tensor, dim: int = -1, *, algorithm: str = "auto", block: int | None = None
) -> torch.Tensor:
    """y * (dy - sum(y * dy)): the gradient with respect to x, from y = softmax(x) and that to y."""
    return _backward("softmax_backward", y, dy, dim, algorithm, block)


def log_softmax_backward(
    y: torch.Tensor, dy: torch.Tensor, dim: int = -1, *, algorithm: str = "auto", block: int | None = None
) -> torch.Tensor:
    """dy - exp(y) * sum(dy): the gradient with respect to x, from y = log_softmax(x) and that to y."""
    return _backward("log_softmax_backward", y, dy, dim, algorithm, block)


def logsumexp_backward(
    x: torch.Tensor, lse: torch.Tensor, dlse: torch.Tensor, dim: int = -1, *, block: int | None = None
) -> torch.Tensor:
    """exp(x - lse) * dlse: the gradient with respect to x, from lse = logsumexp(x) and that to lse.

    lse and dlse are float32, of x's shape without `dim` (copied where not contiguous). 0 in rows of -inf, NaN
    in rows whose lse is +inf. The rounding of lse, up to 2^-24 * |lse|, is a relative error of the result.
    """
    x, dim = _operand(x, dim, "logsumexp_backward", "auto", block)
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    for value, name in ((lse, "lse"), (dlse, "dlse")):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}: a torch.Tensor would do")
        checks.no_gradient(value, name)
        checks.same(value, name, shape, torch.float32, x.device, "a float32 value for each row of x")
    dx = torch.empty_like(x)
    if x.numel():
        made = {"x": x, "dx": dx}
        of_rows = {
            name: value.detach().resolve_neg().contiguous() for name, value in (("lse", lse), ("dlse", dlse))
        }
        made |= {name: layout.like_rows(t, dim, x.shape[dim]) for name, t in of_rows.items()}
        _run("logsumexp_backward", "auto", block, made, dim)
    return dx


def _operand(x: Any, dim: Any, op: str, algorithm: str, block: int | None) -> tuple[torch.Tensor, int]:
    x = checks.tensor(x, "x" if not op.endswith("softmax_backward") else "y", interpreted=INTERPRETED)
    dim = checks.axis(dim, x.ndim)
    launch.check_block(block)
    launch.resolve(op, algorithm, x.shape[dim], block)
    return x, dim


def _normalised(
    op: str, x: Any, dim: Any, algorithm: str, block: int | None, out: torch.Tensor | None, order: str
) -> torch.Tensor:
    x, dim = _operand(x, dim, op, algorithm, block)
    free = checks.any_order(order, algorithm)
    y = torch.empty_like(x) if out is None else checks.output(out, x)
    if free:
        any_order.normalised(op, x, dim, block, y)
    elif x.numel():
        _run(op, algorithm, block, {"x": x, "y": y}, dim)
    if out is None:
        return y
    torch.autograd.graph.increment_version(out)  # so that autograd knows of what was overwritten
    return out


def _backward(op: str, y: Any, dy: Any, dim: Any, algorithm: str, block: int | None) -> torch.Tensor:
    y, dim = _operand(y, dim, op, algorithm, block)
    dy = checks.tensor(dy, "dy", interpreted=INTERPRETED)
    checks.same(dy, "dy", tuple(y.shape), y.dtype, y.device, "y")
    dx = torch.empty_like(y)
    if y.numel():
        _run(op, algorithm, block, {"y": y, "dy": dy, "dx": dx}, dim)
    return dx


def _statistic(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:dim], *x.shape[dim + 1 :]), dtype=torch.float32)


def _topk_empty(x: torch.Tensor, dim: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    return x.new_empty((*x.shape[:dim], k, *x.shape[dim + 1 :]), dtype=dtype)


def _run(
    op: str,
    algorithm: str,
    block: int | None,
    tensors: Mapping[str, torch.Tensor],
    dim: int,
    k: int = 1,
) -> None:
    """Launches `op` over the rows of `tensors`, which have one shape and are not empty."""
    x = next(iter(tensors.values()))
    columns = x.shape[dim]
    for slab in layout.slabs(tensors, dim):
        arguments = {**slab.arguments(), "columns": columns, "k": k}
        if op == "softmax_topk":
            arguments |= {name: _with_entries(arguments[name], k) for name in ("value_ptr", "index_ptr")}
        sizes = (slab.rows, columns, x.dtype, block)
        align = _alignment(op, slab, columns)
        made = launches(op, algorithm, *sizes, align=align, k=k, warp_size=device.warp_size())
        chunks = launch.chunks_of(columns, made[0].constants["BLOCK"])
        arguments["chunks"] = chunks
        if len(made) > 1:
            states = x.new_empty((2, slab.rows, chunks), dtype=torch.float32)
            arguments |= {"m_ptr": states[0], "s_ptr": states[1]}
        with device.of(x):
            for kernel, grid, constants, options in made:
                named = {name: arguments[name] for name in kernel.arg_names if name not in constants}
                kernel[grid](**named, **constants, **options)


def _alignment(op: str, slab: layout.Slab, columns: int) -> int:
    """What divides the starts of all rows of data; tensors of a value or k a row are accessed otherwise."""
    data = {"x", "dx", "y", "dy"} if op != "logsumexp" else {"x"}
    starts = [strides[:2] for name, strides in slab.strides.items() if name in data]
    return launch.alignment(columns, *(stride for levels in starts for stride in levels))


def _with_entries(first: torch.Tensor, k: int) -> torch.Tensor:
    """The view of each row's first entry, seen with all k, which are adjacent."""
    return first.as_strided((*first.shape[:2], k), (*first.stride()[:2], 1), first.storage_offset())
