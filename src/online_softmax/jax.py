"""The functions on JAX arrays, under `jit`, `vmap`, `grad`, `jvp` and sharding.

On CPUs the native core does the work, through XLA's FFI; on other devices, and in a build without jaxlib's
headers, JAX's own operations do, from the same law. `info()` says which it is. Needs the extra `jax`.
"""

from .frontends.jax.attention import attention
from .frontends.jax.losses import cross_entropy
from .frontends.jax.native import info
from .frontends.jax.rows import log_softmax, logsumexp, softmax

__all__ = ["attention", "cross_entropy", "info", "log_softmax", "logsumexp", "softmax"]
