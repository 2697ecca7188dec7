"""The functions of the library on tensors of PyTorch."""

from .attention import AttentionOutput, attention
from .attention_module import Attention
from .linear import linear_cross_entropy
from .loss_modules import CrossEntropyLoss, LinearCrossEntropyLoss
from .losses import Loss, LossReport, cross_entropy
from .rows import log_softmax, logsumexp, softmax
from .sampling import Sample, sample
from .scans import logaddexp, logcumsumexp, window_logsumexp
from .sdpa import scaled_dot_product_attention
from .segments import segment_logsumexp, segment_softmax
from .swap import disable, enable, enabled
from .topk import TopK, softmax_topk

__all__ = [
    "Attention",
    "AttentionOutput",
    "CrossEntropyLoss",
    "LinearCrossEntropyLoss",
    "Loss",
    "LossReport",
    "Sample",
    "TopK",
    "attention",
    "cross_entropy",
    "disable",
    "enable",
    "enabled",
    "linear_cross_entropy",
    "log_softmax",
    "logaddexp",
    "logcumsumexp",
    "logsumexp",
    "sample",
    "scaled_dot_product_attention",
    "segment_logsumexp",
    "segment_softmax",
    "softmax",
    "softmax_topk",
    "window_logsumexp",
]
