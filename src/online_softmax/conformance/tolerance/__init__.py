"""How wrong a subject's output may be: the rounding bound of its format, for any sensible kernel.

A kernel may do what such kernels do and be within the bound; what is a fault must break it:

- operands of 32 and 64 bits: all arithmetic in the operands' format;
- operands of 16 and 8 bits: sums in float32; differences, exponentials, quotients and scores may be rounded
  to the operands' format. A sum carried in 16 bits stalls, and breaks the bound;
- sums: eight running sums, or blocks of 128 added one at a time, the blocks' sums likewise, each with a
  rescale;
- exponentials and logarithms: 4 units of roundoff, which is what vector libraries promise;
- subnormals: may be flushed to zero.

On top of the bound comes the rounding of the result to its format. Where a row's result is NaN or infinite by
the law, nothing is allowed and the comparison is exact. Bounds of a row: `online_softmax.numerics.bounds`; of
attention and of gradients: derived here from the exact probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from .arithmetic import Array, Inputs, Options, arithmetic, ulp
from .attention import attention, attention_grad, decode, varlen
from .gradients import (
    cross_entropy_grad,
    linear_cross_entropy_grad,
    log_softmax_grad,
    logsumexp_grad,
    softmax_grad,
)
from .losses import cross_entropy, linear_cross_entropy
from .rows import (
    log_softmax,
    logaddexp,
    logcumsumexp,
    logsumexp,
    merge_attention,
    merge_states,
    softmax,
    topk,
)

__all__ = ["tolerance", "ulp"]


def tolerance(
    op: str, dtype: str, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    """Largest absolute error allowed to each output: float64, broadcastable to the output.

    `right` are the oracle's outputs for the same operands. Cost: that of a few float64 evaluations of the
    operation."""
    a = arithmetic(dtype)
    wide = {
        name: np.asarray(array).astype(np.float64) if array.dtype.kind not in "biu" else array
        for name, array in inputs.items()
    }
    with np.errstate(all="ignore"):
        allowed = _TABLE[op](a, wide, options, right)
        return {
            name: np.where(np.isfinite(right[name]), value, 0.0) + ulp(right[name], a.dtype) / 2
            for name, value in allowed.items()
        }


_TABLE: Final[Mapping[str, Callable[[Any, Inputs, Options, Mapping[str, Array]], dict[str, Array]]]] = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "softmax_topk": topk,
    "logaddexp": logaddexp,
    "logcumsumexp": logcumsumexp,
    "cross_entropy": cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
    "attention": attention,
    "decode_attention": decode,
    "varlen_attention": varlen,
    "merge_attention": merge_attention,
    "merge_states": merge_states,
    "softmax_grad": softmax_grad,
    "log_softmax_grad": log_softmax_grad,
    "logsumexp_grad": logsumexp_grad,
    "cross_entropy_grad": cross_entropy_grad,
    "linear_cross_entropy_grad": linear_cross_entropy_grad,
    "attention_grad": attention_grad,
}
