"""The functions of the library on tensors of PyTorch."""

from .rows import log_softmax, logsumexp, softmax

__all__ = ["log_softmax", "logsumexp", "softmax"]
