"""The functions of the library on tensors of PyTorch."""

from .attention import AttentionOutput, attention
from .attention_module import Attention
from .rows import log_softmax, logsumexp, softmax
from .sdpa import scaled_dot_product_attention

__all__ = [
    "Attention",
    "AttentionOutput",
    "attention",
    "log_softmax",
    "logsumexp",
    "scaled_dot_product_attention",
    "softmax",
]
