"""Softmax, log-softmax, log-sum-exp, top-k and attention of NumPy arrays in the fewest passes, with the
mergeable states below them. Arrays of PyTorch, JAX and others are passed on to who serves them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention_state import AttentionState
    from .cpu import info
    from .exact_loss_state import ExactLossState
    from .exact_sample_state import ExactSampleState
    from .frontends.attention import (
        Attention,
        AttentionGradients,
        attention,
        attention_backward,
        dropout_mask,
        merge_attention_vjp,
    )
    from .frontends.attention_derivatives import (
        AttentionDoubleGradients,
        AttentionTangents,
        attention_double_backward,
        attention_jvp,
    )
    from .frontends.exact_attention import ExactAttentionState
    from .frontends.linear_losses import (
        LinearGradients,
        LinearLossAndGradients,
        linear_cross_entropy,
        linear_cross_entropy_backward,
        linear_cross_entropy_with_gradient,
    )
    from .frontends.losses import (
        Loss,
        LossAndGradient,
        LossReport,
        cross_entropy,
        cross_entropy_backward,
        cross_entropy_with_gradient,
    )
    from .frontends.numpy import ExactState, SoftmaxState, TopK, log_softmax, logsumexp, softmax, softmax_topk
    from .frontends.sampling import Sample, sample
    from .frontends.scans import (
        PairGradients,
        logaddexp,
        logaddexp_vjp,
        logcumsumexp,
        logcumsumexp_vjp,
    )
    from .frontends.segments import (
        segment_logsumexp,
        segment_logsumexp_vjp,
        segment_softmax,
        segment_softmax_vjp,
    )
    from .frontends.windows import SlidingLogSumExp, window_logsumexp, window_logsumexp_vjp
    from .loss_state import LossState
    from .sample_state import SampleState

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "AttentionDoubleGradients",
    "AttentionGradients",
    "AttentionState",
    "AttentionTangents",
    "ExactAttentionState",
    "ExactLossState",
    "ExactSampleState",
    "ExactState",
    "LinearGradients",
    "LinearLossAndGradients",
    "Loss",
    "LossAndGradient",
    "LossReport",
    "LossState",
    "PairGradients",
    "Sample",
    "SampleState",
    "SlidingLogSumExp",
    "SoftmaxState",
    "TopK",
    "__version__",
    "attention",
    "attention_backward",
    "attention_double_backward",
    "attention_jvp",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_with_gradient",
    "dropout_mask",
    "info",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_with_gradient",
    "log_softmax",
    "logaddexp",
    "logaddexp_vjp",
    "logcumsumexp",
    "logcumsumexp_vjp",
    "logsumexp",
    "merge_attention_vjp",
    "sample",
    "segment_logsumexp",
    "segment_logsumexp_vjp",
    "segment_softmax",
    "segment_softmax_vjp",
    "softmax",
    "softmax_topk",
    "window_logsumexp",
    "window_logsumexp_vjp",
]


#: Where names lie that are not in the NumPy front end.
_HOMES = {
    "info": ".cpu",
    **dict.fromkeys(
        ("AttentionDoubleGradients", "AttentionTangents", "attention_double_backward", "attention_jvp"),
        ".frontends.attention_derivatives",
    ),
    **dict.fromkeys(("Sample", "sample"), ".frontends.sampling"),
    "SampleState": ".sample_state",
    "AttentionState": ".attention_state",
    "ExactAttentionState": ".frontends.exact_attention",
    **dict.fromkeys(
        (
            "Attention",
            "AttentionGradients",
            "attention",
            "attention_backward",
            "dropout_mask",
            "merge_attention_vjp",
        ),
        ".frontends.attention",
    ),
    "ExactLossState": ".exact_loss_state",
    "ExactSampleState": ".exact_sample_state",
    "LossState": ".loss_state",
    **dict.fromkeys(
        (
            "LinearGradients",
            "LinearLossAndGradients",
            "linear_cross_entropy",
            "linear_cross_entropy_backward",
            "linear_cross_entropy_with_gradient",
        ),
        ".frontends.linear_losses",
    ),
    **dict.fromkeys(
        (
            "Loss",
            "LossAndGradient",
            "LossReport",
            "cross_entropy",
            "cross_entropy_backward",
            "cross_entropy_with_gradient",
        ),
        ".frontends.losses",
    ),
    **dict.fromkeys(
        ("PairGradients", "logaddexp", "logaddexp_vjp", "logcumsumexp", "logcumsumexp_vjp"),
        ".frontends.scans",
    ),
    **dict.fromkeys(
        ("segment_logsumexp", "segment_logsumexp_vjp", "segment_softmax", "segment_softmax_vjp"),
        ".frontends.segments",
    ),
    **dict.fromkeys(("SlidingLogSumExp", "window_logsumexp", "window_logsumexp_vjp"), ".frontends.windows"),
}

#: The faces for other libraries. In neither `__all__` nor `__dir__`: to ask for one is to load its library.
_FACES = ("jax", "scipy", "torch", "transformers")


def __getattr__(name: str) -> Any:
    """Public names, loaded when they are first asked for: pytest loads this package for its plugin in every
    run, which neither NumPy nor the native core should slow down."""
    if name in _FACES:
        return import_module(f".{name}", __name__)
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, ".frontends.numpy"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
