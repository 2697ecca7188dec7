"""The functions of the library on tensors of PyTorch."""

from .attention import Attention, attention
from .linear import linear_cross_entropy
from .losses import Loss, LossReport, cross_entropy
from .rows import log_softmax, logsumexp, softmax

__all__ = [
    "Attention",
    "Loss",
    "LossReport",
    "attention",
    "cross_entropy",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "softmax",
]
