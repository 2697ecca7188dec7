"""The functions of the library on tensors of PyTorch."""

from .attention import AttentionOutput, attention
from .attention_module import Attention
from .linear import linear_cross_entropy
from .losses import Loss, LossReport, cross_entropy
from .rows import log_softmax, logsumexp, softmax
from .sdpa import scaled_dot_product_attention
from .swap import disable, enable, enabled

__all__ = [
    "Attention",
    "AttentionOutput",
    "Loss",
    "LossReport",
    "attention",
    "cross_entropy",
    "disable",
    "enable",
    "enabled",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "scaled_dot_product_attention",
    "softmax",
]
