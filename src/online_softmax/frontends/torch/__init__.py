"""The functions of the library on tensors of PyTorch."""

from .attention import Attention, attention
from .rows import log_softmax, logsumexp, softmax

__all__ = ["Attention", "attention", "log_softmax", "logsumexp", "softmax"]
