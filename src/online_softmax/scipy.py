"""SciPy's names with SciPy's signatures: `from online_softmax.scipy import logsumexp` in place of
`from scipy.special import logsumexp`, likewise softmax and log_softmax. SciPy itself is not needed."""

from .frontends.scipy import log_softmax, logsumexp, softmax

__all__ = ["log_softmax", "logsumexp", "softmax"]
