"""The functions on JAX arrays, under `jit`, `vmap`, `grad`, `jvp` and sharding.

On CPUs the native core does the work, through XLA's FFI; on other devices, and in a build without jaxlib's
headers, JAX's own operations do, from the same law. `info()` says which it is. Needs the extra `jax`.
"""

from .frontends.jax.attention import attention
from .frontends.jax.linear import linear_cross_entropy
from .frontends.jax.losses import cross_entropy
from .frontends.jax.native import info
from .frontends.jax.rows import log_softmax, logsumexp, softmax
from .frontends.jax.sampling import sample
from .frontends.jax.scans import logaddexp, logcumsumexp, window_logsumexp
from .frontends.jax.segments import segment_logsumexp, segment_softmax
from .frontends.jax.topk import softmax_topk

__all__ = [
    "attention",
    "cross_entropy",
    "info",
    "linear_cross_entropy",
    "log_softmax",
    "logaddexp",
    "logcumsumexp",
    "logsumexp",
    "sample",
    "segment_logsumexp",
    "segment_softmax",
    "softmax",
    "softmax_topk",
    "window_logsumexp",
]
