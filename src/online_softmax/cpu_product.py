"""Face of the native core's matrix products, of any strides and with nothing copied."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from . import _core
from .cpu import CODES, address, plan_of

Array = NDArray[Any]
_DOUBLE: Final = np.dtype(np.float64)
#: Most bytes of scratch that a thread packs operands into.
SCRATCH: Final = 3 << 20


def product(
    a: Array,
    b: Array,
    out: Array,
    *,
    add: bool = False,
    bias: Array | None = None,
    fused: bool = False,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """out = a @ b + bias, or out += a @ b.

    The bits of an element depend on its row of a, its column of b, their dtypes and the instruction set:
    never on threads, on the other rows or columns, or on strides. A sum is cut into pieces of up to 384 terms
    (192 of float64), by its length alone; each is a chain of fused multiply-adds, and they are added from
    left to right.

    Args:
        a: (m, k), b: (k, n): all of float64, or each of float32, float16 or bfloat16, which are widened on
            the way and multiplied and summed in float32. Any strides; a transposed view costs nothing.
        out: (m, n), its columns or its rows adjacent, not overlapping the operands. Float64 where they are,
            else float32, or a 16-bit format that sums are rounded to once.
        add: add to what out holds, which must not be in 16 bits.
        fused: round each multiply-add once on the scalar instruction set too, as all others do: then the bits
            are the same on every one of them.
        bias: (n,) contiguous, of the format of sums; not beside `add`.

    Raises:
        ValueError: operands that are not as said, named.

    Cost: 2 m n k flops; up to SCRATCH bytes a thread beside the operands.
    """
    _check(a, b, out, add, bias)
    if out.strides[1] != out.itemsize and out.shape[1] > 1:
        if bias is not None or out.strides[0] != out.itemsize:
            raise ValueError(f"out has strides {out.strides}: adjacent columns would do")
        a, b, out = b.T, a.T, out.T
    _core.product_array(
        plan_of(isa, "auto", threads, "exact"),
        (out.shape[0], out.shape[1], a.shape[1]),
        address(a),
        CODES[a.dtype],
        a.strides,
        address(b),
        CODES[b.dtype],
        b.strides,
        address(out),
        CODES[out.dtype],
        (out.strides[0], out.itemsize),
        add,
        fused,
        0 if bias is None else address(bias),
    )


def _check(a: Array, b: Array, out: Array, add: bool, bias: Array | None) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a has shape {a.shape} and b {b.shape}: (m, k) and (k, n) would do")
    if out.shape != (a.shape[0], b.shape[1]):
        raise ValueError(f"out has shape {out.shape}: {(a.shape[0], b.shape[1])} would do")
    dtypes = (a.dtype, b.dtype, out.dtype)
    if any(dtype not in CODES for dtype in dtypes) or len({dtype == _DOUBLE for dtype in dtypes}) > 1:
        given = ", ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"a, b and out are {given}: all float64, or none of them, would do")
    if add and (out.itemsize == 2 or bias is not None):
        raise ValueError("add=True: an out of 32 or 64 bits, and no bias, would do")
    if bias is not None:
        sums = _DOUBLE if out.dtype == _DOUBLE else np.dtype(np.float32)
        if bias.shape != out.shape[1:] or bias.dtype != sums or not bias.flags.c_contiguous:
            raise ValueError(f"bias is {bias.dtype} of shape {bias.shape}: {sums} {out.shape[1:]} would do")
