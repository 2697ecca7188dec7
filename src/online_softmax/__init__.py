"""Softmax, log-softmax, log-sum-exp, top-k and attention of NumPy arrays in the fewest passes, with the
mergeable states below them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention_state import AttentionState, merge_attention_vjp
    from .cpu import info
    from .frontends.attention import (
        Attention,
        AttentionGradients,
        attention,
        attention_backward,
        dropout_mask,
    )
    from .frontends.attention_derivatives import (
        AttentionDoubleGradients,
        AttentionTangents,
        attention_double_backward,
        attention_jvp,
    )
    from .frontends.numpy import SoftmaxState, TopK, log_softmax, logsumexp, softmax, softmax_topk
    from .frontends.sampling import Sample, sample
    from .sample_state import SampleState

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "AttentionDoubleGradients",
    "AttentionGradients",
    "AttentionState",
    "AttentionTangents",
    "Sample",
    "SampleState",
    "SoftmaxState",
    "TopK",
    "__version__",
    "attention",
    "attention_backward",
    "attention_double_backward",
    "attention_jvp",
    "dropout_mask",
    "info",
    "log_softmax",
    "logsumexp",
    "merge_attention_vjp",
    "sample",
    "softmax",
    "softmax_topk",
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
    **dict.fromkeys(("AttentionState", "merge_attention_vjp"), ".attention_state"),
    **dict.fromkeys(
        ("Attention", "AttentionGradients", "attention", "attention_backward", "dropout_mask"),
        ".frontends.attention",
    ),
}


def __getattr__(name: str) -> Any:
    """Public names, loaded when they are first asked for: pytest loads this package for its plugin in every
    run, which neither NumPy nor the native core should slow down."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, ".frontends.numpy"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
