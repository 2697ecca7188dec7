"""Softmax, log-softmax, log-sum-exp and top-k of NumPy arrays in the fewest passes, and the mergeable state
below them."""

from .cpu import info
from .frontends.numpy import SoftmaxState, TopK, log_softmax, logsumexp, softmax, softmax_topk

__version__ = "0.1.0"

__all__ = [
    "SoftmaxState",
    "TopK",
    "__version__",
    "info",
    "log_softmax",
    "logsumexp",
    "softmax",
    "softmax_topk",
]
