"""The functions of the library on tensors of PyTorch."""

from .linear import linear_cross_entropy
from .losses import Loss, LossReport, cross_entropy
from .rows import log_softmax, logsumexp, softmax

__all__ = ["Loss", "LossReport", "cross_entropy", "linear_cross_entropy", "log_softmax", "logsumexp", "softmax"]
