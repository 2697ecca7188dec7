"""SciPy's special functions and NumPy's logaddexp, what there is without a framework."""

from __future__ import annotations

from typing import Any

from ...extras import require
from . import Adapter, Library, versions_of


def load(variant: str) -> Adapter:
    """The adapter; there are no variants. MissingExtra where SciPy is not installed."""
    if variant:
        raise ValueError(f"variant {variant!r} of numpy: it has none")
    require("scipy.special", "test", "the subject numpy")
    functions = (softmax, log_softmax, logsumexp, logaddexp, logcumsumexp)
    return Library(
        name="numpy",
        framework="numpy",
        versions=versions_of("scipy", "numpy"),
        functions={f.__name__: f for f in functions},
        lacks="neither SciPy nor NumPy has one",
    )


def softmax(x: Any, axis: Any) -> Any:
    """scipy.special.softmax."""
    from scipy import special

    return special.softmax(x, axis=axis)


def log_softmax(x: Any, axis: Any) -> Any:
    """scipy.special.log_softmax."""
    from scipy import special

    return special.log_softmax(x, axis=axis)


def logsumexp(x: Any, axis: Any, keepdims: Any, b: Any = None) -> Any:
    """scipy.special.logsumexp."""
    from scipy import special

    return special.logsumexp(x, axis=axis, b=b, keepdims=keepdims)


def logaddexp(a: Any, b: Any) -> Any:
    """numpy.logaddexp."""
    import numpy as np

    return np.logaddexp(a, b)


def logcumsumexp(x: Any, axis: Any) -> Any:
    """numpy.logaddexp.accumulate: a running logaddexp."""
    import numpy as np

    return np.logaddexp.accumulate(x, axis=axis)
