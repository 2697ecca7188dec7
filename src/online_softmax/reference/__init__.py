"""The operations written to be read: slow, in the widest float there is, importing nothing else of ours.

Everything else is judged against this package, so it uses no shortcut: a row's maximum, the exponentials of
the distances to it, their sum. Arithmetic is in `numpy.longdouble` (64 bits of mantissa on x86: results are
then within 0.51 ulp of float64 but for a few where a tail's distance to the maximum itself had to be rounded)
and comes back as float64. Where longdouble is float64, results are good to a few ulp. Sums of products
(attention, linear_cross_entropy, gradients) are as good as that relative to the sizes of their terms.

Special values, by the maximum m of what takes part in a row:

    NaN                        softmax, log_softmax NaN       logsumexp NaN
    +inf                       softmax, log_softmax NaN       logsumexp +inf
    -inf (or nothing is left)  softmax, log_softmax NaN       logsumexp -inf
    masked elements            softmax 0, log_softmax -inf    left out

Attention differs in one: a row of scores with nothing left or all -inf gives 0, for nothing is added up.

Arguments common to all: `x` holds real numbers (bool, integers, floats up to float64, the ml_dtypes formats);
`axis` is an int, a tuple of ints, or None for all; an empty tuple makes each element a row. Bool `where`
broadcasts to x's shape, True takes part. Raises TypeError for x and where of a wrong dtype, ValueError for an
axis out of range or named twice, or a where or b that does not broadcast. Cost of the operations on rows:
about 50 bytes of memory and 0.2 microseconds an element.

rows.py: softmax, log_softmax, logsumexp, softmax_topk, state. scans.py: logaddexp, logcumsumexp.
segments.py: groups of neighbours and windows, with their gradients.
gradients.py: `_vjp` of these. losses.py: cross_entropy, linear_cross_entropy. attention.py, and packed.py for
sequences side by side or in a cache. merges.py: of partial results. wide.py: what they share.
"""

from __future__ import annotations

from .attention import AttentionGradients, attention, attention_vjp
from .gradients import (
    log_softmax_vjp,
    logaddexp_vjp,
    logcumsumexp_vjp,
    logsumexp_vjp,
    softmax_topk_vjp,
    softmax_vjp,
)
from .losses import (
    LinearGradients,
    cross_entropy,
    cross_entropy_vjp,
    linear_cross_entropy,
    linear_cross_entropy_vjp,
)
from .merges import merge_attention, merge_states
from .packed import decode_attention, varlen_attention, varlen_attention_vjp
from .rows import log_softmax, logsumexp, softmax, softmax_topk, state
from .scans import logaddexp, logcumsumexp
from .segments import (
    segment_logsumexp,
    segment_logsumexp_vjp,
    segment_softmax,
    segment_softmax_vjp,
    window_logsumexp,
    window_logsumexp_vjp,
)

__all__ = [
    "AttentionGradients",
    "LinearGradients",
    "attention",
    "attention_vjp",
    "cross_entropy",
    "cross_entropy_vjp",
    "decode_attention",
    "linear_cross_entropy",
    "linear_cross_entropy_vjp",
    "log_softmax",
    "log_softmax_vjp",
    "logaddexp",
    "logaddexp_vjp",
    "logcumsumexp",
    "logcumsumexp_vjp",
    "logsumexp",
    "logsumexp_vjp",
    "merge_attention",
    "merge_states",
    "segment_logsumexp",
    "segment_logsumexp_vjp",
    "segment_softmax",
    "segment_softmax_vjp",
    "softmax",
    "softmax_topk",
    "softmax_topk_vjp",
    "softmax_vjp",
    "state",
    "varlen_attention",
    "varlen_attention_vjp",
    "window_logsumexp",
    "window_logsumexp_vjp",
]
