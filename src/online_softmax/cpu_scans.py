"""Face of the native scans: arrays checked by a front end, handed over as addresses, shapes and strides."""

from __future__ import annotations

import numpy as np

from . import _core, cpu
from .cpu import Array

#: Codes of native/table.h.
_CODE = {name: code for code, name in enumerate(("float32", "float64", "float16", "bfloat16"))}
_SOFTMAX, _LSE = 0, 2


def _dtype(x: Array) -> int:
    return _CODE[x.dtype.name]


def add(a: Array, b: Array, out: Array, *, isa: str | None = None, threads: int | None = None) -> None:
    """log(exp(a) + exp(b)) into `out`: one shape, one served format, any strides (0 too, of a and b); out is
    the memory of a or b with the same strides, or apart from it. Two reads and one write."""
    plan = cpu.plan_of(isa, "auto", threads, "exact")
    _core.add_array(
        plan, _dtype(a), a.shape, cpu.address(a), a.strides, cpu.address(b), b.strides, cpu.address(out),
        out.strides,
    )  # fmt: skip


def prefixes(
    x: Array, out: Array, axis: int, exclusive: bool, *, isa: str | None = None, threads: int | None = None
) -> None:
    """Log-sum-exps of the prefixes of x along `axis` into `out`, in x's format: any strides, out is x or
    apart from it. One read and one write, and one more read of rows longer than 32768."""
    plan = cpu.plan_of(isa, "auto", threads, "exact")
    _core.scan_array(
        plan, _dtype(x), x.shape, axis, exclusive, cpu.address(x), x.strides, cpu.address(out), out.strides
    )


def windows(x: Array, out: Array, window: int, *, isa: str | None = None, threads: int | None = None) -> None:
    """Log-sum-exps of the windows of the rows of x, (rows, n) and contiguous, into `out` alike and apart.

    Two reads and one write; scratch of 16 * (window + the greater of window and 1024) bytes a thread."""
    plan = cpu.plan_of(isa, "auto", threads, "exact")
    rows, n = x.shape
    _core.window_array(plan, _dtype(x), rows, n, window, cpu.address(x), cpu.address(out))


def prefixes_gradient(x: Array, dy: Array, *, isa: str | None = None, threads: int | None = None) -> Array:
    """The gradient of x, (rows, n) and contiguous, of its prefixes' log-sum-exps, whose gradient is dy.

    Scratch of 8 * n bytes a thread."""
    plan = cpu.plan_of(isa, "auto", threads, "exact")
    dx = cpu.empty(x.shape, x.dtype)
    rows, n = x.shape
    _core.scan_gradient_array(plan, _dtype(x), rows, n, cpu.address(x), cpu.address(dy), cpu.address(dx))
    return dx


def groups_lse(
    x: Array, axis: int, offsets: Array, *, isa: str | None = None, threads: int | None = None
) -> Array:
    """Log-sum-exp of each group [offsets[g], offsets[g + 1]) along `axis`: (groups, other axes of x), float64
    where x is, else float32. offsets: int64, contiguous, one more than there are groups. One read of x."""
    plan = cpu.plan_of(isa, "auto", threads, "exact")
    others = tuple(n for d, n in enumerate(x.shape) if d != axis)
    lse = np.empty((len(offsets) - 1, *others), cpu.state_dtype(x.dtype))
    _core.groups_array(
        plan, _LSE, _dtype(x), x.shape, axis, cpu.address(offsets), len(offsets) - 1, cpu.address(x),
        x.strides, 0, [], cpu.address(lse), lse.dtype != np.float64,
    )  # fmt: skip
    return lse


def groups_softmax(
    x: Array,
    out: Array,
    axis: int,
    offsets: Array,
    *,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Softmax of each group into `out`, of x's shape and format: x itself, or apart from it."""
    plan = cpu.plan_of(isa, "auto", threads, "exact")
    _core.groups_array(
        plan, _SOFTMAX, _dtype(x), x.shape, axis, cpu.address(offsets), len(offsets) - 1, cpu.address(x),
        x.strides, cpu.address(out), out.strides, 0, False,
    )  # fmt: skip
